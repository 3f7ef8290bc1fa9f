"""FedRZO_bl for hyper-parameter learning, as one would first write it in JAX from the paper's listings.

The ruler of `benchmarks/bilevel.py`: vmap over clients, scan over steps and rounds, `jax.random.normal` for directions, and
FedAvg from y = 0 for the lower level, at x+v and then at x-v. Clients have different numbers of validation samples: they are
padded.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Setting(NamedTuple):
    stepsize: float = 1e-2
    smoothing: float = 0.01
    local_steps: int = 10
    lower_stepsize: float = 0.5
    lower_rounds: int = 20
    lower_steps: int = 5
    floor: float = 0.01


class Data(NamedTuple):
    images: jax.Array  # training: clients x samples x pixels
    labels: jax.Array
    held_images: jax.Array  # validation, padded
    held_labels: jax.Array
    held_sizes: jax.Array


def logistic(y, images, labels):
    return jnp.mean(jnp.logaddexp(0.0, -labels * (images @ y)))


def lower_loss(y, weight, images, labels):
    return logistic(y, images, labels) + weight / 2 * jnp.sum(y**2)


def fedavg(x, data, setting):
    """Algorithm 3 from y = 0 with full gradients, all weights at least the floor."""
    weights = jnp.maximum(x, setting.floor)

    def client(y, weight, images, labels):
        def step(y, _):
            return y - setting.lower_stepsize * jax.grad(lower_loss)(y, weight, images, labels), None

        return jax.lax.scan(step, y, length=setting.lower_steps)[0]

    def one_round(y, _):
        return jnp.mean(jax.vmap(client, (None, 0, 0, 0))(y, weights, data.images, data.labels), axis=0), None

    return jax.lax.scan(one_round, jnp.zeros(data.images.shape[-1]), length=setting.lower_rounds)[0]


def upper_round(x, key, data, setting):
    """Algorithm 2, lines 3 to 11; returns the new x, x+v, x-v and the lower solutions there."""
    eta, n = setting.smoothing, x.size
    draw, sample = jax.random.split(key)
    v = jax.random.normal(draw, (n,))
    v = eta * v / jnp.linalg.norm(v)
    plus, minus = x + v, x - v
    y_plus, y_minus = fedavg(plus, data, setting), fedavg(minus, data, setting)

    def client(key, images, labels, size):
        def step(x, key):
            row = jax.random.randint(key, (1,), 0, size)
            u, t = images[row], labels[row]
            difference = logistic(y_plus, u, t) - logistic(y_minus, u, t)
            g = n / (2 * eta**2) * difference * v
            return x - setting.stepsize * (g + (x - jnp.maximum(x, setting.floor)) / eta), None

        return jax.lax.scan(step, x, jax.random.split(key, setting.local_steps))[0]

    keys = jax.random.split(sample, data.images.shape[0])
    ends = jax.vmap(client)(keys, data.held_images, data.held_labels, data.held_sizes)
    return jnp.mean(ends, axis=0), (jnp.stack([plus, minus]), jnp.stack([y_plus, y_minus]))


@partial(jax.jit, static_argnames=("setting", "rounds"))
def run(x, key, data, setting, rounds):
    """Return x after some rounds, and the points and lower solutions of each."""
    return jax.lax.scan(lambda x, key: upper_round(x, key, data, setting), x, jax.random.split(key, rounds))
