"""Norms of gradients, sample by sample and point by point: what Lipschitz constants are estimated from.

Where a loss can be differentiated its gradient is taken; a black box, and an implicit loss f(x, y(x)), are differenced along an
orthonormal basis, or part of one where there are many variables.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.client import Client
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.inputs import one_sample
from fedrzo.problems.questions import BY_CLIENTS
from fedrzo.support.compiling import on_data

CLIENTS = 64  # looked at, at most
SAMPLES = 128  # of each client, at most; fewer where there are many variables
NUMBERS = 4_000_000  # held at once in the gradients of one client
DIRECTIONS = 24  # that a function without a gradient is differenced along, at most
STEP = 1e-3  # of the radius: of a difference


class Slopes(NamedTuple):
    """What was found; the first four by client, sample and point."""

    norms: Any  # of gradients in x
    norms_y: Any = None  # of gradients in y, where there is a lower level
    solution: Any = None  # the norm of the derivative of y(x), where y is common to all clients
    distances: Any = None  # ||y(x, xi) - y0||^2, where it is not
    weights: Any = None  # of each client's samples; they sum to one
    noise: Any = None  # the relative error of a norm that comes from part of a basis
    exact: Any = None  # whether all samples and all clients were looked at


class Place(NamedTuple):
    """Where it is looked."""

    points: jax.Array  # one per row
    around: jax.Array  # of each point, those that a step along each direction leads to, then those the other way
    directions: jax.Array  # orthonormal, one per row; none where there are gradients
    step: jax.Array  # of a difference
    radius: jax.Array  # how far points are from the first


def slopes(problem: Problem, points: np.ndarray, radius: float, key: int) -> Slopes:
    """Find the norms at some points, the first of which is the centre."""
    _refuse_whole_numbers(problem)
    n = points.shape[1]
    clients, samples, stored = _looked_at(problem)
    exact = stored and len(clients) == problem.clients
    seeds = jax.random.split(jax.random.key(key), samples)
    blind = problem.hierarchical or is_blackbox(problem.loss_fn)
    used = min(n, DIRECTIONS) if blind else 0
    # Orthonormal rows, drawn at random.
    directions = np.linalg.qr(np.random.default_rng(key + 1).normal(size=(n, used)))[0].T if used else np.zeros((0, n))
    step = STEP * radius * (1 if problem.dtype == np.float64 else 10)
    at = jnp.asarray(points, problem.dtype)
    around = jnp.concatenate([at[:, None] + step * directions, at[:, None] - step * directions], axis=1)
    place = Place(at, around, jnp.asarray(directions), jnp.asarray(step), jnp.asarray(radius))
    noise = 0.0 if used == n or not blind else float(np.sqrt(0.5 / used))
    found, weights = (_differences if blind else _gradients)(problem, place, clients, seeds, stored)
    found, weights = jax.tree.map(lambda part: np.asarray(part, np.float64), (found, weights))
    return found._replace(weights=weights, noise=noise, exact=exact)


def _looked_at(problem: Problem) -> tuple[np.ndarray, int, bool]:
    """Return the clients that are looked at, the number of samples of each that are drawn, and whether all are taken instead."""
    data, samples = problem.data, int(np.clip(NUMBERS // problem.dim, 4, SAMPLES))
    clients = np.unique(np.linspace(0, problem.clients - 1, min(problem.clients, CLIENTS)).astype(np.int32))
    return clients, samples, bool(data.stored and np.max(data.sizes) <= min(samples, data.chunk_size))


def calls(problem: Problem, points: int) -> int:
    """Return the number of calls of a black box that slopes at so many points take."""
    clients, samples, stored = _looked_at(problem)
    if problem.loss_fn.vectorized:  # type: ignore[attr-defined]  # one for the differences in x; two for those in y
        return len(clients) * (3 if problem.hierarchical else 1)
    below = 2 * problem.layouts["y0"].size if problem.hierarchical else 0
    each = points * (1 + 2 * min(problem.dim, DIRECTIONS) + below)
    return len(clients) * (problem.data.chunk_size if stored else samples) * each  # type: ignore[union-attr]


def _refuse_whole_numbers(problem: Problem) -> None:
    """Refuse a loss that returns whole numbers: it has no slope."""
    level = problem.stated[0]
    if is_blackbox(level.loss):
        return
    trees = level.trees(jnp.asarray(level.start, problem.dtype))
    found = jax.eval_shape(level.loss, *trees, problem.alone(one_sample(level.data)))
    if jnp.issubdtype(found.dtype, jnp.integer):
        raise InputError(
            f"loss: found a whole number ({found.dtype}), which has no slope to estimate; return a float: a mean, such as "
            "jnp.mean(...), where it counts something"
        )


def _over_clients(problem: Problem, clients: Any, seeds: jax.Array, stored: bool, one: Any) -> Any:
    """Apply a function to each sample of each client, all of them where they are few, else drawn; return values and weights."""

    def client(i: Any) -> Any:
        if stored:
            batches, weights = problem.data.chunk(i, 0)  # type: ignore[union-attr]
        else:
            batches = jax.vmap(lambda key: Client.of(problem, i).sample(key, 1))(seeds)
            weights = jnp.full(len(seeds), 1.0 / len(seeds))
        return jax.vmap(one)(batches), weights

    return jax.lax.map(client, jnp.asarray(clients))


@functools.partial(on_data, static=("stored",))
def _gradients(problem: Problem, place: Place, clients: Any, seeds: Any, stored: bool) -> tuple[Slopes, jax.Array]:
    """Return the norms of gradients, and the samples' weights."""

    def one(single: Any) -> Slopes:
        def norm(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            gradient = jax.grad(problem.value)(x, single)
            return jnp.linalg.norm(gradient), gradient

        norms, gradients = jax.lax.map(norm, place.points)
        # One more point, uphill from the centre: there a convex loss is steepest.
        up = gradients[0] / jnp.maximum(norms[0], jnp.finfo(norms.dtype).tiny)
        return Slopes(jnp.append(norms, norm(place.points[0] + place.radius.astype(up.dtype) * up)[0]))

    return _over_clients(problem, clients, seeds, stored, one)


@functools.partial(on_data, static=("stored",))
def _differences(problem: Problem, place: Place, clients: Any, seeds: Any, stored: bool) -> tuple[Slopes, jax.Array]:
    """Return the same by differences, with what the lower level shows, and the samples' weights."""
    points, count, (used, n) = place.points, len(place.points), place.directions.shape
    # All points together: one solve to compile.
    solved = problem.solved_at(jnp.concatenate([points, place.around.reshape(-1, points.shape[1])]))

    def one(single: Any) -> Slopes:
        values, y = solved(single)
        # Values at x + h u, then at x - h u; scaled up where u is part of a basis.
        plus, minus = jnp.split(values[count:].reshape(place.around.shape[:2]), 2, axis=-1)
        norms = jnp.linalg.norm((plus - minus) / (2 * place.step), axis=-1) * jnp.sqrt(n / used)
        if y is None:
            return Slopes(norms)
        y = y.reshape(len(y), -1)
        batch = problem.alone(single)
        norms_y = jax.vmap(lambda x, y: _norm_in_y(problem, x, y, batch))(points, y[:count])
        if problem.lower_solved_by == BY_CLIENTS:
            return Slopes(norms, norms_y, distances=jnp.sum((y[:count] - problem.start_below) ** 2, axis=-1))
        plus, minus = jnp.split(y[count:].reshape(*place.around.shape[:2], -1), 2, axis=1)
        solution = jax.vmap(lambda matrix: jnp.linalg.norm(matrix, 2))((plus - minus) / (2 * place.step))
        return Slopes(norms, norms_y, solution)

    return _over_clients(problem, clients, seeds, stored, one)


def _norm_in_y(problem: Problem, x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """Return the norm of the gradient in y; of a black box, by differences along the axes."""

    def value(y: jax.Array) -> jax.Array:
        return problem.value(x, y, batch)

    if not is_blackbox(problem.loss_fn):
        return jnp.linalg.norm(jax.grad(value)(y))
    h = STEP * jnp.eye(y.size)
    plus, minus = (jax.vmap(lambda v, sign=sign: value(y + sign * v))(h) for sign in (1.0, -1.0))
    return jnp.linalg.norm((plus - minus) / (2 * STEP))
