"""The kernels of `wide_steps`, and how they cut up x: tiles of some neurons and some of their pixels."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu

from fedrzo.kernels.drawing import above, halves, integers, inverse_length, magnitudes, signed
from fedrzo.kernels.layout import row_of

LINE = 32  # numbers that memory is read and written by
LEAST = 16  # rows of a factor of a product
TALL = 128  # neurons that the second kernel looks at together


class Tiling(NamedTuple):
    """What is static about the kernels, and how they cut up x.

    Attributes:
        neurons: of the network.
        pixels: inputs of each neuron.
        batch: samples of a step.
        regularisation: of the loss.
        rows: neurons of a tile.
        columns: pixels of a tile.
        tiles: beside each other, that a program goes over.
        warps: that share them.
    """

    neurons: int
    pixels: int
    batch: int
    regularisation: float
    rows: int = 16
    columns: int = 32
    tiles: int = 32
    warps: int = 2

    @property
    def dim(self) -> int:
        """The length of x."""
        return self.neurons * (self.pixels + 1)

    @property
    def stride(self) -> int:
        """Numbers from one client's Z to the next: whole lines of memory."""
        return -(-self.neurons * self.pixels // LINE) * LINE

    @property
    def samples(self) -> int:
        """Places for samples: a power of two, as kernels need it."""
        return max(LEAST, 1 << (self.batch - 1).bit_length())

    @property
    def across(self) -> int:
        """Tiles beside each other."""
        return -(-self.pixels // self.columns)

    @property
    def grid(self) -> tuple[int, int]:
        """Programs for each client: below each other, and beside each other."""
        return -(-self.neurons // self.rows), -(-self.across // self.tiles)


def walk(
    Z: Any, far: Any, turn: Any, samples: Any, first: Any, last: Any, counts: Any, images: Any, table: Any,
    Z_out: Any, at: Any, along: Any, inner: Any, low: Any, high: Any, *, shape: Tiling, first_step: bool,
) -> None:  # fmt: skip
    """Take the step before, but at the first step; then draw, and multiply the batch with x and with the direction.

    The results: Z; products of the batch with x, and with the direction's integers; the product of both; and the sums of the
    lower and of the upper halves of the integers' squares.
    """
    g, p, i = (pl.program_id(axis) for axis in range(3))
    k, move, row = turn[i], far[i], row_of(Z, i)
    before, key = (_words(first, last, i, j) for j in (jnp.maximum(k - 1, 0), k))
    tile, products = (shape.rows, shape.columns), (shape.samples, shape.rows)
    (line, lane, place), across = _places(g, shape), _iota((shape.samples, shape.columns), 1)
    fitting = shape.pixels % shape.columns == 0

    def one(t: Any, carry: tuple, rows: jax.Array) -> tuple:
        column, mask, beyond = t * shape.columns, line < shape.neurons, {}
        if not fitting:
            mask = mask & (column + lane < shape.pixels)
            beyond = {"mask": column + across < shape.pixels, "other": 0.0}
        # Z is read and written once a step, the batch by each row of tiles.
        x = gpu.load(Z.at[row, place + column], mask=mask, other=0.0, eviction_policy="evict_first")
        u = gpu.load(images.at[rows, column + across], eviction_policy="evict_last", **beyond)
        if not first_step:
            x = x - move * signed(*magnitudes(table, before, place, column))

        def keep() -> None:  # where this happens decides how the compiler lays out a tile: a fifth of a kernel's time
            gpu.store(Z_out.at[i, place + column], x, mask=mask, eviction_policy="evict_first")

        z, bits = magnitudes(table, key, place, column)
        z = z if fitting else jnp.where(mask, z, 0)
        real, square = signed(z, bits), z * z
        if not first_step:
            keep()
        found = _product(u, x), _product(u, real), x * real, square, above(square)
        total = tuple(map(jnp.add, carry, found))
        if first_step:
            keep()
        return total

    @pl.when((k < counts[row_of(counts, i)]) | first_step)  # where there are no steps x must be copied, too
    def _() -> None:
        rows = _rows(samples, i, k, shape)[:, None] + jnp.zeros((shape.samples, shape.columns), jnp.int32)
        sizes = ((products, jnp.float32),) * 2 + ((tile, jnp.float32), *((tile, jnp.int32),) * 2)
        end = jnp.minimum((p + 1) * shape.tiles, shape.across)
        body, nothing = functools.partial(one, rows=rows), tuple(jnp.zeros(*size) for size in sizes)
        *found, xz, squares, upper = jax.lax.fori_loop(p * shape.tiles, end, body, nothing)
        for out, product in zip((at, along), found, strict=True):
            gpu.store(out.at[i, p, g * shape.rows + _iota(products, 1), _iota(products, 0)], product)
        for out, total in zip((inner, low, high), (xz, squares - (upper << 16), upper), strict=True):
            out[i, g * shape.grid[1] + p] = jnp.sum(jnp.where(line < shape.neurons, total, 0))


def finish(
    Z: Any, w: Any, far: Any, first: Any, last: Any, counts: Any, table: Any, x_out: Any, *, shape: Tiling
) -> None:
    """Take the last step, which no later one takes, and put x together."""
    g, p, i = (pl.program_id(axis) for axis in range(3))
    k, move = jnp.maximum(counts[row_of(counts, i)] - 1, 0), far[i]
    key, (line, lane, place) = _words(first, last, i, k), _places(g, shape)

    def one(t: Any, carry: None) -> None:
        del carry
        column = t * shape.columns
        mask = (line < shape.neurons) & (column + lane < shape.pixels)
        x = gpu.load(Z.at[i, place + column], mask=mask, other=0.0, eviction_policy="evict_first")
        x = x - move * signed(*magnitudes(table, key, place, column))
        gpu.store(x_out.at[i, place + column], x, mask=mask)

    jax.lax.fori_loop(p * shape.tiles, jnp.minimum((p + 1) * shape.tiles, shape.across), one, None)

    @pl.when((g == 0) & (p == 0))
    def _() -> None:
        q = _iota((1 << (shape.neurons - 1).bit_length(),), 0)
        mask = q < shape.neurons
        gpu.store(x_out.at[i, shape.neurons * shape.pixels + q], gpu.load(w.at[i, q], mask=mask, other=0.0), mask=mask)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a b'."""
    return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())))


def judge(
    w_ref: Any, far_ref: Any, turn: Any, samples: Any, first: Any, last: Any, counts: Any, stepsizes: Any, smoothings: Any,
    factors: Any, at: Any, along: Any, inner: Any, low: Any, high: Any, labels: Any, table: Any,
    w_out: Any, far: Any, turn_out: Any, *, shape: Tiling,
) -> None:  # fmt: skip
    """Add up what the tiles found, say how far to move, and move w."""
    del far_ref  # what is not written stays as it was
    i = pl.program_id(0)
    k, cut = turn[i], shape.neurons * shape.pixels
    stepsize, smoothing, factor, count = (ref[row_of(ref, i)] for ref in (stepsizes, smoothings, factors, counts))
    key = _words(first, last, i, k)
    below, beside = shape.grid
    tall = min(TALL, max(LEAST, 1 << (shape.neurons - 1).bit_length()))
    slot = _iota((1 << (below * beside - 1).bit_length(),), 0)

    def tiles(ref: Any) -> jax.Array:
        return gpu.load(ref.at[i, slot], mask=slot < below * beside, other=0)

    def outputs(q: jax.Array, w: jax.Array, v: jax.Array, scale: jax.Array) -> list[jax.Array]:
        place = q[:, None] + jnp.zeros((tall, shape.samples), jnp.int32), _iota((tall, shape.samples), 1)
        mask, parts = place[0] < shape.neurons, [part + 0 * i for part in range(beside)]
        inputs, by = (sum(gpu.load(ref.at[i, p, *place], mask=mask, other=0.0) for p in parts) for ref in (at, along))
        by = scale * by
        return [jnp.sum(jnp.maximum(inputs + s * by, 0) * (w + s * v)[:, None], axis=0) for s in (1, -1)]

    @pl.when(k < count)
    def _() -> None:
        parts = [begin + _iota((tall,), 0) for begin in range(0, shape.neurons, tall)]
        w = [gpu.load(w_ref.at[i, q], mask=q < shape.neurons, other=0.0) for q in parts]
        z = [jnp.where(q < shape.neurons, integers(table, key, q, cut), 0) for q in parts]
        squares = [halves(part) for part in z]
        also = [sum(jnp.sum(pair[half]) for pair in squares) for half in (0, 1)]
        sums = [tiles(ref) + jnp.where(slot == 0, more, 0) for ref, more in zip((low, high), also, strict=True)]
        scale = smoothing * inverse_length(*sums)
        v = [scale * part.astype(jnp.float32) for part in z]
        both = [outputs(q, a, b, scale) for q, a, b in zip(parts, w, v, strict=True)]
        plus, minus = (sum(pair[side] for pair in both) for side in (0, 1))
        label = gpu.load(labels.at[_rows(samples, i, k, shape)])
        errors = (minus - plus) * (2 * label - plus - minus)
        errors = jnp.sum(jnp.where(_iota((shape.samples,), 0) < shape.batch, errors, 0))
        penalty = scale * jnp.sum(tiles(inner)) + sum(jnp.sum(a * b) for a, b in zip(w, v, strict=True))
        difference = factor / (2 * shape.batch) * errors + 2 * shape.regularisation * penalty
        move = stepsize * (shape.dim / (2 * smoothing * smoothing) * difference)
        for q, a, b in zip(parts, w, v, strict=True):
            gpu.store(w_out.at[i, q], a - move * b, mask=q < shape.neurons)
        far[i] = move * scale

    turn_out[i] = k + 1  # last: this is where the other threads read k


def _words(first: Any, last: Any, i: Any, k: Any) -> tuple[Any, Any]:
    """Return both words of the key of a client's step."""
    return first[row_of(first, i), k], last[row_of(last, i), k]


def _places(g: Any, shape: Tiling) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a tile's neurons, its pixels, and their places in x, of the first tile in its row."""
    tile = shape.rows, shape.columns
    line, lane = g * shape.rows + _iota(tile, 0), _iota(tile, 1)
    return line, lane, line * shape.pixels + lane


def _rows(samples: Any, i: Any, k: Any, shape: Tiling) -> jax.Array:
    """Return the rows of the images of a step's batch, filled up with the first."""
    b = _iota((shape.samples,), 0)
    return gpu.load(samples.at[row_of(samples, i), k, b], mask=b < shape.batch, other=0)


def _iota(shape: tuple[int, ...], axis: int) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis)
