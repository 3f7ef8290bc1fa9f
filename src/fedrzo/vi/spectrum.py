"""Estimates of a map's modulus of strong monotonicity and Lipschitz constant, from its derivative at some points."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # whose parts are imported when they are used

DENSE = 64  # up to so many unknowns the Jacobian is formed; beyond, eigenvalues come from products with it


class Constants(NamedTuple):
    """The modulus mu and the Lipschitz constant L of a map, or of several: then arrays."""

    mu: Any
    L: Any


def measure(map: Callable[..., jax.Array], points: Any, *arguments: Any) -> Constants:
    """Measure the constants of `map(y, *arguments)` in y at some points: the least mu there, and the largest L.

    mu is the least eigenvalue of the Jacobian's symmetric part, L the Jacobian's norm. Of an affine map these are the
    constants themselves; of another one, mu can only be less elsewhere and L more. New arguments compile nothing new.
    """
    dense = len(points[0]) <= DENSE
    found = [_at(map, y, *arguments) if dense else _by_products(map, y, arguments) for y in points]
    return Constants(min(float(mu) for mu, _ in found), max(float(L) for _, L in found))


@functools.partial(jax.jit, static_argnames="map")
def _forward(map: Any, y: jax.Array, arguments: tuple, v: jax.Array) -> jax.Array:
    return jax.jvp(lambda y: map(y, *arguments), (y,), (v,))[1]


@functools.partial(jax.jit, static_argnames="map")
def _backward(map: Any, y: jax.Array, arguments: tuple, v: jax.Array) -> jax.Array:
    return jax.vjp(lambda y: map(y, *arguments), y)[1](v)[0]


def at_point(map: Callable[..., jax.Array], y: jax.Array, *arguments: Any) -> Constants:
    """Return mu and L of a map's derivative at one point; traced."""
    jacobian = jax.jacfwd(map)(y, *arguments)
    return Constants(jnp.linalg.eigvalsh((jacobian + jacobian.T) / 2)[0], jnp.linalg.norm(jacobian, 2))


def largest_eigenvalue(product: Callable[[jax.Array], jax.Array], like: jax.Array, steps: int) -> jax.Array:
    """Find the largest eigenvalue of a positive semidefinite operator by power iteration, which ends inside the spectrum."""
    start = jax.random.normal(jax.random.key(0), like.shape, like.dtype)

    def step(_: Any, v: jax.Array) -> jax.Array:
        v = product(v)
        return v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)

    v = jax.lax.fori_loop(0, steps, step, start / jnp.linalg.norm(start))
    return jnp.vdot(v, product(v))


_at = functools.partial(jax.jit, static_argnames="map")(at_point)


def _by_products(map: Any, y: jax.Array, arguments: tuple) -> Constants:
    """Lanczos on products with the Jacobian: cost linear in n where the map's is."""

    def largest(product: Callable[[np.ndarray], Any]) -> float:
        linalg = scipy.sparse.linalg
        operator = linalg.LinearOperator((y.size, y.size), matvec=lambda v: np.asarray(product(np.ravel(v))), dtype=np.float64)
        start = np.random.default_rng(0).normal(size=y.size)
        return float(linalg.eigsh(operator, k=1, which="LA", v0=start, tol=1e-9, return_eigenvectors=False)[0])

    def symmetric(v: np.ndarray) -> Any:
        return np.asarray(_forward(map, y, arguments, v) + _backward(map, y, arguments, v)) / 2

    square = largest(lambda v: _backward(map, y, arguments, _forward(map, y, arguments, v)))
    L = float(np.sqrt(max(square, 0.0)))
    if L == 0:
        return Constants(0.0, 0.0)
    # The least eigenvalue sits at the end of the spectrum that Lanczos finds fast once the rest is turned over; twice L, since
    # once would leave nothing of a multiple of the identity.
    return Constants(2 * L - largest(lambda v: 2 * L * v - symmetric(v)), L)
