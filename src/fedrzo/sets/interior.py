"""A primal-dual interior-point method for the shortest move into a polyhedron: which of many rows are active?"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

INTERIOR_STEPS = 40  # 10 to 20 are used, unless the set is empty


class Point(NamedTuple):
    """An iterate of the interior-point method: the move, the multipliers, the slacks."""

    d: Array
    u: Array
    s: Array


def interior_point(B: Array, q: Array, done: Array) -> tuple[Array, Array]:
    """Return multipliers u and slacks s of the shortest d with `B d + s = q, s >= 0`.

    Mehrotra's predictor and corrector, run until u and s tell which rows are active. `damping` is a proximal
    term on u: it bounds the condition of the linear system where rows are dependent or the set has no
    interior, and leaves the solution as it is.
    """
    eps = float(jnp.finfo(B.dtype).eps)

    def step(carry: Any) -> Any:
        count, state, _ = carry
        new = _predict_and_correct(B, q, state, damping=0.01 * eps**0.5)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(v)) for v in new]))
        new = jax.tree.map(lambda old, v: jnp.where(finite, v, old), state, new)
        d, u, s = new
        solved = (jnp.mean(u * s) < eps**1.5) & jnp.all(jnp.abs(B @ d + s - q) < 1e4 * eps * (1 + s))
        return count + 1, new, ~finite | solved

    s = jnp.maximum(q, 1)
    start = Point(jnp.zeros_like(B[0]), 1 / s, s)
    _, (_, u, s), _ = lax.while_loop(lambda c: (c[0] < INTERIOR_STEPS) & ~c[2], step, (0, start, done))
    return u, s


def _predict_and_correct(B: Array, q: Array, state: Point, damping: float) -> Point:
    d, u, s = state
    dual, primal, gap = d + B.T @ u, B @ d + s - q, jnp.mean(u * s)
    weight = 1 / (s + damping * u)
    factor = jax.scipy.linalg.cho_factor(jnp.eye(d.shape[0], dtype=d.dtype) + (B.T * (u * weight)) @ B)

    def newton(product: Array) -> tuple[Point, Array]:
        known = weight * (u * primal - product)
        move = jax.scipy.linalg.cho_solve(factor, -dual - B.T @ known)
        du = known + weight * u * (B @ move)
        ds = damping * du - primal - B @ move
        return Point(move, du, ds), jnp.minimum(_room(u, du), _room(s, ds))

    (_, du, ds), room = newton(u * s)
    length = jnp.minimum(room, 1)
    centring = (jnp.mean((u + length * du) * (s + length * ds)) / gap) ** 3
    change, room = newton(u * s + du * ds - centring * gap)
    length = jnp.minimum(0.99 * room, 1)
    return Point(*(old + length * new for old, new in zip(state, change, strict=True)))


def _room(v: Array, dv: Array) -> Array:
    """Return how far v may go along dv and stay positive."""
    falling = dv < 0
    return jnp.min(jnp.where(falling, v / jnp.where(falling, -dv, 1), jnp.inf))
