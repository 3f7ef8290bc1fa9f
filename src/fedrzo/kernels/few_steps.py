"""The same steps as `relu_steps`, for few clients and batches of one sample: two kernels, else most of a device would idle.

What a step draws does not depend on x. So the first kernel draws the directions of all steps of all clients, one program each
(and of several rounds at once, see `fedrzo.engines.ahead`), and multiplies them with their samples. The second, one program for
each client, reads them step by step, always one ahead.
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
from fedrzo.kernels.layout import Shape, Vector, inverse, numbers, row_of, warps_for


class Few(NamedTuple):
    """Both kernels, for any number of clients, who are the leading axis of their own arrays.

    Attributes:
        neurons: of the network.
        regularisation: of the loss.
        interpret: whether to run without a GPU, slowly.
    """

    neurons: int
    regularisation: float
    interpret: bool = False

    def draw(self, own: tuple, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the directions of all steps, scaled; and their products with the image, one for each neuron, then its label."""
        clients, ahead, shape = max(leaf.shape[0] for leaf in own), own[1].shape[1], self._shape(images)
        sizes = (clients, ahead, shape.dim), (clients, ahead, shape.neurons + 1)
        results = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]
        call = self._call("relu_directions", _draw, results, (ahead, clients), shape)
        return tuple(call(*own, images, labels, jnp.asarray(directions.table()), jnp.zeros(1, jnp.int32)))

    def follow(self, own: tuple, images: jax.Array) -> jax.Array:
        """Return where the clients' steps lead."""
        clients, shape = max(leaf.shape[0] for leaf in own), self._shape(images)
        result = jax.ShapeDtypeStruct((clients, shape.dim), jnp.float32)
        return self._call("relu_few_steps", _follow, result, (clients,), shape)(*own, images)

    def _shape(self, images: jax.Array) -> Shape:
        sizes = self.neurons, images.shape[1], 1
        warps = warps_for(*sizes, 1)
        assert warps is not None
        return Shape(*sizes, self.regularisation, warps)

    def _call(self, name: str, kernel: Any, results: Any, grid: tuple, shape: Shape) -> Any:
        kernel, params = functools.partial(kernel, shape=shape), gpu.CompilerParams(num_warps=shape.warps, num_stages=1)
        return pl.pallas_call(kernel, results, grid=grid, compiler_params=params, interpret=self.interpret, name=name)


def _draw(
    samples: Any, first: Any, last: Any, smoothing: Any, counts: Any, images: Any, labels: Any, table: Any, zero: Any,
    v: Any, along: Any, *, shape: Shape,
) -> None:  # fmt: skip
    k, i = pl.program_id(0), pl.program_id(1)
    start = zero[0]  # see `relu_steps`
    lane, q = jax.lax.broadcasted_iota(jnp.int32, (shape.width,), 0), numbers(shape)
    inside, neuron = lane < shape.pixels, q < shape.neurons
    cut = shape.neurons * shape.pixels

    @pl.when(k < counts[row_of(counts, i)])
    def _() -> None:
        key = first[row_of(first, i), k], last[row_of(last, i), k]
        row = samples[row_of(samples, i), k, 0]
        u = gpu.load(images.at[row, lane + start], mask=inside, other=0.0)
        along[i, k, shape.neurons] = labels[row]
        Z = [jnp.where(inside, integers(table, key, lane, j * shape.pixels), 0) for j in range(shape.neurons)]
        z = Vector(Z, jnp.where(neuron, integers(table, key, q, cut), 0))
        scale = smoothing[row_of(smoothing, i)] * inverse(z)
        z = jax.tree.map(lambda row: row.astype(jnp.float32) * scale, z)
        for j, row in enumerate(z.Z):
            gpu.store(v.at[i, k, lane + (start + j * shape.pixels)], row, mask=inside)
            along[i, k, j] = jnp.sum(u * row)
        gpu.store(v.at[i, k, q + (start + cut)], z.w, mask=neuron)


class Ahead(NamedTuple):
    """What a step needs, asked for while the one before is taken; and the row of the sample of the one after."""

    Z: list[jax.Array]
    w: list[jax.Array]
    along: list[jax.Array]
    label: jax.Array
    image: jax.Array
    row: jax.Array


def _follow(
    x_ref: Any, samples: Any, v: Any, along: Any, stepsizes: Any, smoothings: Any, factors: Any, counts: Any, images: Any,
    out: Any, *, shape: Shape,
) -> None:  # fmt: skip
    i = pl.program_id(0)
    stepsize, smoothing, factor, count = (ref[row_of(ref, i)] for ref in (stepsizes, smoothings, factors, counts))
    lane, neurons = jax.lax.broadcasted_iota(jnp.int32, (shape.width,), 0), range(shape.neurons)
    inside, cut = lane < shape.pixels, shape.neurons * shape.pixels
    data, penalty = factor / 2, 2 * shape.regularisation  # of the difference of both losses
    per_difference = shape.dim / (2 * smoothing * smoothing)

    def rows(ref: Any, *place: Any) -> list[jax.Array]:
        places = (lane + j * shape.pixels for j in neurons)
        return [gpu.load(ref.at[(*place, there)], mask=inside, other=0.0) for there in places]

    def row_at(k: Any) -> jax.Array:
        return samples[row_of(samples, i), jnp.minimum(k, count - 1), 0]

    def ask(k: Any, row: jax.Array) -> Ahead:
        k = jnp.minimum(k, count - 1)
        w, products = [v[row_of(v, i), k, cut + j] for j in neurons], [along[row_of(along, i), k, j] for j in neurons]
        image = gpu.load(images.at[row, lane], mask=inside, other=0.0)
        return Ahead(
            rows(v, row_of(v, i), k), w, products, along[row_of(along, i), k, shape.neurons], image, row_at(k + 1)
        )

    def step(k: Any, carry: tuple[list, list, Ahead]) -> tuple[list, list, Ahead]:
        Z, w, now = carry
        following = ask(k + 1, now.row)
        at = [jnp.sum(now.image * row) for row in Z]
        inner = jnp.sum(functools.reduce(jnp.add, map(jnp.multiply, Z, now.Z)))
        plus = sum(jnp.maximum(at[j] + now.along[j], 0) * (w[j] + now.w[j]) for j in neurons)
        minus = sum(jnp.maximum(at[j] - now.along[j], 0) * (w[j] - now.w[j]) for j in neurons)
        errors = (minus - plus) * (2 * now.label - plus - minus)
        inner = inner + sum(w[j] * now.w[j] for j in neurons)
        move = stepsize * (per_difference * (data * errors + penalty * inner))
        Z, w = ([a - move * b for a, b in zip(*pair, strict=True)] for pair in ((Z, now.Z), (w, now.w)))
        return Z, w, following

    row = row_of(x_ref, i)
    begin = rows(x_ref, row), [x_ref[row, cut + j] for j in neurons], ask(0 * i, row_at(0 * i))
    Z, w, _ = jax.lax.fori_loop(0, count, step, begin)
    for j in neurons:
        gpu.store(out.at[i, lane + j * shape.pixels], Z[j], mask=inside)
        out[i, cut + j] = w[j]
