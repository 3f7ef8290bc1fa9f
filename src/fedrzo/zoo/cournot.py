"""The paper's Section 5.4: a Stackelberg leader facing Nash-Cournot followers under random linear demand.

H. D. Sherali, A. L. Soyster, F. H. Murphy: "Stackelberg-Nash-Cournot equilibria", Operations Research 31 (1983). The leader
chooses its output x in [0, 10] before the demand p = a - b q is known (a is uniform on [7.5, 12.5]); the followers then play a
Cournot game, with outputs y_j in [0, cap_j] and costs c_j y_j^2 / 2.

Not printed in the paper, chosen here: 5 clients, c_0 = 0.1, x0 = 0, y0 = 0. The paper gives ranges for c_j and cap_j: by default
all are in the middle (0.1 and 3); with a `seed` they are drawn.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets, vi
from fedrzo.data.client_data import ClientData
from fedrzo.data.sampler import Sampler
from fedrzo.errors import InputError
from fedrzo.problems.inputs import Data
from fedrzo.problems.two_stage import TwoStage
from fedrzo.support.numbers import check_counts

DEMAND = (7.5, 12.5)
LEADER_CAP = 10.0
LEADER_COST = 0.1
COSTS = (0.09, 0.11)
CAPS = (2.0, 4.0)
# As printed: the steps and stepsizes of the lower level, by the number of followers.
PRINTED_TAU = {10: 20.0, 20: 35.0, 100: 55.0, 1000: 80.0}
PRINTED_ALPHA = {10: 1e-4, 20: 1e-6, 100: 1e-7, 1000: 1e-8}
ROUNDS = 100


@dataclass(unsafe_hash=True)
class Market:
    """The leader's loss, and the followers' costs; equal markets compare equal, so that compiled code is shared."""

    followers: int
    b: float
    seed: int | None
    cap: float | None

    def __post_init__(self) -> None:
        self.costs, self.caps = (np.full(self.followers, sum(span) / 2) for span in (COSTS, CAPS))
        if self.seed is not None:
            rng = np.random.default_rng(self.seed)
            self.costs, self.caps = (rng.uniform(*span, size=self.followers) for span in (COSTS, CAPS))
        if self.cap is not None:
            self.caps = np.full(self.followers, float(self.cap))


class Loss(Market):
    """Minus the leader's profit."""

    def __call__(self, x: jax.Array, y: jax.Array, a: jax.Array) -> jax.Array:
        """Return c_0 x^2 / 2 - x p(x + sum of y)."""
        return 0.5 * LEADER_COST * x[0] ** 2 - x[0] * (a - self.b * (x[0] + total(y)))


class Map(Market):
    """The followers' optimality conditions. The matrix diag(c + b) + b 1 1' is never formed: the cost is linear."""

    def __call__(self, x: jax.Array, y: jax.Array, a: jax.Array) -> jax.Array:
        """Return (c + b) y - a + b (x + sum of y)."""
        return jnp.asarray(self.costs + self.b) * y - a + self.b * (x[0] + total(y))


def total(y: jax.Array) -> jax.Array:
    """Return the sum as a product with ones, which XLA on a CPU computes in less than half the time."""
    return y @ jnp.ones(y.shape, y.dtype)


def draw_demand(key: jax.Array, client_id: Any) -> jax.Array:
    """Draw a; the same law for all clients."""
    return jax.random.uniform(key, (), float, *DEMAND)


def cournot(
    followers: int = 10, b: float = 0.5, setting: str = "certified", clients: int = 5, seed: int | None = None,
    cap: float | None = None, scenarios: int | None = None, evaluation: int = 1024, iterations: int = 20 * ROUNDS,
) -> TwoStage:  # fmt: skip
    """Stackelberg leader and Cournot followers under random demand (the paper's Section 5.4).

    Args:
        followers: how many.
        b: the slope of the inverse demand.
        setting: `"certified"`: losses are monitored with followers in equilibrium, to 1e-11. `"paper"`: with the printed
            lower-level method, which leaves them near zero (see `solver`).
        clients: how many clients share the leader's problem.
        seed: draws the followers' costs and capacities from the printed ranges; None takes the middles.
        cap: one capacity for all followers.
        scenarios: clients hold so many demands each, evenly spread, instead of drawing theirs.
        evaluation: demands per client over which losses are monitored, where clients draw theirs.
        iterations: local steps in all, R H; in the paper's setting the monitored y is that of the last one.
    """
    if setting not in ("paper", "certified"):
        raise InputError(f'setting: found {setting!r}; pass "paper" or "certified"')
    check_counts(followers=followers)
    if not b > 0:
        raise InputError(f"b: found {b!r}; pass a positive number, so that prices fall with output")
    market = Map(followers, b, seed, cap)
    data: Data = Sampler(draw_demand, clients, evaluation)
    if scenarios is not None:
        data = ClientData([DEMAND[0] + (DEMAND[1] - DEMAND[0]) * ((np.arange(scenarios) + 0.5) / scenarios)] * clients)
    monitor = None if setting == "certified" else solver(followers, setting, iterations)
    return TwoStage(
        Loss(followers, b, seed, cap), market, data, np.zeros(1), np.zeros(followers),
        sets.Box(0.0, LEADER_CAP), sets.Box(0.0, market.caps), modulus=float(market.costs.min() + b),
        smoothness=float(market.costs.max() + b + b * followers), monitor=monitor,
        name=f"cournot-{followers}",
    )  # fmt: skip


def solver(followers: int, setting: str = "certified", last: int | None = None) -> vi.Solver:
    """Return the lower-level solver of a setting: Algorithm 5 with the printed alpha and tau, or one that solves to 1e-8.

    With `last`, it is what the paper's does in the last of so many iterations: ceil(tau ln(K + 1)) steps.
    """
    if setting == "certified":
        return vi.Accelerated()
    if followers not in PRINTED_TAU:
        known = ", ".join(map(str, PRINTED_TAU))
        raise InputError(f"followers: found {followers}; the paper prints its lower-level settings for {known} only")
    alpha, tau = PRINTED_ALPHA[followers], PRINTED_TAU[followers]
    if last is None:
        return vi.Projection(stepsize=alpha, tau=tau)
    return vi.Projection(stepsize=alpha, steps=math.ceil(tau * math.log(last + 1)))


def optimum(problem: TwoStage) -> tuple[float, float]:
    """Return the leader's best output and its loss, from the closed form that holds where no follower is at a bound.

    With B = sum 1/(c_j + b) and s = 1/(1 + b B), the price is s (a - b x): the loss is c_0 x^2/2 - s x (E a - b x).
    """
    market: Any = problem.map_fn
    s = 1 / (1 + market.b * float(np.sum(1 / (market.costs + market.b))))
    x = s * float(np.mean(DEMAND)) / (LEADER_COST + 2 * market.b * s)
    prices = s * (np.array(DEMAND) - market.b * x)
    y = prices[:, None] / (market.costs + market.b)
    if x > LEADER_CAP or y.min() < 0 or (y > market.caps).any():
        raise InputError("optimum: a follower is at a bound for some demand; there is no closed form then")
    return x, 0.5 * LEADER_COST * x**2 - s * x * (float(np.mean(DEMAND)) - market.b * x)
