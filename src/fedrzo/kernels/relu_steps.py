"""Local steps of FedRZO_nn on the two-layer ReLU network in one kernel: a client's x stays on the chip for a block of steps.

One program is one client. It reads x once, takes up to `fedrzo.client.AHEAD_TOGETHER` steps, and writes x once. In each step it
draws the direction (the bits of `fedrzo.directions`), multiplies the batch with x and with the direction, from which both losses
follow, and moves. Products are added up in float32, in another order than elsewhere; no TF32.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu

from fedrzo.kernels.drawing import halves, integers, inverse_length, packed_table

MANY = 300  # clients from which on a device is full with few warps for each
LANES = 32
NEURONS = 16  # rows that are written out one by one: more take long to compile
HELD = 64  # numbers of x that a thread holds, beside as many of a direction, in its 255 registers


class Shape(NamedTuple):
    """What is static about a kernel.

    Attributes:
        neurons: of the network.
        pixels: inputs of each neuron.
        batch: samples of a step.
        regularisation: of the loss.
        warps: that share a client.
        together: samples whose products are added up at once; a power of two that divides the batch.
    """

    neurons: int
    pixels: int
    batch: int
    regularisation: float
    warps: int
    together: int = 1

    @property
    def dim(self) -> int:
        """The length of x."""
        return self.neurons * (self.pixels + 1)

    @property
    def threads(self) -> int:
        """That share a client."""
        return LANES * self.warps

    @property
    def width(self) -> int:
        """Places for a row of pixels: a power of two, as kernels need it. Several parts fill less, but take long to compile."""
        return max(self.threads, 1 << (self.pixels - 1).bit_length())

    @property
    def held(self) -> int:
        """Numbers of x that a thread holds."""
        return self.neurons * self.width // self.threads

    @property
    def bits(self) -> int:
        """Binary digits of a neuron's number."""
        return (self.neurons - 1).bit_length()


def warps_for(neurons: int, pixels: int, batch: int, clients: int) -> int | None:
    """Return how many warps are to share a client; None where its x does not fit on the chip.

    As measured: two are best where batches are large, since each adds up all sums; for few clients more are faster.
    """
    wanted = 2 if clients >= MANY and batch > 1 else 4
    if neurons > NEURONS:
        return None
    fitting = (warps for warps in (2, 4, 8, 16) if Shape(neurons, pixels, batch, 0.0, warps).held <= HELD)
    return next((warps for warps in fitting if warps >= wanted), None)


class Block(NamedTuple):
    """A block of steps of some clients, one row each; in a kernel, references to them.

    Attributes:
        x: where they begin.
        samples: rows of the images that each step draws.
        words: of the key of each step's direction.
        settings: float32: stepsize, smoothing, and the factor of the loss.
        counts: int32: how many steps to take, and a zero.
    """

    x: Any
    samples: Any
    words: Any
    settings: Any
    counts: Any


def steps(block: Block, images: jax.Array, labels: jax.Array, shape: Shape, interpret: bool = False) -> jax.Array:
    """Return where the clients' steps lead."""
    call = pl.pallas_call(
        functools.partial(_kernel, shape=shape),
        jax.ShapeDtypeStruct(block.x.shape, block.x.dtype),
        grid=(block.x.shape[0],),
        compiler_params=gpu.CompilerParams(num_warps=shape.warps, num_stages=1),
        interpret=interpret,
        name="relu_steps",
    )
    return call(*block, images, labels, jnp.asarray(packed_table()))


class Vector(NamedTuple):
    """A vector like x, cut up: the neurons' rows of Z, filled up with zeros, and w.

    Small arrays such as w have an axis of length two for each binary digit of a neuron's number, the lowest first: the shape
    that comes of stacking two by two, which is all that a kernel can stack.
    """

    Z: list[jax.Array]
    w: jax.Array


class Drawn(NamedTuple):
    """What a step has drawn: its key's words, and the first samples' rows. Asked for a step ahead: it takes a while to come."""

    first: jax.Array
    last: jax.Array
    rows: list[jax.Array]


def _kernel(
    x_ref: Any, samples: Any, words: Any, settings: Any, counts: Any, images: Any, labels: Any, table: Any, out: Any,
    *, shape: Shape,
) -> None:  # fmt: skip
    i = pl.program_id(0)
    # Were it known that addresses begin at multiples of 16, x and a direction would lie differently in registers.
    count, start = counts[i, 0], counts[i, 1]
    stepsize, smoothing, factor = settings[i, 0], settings[i, 1], settings[i, 2]
    lane, q = jax.lax.broadcasted_iota(jnp.int32, (shape.width,), 0), _numbers(shape)
    inside, neuron = lane < shape.pixels, q < shape.neurons
    cut = shape.neurons * shape.pixels

    def draw(k: Any) -> Drawn:
        return Drawn(words[i, k, 0], words[i, k, 1], some(k, 0))

    def some(k: Any, b: Any) -> list[jax.Array]:
        return [samples[i, k, b + r] for r in range(shape.together)]

    def load(rows: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        return [pixels(images, row, 0) for row in rows], [labels[row] for row in rows]

    def pixels(ref: Any, row: Any, begin: int) -> jax.Array:
        return gpu.load(ref.at[row, lane + (start + begin)], mask=inside, other=0.0)

    def direction(drawn: Drawn) -> Vector:
        key = drawn.first, drawn.last
        rows = (integers(table, key, lane, j * shape.pixels) for j in range(shape.neurons))
        Z = [jnp.where(inside, row, 0) for row in rows]
        return Vector(Z, jnp.where(neuron, integers(table, key, q, cut), 0))

    def step(k: Any, carry: tuple[Vector, Drawn]) -> tuple[Vector, Drawn]:
        x, drawn = carry
        batch = load(drawn.rows)
        following = draw(jnp.minimum(k + 1, count - 1))
        z = direction(drawn)
        inverse, z = _inverse_length(z), jax.tree.map(lambda row: row.astype(jnp.float32), z)
        scale = smoothing * inverse
        turns = shape.batch // shape.together

        def add(turn: Any, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            total, batch = carry
            later = load(some(k, jnp.minimum(turn + 1, turns - 1) * shape.together))  # asked for ahead, too
            return total + _errors(batch, x, z, scale), later

        if turns == 1:
            errors = _errors(batch, x, z, scale)
        else:
            errors, _ = jax.lax.fori_loop(0, turns, add, (jnp.float32(0), batch))
        products = jax.tree.map(jnp.multiply, x, z)
        penalty = scale * (jnp.sum(functools.reduce(jnp.add, products.Z)) + jnp.sum(products.w))
        difference = factor / (2 * shape.batch) * errors + 2 * shape.regularisation * penalty
        slope = shape.dim / (2 * smoothing * smoothing) * difference
        x = jax.tree.map(lambda row, along: row - stepsize * (slope * (along * scale)), x, z)
        return x, following

    Z = [pixels(x_ref, i, j * shape.pixels) for j in range(shape.neurons)]
    w = gpu.load(x_ref.at[i, q + (start + cut)], mask=neuron, other=0.0)
    x, _ = jax.lax.fori_loop(0, count, step, (Vector(Z, w), draw(0)))
    for j, row in enumerate(x.Z):
        gpu.store(out.at[i, lane + (start + j * shape.pixels)], row, mask=inside)
    gpu.store(out.at[i, q + (start + cut)], x.w, mask=neuron)


def _numbers(shape: Shape) -> jax.Array:
    """Return the neurons' numbers, an axis for each digit."""
    q: Any = jnp.zeros((2,) * shape.bits, jnp.int32)
    for bit in range(shape.bits):
        q = q + (jax.lax.broadcasted_iota(jnp.int32, q.shape, bit) << bit)
    return q


def _inverse_length(z: Vector) -> jax.Array:
    low, high = (jax.tree.map(lambda row, half=half: halves(row)[half], z) for half in (0, 1))
    sums = [functools.reduce(jnp.add, part.Z) for part in (low, high)]
    both = _two(jnp.sum(jnp.stack(sums, axis=-1), axis=0))
    return inverse_length(both[0] + jnp.sum(low.w), both[1] + jnp.sum(high.w))


def _errors(batch: tuple[list[jax.Array], list[jax.Array]], x: Vector, z: Vector, scale: jax.Array) -> jax.Array:
    """Return the sum over samples of the difference of their squared errors at both points; the products serve both."""
    images, labels = batch
    products = [_stacked([_stacked([u * row for row in part.Z]) for u in images]) for part in (x, z)]
    at, along = _two(jnp.sum(jnp.stack(products, axis=-1), axis=0))  # one sum over the threads for all
    w, v = x.w, scale * z.w
    total = jnp.float32(0)
    for inputs, by, label in zip(_apart(at, len(images)), _apart(scale * along, len(images)), labels, strict=True):
        plus = jnp.sum(jnp.maximum(inputs + by, 0) * (w + v))
        minus = jnp.sum(jnp.maximum(inputs - by, 0) * (w - v))
        total += (minus - plus) * (2 * label - plus - minus)
    return total


def _stacked(rows: list[jax.Array]) -> jax.Array:
    """Stack arrays, zeros added, behind their own axes: an axis for each digit of an array's number, the lowest first."""
    rows = rows + [jnp.zeros_like(rows[0])] * ((1 << (len(rows) - 1).bit_length()) - len(rows))
    while len(rows) > 1:
        rows = [jnp.stack(pair, axis=-1) for pair in zip(rows[::2], rows[1::2], strict=True)]
    return rows[0]


def _two(pair: jax.Array) -> Any:
    """Take apart the last axis, of length two; a kernel does not split a single pair of numbers otherwise."""
    if pair.ndim > 1:
        return jnp.unstack(pair, axis=-1)
    which = jax.lax.broadcasted_iota(jnp.int32, (2,), 0)
    return tuple(jnp.sum(jnp.where(which == j, pair, 0)) for j in (0, 1))


def _apart(stack: jax.Array, count: int) -> list[jax.Array]:
    """Return the arrays that `_stacked` stacked."""
    if count == 1:
        return [stack]
    return [array for half in _two(stack) for array in _apart(half, count // 2)]
