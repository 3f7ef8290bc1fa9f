"""Local steps of FedRZO_nn on a ReLU network too large for `relu_steps`: two kernels a step, x in memory.

The first goes over x tile by tile. It takes the step before (draws the direction before once more, which costs less than to read
it, and moves x along it), draws the next direction, and multiplies the batch with both: so a step reads and writes x once. The
second, one program for each client, adds up what the tiles found, and says how far x is to move; it also looks after w, which is
small. Z and w lie apart, since Z is faster to reach where it begins at a line of memory; a kernel for the end puts x together.
Products of matrices are as precise as JAX's elsewhere (`jax_default_matmul_precision`: TF32 on such a GPU, unless told
otherwise).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu

from fedrzo import directions
from fedrzo.kernels import wide_tiles
from fedrzo.kernels.layout import Block

LARGEST_BATCH, LARGEST_NEURONS = 64, 512  # whose products fit on the chip, and whose w the second kernel writes out
TOGETHER = 8  # steps that are launched at once


def fits(neurons: int, batch: int) -> bool:
    """Tell whether these kernels can take a network."""
    return neurons <= LARGEST_NEURONS and batch <= LARGEST_BATCH


def steps(
    block: Block, images: jax.Array, labels: jax.Array, shape: wide_tiles.Tiling, interpret: bool = False
) -> jax.Array:
    """Return where the clients' steps lead."""
    start, walk, judge, finish = _kernels(block, shape, interpret)
    table, cut = jnp.asarray(directions.table()), shape.neurons * shape.pixels
    draws = block.samples, block.first, block.last, block.count

    def step(carry: tuple, go: Any = walk) -> tuple:
        Z, w, far, k = carry
        Z, *found = go(Z, far, k, *draws, images, table)
        return Z, *judge(w, far, k, *draws, block.stepsize, block.smoothing, block.factor, *found, labels, table)

    w = jnp.broadcast_to(block.x[:, cut:], (block.clients, shape.neurons))
    nothing = (jnp.zeros(block.clients, dtype) for dtype in (jnp.float32, jnp.int32))
    begin = step((block.x, w, *nothing), start)
    # As many as there are at most, of which some may do nothing: a loop whose length is not known would wait for the host.
    # Kernels count the steps themselves: else that would be a launch of its own.
    Z, w, far, _ = jax.lax.fori_loop(1, block.first.shape[1], lambda _, carry: step(carry), begin, unroll=TOGETHER)
    return finish(Z, w, far, block.first, block.last, block.count, table)


def _kernels(block: Block, shape: wide_tiles.Tiling, interpret: bool) -> tuple[Any, Any, Any, Any]:
    """Return the first kernel, for the first step and for later ones, in place; the second; and one for the end."""
    clients = block.clients
    below, beside = shape.grid
    sizes = (clients, shape.stride), (clients, shape.neurons), (clients,), (clients, shape.dim)
    Z, w, far, x = (jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes)
    k = jax.ShapeDtypeStruct((clients,), jnp.int32)
    products = jax.ShapeDtypeStruct((clients, beside, below * shape.rows, shape.samples), jnp.float32)
    sums = [jax.ShapeDtypeStruct((clients, beside * below), dtype) for dtype in (jnp.float32, jnp.int32, jnp.int32)]
    start, walk = (
        pl.pallas_call(
            functools.partial(wide_tiles.walk, shape=shape, first_step=not aliases),
            (Z, products, products, *sums),
            grid=(below, beside, clients),
            input_output_aliases=aliases,
            compiler_params=gpu.CompilerParams(num_warps=shape.warps, num_stages=1),
            interpret=interpret,
            name="relu_tiles",
        )
        for aliases in ({}, {0: 0})
    )
    judge = pl.pallas_call(
        functools.partial(wide_tiles.judge, shape=shape),
        (w, far, k),
        grid=(clients,),
        input_output_aliases={0: 0, 1: 1, 2: 2},
        compiler_params=gpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="relu_slope",
    )
    last = shape._replace(columns=2 * shape.columns, tiles=shape.tiles // 2, warps=4 * shape.warps)
    finish = pl.pallas_call(
        functools.partial(wide_tiles.finish, shape=last),
        x,
        grid=(*last.grid, clients),
        compiler_params=gpu.CompilerParams(num_warps=last.warps, num_stages=1),
        interpret=interpret,
        name="relu_end",
    )
    return start, walk, judge, finish
