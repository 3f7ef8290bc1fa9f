"""The multipliers of a polyhedral set where a force presses a point against it."""

import jax
import jax.numpy as jnp
from jax import Array

from fedrzo.sets.base import Set
from fedrzo.sets.basic import Box
from fedrzo.sets.common import FOLD_LIMIT
from fedrzo.sets.solver import least_multipliers, shortest_move, unit_rows

TOUCHING = 1e-6  # of the size of the point: so near to a bound it is on it


def multipliers(member: Set, y: Array, slope: Array) -> dict[str, Array] | None:
    """Return u >= 0 and v with `slope + A'u + E'v = 0`, for a y of least value on the set; None where there are no rows.

    A box has one for each of its bounds, `lower` and `upper`; others have one for each of their rows, in their order,
    `inequalities` and `equations`. Where they are not unique, these are some.
    """
    if isinstance(member, Box):
        near = TOUCHING * (1 + jnp.abs(y))
        return {
            "lower": jnp.where(y - member.lo <= near, jnp.maximum(slope, 0), 0),
            "upper": jnp.where(member.hi - y <= near, jnp.maximum(-slope, 0), 0),
        }
    count = member._row_count(y.size)
    if not count or count * y.size > FOLD_LIMIT:
        return None
    rows = jax.tree.map(lambda part: jnp.asarray(part, y.dtype), member._rows(y.size, y.dtype))
    held = least_multipliers(rows.E)
    along = rows.A - jax.vmap(lambda row: rows.E.T @ held(rows.E @ row))(rows.A)  # what moves that keep the equations see of rows
    sizes = jnp.linalg.norm(along, axis=1)
    # y is the projection of y - slope: the multipliers of that projection are those of y.
    x = y - slope
    x = x - rows.E.T @ held(rows.E @ x - rows.f)
    _, u, _ = shortest_move(
        *unit_rows(along, jnp.where(jnp.isfinite(rows.b), rows.b - along @ x - (rows.A - along) @ y, jnp.inf)), None
    )
    u = jnp.where(sizes > 0, u / jnp.where(sizes > 0, sizes, 1), 0)
    return {"inequalities": u, "equations": held(rows.E @ (-slope - rows.A.T @ u))}
