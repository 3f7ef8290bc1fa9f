"""The direction generator inside a kernel: the same integers as `fedrzo.directions` yields, for any tile of places.

A kernel has no constants: the table of quantiles is an argument, value and drop of a node in one word, so that one look does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton as gpu

from fedrzo import directions


def integers(table: Any, words: tuple[Any, Any], lane: jax.Array, offset: Any) -> jax.Array:
    """Draw the direction's integers at the places `lane + offset`; the arguments are those of `magnitudes`."""
    return directions.with_sign(*magnitudes(table, words, lane, offset))


def magnitudes(table: Any, words: tuple[Any, Any], lane: jax.Array, offset: Any) -> tuple[jax.Array, jax.Array]:
    """Draw the absolute values of the direction's integers at the places `lane + offset`, and bits whose first is the sign.

    Args:
        table: a reference to that of `fedrzo.directions`.
        words: those of `fedrzo.directions.words`, for the key of the direction.
        lane: places of any shape; where several tiles have the same, their product with the hash's first factor is shared.
        offset: of the tile.
    """
    if isinstance(offset, int):
        ahead: Any = np.uint32(offset * directions.STRIDE & 0xFFFFFFFF)
    else:
        ahead = offset.astype(jnp.uint32) * np.uint32(directions.STRIDE)
    bits = directions.hashed(lane.astype(jnp.uint32), words[0] + ahead, words[1])
    tail = directions.tails(bits)
    return directions.magnitude(gpu.load(table.at[directions.node(tail)]), tail), bits


def signed(z: jax.Array, bits: jax.Array) -> jax.Array:
    """Return absolute values with their signs, as floats: the sign is a bit, so this takes fewer operations than a choice."""
    place = jax.lax.bitcast_convert_type(z.astype(jnp.float32), jnp.uint32)
    return jax.lax.bitcast_convert_type(place ^ (bits & directions.SIGN), jnp.float32)


def halves(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the low and the high 16 bits of each square, whose sums over 32,768 places cannot overflow."""
    square = z * z  # below 2^32: as a signed number it may have wrapped around
    return square & 0xFFFF, above(square)


def above(square: jax.Array) -> jax.Array:
    """Return the high 16 bits of squares."""
    return jax.lax.shift_right_logical(square, jnp.int32(16))


def inverse_length(low: jax.Array, high: jax.Array) -> jax.Array:
    """Return 1 over the length of a direction's integers, from the sums of both halves of their squares."""
    return directions.inverse_root(directions.joined(low.astype(jnp.uint32), high.astype(jnp.uint32)))
