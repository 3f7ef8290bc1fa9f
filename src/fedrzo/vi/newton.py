"""Newton's method on the fixed-point equation y = P(y - alpha G(y)), by products alone: where large lower levels begin.

Where P has a closed form, Newton's method finds which entries are at their bounds in a few steps, and the answer with them. Past
steps are not kept, so that a step of 1,000 unknowns stays in a processor's cache, as a ring of eight past steps does not.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.sets.base import Set
from fedrzo.sets.basic import Ball, Box, Reals, Simplex
from fedrzo.vi.adjoint import bicgstab
from fedrzo.vi.base import Map, foresee, reached
from fedrzo.vi.spectrum import DENSE

CLOSED = (Reals, Box, Ball, Simplex)  # of other sets a projection, and each product with its derivative, costs too much
PROGRESS = 0.5  # a step must leave at most so much of the residual, else it was the last
MOST = 30  # steps
ACCURACY = 1e-2  # of the linear system of a step, relative to its right-hand side
PRODUCTS = 50  # for it, times two


class State(NamedTuple):
    """Between two steps."""

    taken: jax.Array
    y: jax.Array
    ahead: jax.Array  # P(y - alpha G(y)), whose residual it is
    residual: jax.Array
    steps: jax.Array  # evaluations of the map, or products with its derivative
    going: jax.Array  # the last step was worth it


def begin(map: Map, set: Set, y0: jax.Array, mu: Any, L: Any, tolerance: Any) -> tuple[jax.Array, jax.Array]:
    """Return a point that is nearer to the solution than y0, often the solution itself, and how many evaluations it took.

    There is no guarantee but that its residual is not larger than that of y0, so that another method must go on from there.
    """
    if y0.size <= DENSE or not isinstance(set, CLOSED):
        return y0, jnp.int32(0)
    alpha = jnp.asarray(0.9 / L, y0.dtype)

    def unsolved(state: State) -> jax.Array:
        return state.going & (state.taken < MOST) & ~reached(state.ahead, state.residual, mu, tolerance)

    def step(state: State) -> State:
        ahead, forward = jax.linearize(lambda y: set.project(y - alpha * map(y)), state.y)
        right = ahead - state.y
        move, products = bicgstab(lambda v: v - forward(v), right, ACCURACY * jnp.linalg.norm(right), PRODUCTS)
        trial = set.project(state.y + move)
        ahead, _, residual = foresee(map, set, trial, alpha)
        good = residual <= PROGRESS * state.residual
        return State(
            state.taken + 1, jnp.where(good, trial, state.y), jnp.where(good, ahead, state.ahead),
            jnp.where(good, residual, state.residual), state.steps + products + 3, good,
        )  # fmt: skip

    ahead, _, residual = foresee(map, set, y0, alpha)
    state = State(jnp.int32(0), y0, ahead, residual, jnp.int32(2), jnp.isfinite(residual))
    state = jax.lax.while_loop(unsolved, step, state)
    return jnp.where(jnp.isfinite(state.residual), state.ahead, y0), state.steps
