"""How a small network lies in a kernel: what is static about it, its steps, and vectors like x in registers."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.kernels.drawing import halves, inverse_length

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
    """A block of steps of some clients, one row each, or a single row that all share; in a kernel, references to them.

    Attributes:
        x: where they begin.
        samples: rows of the images that each step draws.
        first: the first word of the key of each step's direction.
        last: the last word.
        stepsize: gamma.
        smoothing: eta.
        factor: of the loss.
        count: how many steps to take.
    """

    x: Any
    samples: Any
    first: Any
    last: Any
    stepsize: Any
    smoothing: Any
    factor: Any
    count: Any

    @property
    def clients(self) -> int:
        """How many they are."""
        return max(leaf.shape[0] for leaf in self)


def row_of(ref: Any, i: Any) -> Any:
    """Return the place of client i in a leaf of a block."""
    return i if ref.shape[0] > 1 else 0 * i  # a number of its own could not be one of several indices


class Vector(NamedTuple):
    """A vector like x, cut up: the neurons' rows of Z, filled up with zeros, and w.

    Small arrays such as w have an axis of length two for each binary digit of a neuron's number, the lowest first: the shape
    that comes of stacking two by two, which is all that a kernel can stack.
    """

    Z: list[jax.Array]
    w: jax.Array


def numbers(shape: Shape) -> jax.Array:
    """Return the neurons' numbers, an axis for each digit."""
    q: Any = jnp.zeros((2,) * shape.bits, jnp.int32)
    for bit in range(shape.bits):
        q = q + (jax.lax.broadcasted_iota(jnp.int32, q.shape, bit) << bit)
    return q


def inverse(z: Vector) -> jax.Array:
    """Return 1 over the length of a direction, given by its integers."""
    low, high = (jax.tree.map(lambda row, half=half: halves(row)[half], z) for half in (0, 1))
    sums = [functools.reduce(jnp.add, part.Z) for part in (low, high)]
    both = two(jnp.sum(jnp.stack(sums, axis=-1), axis=0))
    return inverse_length(both[0] + jnp.sum(low.w), both[1] + jnp.sum(high.w))


def stacked(rows: list[jax.Array]) -> jax.Array:
    """Stack arrays, zeros added, behind their own axes: an axis for each digit of an array's number, the lowest first."""
    rows = rows + [jnp.zeros_like(rows[0])] * ((1 << (len(rows) - 1).bit_length()) - len(rows))
    while len(rows) > 1:
        rows = [jnp.stack(pair, axis=-1) for pair in zip(rows[::2], rows[1::2], strict=True)]
    return rows[0]


def two(pair: jax.Array) -> Any:
    """Take apart the last axis, of length two; a kernel does not split a single pair of numbers otherwise."""
    if pair.ndim > 1:
        return jnp.unstack(pair, axis=-1)
    which = jax.lax.broadcasted_iota(jnp.int32, (2,), 0)
    return tuple(jnp.sum(jnp.where(which == j, pair, 0)) for j in (0, 1))


def apart(stack: jax.Array, count: int) -> list[jax.Array]:
    """Return the arrays that `stacked` stacked."""
    if count == 1:
        return [stack]
    return [array for half in two(stack) for array in apart(half, count // 2)]
