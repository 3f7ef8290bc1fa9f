"""The server program that samples a certificate's directions, by the federation's own calls and on its own counters.

Differences of losses leave a client, one number for each direction, and are averaged; single-level and two-stage clients rebuild
the directions from a seed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.certificates.interval import BLOCKS
from fedrzo.federation import directions
from fedrzo.federation.client import Client
from fedrzo.federation.estimators import slope
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, method, static
from fedrzo.methods.fedrzo_bl import EMPTY
from fedrzo.methods.lower import LowerClosing, close, run_lower
from fedrzo.problems.base import Problem

AT_A_TIME = 8  # directions that a client evaluates together


def direction(key: jax.Array, j: Any, x: jax.Array, smoothing: Any) -> jax.Array:
    """Return direction j of a key; whoever knows the key can rebuild it."""
    return directions.sphere(jax.random.fold_in(key, j), x.size, smoothing, x.dtype)


def draw(key: jax.Array, count: int, x: jax.Array, smoothing: Any) -> jax.Array:
    """Return the first directions of a key, one per row."""
    return jax.vmap(lambda j: direction(key, j, x, smoothing))(jnp.arange(count))


class Lower(LowerClosing, Method):
    """What the programs share on problems with a lower level."""

    lower: Any
    constants: Any

    @property
    def federated(self) -> bool:
        """Whether the lower level is solved by federated rounds (Bilevel, Minimax) rather than by each client."""
        return isinstance(self.lower, Method)

    def solve(self, federation: Federation, points: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Solve the lower level at several points at once; a bound on the error of all solutions together comes along."""
        lower_federation = federation.lower(points, self.lower)
        y = run_lower(lower_federation, self.lower, jnp.tile(start, points.shape[0]), 0, None)
        found = close(lower_federation, self, y, (self.constants.modulus, self.constants.smoothness))
        return found.y, found.error

    def received(self, client: Client, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the y that a client was sent, a row for each point, and whether they show that some Y(x) is empty."""
        level = client.level.lower_level(client.points)
        y = level.sets.project(client.index, y)
        return level.split(y), level.sets.violation(client.index, y) > EMPTY


class Means(NamedTuple):
    """The blocks' mean estimates of the smoothed gradient, one per row; `lower_error` bounds the error of any y used."""

    x: jax.Array
    start: Any
    means: jax.Array
    lower_error: jax.Array


@method
class Sampling(Lower):
    """Two-point estimates along `repeats` directions for each of the blocks; one message asks for one direction per block."""

    smoothing: Any
    repeats: Any = 1
    batch_size: int | str = static(default="full")
    lower: Any = None
    constants: Any = None

    solves = (Problem,)

    def init(self, problem: Problem, key: jax.Array) -> Means:
        """Start with empty blocks at the problem's x0, which is the point in question."""
        x = problem.start
        start = problem.start_below if self.federated else None
        return Means(x, start, jnp.zeros((BLOCKS, x.size), x.dtype), jnp.zeros((), x.dtype))

    def healthy(self, state: Means) -> Any:
        """Tell whether all losses were finite."""
        return jnp.all(jnp.isfinite(state.means))

    def round(self, federation: Federation, state: Means, r: Any) -> Means:
        """Fill all blocks."""
        x, eta = state.x, self.smoothing

        def add(inner: Federation, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total, error = carry
            key = inner.key()
            v = draw(key, BLOCKS, x, eta)
            if self.federated:
                y, bound = self.solve(inner, jnp.concatenate([x + v, x - v]), state.start)
                gaps, error = inner.average(self.gaps_below, y), jnp.maximum(error, bound)
            else:
                gaps = inner.average(self.gaps, x, jax.random.key_data(key))
            return total + slope(x.size, eta, gaps)[:, None] * v, error

        total, error = federation.repeat(self.repeats, add, (jnp.zeros_like(state.means), state.lower_error))
        return Means(x, state.start, total / self.repeats, error)

    def gaps(self, client: Client, key: jax.Array, memory: None, x: jax.Array, words: jax.Array) -> Reply:
        """Return this client's loss at x+v minus that at x-v for each direction; every direction has samples of its own."""
        shared = jax.random.wrap_key_data(words)

        def one(j: jax.Array) -> tuple[jax.Array, jax.Array]:
            v = direction(shared, j, x, self.smoothing)  # one by one: all of them may be too many to hold
            batch = client.sample(jax.random.fold_in(key, j), self.batch_size)
            if self.lower is None:
                return client.difference(x, v, batch), jnp.zeros((), x.dtype)
            plus, minus, taken = client.implicit(jnp.stack([x + v, x - v]), batch, self.lower, 1)
            return plus - minus, taken

        gaps, taken = jax.lax.map(one, jnp.arange(BLOCKS), batch_size=AT_A_TIME)
        size = client.cost(self.batch_size)
        return Reply(gaps, evaluations=2 * BLOCKS * size, steps=jnp.round(jnp.sum(taken) * size).astype(jnp.int32))

    def gaps_below(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Return the same where the lower solutions at all points come from the server; NaN where some Y(x) is empty."""
        solutions, empty = self.received(client, y)
        pairs = [jnp.stack(jnp.split(rows, 2), 1) for rows in (client.points, solutions)]

        def one(item: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            points, ys, j = item
            batch = client.sample(jax.random.fold_in(key, j), self.batch_size)
            return client.loss(points[0], ys[0], batch) - client.loss(points[1], ys[1], batch)

        gaps = jax.lax.map(one, (*pairs, jnp.arange(BLOCKS)), batch_size=AT_A_TIME)
        return Reply(jnp.where(empty, jnp.nan, gaps), evaluations=2 * BLOCKS * client.cost(self.batch_size))
