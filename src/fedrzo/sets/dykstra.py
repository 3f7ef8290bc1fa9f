"""Dykstra's alternating projections: for sets that are known by their own projections alone."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedrzo.sets.base import norm, promise

SWEEPS = 2000
TANGENT_SWEEPS = 200
UNROLLED = 4  # so many sets are visited one by one in the compiled program, which is fastest; more in a loop


@partial(jax.custom_jvp, nondiff_argnums=(1, 3))
def alternate(members: Any, count: int, x: Array, sweeps: int = SWEEPS) -> tuple[Array, Array]:
    """Return the projection of x onto the intersection of several sets, and a bound of its error.

    `members` is a pytree with `project(i, z)`, the projection onto set i, an integer or a traced one.
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
    """Project onto each member in turn; what a projection takes away is given back before its next turn.

    Returns:
        The new corrections, and the point in each member.
    """

    def visit(y: Array, at: tuple[Any, Array]) -> tuple[Array, tuple[Array, Array]]:
        i, correction = at
        before = y + correction
        y = members.project(i, before)
        return y, (before - y, y)

    y = x - jnp.sum(corrections, axis=0)
    if count > UNROLLED:
        return lax.scan(visit, y, (jnp.arange(count), corrections))[1]
    new, points = [], []
    for i in range(count):
        y, (taken, _) = visit(y, (i, corrections[i]))
        new.append(taken)
        points.append(y)
    return jnp.stack(new), jnp.stack(points)


def _corrections(members: Any, count: int, x: Array, sweeps: int) -> tuple[Array, Array]:
    """Return what each member takes away in the end, and a bound of the error."""
    # An error of 1e-6 needs that the members' points differ by less than 1e-12, or by their rounding.
    tolerance = 1e-13 if x.dtype == jnp.float64 else 2e-7
    rounding = 4 * float(jnp.finfo(x.dtype).eps) * jnp.max(jnp.abs(x))

    def step(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        k, old, _, _ = carry
        new, points = _sweep(members, count, x, old)
        # The change of the corrections, not of y, is the safe test: y may stand still for many sweeps.
        return k + 1, new, points, jnp.max(jnp.abs(new - old)) > tolerance * jnp.max(jnp.abs(new)) + rounding

    none = jnp.zeros((count, *x.shape), x.dtype)
    start = (jnp.int32(0), none, none, jnp.bool_(True))
    _, corrections, points, moving = lax.while_loop(lambda c: (c[0] < sweeps) & c[3], step, start)
    error = _error(x, corrections, points)
    # What still moves after so many sweeps has further to go than the bound tells, if the sets barely touch.
    return corrections, jnp.where(moving, jnp.maximum(error, 2 * promise(x, points[-1])), error)


def _error(x: Array, corrections: Array, points: Array) -> Array:
    """Bound the distance of y, the last point, from the projection z.

    Each correction p_i is normal to set i at its point q_i, so <x - y, z - y> <= sum <p_i, q_i - y> for the sum x - y of the
    p_i; with y within v of the intersection, |y - z|^2 is at most that plus |x - y| v.
    """
    off = points - points[-1]
    missed = jnp.max(jax.vmap(norm)(off))
    return jnp.sqrt(jnp.maximum(jnp.sum(corrections * off), 0) + norm(x - points[-1]) * missed)
