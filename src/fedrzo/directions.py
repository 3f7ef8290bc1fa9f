"""The direction generator: vectors uniform on a sphere, or normal, from a key.

Whoever knows the key can rebuild the direction, so the generator is part of the wire contract: any change to the numbers
that it yields must raise `VERSION`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

VERSION = 1


def sphere(key: jax.Array, dim: int, radius: Any, dtype: Any) -> jax.Array:
    """Draw a vector uniform on the sphere of the given radius in R^dim."""
    z = normal(key, dim, dtype)
    return z * (radius / jnp.linalg.norm(z))


def normal(key: jax.Array, dim: int, dtype: Any) -> jax.Array:
    """Draw a vector of independent standard normals in R^dim; its length is about sqrt(dim)."""
    return jax.random.normal(key, (dim,), dtype)
