"""The direction generator: vectors uniform on a sphere, or normal, from a key.

Whoever knows the key can rebuild the direction, so the generator is part of the wire contract: any change to the numbers that it
yields must raise `VERSION`. They are the same bits in every engine and on every platform, because rounding never has a choice:

1. A number's bits are a hash of its place and the key: three rounds of multiply and shift on 32-bit integers, one for the place
   and two words, into which the key's own two are mixed first.
2. Their normal quantile is an odd multiple of 2^-13 (never zero, so that no vector is): one bit is the sign, the others a tail
   probability, whose quantile is interpolated between the nodes of a table, in integers. Nodes are spaced by ratios, 64 to each
   halving of the probability, so that tails are as accurate as the middle (to 3e-5) and reach 6.2 standard deviations.
3. The squared length is a sum of integers, exact in any order. In float32 its inverse square root is taken in integers too, since
   compilers differ in how they divide and in whether they fuse a product with a sum.
4. The vector is the integers times one float: a single rounding.
"""

import functools
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.support.compiling import stored

VERSION = 3

FRACTION = 13  # fractional bits of a normal number
GUARD = 3  # more bits of the table's, cut away at the end
NODES = 6  # log2 of the nodes per halving of the tail probability
MANTISSA = 23 - NODES  # bits of a float32's mantissa between two nodes
DROP = 10  # bits of an entry of the table that say how far the quantile falls to the next node
SIGN = np.uint32(1 << 31)
STRIDE = 0x9E3779B9  # how far neighbours are apart before their bits are mixed
BLOCK = 1 << 15  # squares whose low halves can be added up in 32 bits


@functools.partial(jax.jit, static_argnames=("dim", "dtype"))  # traced once for many programs
def sphere(key: jax.Array, dim: int, radius: Any, dtype: Any) -> jax.Array:
    """Draw a vector uniform on the sphere of the given radius in R^dim."""
    z = integers(key, dim)
    scale = stored(lambda: inverse_length(z, dtype))
    return z.astype(dtype) * (jnp.asarray(radius, dtype) * scale)


def ball(key: jax.Array, dim: int, radius: Any, dtype: Any) -> jax.Array:
    """Draw a vector uniform in the ball of the given radius in R^dim: the first entries of one on the sphere in R^(dim+2)."""
    return sphere(key, dim + 2, radius, dtype)[:dim]


def normal(key: jax.Array, dim: int, dtype: Any) -> jax.Array:
    """Draw a vector of independent standard normals in R^dim; its length is about sqrt(dim)."""
    return integers(key, dim).astype(dtype) * jnp.asarray(2.0**-FRACTION, dtype)


@functools.partial(jax.jit, static_argnames="dim")
def integers(key: jax.Array, dim: int) -> jax.Array:
    """Draw standard normals in units of 2^-13."""
    return quantile(lambda: bits(key, dim))


def bits(key: jax.Array, dim: int) -> jax.Array:
    """Hash the places 0 .. dim - 1 with a key: 32 bits each. For one key no two places get the same bits."""
    return hashed(jnp.arange(dim, dtype=jnp.uint32), *words(key))


def words(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the two words that places are hashed with; each depends on all bits of the key's first and last word.

    Two rounds of a Feistel network, so no two keys have the same. Without it keys whose last words are neighbours, as those of
    `jax.random.key(0)` and `jax.random.key(1)` are, would give directions that are not independent: the last word is mixed less.
    """
    data = jax.random.key_data(key)
    first = data[0] ^ hashed(np.uint32(1), data[-1], np.uint32(0))
    return first, data[-1] ^ hashed(np.uint32(1), first, np.uint32(0))


def hashed(places: Any, first: jax.Array, last: Any) -> jax.Array:
    """Hash places with two words."""
    x = places * np.uint32(STRIDE) + first
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D) + last  # a GPU has one instruction for this
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def quantile(bits: Callable[[], jax.Array]) -> jax.Array:
    """Return the normal quantiles that 32 random bits stand for, in units of 2^-13.

    A CPU takes three passes, of which it vectorises all but the look at the table. The first also draws the bits.
    """
    place = stored(lambda: _places(bits()))
    entry = stored(lambda: _entries(place))
    return stored(lambda: _between(entry, place))


def _places(bits: jax.Array) -> jax.Array:
    """Return tail probabilities, with the numbers' signs, as the bits of floats: the first of them name a node of the table."""
    odd = ((bits & ~SIGN) | np.uint32(1)).astype(jnp.int32)  # over 2^32 it is the probability
    return jax.lax.bitcast_convert_type(odd.astype(jnp.float32), jnp.uint32) | (bits & SIGN)


def _entries(place: jax.Array) -> jax.Array:
    node = ((place & ~SIGN) >> MANTISSA).astype(jnp.int32) - (127 << NODES)
    return jnp.asarray(table()).at[node].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _between(entry: jax.Array, place: jax.Array) -> jax.Array:
    """Return the quantiles between nodes of the table and the next, at tail probabilities and with their signs."""
    value, drop = entry >> DROP, entry & ((1 << DROP) - 1)
    beyond = (place & np.uint32((1 << MANTISSA) - 1)).astype(jnp.int32)
    z = ((value - ((drop * beyond) >> MANTISSA)) >> GUARD) | 1
    return jnp.where(place >> 31 == 1, -z, z)


@functools.cache
def table() -> np.ndarray:
    """Return each node's word: the quantile's absolute value, and how far it falls to the next node, in units of 2^-16."""
    per = 1 << NODES
    nodes = [2.0**e * (1 + j / per) for e in range(31) for j in range(per)] + [2.0**31]
    scale = 1 << (FRACTION + GUARD)
    values = np.array([round(-NormalDist().inv_cdf(node / 2**32) * scale) for node in nodes], np.int32)
    drops = values - np.append(values[1:], 0).astype(np.int32)
    assert drops.max() < 1 << DROP
    assert values.max() < 1 << (31 - DROP)
    return (values << DROP) | drops


def inverse_length(z: jax.Array, dtype: Any) -> jax.Array:
    """Return 1 over the Euclidean length of a vector of integers below 2^16."""
    if jnp.dtype(dtype) == jnp.float64:
        exact = z.astype(jnp.float64)  # sums of integers below 2^53 are exact in any order
        return 1 / jnp.sqrt(jnp.sum(exact * exact))
    return inverse_root(squared_length(z))


def squared_length(z: jax.Array) -> jax.Array:
    """Return the sum of squares as a float32, from sums of integers that cannot overflow (below 2^31 entries)."""
    blocks = -(-z.size // BLOCK)
    if blocks > 1:
        z = jnp.pad(z, (0, -z.size % BLOCK)).reshape(blocks, BLOCK)
    squares = z * z  # below 2^32; they wrap around in a signed number, whose bits are the same
    parts = squares, jax.lax.shift_right_logical(squares, np.int32(16))
    # Both sums in one pass, with as few operations as can be: XLA on a CPU splits up what has more, and waits for the parts.
    zero = np.int32(0)
    all_, high = jax.lax.reduce(parts, (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (z.ndim - 1,))
    all_, high = all_.astype(jnp.uint32), high.astype(jnp.uint32)
    # What the low halves add up to is below 2^31, so it is known though all_ is not.
    return joined(all_ - (high << 16), high)


def joined(low: jax.Array, high: jax.Array) -> jax.Array:
    """Return the sum of squares as a float32, from each block's sums, below 2^32, of their low and of their high halves."""
    low, high = _limbs(low, high)
    middle, top = high & np.uint32(0xFFFF), high >> 16
    low, middle, top = (jnp.sum(limbs, dtype=jnp.uint32) for limbs in (low, middle, top))
    low, middle = _limbs(low, middle)
    middle, top = _limbs(middle, top)
    # Products with powers of two are exact, so each line rounds once, fused or not.
    rest = middle.astype(jnp.float32) * np.float32(2**16) + low.astype(jnp.float32)
    return top.astype(jnp.float32) * np.float32(2**32) + rest


def _limbs(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Carry what exceeds 16 bits from the low part to the high one."""
    return low & np.uint32(0xFFFF), high + (low >> 16)


def inverse_root(t: jax.Array) -> jax.Array:
    """Return 1/sqrt(t) of a positive float32 by Newton's iteration on integers, right to its last bit or the one before."""
    place = jax.lax.bitcast_convert_type(t, jnp.uint32)
    odd = (place >> 23) & np.uint32(1) ^ np.uint32(1)  # t = m 4^e with m in [1, 4)
    e = (place >> 23).astype(jnp.int32) - 127 - odd.astype(jnp.int32)
    m = ((place & np.uint32(0x7FFFFF)) | np.uint32(0x800000)) << (np.uint32(6) + odd)  # 29 fractional bits
    near = jax.lax.bitcast_convert_type((place & np.uint32(0x7FFFFF)) | ((np.uint32(127) + odd) << 23), jnp.uint32)
    guess = jax.lax.bitcast_convert_type(np.uint32(0x5F375A86) - (near >> 1), jnp.float32)  # within 4 %
    y = (guess * np.float32(2**30)).astype(jnp.uint32)  # 30 fractional bits
    for _ in range(4):
        product = _high(m << 1, _high(y << 1, y << 1) << 1) << 1
        y = _high(y << 1, np.uint32(3 << 30) - product)
    shift = jax.lax.bitcast_convert_type((127 - 30 - (e >> 1)) << 23, jnp.float32)
    return y.astype(jnp.float32) * shift


def _high(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the upper half of the product of two 32-bit integers."""
    half = np.uint32(0xFFFF)
    a0, a1, b0, b1 = a & half, a >> 16, b & half, b >> 16
    middle = a1 * b0 + (a0 * b0 >> 16)
    return a1 * b1 + (middle >> 16) + (((middle & half) + a0 * b1) >> 16)
