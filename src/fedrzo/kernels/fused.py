"""Where a kernel takes a client's local steps: few launches for a block of steps of all clients, who are a vmapped axis."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import directions
from fedrzo.client import Together
from fedrzo.kernels import few_steps, relu_steps, wide_steps, wide_tiles
from fedrzo.kernels.layout import Block, Shape, warps_for

LARGEST = 1 << 31  # numbers of an array: places are counted in 32 bits


def relu(
    client: Any,
    x: jax.Array,
    batch_size: int,
    regularisation: float,
    stepsize: Any,
    smoothing: Any,
    interpret: bool = False,
) -> Together | None:
    """Return a client's local steps on the ReLU network, or None where they do not fit."""
    data = client.level.data
    if x.dtype != jnp.float32 or not _fits(data, x.size, batch_size):
        return None
    images, labels = (jnp.asarray(leaf) for leaf in data.flat)
    factor = jnp.asarray(data.fixed)[client.index]
    gamma, eta, factor = (jnp.asarray(number, jnp.float32) for number in (stepsize, smoothing, factor))
    neurons = x.size // (images.shape[1] + 1)
    held = warps_for(neurons, images.shape[1], batch_size, 1) is not None
    # What is drawn ahead is for few clients, so that their directions may be stored.
    stored = held and batch_size == 1 and client.ahead is not None
    few = few_steps.Few(neurons, regularisation, interpret) if stored else None

    def prepare(number: Any, rows: jax.Array, keys: jax.Array) -> tuple:
        words = jax.vmap(directions.words)(keys[:, 0])
        drawn = rows, words[:, 0], words[:, 1]
        if few is None:
            return drawn
        return rows, *side_by_side(few.draw, (*drawn, eta, jnp.asarray(number, jnp.int32)), (images, labels))

    def take(number: Any, prepared: tuple, x: jax.Array) -> jax.Array:
        count = jnp.asarray(number, jnp.int32)
        if few is not None:
            return side_by_side(few.follow, (x, *prepared, gamma, eta, factor, count), (images,))
        rows, first, last = prepared
        steps = functools.partial(_steps, regularisation=regularisation, interpret=interpret)
        return side_by_side(steps, Block(x, rows, first, last, gamma, eta, factor, count), (images, labels))

    return Together(prepare, take)


def _fits(data: Any, dim: int, batch: int) -> bool:
    """Tell whether these are images with labels and a factor, and a kernel can take the network."""
    leaves = jax.tree.leaves(getattr(data, "flat", None))
    if [leaf.ndim for leaf in leaves] != [2, 1] or any(leaf.dtype != np.float32 for leaf in leaves):
        return False
    pixels = leaves[0].shape[1]
    neurons, rest = divmod(dim, pixels + 1)
    small = warps_for(neurons, pixels, batch, 1) is not None
    near = max(leaves[0].size, dim * data.clients) < LARGEST
    return np.ndim(data.fixed) == 1 and rest == 0 and near and (small or wide_steps.fits(neurons, batch))


def side_by_side(function: Callable[..., Any], own: tuple, shared: tuple) -> Any:
    """Return what a function for many clients gives for one; under vmap, one call of it does for all.

    Args:
        function: of all of `own`, with a leading axis for clients (of length one where all have the same), and of `shared`.
        own: what is a client's own.
        shared: the store of samples.
    """

    @jax.custom_batching.custom_vmap
    def many(own: tuple, shared: tuple) -> Any:
        return function(own, *shared)

    @many.def_vmap
    def rule(size: int, batched: Any, own: tuple, shared: tuple) -> tuple[Any, Any]:
        assert not any(batched[1]), "clients share one store of samples"
        results = many(_merged(size, batched[0], own), shared)
        results = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), results)
        return results, jax.tree.map(lambda leaf: True, results)

    call: Callable[..., Any] = many
    return jax.tree.map(lambda leaf: leaf[0], call(jax.tree.map(lambda leaf: leaf[None], own), shared))


def _merged(size: int, batched: tuple, own: tuple) -> tuple:
    """Return the rows of all, several of which were laid side by side; what all share stays a single row."""
    inner = [leaf.shape[1 if several else 0] for leaf, several in zip(own, batched, strict=True)]
    clients = max(inner)

    def leaf_of(leaf: jax.Array, several: bool, rows: int) -> jax.Array:
        if rows == 1 and not several:
            return leaf
        leaf = leaf if several else leaf[None]
        return jnp.broadcast_to(leaf, (size, clients, *leaf.shape[2:])).reshape(-1, *leaf.shape[2:])

    return jax.tree.unflatten(jax.tree.structure(own), map(leaf_of, own, batched, inner))


def _steps(block: Block, images: jax.Array, labels: jax.Array, regularisation: float, interpret: bool) -> jax.Array:
    """Have the kernel that suits the network take the steps."""
    pixels, batch = images.shape[1], block.samples.shape[-1]
    sizes = block.x.shape[-1] // (pixels + 1), pixels, batch
    warps = warps_for(*sizes, block.clients)
    if warps is None:
        return wide_steps.steps(block, images, labels, wide_tiles.Tiling(*sizes, regularisation), interpret)
    shape = Shape(*sizes, regularisation, warps, samples_together(batch))
    return relu_steps.steps(block, images, labels, shape, interpret)


def samples_together(batch: int) -> int:
    """Return how many samples a kernel multiplies at once."""
    return next(count for count in (2, 1) if batch % count == 0)
