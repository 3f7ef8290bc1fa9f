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

from fedrzo import directions
from fedrzo.kernels.drawing import integers
from fedrzo.kernels.layout import Block, Shape, Vector, apart, inverse, numbers, row_of, stacked, two


def steps(block: Block, images: jax.Array, labels: jax.Array, shape: Shape, interpret: bool = False) -> jax.Array:
    """Return where the clients' steps lead."""
    call = pl.pallas_call(
        functools.partial(_kernel, shape=shape),
        jax.ShapeDtypeStruct((block.clients, shape.dim), jnp.float32),
        grid=(block.clients,),
        compiler_params=gpu.CompilerParams(num_warps=shape.warps, num_stages=1),
        interpret=interpret,
        name="relu_steps",
    )
    return call(*block, images, labels, jnp.asarray(directions.table()), jnp.zeros(1, jnp.int32))


class Drawn(NamedTuple):
    """What a step has drawn: its key's words, and the first samples' rows. Asked for a step ahead: it takes a while to come."""

    first: jax.Array
    last: jax.Array
    rows: list[jax.Array]


def _kernel(
    x_ref: Any, samples: Any, first: Any, last: Any, stepsizes: Any, smoothings: Any, factors: Any, counts: Any,
    images: Any, labels: Any, table: Any, zero: Any, out: Any, *, shape: Shape,
) -> None:  # fmt: skip
    i = pl.program_id(0)
    stepsize, smoothing, factor, count = (ref[row_of(ref, i)] for ref in (stepsizes, smoothings, factors, counts))
    # Were it known that addresses begin at multiples of 16, x and a direction would lie differently in registers.
    start = zero[0]
    lane, q = jax.lax.broadcasted_iota(jnp.int32, (shape.width,), 0), numbers(shape)
    inside, neuron = lane < shape.pixels, q < shape.neurons
    cut = shape.neurons * shape.pixels

    def draw(k: Any) -> Drawn:
        return Drawn(first[row_of(first, i), k], last[row_of(last, i), k], some(k, 0))

    def some(k: Any, b: Any) -> list[jax.Array]:
        return [samples[row_of(samples, i), k, b + r] for r in range(shape.together)]

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
        scale, z = smoothing * inverse(z), jax.tree.map(lambda row: row.astype(jnp.float32), z)
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

    row = row_of(x_ref, i)
    Z = [pixels(x_ref, row, j * shape.pixels) for j in range(shape.neurons)]
    w = gpu.load(x_ref.at[row, q + (start + cut)], mask=neuron, other=0.0)
    x, _ = jax.lax.fori_loop(0, count, step, (Vector(Z, w), draw(0)))
    for j, row in enumerate(x.Z):
        gpu.store(out.at[i, lane + (start + j * shape.pixels)], row, mask=inside)
    gpu.store(out.at[i, q + (start + cut)], x.w, mask=neuron)


def _errors(batch: tuple[list[jax.Array], list[jax.Array]], x: Vector, z: Vector, scale: jax.Array) -> jax.Array:
    """Return the sum over samples of the difference of their squared errors at both points; the products serve both."""
    images, labels = batch
    products = [stacked([stacked([u * row for row in part.Z]) for u in images]) for part in (x, z)]
    at, along = two(jnp.sum(jnp.stack(products, axis=-1), axis=0))  # one sum over the threads for all
    w, v = x.w, scale * z.w
    total = jnp.float32(0)
    for inputs, by, label in zip(apart(at, len(images)), apart(scale * along, len(images)), labels, strict=True):
        plus = jnp.sum(jnp.maximum(inputs + by, 0) * (w + v))
        minus = jnp.sum(jnp.maximum(inputs - by, 0) * (w - v))
        total += (minus - plus) * (2 * label - plus - minus)
    return total
