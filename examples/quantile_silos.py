# %% [markdown]
# # Quantile regression over silos with private boxes
#
# Five silos want one linear model of the 70 % quantile of a target. You know how FedAvg would go about it: local
# gradient steps, then an average. Two things are different here.
#
# - The quantile loss has **kinks**. FedRZO does not differentiate it: it smooths it at random. A client draws a
#   direction `v` of length `smoothing` and steps along it by the slope `(loss(x + v) - loss(x - v)) / (2 smoothing)`,
#   times `n`.
# - Each silo has a **private box** for the coefficients (a regulator's limits, say). Neither the server nor the other
#   silos see it: a local step is pulled towards the silo's own box, and averaging does the rest.
#
# Quantile regression is a linear program, so the exact answer can be computed by bringing all data and boxes to one
# place. That is what the figure compares with.

# %%
import jax.numpy as jnp
import numpy as np
from common import BLUE, GREEN, GREY, ORANGE, QUICK, band, finish, panels
from scipy.optimize import linprog

import fedrzo as fz

TRUTH = np.array([1.0, -2.0, 0.5, 0.0, 1.0])
MIX = np.eye(5) + 0.7 * np.eye(5, k=1)  # neighbouring features are correlated
rng = np.random.default_rng(0)
features = [rng.normal(size=(100 + 40 * i, 5)) @ MIX for i in range(5)]  # silos differ in size ...
silos = [(u, u @ TRUTH + (0.3 + 0.3 * i) * rng.standard_t(3, size=len(u))) for i, u in enumerate(features)]  # ... and noise


def loss(x, batch):
    """The mean quantile loss of a batch: an error above costs 0.7, one below 0.3."""
    u, target = batch
    error = target - u @ x
    return jnp.mean(jnp.maximum(0.7 * error, -0.3 * error))


boxes = [fz.sets.Box(-1.2 - 0.1 * i, 0.8 + 0.1 * i) for i in range(5)]  # stay with the silos
problem = fz.Nonsmooth(loss, fz.ClientData(silos), x0=np.zeros(5), constraint=boxes)
method = fz.FedRZOnn(stepsize=lambda r: 0.02 / (1 + r / 30), smoothing=0.02, local_steps=10, batch_size=8)


# %% [markdown]
# The exact answer: minimise the mean over silos of each silo's mean quantile loss. With `error = above - below` it is
# linear.


# %%
def exact(bounds):
    """Return the best coefficients within bounds, from all data in one place."""
    u, target = (np.concatenate(column) for column in zip(*silos, strict=True))
    weight = np.concatenate([np.full(len(v), 1 / len(v) / len(silos)) for v, _ in silos])
    cost = np.concatenate([np.zeros(5), 0.7 * weight, 0.3 * weight])
    rows = np.hstack([u, np.eye(len(u)), -np.eye(len(u))])
    found = linprog(cost, A_eq=rows, b_eq=target, bounds=[bounds] * 5 + [(0, None)] * (2 * len(u)))
    return found.x[:5], found.fun


def mean_loss(x):
    """Return the mean over silos of each silo's loss, once more without the library."""
    errors = [target - u @ x for u, target in silos]
    return np.mean([np.mean(np.maximum(0.7 * error, -0.3 * error)) for error in errors])


# %% [markdown]
# Five seeds run as one compiled program. `loss` in the history is that of the last average, which lies outside the
# boxes by a distance of the order of `smoothing`; `result.x_feasible` is its projection, and the numbers at the end
# are about that one.


# %%
def main():
    """Run five seeds and draw them beside the exact answers."""
    free, best = exact((None, None)), exact((-1.2, 0.8))  # the tightest box lies within all others
    sweep = fz.sweep(method, problem, rounds=100 if QUICK else 300, seeds=5, eval_every=10, progress=False)
    points = np.array([result.x_feasible for result in sweep.results[0]])
    clipped = mean_loss(np.clip(free[0], -1.2, 0.8))

    figure, (left, middle, right) = panels(3)
    band(left, sweep, 0, "loss", color=BLUE, label="FedRZO, 5 seeds")
    left.axhline(best[1], color=ORANGE, linestyle="--", label="exact, with boxes")
    left.axhline(clipped, color=GREY, linestyle=":", label="without boxes, then clipped")
    left.set(xlabel="communication rounds", ylabel="mean quantile loss")
    left.legend(frameon=False)
    band(middle, sweep, 0, "feasibility", color=BLUE)
    middle.axhline(method.smoothing, color=GREY, linestyle=":", label="smoothing")
    middle.set(xlabel="communication rounds", ylabel="distance to the farthest box", ylim=(0, None))
    middle.legend(frameon=False)
    place = np.arange(5)
    right.fill_between([-0.5, 4.5], -1.2, 0.8, color=GREEN, alpha=0.12, linewidth=0, label="all boxes")
    right.plot(place, free[0], "x", color=GREY, label="exact, without boxes")
    right.plot(place, best[0], "_", color=ORANGE, markersize=18, markeredgewidth=2, label="exact, with boxes")
    right.errorbar(place, points.mean(0), points.std(0), fmt="o", color=BLUE, markersize=4, label="FedRZO")
    right.set(xlabel="coefficient", ylabel="value", xticks=place, ylim=(-3.9, 1.5))
    right.legend(frameon=False, loc="lower right", fontsize="small")
    finish(figure, "quantile_silos", {
        "loss of FedRZO": np.mean([mean_loss(x) for x in points]), "loss of the exact answer": best[1],
        "loss at the start": sweep.results[0][0].history["loss"][0],
        "loss without boxes, then clipped": clipped,
        "distance to the farthest box": sweep.values(0, "feasibility")[:, -1].mean(),
        "largest error of a coefficient": np.abs(points.mean(0) - best[0]).max(),
    })  # fmt: skip


if __name__ == "__main__":  # the example on ray imports this file for its problem
    main()
