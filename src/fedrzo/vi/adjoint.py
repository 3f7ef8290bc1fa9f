"""How the solution of a variational inequality changes with what it depends on: the adjoint of its fixed-point equation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.vi.spectrum import DENSE

TOLERANCE = 1e-10  # of the residual, relative to the right-hand side
LOST = 1e-8  # a residual above this says that short recurrences have broken down, or lost their way by rounding
MOST = 10  # times as many products as unknowns, before they give up
ATTEMPTS, PLAIN = 5, 20  # how often they start; plain steps before the second time, twice as many before the third, and so on
SOLVED = 1e-3  # a residual that is larger is none of a solution


def adjoint(pull: Callable[[jax.Array], jax.Array], right: jax.Array) -> jax.Array:
    """Return the w with w = right + pull(w), where `pull` multiplies by the transposed derivative of a fixed-point equation.

    That matrix is symmetric for few maps, and together with a projection for fewer still: no conjugate gradients. BiCGSTAB
    keeps seven vectors; where it breaks down, or loses its way by rounding, a few plain steps w = right + pull(w) come first
    and it starts again. Where products do not lead to a solution, w is NaN, which stops a run.
    """
    if right.size > DENSE:
        tolerance = max(TOLERANCE, 100 * float(jnp.finfo(right.dtype).eps))
        size = jnp.linalg.norm(right)

        def attempt(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            count, w, left = state
            begin = jax.lax.fori_loop(0, count * PLAIN, lambda _, w: right + pull(w), w)
            more, _ = bicgstab(lambda w: w - pull(w), right + pull(begin) - begin, tolerance * size, MOST * right.size)
            found = begin + more
            now = jnp.linalg.norm(right + pull(found) - found)
            better = now < left  # never where it is not a number
            return count + 1, jnp.where(better, found, w), jnp.where(better, now, left)

        start = jnp.int32(0), jnp.zeros_like(right), size
        going = lambda state: (state[0] < ATTEMPTS) & (state[2] > LOST * size)  # noqa: E731
        _, w, left = jax.lax.while_loop(going, attempt, start)
        return jnp.where(left <= SOLVED * size, w, jnp.nan)
    one = jnp.eye(right.size, dtype=right.dtype)
    return jnp.linalg.solve(one - jax.vmap(pull)(one).T, right)


def bicgstab(matrix: Callable[[jax.Array], jax.Array], right: jax.Array, goal: Any, most: int) -> tuple[jax.Array, jax.Array]:
    """Solve a linear system by BiCGSTAB until a residual is at its goal; return the solution, and how many products it took."""

    def unsolved(state: tuple) -> jax.Array:
        count, _, rest, *_ = state
        size = jnp.linalg.norm(rest)
        return (count < most) & (size > goal) & jnp.isfinite(size)

    def step(state: tuple) -> tuple:
        count, x, rest, way, rho = state
        through = matrix(way)
        a = rho / (right @ through)
        half = rest - a * through
        onward = matrix(half)
        w = (onward @ half) / jnp.maximum(onward @ onward, jnp.finfo(right.dtype).tiny)
        left = half - w * onward
        new = right @ left
        b = (new / rho) * (a / w)
        return count + 1, x + a * way + w * half, left, left + b * (way - w * through), new

    start = (jnp.int32(0), jnp.zeros_like(right), right, right, right @ right)
    count, x, *_ = jax.lax.while_loop(unsolved, step, start)
    return x, 2 * count
