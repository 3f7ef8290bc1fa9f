"""Dykstra's alternating projections: for sets that are known by their own projections alone."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedrzo.sets.base import norm, promise

SWEEPS = 2000
TANGENT_SWEEPS = 200


@partial(jax.custom_jvp, nondiff_argnums=(1, 3))
def alternate(members: Any, count: int, x: Array, sweeps: int = SWEEPS) -> tuple[Array, Array]:
    """Return the projection of x onto the intersection of several sets, and a bound of its error.

    Args:
        members: A pytree with `project(i, z)`, the projection onto set i.
        count: How many sets there are.
        x: The point.
        sweeps: How often all of them are visited at most.
    """
    corrections, error = _corrections(members, count, x, sweeps)
    return x - jnp.sum(corrections, axis=0), error


@alternate.defjvp
def _alternate_jvp(count: int, sweeps: int, primals: Any, tangents: Any) -> tuple[Any, Any]:
    # The corrections are a fixed point of the sweep, so their tangents are one of the linearised sweep.
    (members, x), (dmembers, dx) = primals, tangents
    corrections, error = _corrections(members, count, x, sweeps)
    _, linear = jax.linearize(lambda m, x, c: _sweep(m, count, x, c)[0], members, x, corrections)
    step = lambda d, _: (linear(dmembers, dx, d), None)  # noqa: E731
    dcorrections, _ = lax.scan(step, jnp.zeros_like(corrections), length=TANGENT_SWEEPS)
    value = x - jnp.sum(corrections, axis=0), error
    return value, (dx - jnp.sum(dcorrections, axis=0), jnp.zeros_like(error))


def _sweep(members: Any, count: int, x: Array, corrections: Array) -> tuple[Array, Array]:
    """Project onto each member in turn; what a projection takes away is given back before its next turn."""

    def visit(y: Array, at: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        i, correction = at
        before = y + correction
        y = members.project(i, before)
        return y, (before - y, y)

    return lax.scan(visit, x - jnp.sum(corrections, axis=0), (jnp.arange(count), corrections))[1]


def _corrections(members: Any, count: int, x: Array, sweeps: int) -> tuple[Array, Array]:
    def step(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        k, old, _, _ = carry
        new, points = _sweep(members, count, x, old)
        error = _error(x, new, points)
        # The change of the corrections, not of y, is the safe test: y may stand still for many sweeps.
        moved = jnp.max(jnp.abs(new - old)) > tolerance * jnp.max(jnp.abs(new))
        return k + 1, new, error, moved | (error > promise(x, points[-1]))

    tolerance = 1e-10 if x.dtype == jnp.float64 else 1e-6
    start = (jnp.int32(0), jnp.zeros((count, *x.shape), x.dtype), jnp.zeros((), x.dtype), jnp.bool_(True))
    _, corrections, error, unsolved = lax.while_loop(lambda c: (c[0] < sweeps) & c[3], step, start)
    # Whoever still moves after so many sweeps has further to go than the bound, which is one for sets that do not barely
    # touch, can tell.
    moving = jnp.maximum(error, 2 * promise(x, x - jnp.sum(corrections, axis=0)))
    return corrections, jnp.where(unsolved, moving, error)


def _error(x: Array, corrections: Array, points: Array) -> Array:
    """Bound the distance of y, the last point, from the projection z.

    Each correction p_i is normal to set i at its point q_i, so <x - y, z - y> <= sum <p_i, q_i - y> for the sum x - y of the
    p_i; with y within v of the intersection, |y - z|^2 is at most that plus |x - y| v.
    """
    off = points - points[-1]
    missed = jnp.max(jax.vmap(norm)(off))
    return jnp.sqrt(jnp.maximum(jnp.sum(corrections * off), 0) + norm(x - points[-1]) * missed)
