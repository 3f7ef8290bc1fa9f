"""Monitoring, which nobody is charged for: means over all clients' data, and how far a point is from their sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.data.client_data import Sampler, Whole
from fedrzo.support.pytrees import real

# How many clients are looked at together; bounds the memory that monitoring takes at a large n.
CLIENTS_AT_A_TIME = 64


def mean(level: Any, function: Callable[[Any], jax.Array], whole: bool = False) -> jax.Array:
    """Return the weighted mean over clients of the mean of `function(batch)` over each one's own samples.

    Args:
        level: whose clients.
        function: of a batch, and itself a mean over it.
        whole: whether it must get each client's samples in one batch, also where sizes differ: for black boxes.
    """
    data, weights = level.data, jnp.asarray(level.client_weights)
    if getattr(data, "identical", False):
        return function(data.whole(0))
    if whole or isinstance(data, Sampler) or data.equal_size is not None:
        values = real(each_client(level, function))
        return jnp.tensordot(weights.astype(values.dtype), values, 1)

    def add(k: Any, total: jax.Array) -> jax.Array:
        singles, weight = data.everything(k, weights)
        values = real(jax.vmap(function)(singles))
        return total + jnp.tensordot(weight.astype(values.dtype), values, 1)

    shape = jax.eval_shape(lambda: real(jax.vmap(function)(data.everything(0, weights)[0])))
    start = jnp.zeros(shape.shape[1:], shape.dtype)
    return jax.lax.fori_loop(0, -(-data.samples // data.monitor_chunk), add, start)


def each_client(level: Any, function: Callable[[Any], jax.Array]) -> jax.Array:
    """Apply a function to each client's whole data; where sizes differ, one that is told of them by `Whole`."""
    data = level.data

    def one(i: Any) -> jax.Array:
        if isinstance(data, Sampler):
            return function(data.monitor(i))
        return function(Whole(data, i) if data.equal_size is None else data.whole(i))

    return jax.lax.map(one, jnp.arange(data.clients), batch_size=CLIENTS_AT_A_TIME)


def mean_loss(level: Any, *point: jax.Array) -> jax.Array:
    """Return the mean loss of all clients at a point."""
    return mean(level, lambda batch: level.value(*point, batch), level.whole)


def mean_gradient(level: Any, *point: jax.Array) -> jax.Array:
    """Return the gradient of the mean loss with respect to the first vector."""
    return mean(level, lambda batch: jax.grad(level.value)(*point, batch))


def worst_distance(problem: Any, x: jax.Array) -> jax.Array:
    """Return the largest distance from x to a client's set."""
    family = problem.sets
    if family.free:
        return jnp.zeros((), x.dtype)
    clients = jnp.arange(1 if family.identical else problem.clients)
    distances = jax.lax.map(lambda i: family.distance(i, x), clients, batch_size=CLIENTS_AT_A_TIME)
    return jnp.max(distances)
