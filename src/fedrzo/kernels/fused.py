"""Where a kernel takes a client's local steps: few launches for a block of steps of all clients, who are a vmapped axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.kernels import few_steps, relu_steps, wide_steps
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
) -> Callable[..., jax.Array] | None:
    """Return a client's local steps on the ReLU network, `kernel(number, rows, keys, x)`, or None where they do not fit."""
    data = client.level.data
    if x.dtype != jnp.float32 or not _fits(data, x.size, batch_size):
        return None
    images, labels = (jnp.asarray(leaf) for leaf in data.flat)
    factor = jnp.asarray(data.fixed)[client.index]
    gamma, eta, factor = (jnp.asarray(number, jnp.float32) for number in (stepsize, smoothing, factor))

    def kernel(number: Any, rows: jax.Array, keys: jax.Array, x: jax.Array) -> jax.Array:
        words = jax.random.key_data(keys[:, 0])
        block = Block(x, rows, words[:, 0], words[:, 1], gamma, eta, factor, jnp.asarray(number, jnp.int32))
        return take(block, images, labels, regularisation, interpret)

    return kernel


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


def take(
    block: Block, images: jax.Array, labels: jax.Array, regularisation: float, interpret: bool = False
) -> jax.Array:
    """Return where one client's block of steps leads; under vmap, one kernel does it for all.

    Args:
        block: the client's, without an axis for clients.
        images: all samples of all clients.
        labels: theirs.
        regularisation: of the loss.
        interpret: whether to run the kernel without a GPU, slowly.
    """

    @jax.custom_batching.custom_vmap
    def many(block: Block, images: jax.Array, labels: jax.Array) -> jax.Array:
        return _steps(block, images, labels, regularisation, interpret)

    @many.def_vmap
    def rule(size: int, batched: Any, block: Block, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, bool]:
        in_block, *in_data = batched
        assert not any(in_data), "clients share one store of samples"
        return many(_merged(size, in_block, block), images, labels).reshape(size, -1, block.x.shape[-1]), True

    call: Callable[..., jax.Array] = many
    return call(jax.tree.map(lambda leaf: leaf[None], block), images, labels)[0]


def _merged(size: int, batched: Block, block: Block) -> Block:
    """Return blocks with the rows of all, several of which were laid side by side; what all share stays a single row."""
    inner = [leaf.shape[1 if own else 0] for leaf, own in zip(block, batched, strict=True)]
    clients = max(inner)

    def leaf_of(leaf: jax.Array, own: bool, rows: int) -> jax.Array:
        if rows == 1 and not own:
            return leaf
        leaf = leaf if own else leaf[None]
        return jnp.broadcast_to(leaf, (size, clients, *leaf.shape[2:])).reshape(-1, *leaf.shape[2:])

    return Block(*map(leaf_of, block, batched, inner))


def _steps(block: Block, images: jax.Array, labels: jax.Array, regularisation: float, interpret: bool) -> jax.Array:
    """Have the kernel that suits the network and the number of clients take the steps."""
    pixels, batch = images.shape[1], block.samples.shape[-1]
    sizes = block.x.shape[-1] // (pixels + 1), pixels, batch
    warps = warps_for(*sizes, block.clients)
    if warps is None:
        return wide_steps.steps(block, images, labels, wide_steps.Tiling(*sizes, regularisation), interpret)
    few = batch == 1 and block.clients <= few_steps.FEW
    shape = Shape(*sizes, regularisation, warps, samples_together(batch))
    return (few_steps if few else relu_steps).steps(block, images, labels, shape, interpret)


def samples_together(batch: int) -> int:
    """Return how many samples a kernel multiplies at once."""
    return next(count for count in (2, 1) if batch % count == 0)
