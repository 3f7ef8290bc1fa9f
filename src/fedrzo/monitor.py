"""Monitoring, which nobody is charged for: the loss over all clients' data, and how far a point is from their sets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.clientdata import CHUNK, Sampler

# How many clients are looked at together; bounds the memory that monitoring takes at a large n.
CLIENTS_AT_A_TIME = 64


def mean_loss(problem: Any, *point: jax.Array) -> jax.Array:
    """Return the weighted mean over clients of each one's mean loss over its own samples."""
    data, weights = problem.data, jnp.asarray(problem.client_weights)
    if isinstance(data, Sampler) or data.equal_size is not None:
        values = client_losses(problem, *point)
        return jnp.dot(weights.astype(values.dtype), values)

    def add(k: Any, total: jax.Array) -> jax.Array:
        singles, weight = data.everything(k, weights)
        values = jax.vmap(lambda sample: problem.value(*point, sample))(singles)
        return total + jnp.dot(weight.astype(values.dtype), values)

    start = jnp.zeros((), jnp.result_type(point[0]))
    return jax.lax.fori_loop(0, -(-data.samples // CHUNK), add, start)


def client_losses(problem: Any, *point: jax.Array) -> jax.Array:
    """Return each client's own mean loss, for clients that have equally many samples or a sampler."""
    data = problem.data

    def one(i: Any) -> jax.Array:
        batch = data.monitor(i) if isinstance(data, Sampler) else data.whole(i)
        return problem.value(*point, batch)

    return jax.lax.map(one, jnp.arange(data.clients), batch_size=CLIENTS_AT_A_TIME)


def worst_distance(problem: Any, x: jax.Array) -> jax.Array:
    """Return the largest distance from x to a client's set."""
    family = problem.sets
    if family.free:
        return jnp.zeros((), x.dtype)
    clients = jnp.arange(1 if family.identical else problem.clients)
    distances = jax.lax.map(lambda i: family.distance(i, x), clients, batch_size=CLIENTS_AT_A_TIME)
    return jnp.max(distances)
