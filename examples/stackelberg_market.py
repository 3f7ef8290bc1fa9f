# %% [markdown]
# # A leader in a market with random demand
#
# A producer fixes its output `x` before demand is known. Then demand `a` is drawn, the price is `a - b * (total
# output)`, and four smaller competitors answer: each chooses its own output `y_j`, up to its capacity, given what all
# others do. Their answer is the **equilibrium** of a game, one for each demand, and the producer's profit depends on
# it.
#
# Four regional offices of the producer share the decision, each with its own confidential demand forecasts. This is a
# two-stage problem: no office can differentiate through an equilibrium that has kinks (a competitor that reaches its
# capacity, or stops producing), but each can compute the equilibrium, and with it the profit, at `x + v` and `x - v`.
# FedRZO_2s needs no more.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from common import BLUE, GREEN, GREY, ORANGE, QUICK, finish, legend_above, panels

import fedrzo as fz

SLOPE = 0.4  # b
OWN_COST = 0.1
COSTS = jnp.array([1.0, 1.5, 2.0, 3.0])  # of the competitors, per unit
CAPACITY = jnp.array([4.0, 4.0, 3.0, 3.0])
rng = np.random.default_rng(0)
forecasts = fz.ClientData([6 + 1.5 * i + 2.5 * rng.random(16) for i in range(4)])  # regions differ: 6 to 13


def price(x, y, demand):
    """What a unit sells for."""
    return demand - SLOPE * (x[0] + jnp.sum(y))


def loss(x, y, demand):
    """Minus the producer's profit."""
    return OWN_COST / 2 * x[0] ** 2 - x[0] * price(x, y, demand)


def followers(x, y, demand):
    """The competitors' optimality conditions: marginal cost minus marginal revenue, each."""
    return COSTS + 0.2 * y + SLOPE * y - price(x, y, demand)


problem = fz.TwoStage(
    loss, followers, forecasts, x0=np.array([2.0]), y0=np.zeros(4), constraint=fz.sets.Box(0.0, 20.0),
    lower_constraint=fz.sets.Box(0.0, CAPACITY), modulus=0.2 + SLOPE, smoothness=0.2 + 5 * SLOPE,
    monitor=fz.vi.Extragradient(tolerance=1e-10),  # of the equilibria behind what is reported
)  # fmt: skip

# %% [markdown]
# Five seeds in one compiled program. Then a **certificate**: it looks at a point from fresh random directions and
# bounds the gradient of the smoothed expected profit with 95 % confidence, again from profits alone. (With one
# unknown there are only two directions, so the interval here has no width.)

# %%
method = fz.FedRZO2s(
    stepsize=lambda r: 0.5 / (1 + r / 10), smoothing=0.25, local_steps=5, batch_size=2, solver=fz.vi.Extragradient()
)
sweep = fz.sweep(method, problem, rounds=60 if QUICK else 200, seeds=5, eval_every=20, progress=False)
found = np.array([result.x[0] for result in sweep.results[0]])
gains = -sweep.values(0, "loss")[:, -1]
certificate = fz.certify(problem, sweep.results[0][0].x, smoothing=0.1)
print(certificate)

# %% [markdown]
# With one unknown the whole curve can be computed, and its top. For comparison, a producer that does not lead but
# takes the others' output as given: it produces until its marginal cost `OWN_COST * x` is its marginal revenue `mean
# price - SLOPE * x`.

# %%
grid = np.linspace(4, 20, 161)
with problem.precision():
    profits = -np.array(jax.jit(jax.vmap(lambda x: problem.evaluate(x)["loss"]))(jnp.asarray(grid[:, None])))
prices = (profits + OWN_COST / 2 * grid**2) / grid
follows = np.argmin(np.abs(prices - (OWN_COST + SLOPE) * grid))
best = profits.argmax()

# %%
figure, (left, right) = panels(2)
left.plot(grid, profits, color=BLUE, label="expected profit")
left.plot(grid[follows], profits[follows], "s", color=GREY, label="others' output taken as given")
left.plot(grid[best], profits[best], "D", color=GREEN, markersize=12, markerfacecolor="none", label="best on the curve")
left.plot(found, gains, "o", color=ORANGE, markersize=4, label="FedRZO, 5 seeds")
left.set(xlabel="the producer's output x", ylabel="expected profit", ylim=(-10, 26))
left.legend(frameon=False, loc="lower center", fontsize="small")
demands = np.linspace(4, 14, 51)
answers = np.array([sweep.results[0][0].lower(demand) for demand in demands])
for j, style in enumerate(("-", "--", ":", "-.")):
    right.plot(demands, answers[:, j], style, color=BLUE, label=f"competitor {j + 1}")
right.axvspan(6, 13, color=GREEN, alpha=0.1, linewidth=0, label="demand forecasts")
right.set(xlabel="demand a", ylabel="output in equilibrium")
legend_above(right, 2)
finish(figure, "stackelberg_market", {
    "profit, others' output taken as given": profits[follows], "profit, FedRZO (mean of 5 seeds)": gains.mean(),
    "profit, best on the curve": profits[best], "output, FedRZO": found, "output, best on the curve": grid[best],
    "certificate: gradient norm at most": certificate.upper,
})  # fmt: skip
