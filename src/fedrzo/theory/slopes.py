"""Norms of gradients, sample by sample and point by point: what Lipschitz constants are estimated from.

Where a loss can be differentiated its gradient is taken; a black box, and an implicit loss f(x, y(x)), are differenced along an
orthonormal basis, or part of one where there are many variables.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.federation.client import Client
from fedrzo.problems.two_stage import TwoStage

CLIENTS = 64  # looked at, at most
SAMPLES = 128  # of each client, at most; fewer where there are many variables
NUMBERS = 4_000_000  # held at once in the gradients of one client
DIRECTIONS = 24  # that a function without a gradient is differenced along, at most
STEP = 1e-3  # of the radius: of a difference


class Slopes(NamedTuple):
    """What was found.

    Attributes:
        norms: of gradients in x, by client, sample and point.
        weights: of each client's samples; they sum to one.
        noise: the relative error of a norm that comes from part of a basis.
        exact: whether all samples and all clients were looked at.
        norms_y: of gradients in y, likewise, where there is a lower level.
        solution: the norm of the derivative of y(x), by point, where y is common to all clients.
        distances: ||y(x, xi) - y0||^2, where it is not.
    """

    norms: np.ndarray
    weights: np.ndarray
    noise: float
    exact: bool
    norms_y: np.ndarray | None = None
    solution: np.ndarray | None = None
    distances: np.ndarray | None = None


def slopes(problem: Any, points: np.ndarray, radius: float, key: int) -> Slopes:
    """Find the norms at some points, the first of which is the centre."""
    n = points.shape[1]
    samples = int(np.clip(NUMBERS // n, 4, SAMPLES))
    clients = np.unique(np.linspace(0, problem.clients - 1, min(problem.clients, CLIENTS)).astype(np.int32))
    sizes = np.asarray(getattr(problem.data, "sizes", [np.inf]))
    stored = bool(sizes.max() <= min(samples, getattr(problem.data, "chunk_size", 0)))
    exact = stored and len(clients) == problem.clients
    seeds = jax.random.split(jax.random.key(key), samples)
    blind = problem.hierarchical or getattr(problem.loss_fn, "is_blackbox", False)
    used = min(n, DIRECTIONS) if blind else 0
    directions = _basis(n, used, key)
    step = STEP * radius * (1 if np.dtype(points.dtype) == np.float64 or problem.hierarchical else 10)
    at = jnp.asarray(points, float if problem.hierarchical else None)
    around = jnp.concatenate([at[:, None] + step * directions, at[:, None] - step * directions], axis=1)
    place = (at, around, jnp.asarray(directions), jnp.asarray(step), jnp.asarray(radius))
    noise = 0.0 if used == n or not blind else float(np.sqrt(0.5 / used))
    if isinstance(problem, TwoStage):
        *norms, distances, weights = _twostage(problem, place, clients, seeds, stored)
        return Slopes(*_plain(norms[0], weights), noise, exact, np.asarray(norms[1]), None, np.asarray(distances))
    if problem.hierarchical:
        *norms, solution, weights = _bilevel(problem, place, clients, seeds, stored)
        return Slopes(*_plain(norms[0], weights), noise, exact, np.asarray(norms[1]), np.asarray(solution))
    return Slopes(*_plain(*_nonsmooth(problem, place, clients, seeds, stored, blind)), noise, exact)


def _plain(norms: jax.Array, weights: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(norms, np.float64), np.asarray(weights, np.float64)


def _basis(n: int, used: int, key: int) -> np.ndarray:
    """Return orthonormal rows, drawn at random."""
    if used == 0:
        return np.zeros((0, n))
    return np.linalg.qr(np.random.default_rng(key + 1).normal(size=(n, used)))[0].T


def _singles(problem: Any, i: Any, seeds: jax.Array, stored: bool) -> tuple[Any, jax.Array]:
    """Return a client's samples as batches of one, and their weights: all of them where they are few, else drawn."""
    if stored:
        return problem.data.chunk(i, 0)
    drawn = jax.vmap(lambda key: Client.of(problem, i).sample(key, 1))(seeds)
    return drawn, jnp.full(len(seeds), 1.0 / len(seeds))


def _over_clients(problem: Any, clients: Any, seeds: jax.Array, stored: bool, one: Any) -> Any:
    """Apply a function to each sample of each client; returns its values and the samples' weights."""

    def client(i: Any) -> Any:
        batches, weights = _singles(problem, i, seeds, stored)
        return jax.vmap(one)(batches), weights

    return jax.lax.map(client, jnp.asarray(clients))


def _differenced(values: jax.Array, place: tuple) -> jax.Array:
    """Return the norm of a gradient from values at x + h u, then x - h u; scaled up where u is part of a basis."""
    _, _, directions, step, _ = place
    plus, minus = jnp.split(values, 2, axis=-1)
    n, used = directions.shape[1], directions.shape[0]
    return jnp.linalg.norm((plus - minus) / (2 * step), axis=-1) * jnp.sqrt(n / used)


@functools.partial(jax.jit, static_argnames=("stored", "blind"))
def _nonsmooth(problem: Any, place: tuple, clients: Any, seeds: Any, stored: bool, blind: bool) -> Any:
    points, around, _, _, radius = place

    def one(single: Any) -> jax.Array:
        if blind:
            return _differenced(jax.vmap(jax.vmap(lambda x: problem.value(x, single)))(around), place)

        def norm(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            gradient = jax.grad(problem.value)(x, single)
            return jnp.linalg.norm(gradient), gradient

        norms, gradients = jax.lax.map(norm, points)
        # One more point, uphill from the centre: there a convex loss is steepest.
        up = gradients[0] / jnp.maximum(norms[0], jnp.finfo(norms.dtype).tiny)
        return jnp.append(norms, norm(points[0] + radius.astype(up.dtype) * up)[0])

    return _over_clients(problem, clients, seeds, stored, one)


@functools.partial(jax.jit, static_argnames="stored")
def _bilevel(problem: Any, place: tuple, clients: Any, seeds: Any, stored: bool) -> Any:
    points, around, _, step, _ = place
    y, near = jax.vmap(problem.solve_lower)(points), jax.vmap(jax.vmap(problem.solve_lower))(around)

    def one(single: Any) -> tuple[jax.Array, jax.Array]:
        def value(x: jax.Array, y: jax.Array) -> jax.Array:
            return problem.value(x, y, single)

        norms_y = jax.vmap(lambda x, y: _norm_in_y(problem, value, x, y))(points, y)
        return _differenced(jax.vmap(jax.vmap(value))(around, near), place), norms_y

    (norms, norms_y), weights = _over_clients(problem, clients, seeds, stored, one)
    plus, minus = jnp.split(near, 2, axis=1)
    solution = jax.vmap(lambda matrix: jnp.linalg.norm(matrix, 2))((plus - minus) / (2 * step))
    return norms, norms_y, solution, weights


@functools.partial(jax.jit, static_argnames="stored")
def _twostage(problem: Any, place: tuple, clients: Any, seeds: Any, stored: bool) -> Any:
    points, around, _, _, _ = place

    def one(single: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        together = jnp.concatenate([points, around.reshape(-1, points.shape[1])])  # one solve to compile
        values, found = problem.implicit(together, single, problem.monitor)
        xi, y = _scenario(problem, single), found.y[: len(points), 0]
        norms_y = jax.vmap(lambda x, y: _norm_in_y(problem, lambda x, y: problem.value(x, y, xi), x, y))(points, y)
        distances = jnp.sum((y - jnp.asarray(problem.y0, float)) ** 2, axis=-1)
        return _differenced(values[len(points) :, 0].reshape(around.shape[:2]), place), norms_y, distances

    (norms, norms_y, distances), weights = _over_clients(problem, clients, seeds, stored, one)
    return norms, norms_y, distances, weights


def _scenario(problem: Any, single: Any) -> Any:
    """Return the one scenario of a batch of one."""
    samples, *fixed = (single,) if problem.data.fixed is None else single
    alone = jax.tree.map(lambda leaf: leaf[0], samples)
    return (alone, *fixed) if fixed else alone


def _norm_in_y(problem: Any, value: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the norm of the gradient in y; of a black box, by differences along the axes."""
    if not getattr(problem.loss_fn, "is_blackbox", False):
        return jnp.linalg.norm(jax.grad(value, argnums=1)(x, y))
    h = STEP * jnp.eye(y.size)
    plus, minus = (jax.vmap(lambda v, sign=sign: value(x, y + sign * v))(h) for sign in (1.0, -1.0))
    return jnp.linalg.norm((plus - minus) / (2 * STEP))
