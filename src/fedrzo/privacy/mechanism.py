"""A release: the mean of records' clipped slopes over a Poisson sample, with Gaussian noise.

Each record adds a vector to a sum, as long as one at most, in units of the clip. With adaptive clipping the vector has one more
entry, which tells whether the record's slopes are shorter than the clip, and its length is shared between both; so that one
Gaussian sum is all that is to be accounted for. (G. Andrew, O. Thakkar, B. McMahan, S. Ramaswamy: "Differentially Private
Learning with Adaptive Clipping", NeurIPS 2021.)
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.federation.client import FULL, Client
from fedrzo.privacy.privacy import Calibrated, Privacy
from fedrzo.support.keys import written_out

Slopes = Callable[[jax.Array], jax.Array]
AT_A_TIME = 1024  # records whose slopes are found together, at most
DRAWS = 4  # normal numbers that the noise is made of
GRID = 1024  # steps of the grid that noisy sums are rounded to, in one standard deviation of their noise
SHARE = 0.1  # of a record's squared length, which tells whether its slopes are shorter than the clip
TARGET = 0.5  # of records shorter than the clip
RATE = 0.5  # by which the clip's logarithm follows the difference from the target, in each release


def release(
    client: Client, privacy: Privacy, key: jax.Array, batch_size: int | str, slopes: Slopes, count: int, clip: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the noisy mean slope along each direction, and the clip of the next release.

    Args:
        client: whose records.
        privacy: what is promised; calibrated.
        key: of this local step. Who knows it knows neither the sample nor the noise.
        batch_size: how many records a sample has on average, or `"full"`.
        slopes: `slopes(rows)` returns those of some records, rows by directions.
        count: how many directions there are.
        clip: the most that a record's slopes may be long.
    """
    known: Any = privacy.calibrated
    sampling, noise = (jax.random.fold_in(_own_key(client, known, key), i) for i in (0, 1))
    clip = clip.astype(client.level.dtype)
    clip = jnp.maximum(clip, jnp.finfo(clip.dtype).tiny)  # below, one over it overflows: where slopes vanish, clips follow them
    share = SHARE if privacy.adaptive else 0.0

    def contributions(rows: jax.Array) -> jax.Array:
        found = slopes(rows)
        length = _lengths(found)
        scaled = found * (math.sqrt(1 - share) / jnp.maximum(length, clip))[:, None]
        scaled = jnp.where(jnp.isfinite(length)[:, None], scaled, 0)  # a record whose slope is no number says nothing
        if not privacy.adaptive:
            return scaled
        inside = jnp.where(length <= clip, math.sqrt(share), -math.sqrt(share))
        return jnp.concatenate([scaled, inside[:, None].astype(scaled.dtype)], axis=1)

    total = _poisson_sum(client, known, sampling, batch_size, contributions, count + privacy.adaptive)
    expected = known.expected[client.id].astype(total.dtype)
    deviation = known.noise[client.id].astype(total.dtype)
    mean = _noisy(noise, total, deviation) / expected
    found = clip * mean[:count] / math.sqrt(1 - share)
    if not privacy.adaptive:
        return found, clip
    shorter = jnp.clip((1 + mean[count] / math.sqrt(share)) / 2, 0, 1)
    return found, clip * jnp.exp(RATE * (TARGET - shorter))


def _noisy(key: jax.Array, total: jax.Array, deviation: jax.Array) -> jax.Array:
    """Add Gaussian noise, and round to a grid that does not depend on what it was added to.

    A single float32 draw is one of 2^23 numbers, and so is its sum with a number: who knows all records but one could tell
    which sums are possible. Several draws fill the gaps, and the grid, a thousandth of the noise, leaves the same numbers to all.
    """
    drawn = jax.random.normal(key, (DRAWS, *total.shape), total.dtype).sum(axis=0) / math.sqrt(DRAWS)
    grid = deviation / GRID
    return jnp.where(grid > 0, grid * jnp.round((total + deviation * drawn) / jnp.where(grid > 0, grid, 1)), total)


def _own_key(client: Client, known: Calibrated, key: jax.Array) -> jax.Array:
    """Return the key of a release: the client's own, which draws no directions, mixed with that of the step."""
    if known.secret is None:
        return client.mixed(key)
    secret = jax.random.fold_in(jax.random.wrap_key_data(known.secret), client.id)
    return client.mixed(key, written_out(secret))


def _lengths(slopes: jax.Array) -> jax.Array:
    """Return the 2-norm of each row, without overflow; infinite or NaN where an entry is."""
    # XLA multiplies by one over the scale, and takes what is below the least normal number for zero: then a row would have no
    # length, and would not be clipped.
    least = jnp.finfo(slopes.dtype).tiny
    scale = jnp.clip(jnp.max(jnp.abs(slopes), axis=1), least, 1 / least)
    return scale * jnp.sqrt(jnp.sum(jnp.square(slopes / scale[:, None]), axis=1))


def _poisson_sum(
    client: Client, known: Calibrated, key: jax.Array, batch_size: int | str, contributions: Slopes, width: int
) -> jax.Array:
    """Add up what the records of a Poisson sample contribute, a chunk at a time: however many there are, none is left out."""
    data = client.level.data
    offset, size = jnp.asarray(data.offsets)[client.index], jnp.asarray(data.sizes)[client.index]
    places = jnp.arange(data.longest, dtype=jnp.int32)
    drawn = jax.random.bits(key, (data.longest,), jnp.uint32) < known.threshold[client.id]
    drawn = drawn & (places < size)
    chosen = jnp.nonzero(drawn, size=data.longest, fill_value=0)[0].astype(jnp.int32)
    records, chunk = jnp.sum(drawn), _chunk(data.longest, batch_size)

    def add(k: Any, total: jax.Array) -> jax.Array:
        place = k * chunk + jnp.arange(chunk)
        found = contributions(offset + chosen[jnp.minimum(place, data.longest - 1)])
        return total + jnp.sum(jnp.where((place < records)[:, None], found, 0), axis=0)

    return jax.lax.fori_loop(0, (records + chunk - 1) // chunk, add, jnp.zeros(width, client.level.dtype))


def _chunk(longest: int, batch_size: int | str) -> int:
    """Return how many records go together: most samples fit into one chunk."""
    usual = longest if batch_size == FULL else int(batch_size) + 3 * math.isqrt(int(batch_size)) + 1
    return min(longest, usual, AT_A_TIME)
