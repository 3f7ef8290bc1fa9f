"""Local steps of FedRZO_nn on a ReLU network too large for `relu_steps`: two kernels a step, x in memory.

The first goes over x tile by tile. It takes the step before (draws the direction before once more, which costs less than to read
it, and moves x along it), draws the next direction, and multiplies the batch with both: so a step reads and writes x once. The
second, one program for each client, adds up what the tiles found, and says how far x is to move; it also looks after w, which is
small. Products of matrices are as precise as JAX's elsewhere (`jax_default_matmul_precision`: TF32 on such a GPU, unless told
otherwise).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu

from fedrzo.kernels.drawing import halves_of, integers, inverse_length, packed_table
from fedrzo.kernels.layout import Block, row_of

LARGEST_BATCH, LARGEST_NEURONS = 64, 512  # whose products fit on the chip, and whose w the second kernel writes out
LEAST = 16  # rows of a factor of a product
TALL = 128  # neurons that the second kernel looks at together
TOGETHER = 8  # steps between two questions to the host whether there are more; divides `fedrzo.client.AHEAD_TOGETHER`


class Tiling(NamedTuple):
    """What is static about both kernels, and how the first cuts up x.

    Attributes:
        neurons: of the network.
        pixels: inputs of each neuron.
        batch: samples of a step.
        regularisation: of the loss.
        rows: neurons of a tile.
        columns: pixels of a tile.
        tiles: beside each other, that a program goes over; at most thirteen, see `_eighth`.
        warps: that share them.
    """

    neurons: int
    pixels: int
    batch: int
    regularisation: float
    rows: int = 16
    columns: int = 64
    tiles: int = 12
    warps: int = 4

    @property
    def dim(self) -> int:
        """The length of x."""
        return self.neurons * (self.pixels + 1)

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


class Found(NamedTuple):
    """What the tiles of the first kernel add up to; in a kernel, references to it.

    Attributes:
        at: products of the batch with x.
        along: the same with the direction's integers.
        inner: the product of x and the direction.
        low: the lower halves of what `_eighth` makes of the integers.
        high: the upper ones.
    """

    at: Any
    along: Any
    inner: Any
    low: Any
    high: Any


def fits(neurons: int, batch: int) -> bool:
    """Tell whether these kernels can take a network."""
    return neurons <= LARGEST_NEURONS and batch <= LARGEST_BATCH


def steps(block: Block, images: jax.Array, labels: jax.Array, shape: Tiling, interpret: bool = False) -> jax.Array:
    """Return where the clients' steps lead."""
    walk, judge, finish = _kernels(block.clients, shape, interpret)
    table = jnp.asarray(packed_table())
    draws = block.samples, block.first, block.last, block.count

    def step(k: Any, carry: tuple) -> tuple:
        x, far = carry
        k = jnp.reshape(k, 1)
        x, *found = walk(x, far, k, *draws, images, table)
        return tuple(judge(x, far, k, *draws, block.stepsize, block.smoothing, block.factor, *found, labels, table))

    def some(turn: Any, carry: tuple) -> tuple:
        return jax.lax.fori_loop(0, TOGETHER, lambda k, carry: step(turn * TOGETHER + k, carry), carry)

    x = jnp.broadcast_to(block.x, (block.clients, shape.dim))
    begin = x, jnp.zeros(block.clients, jnp.float32)
    x, far = jax.lax.fori_loop(0, -(-jnp.max(block.count) // TOGETHER), some, begin)
    return finish(x, far, block.first, block.last, block.count, table)


def _eighth(z: jax.Array) -> jax.Array:
    """Return (z^2 - 1) / 8 of odd integers, and zero of zeros: thirteen of them add up to less than 2^32, squares do not."""
    half = z >> 1
    return half * (half + 1) >> 1


def _kernels(clients: int, shape: Tiling, interpret: bool) -> tuple[Any, Any, Any]:
    """Return both kernels, and one for the end; x, and how far to move, are changed in place."""
    below, beside = shape.grid
    x, far = (jax.ShapeDtypeStruct(size, jnp.float32) for size in ((clients, shape.dim), (clients,)))
    products = jax.ShapeDtypeStruct((clients, beside, below * shape.rows, shape.samples), jnp.float32)
    sums = [jax.ShapeDtypeStruct((clients, beside * below), dtype) for dtype in (jnp.float32, jnp.int32, jnp.int32)]
    walk = pl.pallas_call(
        functools.partial(_walk, shape=shape),
        (x, *Found(products, products, *sums)),
        grid=(below, beside, clients),
        input_output_aliases={0: 0},
        compiler_params=gpu.CompilerParams(num_warps=shape.warps, num_stages=1),
        interpret=interpret,
        name="relu_tiles",
    )
    judge = pl.pallas_call(
        functools.partial(_judge, shape=shape),
        (x, far),
        grid=(clients,),
        input_output_aliases={0: 0, 1: 1},
        compiler_params=gpu.CompilerParams(num_warps=8, num_stages=1),
        interpret=interpret,
        name="relu_slope",
    )
    finish = pl.pallas_call(
        functools.partial(_finish, shape=shape),
        x,
        grid=(below, beside, clients),
        input_output_aliases={0: 0},
        compiler_params=gpu.CompilerParams(num_warps=shape.warps, num_stages=1),
        interpret=interpret,
        name="relu_end",
    )
    return walk, judge, finish


def _walk(
    x_ref: Any, far: Any, step: Any, samples: Any, first: Any, last: Any, counts: Any, images: Any, table: Any,
    x_out: Any, at: Any, along: Any, inner: Any, low: Any, high: Any, *, shape: Tiling,
) -> None:  # fmt: skip
    g, p, i = (pl.program_id(axis) for axis in range(3))
    k, move = step[0], far[i]
    before, key = (_words(first, last, i, j) for j in (jnp.maximum(k - 1, 0), k))
    tile, products = (shape.rows, shape.columns), (shape.rows, shape.samples)
    (line, lane, place), across = _places(g, shape), _iota((shape.samples, shape.columns), 1)
    fitting = shape.pixels % shape.columns == 0

    def one(t: Any, carry: tuple, rows: jax.Array) -> tuple:
        column, mask, beyond = t * shape.columns, line < shape.neurons, {}
        if not fitting:
            mask = mask & (column + lane < shape.pixels)
            beyond = {"mask": column + across < shape.pixels, "other": 0.0}
        x = gpu.load(x_ref.at[i, place + column], mask=mask, other=0.0)
        u = gpu.load(images.at[rows, column + across], **beyond)
        x = x - move * integers(table, before, place, column).astype(jnp.float32)
        gpu.store(x_out.at[i, place + column], x, mask=mask)
        z = integers(table, key, place, column)
        z = z if fitting else jnp.where(mask, z, 0)
        real = z.astype(jnp.float32)
        return tuple(map(jnp.add, carry, (_product(x, u), _product(real, u), x * real, _eighth(z))))

    @pl.when(k < counts[row_of(counts, i)])
    def _() -> None:
        rows = _rows(samples, i, k, shape)[:, None] + jnp.zeros((shape.samples, shape.columns), jnp.int32)
        sizes = ((products, jnp.float32),) * 2 + ((tile, jnp.float32), (tile, jnp.int32))
        end = jnp.minimum((p + 1) * shape.tiles, shape.across)
        body, nothing = functools.partial(one, rows=rows), tuple(jnp.zeros(*size) for size in sizes)
        *found, xz, eighths = jax.lax.fori_loop(p * shape.tiles, end, body, nothing)
        for out, product in zip((at, along), found, strict=True):
            gpu.store(out.at[i, p, g * shape.rows + _iota(products, 0), _iota(products, 1)], product)
        for out, total in zip((inner, low, high), (xz, *halves_of(eighths)), strict=True):
            out[i, g * shape.grid[1] + p] = jnp.sum(jnp.where(line < shape.neurons, total, 0))


def _finish(x_ref: Any, far: Any, first: Any, last: Any, counts: Any, table: Any, x_out: Any, *, shape: Tiling) -> None:
    """Take the last step, which no later one takes."""
    g, p, i = (pl.program_id(axis) for axis in range(3))
    k, move = jnp.maximum(counts[row_of(counts, i)] - 1, 0), far[i]
    key, (line, lane, place) = _words(first, last, i, k), _places(g, shape)

    def one(t: Any, carry: None) -> None:
        del carry
        column = t * shape.columns
        mask = (line < shape.neurons) & (column + lane < shape.pixels)
        x = gpu.load(x_ref.at[i, place + column], mask=mask, other=0.0)
        x = x - move * integers(table, key, place, column).astype(jnp.float32)
        gpu.store(x_out.at[i, place + column], x, mask=mask)

    jax.lax.fori_loop(p * shape.tiles, jnp.minimum((p + 1) * shape.tiles, shape.across), one, None)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a b'."""
    return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())))


def _judge(
    x_ref: Any, far_ref: Any, step: Any, samples: Any, first: Any, last: Any, counts: Any, stepsizes: Any, smoothings: Any,
    factors: Any, at: Any, along: Any, inner: Any, low: Any, high: Any, labels: Any, table: Any, x_out: Any, far: Any,
    *, shape: Tiling,
) -> None:  # fmt: skip
    del far_ref  # what is not written stays as it was
    i, k, cut = pl.program_id(0), step[0], shape.neurons * shape.pixels
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
        w = [gpu.load(x_ref.at[i, cut + q], mask=q < shape.neurons, other=0.0) for q in parts]
        z = [jnp.where(q < shape.neurons, integers(table, key, q, cut), 0) for q in parts]
        eighths = [halves_of(_eighth(part)) for part in z]
        also = [sum(jnp.sum(pair[half]) for pair in eighths) for half in (0, 1)]
        squares = [
            8 * (tiles(ref) + jnp.where(slot == 0, more, 0)) for ref, more in zip((low, high), also, strict=True)
        ]
        scale = smoothing * inverse_length(squares[0] + jnp.where(slot == 0, shape.dim, 0), squares[1])
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
            gpu.store(x_out.at[i, cut + q], a - move * b, mask=q < shape.neurons)
        far[i] = move * scale


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
