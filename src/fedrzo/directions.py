"""The direction generator: vectors uniform on a sphere, from a key.

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
    normal = jax.random.normal(key, (dim,), dtype)
    return normal * (radius / jnp.linalg.norm(normal))
