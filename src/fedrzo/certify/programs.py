"""The server programs of a certificate: what is asked of the clients, by the federation's own calls and on its own counters.

Only scalars leave a client one by one (its distance to its set, its slopes in y); differences of losses and the pull of the
sets are averaged, and the directions are rebuilt from a seed on both sides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo import directions
from fedrzo.certify.interval import BLOCKS
from fedrzo.client import Client
from fedrzo.federation import Federation, Reply
from fedrzo.methods.base import Method, method, static
from fedrzo.methods.lower import LowerClosing, close, run_lower
from fedrzo.problems import Problem
from fedrzo.smoothing import slope

AT_A_TIME = 8  # directions that a client evaluates together
PROBES = 4  # directions whose two points join x where the lower level's quality is looked at


def draw(key: jax.Array, count: int, x: jax.Array, smoothing: Any) -> jax.Array:
    """Return directions, one per row; whoever knows the key can rebuild them."""
    keys = jax.vmap(lambda j: jax.random.fold_in(key, j))(jnp.arange(count))
    return jax.vmap(lambda k: directions.sphere(k, x.size, smoothing, x.dtype))(keys)


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
        below = federation.lower(points, self.lower)
        y = run_lower(below, self.lower, jnp.tile(start, points.shape[0]), 0, None)
        return close(below, self, y, self.constants)


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

    def init(self, problem: Any, key: jax.Array) -> Means:
        """Start with empty blocks at the problem's x0, which is the point in question."""
        del key
        x = jnp.asarray(problem.x0, float) if problem.hierarchical else jnp.asarray(problem.x0)
        start = jnp.asarray(problem.y0, float) if self.federated else None
        return Means(x, start, jnp.zeros((BLOCKS, x.size), x.dtype), jnp.zeros((), x.dtype))

    def healthy(self, state: Means) -> Any:
        """Tell whether all losses were finite."""
        return jnp.all(jnp.isfinite(state.means))

    def round(self, federation: Federation, state: Means, r: Any) -> Means:
        """Fill all blocks."""
        del r
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
        del memory
        rows = draw(jax.random.wrap_key_data(words), BLOCKS, x, self.smoothing)

        def one(item: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            v, j = item
            batch = client.sample(jax.random.fold_in(key, j), self.batch_size)
            if self.lower is None:
                return client.difference(x, v, batch), jnp.zeros((), x.dtype)
            plus, minus, taken = client.implicit(jnp.stack([x + v, x - v]), batch, self.lower, 1)
            return plus - minus, taken

        gaps, taken = jax.lax.map(one, (rows, jnp.arange(BLOCKS)), batch_size=AT_A_TIME)
        size = client.cost(self.batch_size)
        return Reply(gaps, evaluations=2 * BLOCKS * size, steps=jnp.round(jnp.sum(taken) * size).astype(jnp.int32))

    def gaps_below(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Return the same where the lower solutions at all points come from the server."""
        del memory
        level = client.level.lower_level(client.points)
        solutions = level.split(level.sets.project(client.index, y))
        pairs = [jnp.stack(jnp.split(rows, 2), 1) for rows in (client.points, solutions)]

        def one(item: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            points, ys, j = item
            batch = client.sample(jax.random.fold_in(key, j), self.batch_size)
            return client.loss(points[0], ys[0], batch) - client.loss(points[1], ys[1], batch)

        gaps = jax.lax.map(one, (*pairs, jnp.arange(BLOCKS)), batch_size=AT_A_TIME)
        return Reply(gaps, evaluations=2 * BLOCKS * client.cost(self.batch_size))


class Facts(NamedTuple):
    """What is known of a point without sampling directions.

    Attributes:
        x: the point.
        start: where lower solves start, if the server solves them.
        distances: from x to each client's set.
        pull: the mean of the clients' (x - P_i(x))/eta, the gradient of the Moreau term.
        loss: the mean size of the clients' losses at x, for the rounding error.
        residual: of the lower level.
        error: the bound on ||y - y(x)|| that follows.
        slope: the largest slope of a client's loss in y.
        shift: by how much an error of y can move a client's loss, at most.
    """

    x: jax.Array
    start: Any
    distances: jax.Array
    pull: jax.Array
    loss: jax.Array
    residual: jax.Array
    error: jax.Array
    slope: jax.Array
    shift: jax.Array


@method
class Inspection(Lower):
    """Distances to the clients' sets, their pull, and how well the lower level is solved at x and at points around it."""

    smoothing: Any
    batch_size: int | str = static(default="full")
    lower: Any = None
    constants: Any = None
    differentiable: bool = static(default=True)

    solves = (Problem,)

    def init(self, problem: Any, key: jax.Array) -> Facts:
        """Start at the problem's x0."""
        del key
        x = jnp.asarray(problem.x0, float) if problem.hierarchical else jnp.asarray(problem.x0)
        start = jnp.asarray(problem.y0, float) if self.federated else None
        nothing = jnp.zeros((), x.dtype)
        return Facts(x, start, jnp.zeros(problem.clients, x.dtype), jnp.zeros_like(x), *[nothing] * 5)

    def round(self, federation: Federation, state: Facts, r: Any) -> Facts:
        """Ask for distances one by one, for the pull and the loss as means, then look at the lower level."""
        del r
        x = state.x
        distances = federation.gather(self.distance, x).values
        pull = federation.average(self.pull, x)
        found = state._replace(distances=distances, pull=pull)
        if self.lower is None:
            return found._replace(loss=federation.average(self.loss, x))
        v = draw(federation.key(), PROBES, x, self.smoothing)
        points = jnp.concatenate([x[None], x + v, x - v])
        if not self.federated:
            # The worst client, not the mean, for each figure.
            seen = jnp.max(federation.gather(self.scenarios, points).values, axis=0)
            return found._replace(loss=seen[0], residual=seen[1], error=seen[2], slope=seen[3], shift=seen[4])
        y, error = self.solve(federation, points, state.start)
        seen = jnp.max(federation.gather(self.slopes, y).values, axis=0)
        c = self.constants
        step = 2 / (c.modulus + c.smoothness)
        residual = error / (1 + (1 + step * c.smoothness) / (step * c.modulus))  # see `close`
        return found._replace(loss=seen[0], residual=residual, error=error, slope=seen[1], shift=seen[1] * error)

    def distance(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Return the distance to this client's set: one number."""
        del key, memory
        return Reply(jnp.linalg.norm(x - client.project(x)))

    def pull(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Return the gradient of this client's Moreau term."""
        del key, memory
        return Reply((x - client.project(x)) / self.smoothing)

    def loss(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Return the size of this client's loss."""
        del memory
        value = jnp.abs(client.loss(x, client.sample(key, self.batch_size)))
        return Reply(value, evaluations=client.cost(self.batch_size))

    def slopes(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Return the loss at x, and the largest slope in y of this client's loss over the points."""
        del memory
        level = client.level.lower_level(client.points)
        solutions = level.split(level.sets.project(client.index, y))
        batch = client.sample(key, self.batch_size)
        value = jnp.abs(client.loss(client.points[0], solutions[0], batch))
        if not self.differentiable:
            return Reply(jnp.stack([value, jnp.full_like(value, jnp.nan)]), evaluations=client.cost(self.batch_size))
        rise = jax.grad(client.level.value, argnums=1)
        slopes = jax.vmap(lambda x, y: jnp.linalg.norm(client.mean(rise, x, y, batch)))(client.points, solutions)
        size = client.cost(self.batch_size)
        return Reply(jnp.stack([value, jnp.max(slopes)]), evaluations=size, gradients=len(slopes) * size)

    def scenarios(self, client: Client, key: jax.Array, memory: None, points: jax.Array) -> Reply:
        """Return means over scenarios, the largest over the points: |loss|, residual, bound, slope, slope times bound."""
        del memory
        problem = client.level

        def figures(batch: Any) -> jax.Array:
            values, found = problem.implicit(points, batch, self.lower, 1)
            slopes = jnp.full_like(values, jnp.nan)
            if self.differentiable:
                axis = 0 if problem.data.fixed is None else (0, None)
                rise = jax.vmap(jax.vmap(jax.grad(problem.value, argnums=1), (None, 0, axis)), (0, 0, None))
                slopes = jnp.linalg.norm(rise(points, found.y, batch), axis=-1)
            rows = jnp.stack([jnp.abs(values), found.residual, found.error_bound, slopes, slopes * found.error_bound])
            return jnp.mean(rows, axis=2)

        means = client.mean(figures, client.sample(key, self.batch_size))
        size = client.cost(self.batch_size) * len(points)
        return Reply(jnp.max(means, axis=1), evaluations=size, gradients=size if self.differentiable else 0)
