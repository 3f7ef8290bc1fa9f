"""How the solution of a variational inequality changes with what it depends on: the adjoint of its fixed-point equation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import gmres

from fedrzo.vi.spectrum import DENSE

TOLERANCE = 1e-10  # of the residual, relative to the right-hand side
RESTART = 40
SOLVED = 1e-3  # a residual that is larger is none of a solution


def adjoint(pull: Callable[[jax.Array], jax.Array], right: jax.Array) -> jax.Array:
    """Return the w with w = right + pull(w), where `pull` multiplies by the transposed derivative of a fixed-point equation.

    That matrix is symmetric for few maps, and together with a projection for fewer still: no conjugate gradients. Where products
    do not lead to a solution, w is NaN, which stops a run.
    """
    if right.size > DENSE:
        w, _ = gmres(lambda w: w - pull(w), right, tol=TOLERANCE, restart=min(RESTART, right.size), maxiter=right.size)
        left = jnp.linalg.norm(right + pull(w) - w)
        return jnp.where(left <= SOLVED * jnp.linalg.norm(right), w, jnp.nan)
    one = jnp.eye(right.size, dtype=right.dtype)
    return jnp.linalg.solve(one - jax.vmap(pull)(one).T, right)
