"""How the solution of a variational inequality changes with what it depends on: the adjoint of its fixed-point equation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import gmres

DENSE = 64  # up to so many unknowns the matrix is formed; beyond, it takes products with it
TOLERANCE = 1e-10  # of the residual, relative to the right-hand side
RESTART = 40


def adjoint(pull: Callable[[jax.Array], jax.Array], right: jax.Array) -> jax.Array:
    """Return the w with w = right + pull(w), where `pull` multiplies by the transposed derivative of a contraction.

    That matrix is symmetric for few maps, and together with a projection for fewer still: no conjugate gradients.
    """
    if right.size > DENSE:
        return gmres(lambda w: w - pull(w), right, tol=TOLERANCE, restart=min(RESTART, right.size), maxiter=right.size)[0]
    one = jnp.eye(right.size, dtype=right.dtype)
    return jnp.linalg.solve(one - jax.vmap(pull)(one).T, right)
