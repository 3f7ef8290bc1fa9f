"""Problems with a lower level as users write them, and what one would first write in JAX for them: see benchmarks/levels.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz

SAMPLES, BATCH = 32, 4  # of each client; of an upper loss value (a two-stage problem takes one scenario)
LOCAL, STEPSIZE, SMOOTHING = 5, 1e-5, 0.05  # x stays near x0: what is measured is time


class Row(NamedTuple):
    """A problem as its user states it, and what the plain version needs to know of it."""

    name: str
    two_stage: bool
    loss: Callable[..., jax.Array]
    lower: Callable[..., jax.Array]  # a loss over a batch, or the map of one scenario
    x0: np.ndarray
    y0: np.ndarray
    data: Any  # arrays with clients and samples in front
    set: Any = None  # for y
    project: Callable[[jax.Array], jax.Array] = lambda y: y  # the plain version's own

    @property
    def clients(self) -> int:
        return len(jax.tree.leaves(self.data)[0])

    def problem(self) -> Any:
        data = fz.ClientData([jax.tree.map(lambda leaf, i=i: leaf[i], self.data) for i in range(self.clients)])
        kind = fz.TwoStage if self.two_stage else fz.Bilevel
        return kind(self.loss, self.lower, data, self.x0, self.y0, lower_constraint=self.set)


def fit(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    features, targets = batch
    return jnp.mean(jnp.abs(features @ y - targets))


def ridge(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    features, targets = batch
    return jnp.mean((features @ y - targets) ** 2) / 2 + jnp.sum((0.02 + x**2) * y**2) / 2


def ridge_row(n: int, clients: int) -> Row:
    """How much each feature is held back is learnt; the fit is judged by its absolute error."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(clients, SAMPLES, n)) * np.geomspace(1, 0.1, n)  # some matter more than others
    targets = (
        features @ rng.normal(size=n) / np.sqrt(n)
        + 0.1 * rng.normal(size=(clients, SAMPLES))
        + 0.1 * rng.normal(size=(clients, 1))
    )
    return Row("weights of features", False, fit, ridge, np.full(n, 0.2), np.zeros(n), (features, targets))


def regret(x: jax.Array, y: jax.Array, returns: jax.Array) -> jax.Array:
    return jnp.mean(jnp.abs(returns @ y - 1)) + 0.1 * jnp.mean(jnp.abs(x))


def risk(x: jax.Array, y: jax.Array, returns: jax.Array) -> jax.Array:
    return jnp.mean((returns @ y) ** 2) / 2 + 0.05 * jnp.sum(y**2) - jnp.sum(x * y)


def portfolio_row(n: int, clients: int, simplex: bool) -> Row:
    """Incentives x for a portfolio y of least risk, with bounds for each asset or as shares of a budget."""
    rng = np.random.default_rng(1)
    market, own = rng.normal(0.05, 1.0, (clients, SAMPLES, 1)), rng.normal(size=(clients, SAMPLES, n))
    returns = market + np.geomspace(1, 0.3, n) * own  # assets move together
    set_, project = (fz.sets.Simplex(), onto_simplex) if simplex else (fz.sets.Box(0.0, 1.0), lambda y: jnp.clip(y, 0.0, 1.0))
    name = "portfolio, shares" if simplex else "portfolio, bounds"
    return Row(name, False, regret, risk, np.full(n, 0.1), np.full(n, 1 / n), returns, set_, project)


def onto_simplex(y: jax.Array) -> jax.Array:
    """By sorting, as in every textbook."""
    ordered = jnp.sort(y)[::-1]
    excess = (jnp.cumsum(ordered) - 1) / jnp.arange(1, y.size + 1)
    return jnp.maximum(y - excess[jnp.sum(ordered > excess) - 1], 0.0)


def delay(x: jax.Array, y: jax.Array, xi: Any) -> jax.Array:
    times, capacities = xi
    return jnp.sum(y * times * (1 + y / capacities)) + 0.01 * jnp.sum(jnp.abs(x))


def travel(x: jax.Array, y: jax.Array, xi: Any) -> jax.Array:
    times, capacities = xi
    return times * (1 + y / capacities) + x


def routes_row(n: int, clients: int) -> Row:
    """Tolls x on parallel routes: travellers, as shares y, settle in an equilibrium."""
    rng = np.random.default_rng(2)
    shape = (clients, SAMPLES, n)
    data = rng.uniform(1, 2, shape), rng.uniform(0.5, 2, shape)
    return Row(
        "routes with tolls", True, delay, travel, np.full(n, 0.2), np.full(n, 1 / n), data, fz.sets.Simplex(), onto_simplex
    )


def market_row(n: int, clients: int, leaders: int) -> Row:
    """Firms in a market whose effects on each other are not symmetric; the leader's x moves their prices."""
    rng = np.random.default_rng(3)
    root, skew, pull = rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=(n, leaders))
    matrix = jnp.asarray(root @ root.T + np.eye(n) / 2 + (skew - skew.T) / 2)

    def firms(x: jax.Array, y: jax.Array, xi: jax.Array) -> jax.Array:
        return matrix.astype(y.dtype) @ y - xi + pull @ x

    def profit(x: jax.Array, y: jax.Array, xi: jax.Array) -> jax.Array:
        return jnp.mean(jnp.abs(y - 0.3)) + jnp.sum(jnp.abs(x - 0.1))

    data = rng.uniform(0, 1, (clients, SAMPLES, n))
    box, project = fz.sets.Box(0.0, 1.0), lambda y: jnp.clip(y, 0.0, 1.0)
    return Row("firms in a market", True, profit, firms, np.full(leaders, 0.2), np.zeros(n), data, box, project)


def rows() -> list[Callable[[], Row]]:
    """Return the list, as functions."""
    return [
        *(partial(ridge_row, *a) for a in [(5, 10), (50, 10), (300, 5)]),
        *(partial(portfolio_row, *a) for a in [(10, 20, False), (200, 10, False), (20, 10, True)]),
        *(partial(routes_row, *a) for a in [(5, 10), (100, 5)]),
        *(partial(market_row, *a) for a in [(10, 20, 3), (100, 5, 10), (300, 5, 2)]),
    ]


class Plain:
    """The plain version of a row: lower levels are solved from y0, at x+v and then at x-v."""

    def __init__(self, row: Row, length: float) -> None:
        self.row, self.length, self.data = row, length, jax.device_put(row.data)
        self.run = jax.jit(self._run, static_argnames=("rounds", "steps"))
        self.below = jax.jit(self._below, static_argnames="steps")

    def _below(self, x: jax.Array, given: Any, *, steps: int) -> jax.Array:
        """Take projected steps for all clients' data, or for one scenario."""
        row = self.row

        def step(y: jax.Array, _: None) -> tuple[jax.Array, None]:
            if row.two_stage:
                return row.project(y - self.length * row.lower(x, y, given)), None
            each = jax.vmap(lambda batch: y - self.length * jax.grad(row.lower, 1)(x, y, batch))(given)
            return row.project(jnp.mean(each, axis=0)), None

        return jax.lax.scan(step, jnp.asarray(row.y0), None, length=steps)[0]

    def _run(self, x: jax.Array, key: jax.Array, data: Any, *, rounds: int, steps: int) -> jax.Array:
        one = self._two_stage_round if self.row.two_stage else self._bilevel_round
        return jax.lax.scan(lambda x, key: (one(x, key, data, steps), None), x, jax.random.split(key, rounds))[0]

    def _move(self, x: jax.Array, v: jax.Array, difference: jax.Array) -> jax.Array:
        return x - STEPSIZE * x.size / (2 * SMOOTHING**2) * difference * v

    def _direction(self, key: jax.Array, x: jax.Array) -> jax.Array:
        v = jax.random.normal(key, x.shape, x.dtype)
        return SMOOTHING * v / jnp.linalg.norm(v)

    def _bilevel_round(self, x: jax.Array, key: jax.Array, data: Any, steps: int) -> jax.Array:
        draw, sample = jax.random.split(key)
        v = self._direction(draw, x)
        above, beneath = self._below(x + v, data, steps=steps), self._below(x - v, data, steps=steps)

        def client(key: jax.Array, own: Any) -> jax.Array:
            def step(x: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
                picked = jax.random.randint(key, (BATCH,), 0, SAMPLES)
                batch = jax.tree.map(lambda leaf: leaf[picked], own)
                return self._move(x, v, self.row.loss(x + v, above, batch) - self.row.loss(x - v, beneath, batch)), None

            return jax.lax.scan(step, x, jax.random.split(key, LOCAL))[0]

        return jnp.mean(jax.vmap(client)(jax.random.split(sample, self.row.clients), data), axis=0)

    def _two_stage_round(self, x: jax.Array, key: jax.Array, data: Any, steps: int) -> jax.Array:
        def client(key: jax.Array, own: Any) -> jax.Array:
            def step(x: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
                draw, sample = jax.random.split(key)
                xi = jax.tree.map(lambda leaf: leaf[jax.random.randint(sample, (), 0, SAMPLES)], own)
                v = self._direction(draw, x)
                values = [self.row.loss(p, self._below(p, xi, steps=steps), xi) for p in (x + v, x - v)]
                return self._move(x, v, values[0] - values[1]), None

            return jax.lax.scan(step, x, jax.random.split(key, LOCAL))[0]

        return jnp.mean(jax.vmap(client)(jax.random.split(key, self.row.clients), data), axis=0)
