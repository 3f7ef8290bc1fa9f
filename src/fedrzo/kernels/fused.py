"""Where a kernel takes a client's local steps: one launch for a block of steps of all clients, who are a vmapped axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.kernels.relu_steps import Block, Shape, steps, warps_for


def relu(
    client: Any, x: jax.Array, regularisation: float, stepsize: Any, smoothing: Any, interpret: bool = False
) -> Callable[..., jax.Array] | None:
    """Return a client's local steps on the ReLU network, `kernel(number, rows, keys, x)`, or None where they do not fit."""
    data = client.level.data
    if x.dtype != jnp.float32 or not _fits(data, x.size):
        return None
    images, labels = (jnp.asarray(leaf) for leaf in data.flat)
    factor = jnp.asarray(data.fixed)[client.index]
    settings = jnp.stack([jnp.asarray(number, jnp.float32) for number in (stepsize, smoothing, factor)])

    def kernel(number: Any, rows: jax.Array, keys: jax.Array, x: jax.Array) -> jax.Array:
        counts = jnp.stack([jnp.asarray(number, jnp.int32), jnp.int32(0)])
        block = Block(x, rows, jax.random.key_data(keys[:, 0]), settings, counts)
        return take(block, images, labels, regularisation, interpret)

    return kernel


def _fits(data: Any, dim: int) -> bool:
    """Tell whether these are images with labels and a factor, and x is small enough for the chip."""
    leaves = jax.tree.leaves(getattr(data, "flat", None))
    if [leaf.ndim for leaf in leaves] != [2, 1] or any(leaf.dtype != np.float32 for leaf in leaves):
        return False
    pixels = leaves[0].shape[1]
    neurons, rest = divmod(dim, pixels + 1)
    return np.ndim(data.fixed) == 1 and rest == 0 and warps_for(neurons, pixels, 1, 1) is not None


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
    pixels, batch = images.shape[1], block.samples.shape[-1]
    neurons = block.x.shape[-1] // (pixels + 1)

    @jax.custom_batching.custom_vmap
    def many(block: Block, images: jax.Array, labels: jax.Array) -> jax.Array:
        warps, together = warps_for(neurons, pixels, batch, block.x.shape[0]), samples_together(batch)
        assert warps is not None, "asked for a kernel that does not fit"
        return steps(block, images, labels, Shape(neurons, pixels, batch, regularisation, warps, together), interpret)

    @many.def_vmap
    def rule(size: int, batched: Any, block: Block, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, bool]:
        in_block, *in_data = batched
        assert not any(in_data), "clients share one store of samples"
        rows = jax.tree.map(
            lambda leaf, own: leaf if own else jnp.broadcast_to(leaf, (size, *leaf.shape)), block, in_block
        )
        merged = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)
        return many(merged, images, labels).reshape(rows.x.shape), True

    call: Callable[..., jax.Array] = many
    return call(jax.tree.map(lambda leaf: leaf[None], block), images, labels)[0]


def samples_together(batch: int) -> int:
    """Return how many samples a kernel multiplies at once."""
    return next(count for count in (2, 1) if batch % count == 0)
