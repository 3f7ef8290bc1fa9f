"""JAX's default keys with their hash written out, for loops whose steps are small.

On a CPU JAX computes its hash (threefry 2x32, twenty rounds) by a loop of many small programs, which saves compilation but
takes microseconds a call; on a GPU by a launch of its own. Written out, the compiler joins it with what is around it. The
numbers are the same bits: `tests/support/test_keys.py` compares them.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.extend.random import define_prng_impl
from jax.interpreters import batching, mlir

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


def below(span: Any, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw whole numbers from 0 to span - 1: those of `jax.random.randint`, whose two halves are hashed as one array."""
    high, low = jax.vmap(lambda key: jax.random.bits(key, shape, jnp.uint32))(jax.random.split(key))
    span = jnp.asarray(span).astype(jnp.uint32)
    half = np.uint32(1 << 16) % span
    return ((high % span * (half * half % span) + low % span) % span).astype(jnp.int32)


def _rounds(key: tuple[Any, Any], place: Any, number: Callable[[int], Any]) -> tuple[Any, Any]:
    """Emit the hash of the words (0, place): five times four rounds, each group followed by a part of the key."""
    words = *key, hlo.xor(hlo.xor(*key), number(PARITY))
    x, y = words[0], hlo.add(place, words[1])
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            x = hlo.add(x, y)
            turned = hlo.or_(hlo.shift_left(y, number(bits)), hlo.shift_right_logical(y, number(32 - bits)))
            y = hlo.xor(x, turned)
        x = hlo.add(x, words[(group + 1) % 3])
        y = hlo.add(hlo.add(y, words[(group + 2) % 3]), number(group + 1))
    return x, y


def _lower(context: Any, *operands: Any) -> tuple[Any, Any]:
    """Emit the hash for arrays, each of which is repeated along axes that it lacks."""
    shape = context.avals_out[0].shape
    word = ir.IntegerType.get_unsigned(32)
    array = ir.RankedTensorType.get(shape, word)

    @functools.cache
    def number(value: int) -> Any:
        return hlo.constant(ir.DenseElementsAttr.get_splat(array, ir.IntegerAttr.get(word, value)))

    def whole(value: Any, own: tuple[int, ...]) -> Any:
        axes = ir.DenseI64ArrayAttr.get(list(range(len(shape) - len(own), len(shape))))
        return value if own == shape else hlo.broadcast_in_dim(array, value, axes)

    first, second, place = (whole(value, aval.shape) for value, aval in zip(operands, context.avals_in, strict=True))
    return _rounds((first, second), place, number)


def _shapes(*words: Any) -> Any:
    return [jax.core.ShapedArray(np.broadcast_shapes(*(word.shape for word in words)), np.dtype("uint32"))] * 2


# One operation of JAX's, since tracing and batching a hundred of them takes longer than to compile them.
HASH = Primitive("written_out_hash")
HASH.multiple_results = True
HASH.def_abstract_eval(_shapes)
HASH.def_impl(jax.jit(HASH.bind))  # made once: a bound method of its own for each call would be compiled for each
batching.defbroadcasting(HASH)
mlir.register_lowering(HASH, _lower)


def _hash(key: jax.Array, place: Any) -> tuple[jax.Array, jax.Array]:
    """Hash the words (0, place) with a key of two words."""
    place = jnp.asarray(place, jnp.uint32)
    first, second = (jnp.broadcast_to(key[i], place.shape) for i in (0, 1))
    return tuple(HASH.bind(first, second, place))


def _places(shape: tuple[int, ...]) -> jax.Array:
    """Return the number of each place of an array."""
    size = math.prod(shape)
    assert size < 1 << 32, "more than 2^32 random numbers in one call"
    return jax.lax.iota(jnp.uint32, size).reshape(shape)


def _seed(seed: jax.Array) -> jax.Array:
    return jax.random.key_data(jax.random.key(seed, impl=NAME))


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.stack(_hash(key, _places(shape)), axis=-1)


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    high, low = _hash(key, _places(shape))
    if width == 64:
        return (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)
    return (high ^ low).astype(f"uint{width}")


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    return jnp.stack(_hash(key, data))


WRITTEN_OUT = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name=f"{NAME} written out", tag="fry"
)  # fmt: skip
