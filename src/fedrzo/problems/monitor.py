"""Monitoring, which nobody is charged for: means over all clients' data, and how far a point is from their sets."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedrzo.data.client_data import CLIENTS_AT_A_TIME, ClientData
from fedrzo.data.sampler import Sampler
from fedrzo.support.pytrees import real


class Losses(Protocol):
    """What can be monitored: a problem, or its lower level at given points."""

    data: ClientData | Sampler  # the clients' samples
    client_weights: Any  # what each client counts

    @property
    def whole(self) -> bool:
        """Whether the loss is to get a client's samples in one batch."""

    @property
    def value(self) -> Callable[..., jax.Array]:
        """The loss at flat vectors, the last argument being the batch."""


def mean(level: Losses, function: Callable[[Any], jax.Array], whole: bool = False) -> jax.Array:
    """Return the weighted mean over clients of the mean of `function(batch)`, itself a mean, over each one's own samples.

    Where `whole`, it gets each client's samples in one batch, also where sizes differ (as a `Whole`): for black boxes.
    """
    data, weights = level.data, jnp.asarray(level.client_weights)
    if data.identical:
        return function(data.everything_of(0))
    if not data.stored and data.drawn is not None:
        values = real(jax.lax.map(function, data.drawn, batch_size=CLIENTS_AT_A_TIME))
        return jnp.tensordot(weights.astype(values.dtype), values, 1)
    if not data.stored or (whole and data.equal_size is None):
        clients = jnp.arange(data.clients)
        values = real(jax.lax.map(lambda i: function(data.everything_of(i)), clients, batch_size=CLIENTS_AT_A_TIME))
        return jnp.tensordot(weights.astype(values.dtype), values, 1)

    def part(k: Any) -> jax.Array:
        batches, weight = data.everything(k, weights)
        values = real(jax.vmap(function)(batches))
        return jnp.tensordot(weight.astype(values.dtype), values, 1)

    if data.all_chunks == 1:  # as a rule; a loop would take longer to compile
        return part(0)
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(part, 0))
    return jax.lax.fori_loop(0, data.all_chunks, lambda k, total: total + part(k), start)


def mean_loss(level: Losses, *point: jax.Array) -> jax.Array:
    """Return the mean loss of all clients at a point."""
    return mean(level, lambda batch: level.value(*point, batch), level.whole)


def mean_gradient(level: Losses, *point: jax.Array) -> jax.Array:
    """Return the gradient of the mean loss with respect to the first vector."""
    return mean(level, lambda batch: jax.grad(level.value)(*point, batch))
