"""A Stackelberg leader and four Cournot firms: the games behind gnash10 to gnash14, and one of them under random demand.

F. H. Murphy, H. D. Sherali, A. L. Soyster: "A mathematical programming approach for determining oligopolistic market
equilibrium", Mathematical Programming 24 (1982). As coded in MacMPEC, the followers' marginal cost is linear. Demand falls as a
power of the price, so the map is steep where output is small.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.data.sampler import Sampler
from fedrzo.problems.two_stage import TwoStage

COSTS = np.array([10.0, 8.0, 6.0, 4.0, 2.0])
BETAS = np.array([1.2, 1.1, 1.0, 0.9, 0.8])
CAPACITY = 5.0  # K, of all firms
OUTPUT = 150.0
DEMAND = 5000.0


@dataclass(frozen=True)
class Gnash:
    """One of the games: `gamma` is the demand's exponent."""

    gamma: float

    def price(self, x: jax.Array, y: jax.Array, demand: Any) -> jax.Array:
        """Return the price at a total output of x + sum(y)."""
        return (demand / (x[0] + jnp.sum(y))) ** (1 / self.gamma)


class GnashLoss(Gnash):
    """The leader's cost less its revenue."""

    def __call__(self, x: jax.Array, y: jax.Array, xi: Any = None) -> jax.Array:
        """Return the loss at a demand of 5000, or of xi."""
        beta = BETAS[0]
        # Iterates may leave x >= 0 by a little, where the power is not defined: there the cost goes on as a straight line.
        inside = jnp.maximum(x[0], 0.0)
        power = (1 + beta) / beta
        cost = COSTS[0] * x[0] + beta / (1 + beta) * CAPACITY ** (-1 / beta) * inside**power
        return cost - x[0] * self.price(x, y, DEMAND if xi is None else xi)


@dataclass(frozen=True)
class GnashMap(Gnash):
    """The followers' optimality conditions, at a demand of 5000 whatever a client's share; or of xi where that is random."""

    random: bool = False

    def __call__(self, x: jax.Array, y: jax.Array, xi: Any) -> jax.Array:
        """Return marginal cost less marginal revenue."""
        price = self.price(x, y, xi if self.random else DEMAND)
        slope = -price / (self.gamma * (x[0] + jnp.sum(y)))
        return jnp.asarray(COSTS[1:]) + CAPACITY ** (-1 / BETAS[1:]) * y - price - y * slope


def random_demand(key: jax.Array, client_id: Any) -> jax.Array:
    """Draw the demand's scale: within a fifth of a mean that differs between clients (4500, 5000, 5500)."""
    return (0.9 + 0.1 * client_id) * DEMAND * jax.random.uniform(key, (), float, 0.8, 1.2)


def gnash_random() -> TwoStage:
    """The game gnash10 under random demand, of another mean for each of three clients."""
    return TwoStage(
        GnashLoss(1.0), GnashMap(1.0, random=True), Sampler(random_demand, clients=3), np.array([75.0]), np.full(4, 30.0),
        [sets.Box(0.0, np.inf), sets.Box(-np.inf, OUTPUT), sets.Reals()],
        sets.Box(0.0, OUTPUT), sets.Box(0.1, OUTPUT), 0.13, 1.0, name="gnash-random",
    )  # fmt: skip
