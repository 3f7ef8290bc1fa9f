"""How the solution of a variational inequality changes with what it depends on: the adjoint of its fixed-point equation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import bicgstab, gmres

from fedrzo.vi.spectrum import DENSE

TOLERANCE = 1e-10  # of the residual, relative to the right-hand side
LOST = 1e-8  # a residual above this says that short recurrences have broken down, or lost their way by rounding
MOST = 10  # times as many products as unknowns, before they give up
RESTART = 40
SOLVED = 1e-3  # a residual that is larger is none of a solution


def adjoint(pull: Callable[[jax.Array], jax.Array], right: jax.Array) -> jax.Array:
    """Return the w with w = right + pull(w), where `pull` multiplies by the transposed derivative of a fixed-point equation.

    That matrix is symmetric for few maps, and together with a projection for fewer still: no conjugate gradients. GMRES has
    no need to take a step where BiCGSTAB, which keeps seven vectors and not forty, has ended well. Where products do not lead
    to a solution, w is NaN, which stops a run.
    """
    if right.size > DENSE:

        def matrix(w: jax.Array) -> jax.Array:
            return w - pull(w)

        eps = float(jnp.finfo(right.dtype).eps)
        w, _ = bicgstab(matrix, right, tol=max(TOLERANCE, 100 * eps), maxiter=MOST * right.size)
        w = jnp.where(jnp.all(jnp.isfinite(w)), w, 0)
        w, _ = gmres(matrix, right, w, tol=max(LOST, 1000 * eps), restart=min(RESTART, right.size), maxiter=right.size)
        left = jnp.linalg.norm(right + pull(w) - w)
        return jnp.where(left <= SOLVED * jnp.linalg.norm(right), w, jnp.nan)
    one = jnp.eye(right.size, dtype=right.dtype)
    return jnp.linalg.solve(one - jax.vmap(pull)(one).T, right)
