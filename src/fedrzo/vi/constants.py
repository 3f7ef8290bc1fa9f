"""Estimates of a map's modulus of strong monotonicity and Lipschitz constant, from its derivative at some points."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.vi.base import Map

DENSE = 64  # up to so many unknowns the Jacobian is formed; beyond, eigenvalues come from products with it


class Constants(NamedTuple):
    """The modulus mu and the Lipschitz constant L of a map."""

    mu: float
    L: float


def measure(map: Map, points: Any) -> Constants:
    """Measure a map's constants at some points: the least over them of mu, the largest of L.

    mu is the least eigenvalue of the Jacobian's symmetric part, L the Jacobian's norm. Of an affine map these are the
    constants themselves; of another one, mu can only be less and L more elsewhere.

    Args:
        map: G, a JAX-traceable function of a flat vector.
        points: flat vectors, one per row.
    """
    found = [_at(map, jnp.asarray(y)) for y in points]
    return Constants(min(mu for mu, _ in found), max(L for _, L in found))


def _at(map: Map, y: jax.Array) -> Constants:
    if y.size <= DENSE:
        jacobian = np.asarray(jax.jacfwd(map)(y))
        mu = np.linalg.eigvalsh((jacobian + jacobian.T) / 2)[0]
        return Constants(float(mu), float(np.linalg.norm(jacobian, 2)))
    return _by_products(map, y)


def _by_products(map: Map, y: jax.Array) -> Constants:
    """Lanczos on products with the Jacobian: cost linear in n where the map's is."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    @jax.jit
    def forward(v: jax.Array) -> jax.Array:
        return jax.jvp(map, (y,), (v,))[1]

    @jax.jit
    def backward(v: jax.Array) -> jax.Array:
        return jax.vjp(map, y)[1](v)[0]

    def largest(product: Any, shift: float = 0.0) -> float:
        """Return the eigenvalue of the symmetric `shift I - product` (or `product`, without a shift) that is largest."""
        def act(v: np.ndarray) -> np.ndarray:
            v = np.ravel(v)
            return shift * v - np.asarray(product(v)) if shift else np.asarray(product(v))

        operator = LinearOperator((y.size, y.size), matvec=act, dtype=np.float64)
        start = np.random.default_rng(0).normal(size=y.size)
        return float(eigsh(operator, k=1, which="LA", v0=start, tol=1e-9, return_eigenvectors=False)[0])

    L = np.sqrt(max(largest(lambda v: backward(forward(v))), 0.0))
    shift = float(L) or 1.0
    mu = shift - largest(lambda v: (forward(v) + backward(v)) / 2, shift)
    return Constants(mu, float(L))
