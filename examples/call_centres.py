# %% [markdown]
# # A black box: staffing call centres with a queue simulator
#
# Four call centres share one staffing plan: how many calls a minute can be served in each of six one-hour blocks,
# with a fixed total for the day. Callers who wait too long give up; the plan should lose as few of them as possible.
# Each centre has its own pattern of calls and keeps it to itself.
#
# The loss is a **simulator**, plain Python and NumPy. FedAvg cannot use it: there is no gradient, and there would be
# none if it were rewritten for autodiff, since the number of callers who give up is a step function of the plan.
# FedRZO asks for values only, and `fz.blackbox` brings them into its compiled loop.

# %%
import os
import time

import numpy as np
from common import BLUE, GREEN, GREY, ORANGE, QUICK, finish, panels
from joblib import Parallel, delayed
from scipy.special import softmax

import fedrzo as fz

BLOCK, TOTAL = 60.0, 16.0  # minutes; calls a minute, summed over the blocks


def lost_share(plan, seeds, rates):
    """Simulate days and return the share of callers who give up; `rates` are the calls a minute of each block."""
    lost = calls = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)  # the same day for x + v and x - v
        counts = rng.poisson(rates * BLOCK)
        arrivals = np.sort(np.repeat(np.arange(len(rates)), counts) + rng.random(counts.sum())) * BLOCK
        work, patience = rng.exponential(size=(2, len(arrivals)))
        free = 0.0  # when the line is next free
        for arrival, needed, patient in zip(arrivals, work, 3.0 * patience, strict=True):
            begin = max(free, arrival)
            if begin - arrival > patient:
                lost += 1
            else:
                free = begin + needed / plan[min(int(begin // BLOCK), len(plan) - 1)]
        calls += len(arrivals)
    return lost / max(calls, 1)


# %% [markdown]
# With `vectorized=True` the function gets all points of all clients at once, and may spread them over processes: this
# loop is plain Python, so threads would not help. joblib's workers get the function itself and do not import this
# file, so that the same cells work in a notebook and as a script, on every platform. The unknown is six numbers;
# `softmax` turns them into shares of the total.

# %%
PROCESSES = min(4, os.cpu_count() or 1)
pool = Parallel(n_jobs=PROCESSES, batch_size=1)


def simulate(x, batch):
    """Return the loss of each point in percent, computed side by side."""
    plans, (seeds, rates) = TOTAL * softmax(x, axis=1), batch
    return 100 * np.array(pool(delayed(lost_share)(*point) for point in zip(plans, seeds, rates, strict=True)))


hours = np.arange(6)
patterns = [0.6 + 4 * np.exp(-((hours - peak) ** 2) / 1.5) for peak in (1.0, 1.4, 1.8, 3.0)]  # one centre is late
days = [np.arange(100 * i, 100 * i + 25) for i in range(4)]
problem = fz.Nonsmooth(fz.blackbox(simulate, vectorized=True), fz.ClientData(days, fixed=patterns), x0=np.zeros(6))

# %% [markdown]
# How much do the processes help? Eight points, one after the other and side by side. They cannot help on one
# processor, nor while other programs keep all of them busy.

# %%
points = [(np.full(6, TOTAL / 6), days[i % 4], patterns[i % 4]) for i in range(8)]


def located(*point):
    """Return a loss and the process that it was computed in."""
    return lost_share(*point), os.getpid()


def timed(work):
    """Return what some work gives and the least time that it took in five trials."""
    trials = []
    for _ in range(5):
        began = time.perf_counter()
        found = work()
        trials.append(time.perf_counter() - began)
    return found, min(trials)


together, beside = timed(lambda: pool(delayed(located)(*point) for point in points))
alone, one_by_one = timed(lambda: [located(*point) for point in points])

# %%
method = fz.FedRZOnn(stepsize=lambda r: 0.005 / (1 + r / 30), smoothing=0.1, local_steps=2, batch_size=5)
result = fz.run(method, problem, rounds=40 if QUICK else 60, eval_every=10, progress=False)

# %% [markdown]
# A check: if all centres showed their calls, one would staff in proportion to their mean. The plan that was found
# without showing them should lose no more callers, up to noise.

# %%
calls = np.mean(patterns, axis=0)
rule = TOTAL * calls / calls.sum()
lost_by_rule = 100 * np.mean([lost_share(rule, *own) for own in zip(days, patterns, strict=True)])

figure, (left, right) = panels(2)
left.plot(result.history["round"], result.history["loss"], "o-", color=BLUE, markersize=3, label="FedRZO")
left.axhline(result.history["loss"][0], color=GREY, linestyle=":", label="the same all day")
left.axhline(lost_by_rule, color=ORANGE, linestyle="--", label="in proportion to all calls")
left.set(xlabel="communication rounds", ylabel="callers who give up [%]", ylim=(15, 28))
left.legend(frameon=False, loc="center right")
right.stairs(TOTAL * softmax(result.x), np.arange(7), color=BLUE, linewidth=2, label="FedRZO")
right.stairs(rule, np.arange(7), color=ORANGE, linestyle="--", linewidth=1.5, label="in proportion to all calls")
for i, pattern in enumerate(patterns):
    right.stairs(pattern, np.arange(7), color=GREEN, alpha=0.6, label=None if i else "calls of each centre")
right.set(xlabel="hour of the day", ylabel="calls a minute", ylim=(0, 6.6))
right.legend(frameon=False, fontsize="small")
finish(figure, "call_centres", {
    "callers lost, the same all day [%]": result.history["loss"][0], "callers lost, FedRZO [%]": result.history["loss"][-1],
    "callers lost, in proportion to all calls [%]": lost_by_rule,
    "processes": len({process for _, process in together}),
    "same numbers": [loss for loss, _ in together] == [loss for loss, _ in alone],
    "seconds one by one": one_by_one, "seconds side by side": beside, "speed-up": one_by_one / beside,
})  # fmt: skip
