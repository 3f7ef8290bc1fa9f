"""JAX's default keys with their hash written out, for loops whose steps are small.

On a CPU JAX computes its hash (threefry 2x32, twenty rounds) by a loop of many small programs, which saves compilation but
takes microseconds a call; on a GPU by a launch of its own. Written out, the compiler joins it with what is around it. The
numbers are the same bits: `tests/support/test_keys.py` compares them.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

NAME = "threefry2x32"
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def written_out(key: jax.Array) -> jax.Array:
    """Return the same key, whose numbers are computed without a loop; keys of other kinds are left alone."""
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if str(jax.random.key_impl(key)) != NAME or not partitionable:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=WRITTEN_OUT)


def usual(key: jax.Array) -> jax.Array:
    """Return a key, or several, as JAX's own: what a user's function gets."""
    if jax.random.key_impl(key) != WRITTEN_OUT:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=NAME)


@jax.jit  # so that it is traced once, not in every program that uses it
def _hash(key: jax.Array, first: Any, second: Any) -> tuple[jax.Array, jax.Array]:
    """Hash two words of 32 bits with a key of two: five times four rounds, each group followed by a part of the key."""
    words = key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY)
    x, y = first + words[0], second + words[1]
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(bits)) | (y >> np.uint32(32 - bits)))
        x = x + words[(group + 1) % 3]
        y = y + words[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _places(shape: tuple[int, ...]) -> tuple[np.uint32, jax.Array]:
    """Return the number of each place of an array, as two words."""
    size = math.prod(shape)
    assert size < 1 << 32, "more than 2^32 random numbers in one call"
    return np.uint32(0), jax.lax.iota(jnp.uint32, size).reshape(shape)


def _seed(seed: jax.Array) -> jax.Array:
    return jax.random.key_data(jax.random.key(seed, impl=NAME))


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.stack(_hash(key, *_places(shape)), axis=-1)


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    high, low = _hash(key, *_places(shape))
    if width == 64:
        return (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)
    return (high ^ low).astype(f"uint{width}")


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    return jnp.stack(_hash(key, np.uint32(0), jnp.asarray(data, jnp.uint32)))


WRITTEN_OUT = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name=f"{NAME} written out", tag="fry"
)  # fmt: skip
