"""Local DP-SGD, averaged every round, in plain JAX: the contestant of `benchmarks/privacy.py` that uses gradients.

Every silo draws a Poisson sample of its records, clips each record's gradient, adds Gaussian noise to their sum and divides by
the number of records that a sample has on average. After so many of these steps all silos' weights are averaged. (M. Abadi and
others: "Deep Learning with Differential Privacy", CCS 2016.) Accounting is the library's: one release for each step.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from helpers.private_digits import Digits, accuracy, cross_entropy

SPARE = 8  # deviations by which a sample may be larger than on average; that one is larger never happens
FLOAT = 4  # bytes


class Setting(NamedTuple):
    """What DP-SGD does; without a clip it adds no noise."""

    stepsize: Any
    clip: Any = math.inf
    noise: Any = 0.0  # in units of the clip


def train(digits: Digits, setting: Setting, rounds: int, local_steps: int, batch_size: int, seed: int) -> dict[str, Any]:
    """Run all rounds; return accuracies, loss and costs after the last one."""
    deviation = setting.noise * setting.clip if math.isfinite(setting.clip) else 0.0
    numbers = (setting.stepsize, setting.clip, deviation)
    held, x0 = (digits.images, digits.labels), digits.x0
    x, largest = _rounds(x0, held, jax.random.key(seed), numbers, rounds, local_steps, batch_size)
    if int(largest) > _capacity(batch_size, digits.records):
        raise RuntimeError(f"a sample of {int(largest)} records was drawn; raise SPARE")
    every = tuple(leaf.reshape(-1, *leaf.shape[2:]) for leaf in held)
    sent = rounds * digits.silos * digits.dim * FLOAT
    return {
        "accuracy": float(accuracy(x, digits.test)), "train_accuracy": float(accuracy(x, every)),
        "loss": float(cross_entropy(x, every)), "upload_bytes": sent, "download_bytes": sent, "evaluations": 0,
        "gradients": rounds * local_steps * digits.silos * batch_size,
    }  # fmt: skip


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def _rounds(x0: Any, held: Any, key: jax.Array, numbers: Any, rounds: int, local_steps: int, batch_size: int) -> Any:
    """Return the weights after all rounds, and how many records the largest sample had."""
    start, unravel = ravel_pytree(x0)

    def silo(x: jax.Array, key: jax.Array, own: Any) -> tuple[jax.Array, jax.Array]:
        def step(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            g, drawn = _private_gradient(x, unravel, key, own, numbers, batch_size)
            return x - numbers[0] * g, drawn

        x, drawn = jax.lax.scan(step, x, jax.random.split(key, local_steps))
        return x, jnp.max(drawn)

    def one_round(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        silos = held[1].shape[0]
        xs, drawn = jax.vmap(silo, in_axes=(None, 0, 0))(x, jax.random.split(key, silos), held)
        return jnp.mean(xs, axis=0), jnp.max(drawn)

    x, drawn = jax.lax.scan(one_round, start, jax.random.split(key, rounds))
    return unravel(x), jnp.max(drawn)


def _private_gradient(x: jax.Array, unravel: Any, key: jax.Array, own: Any, numbers: Any, batch_size: int) -> Any:
    """Return a silo's noisy mean of clipped gradients over a Poisson sample, and how many records that has."""
    images, labels = own
    size, (_, clip, deviation) = len(labels), numbers
    sampling, noise = jax.random.split(key)
    drawn = jax.random.bernoulli(sampling, batch_size / size, (size,))
    capacity = _capacity(batch_size, size)
    rows = jnp.nonzero(drawn, size=capacity, fill_value=0)[0]

    def of_record(image: jax.Array, label: jax.Array) -> jax.Array:
        g = jax.grad(lambda x: cross_entropy(unravel(x), (image[None], label[None])))(x)
        return g * jnp.minimum(1, clip / jnp.linalg.norm(g))

    clipped = jax.vmap(of_record)(images[rows], labels[rows])
    there = jnp.arange(capacity) < jnp.sum(drawn)
    total = jnp.sum(jnp.where(there[:, None], clipped, 0), axis=0)
    return (total + deviation * jax.random.normal(noise, x.shape, x.dtype)) / batch_size, jnp.sum(drawn)


def _capacity(batch_size: int, size: int) -> int:
    return min(size, batch_size + SPARE * math.isqrt(batch_size) + 1)
