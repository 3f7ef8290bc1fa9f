"""One round of FedRZO_nn on the two-layer ReLU network, as one would first write it: in NumPy, and in JAX.

The rulers of `benchmarks/zo.py`. Both draw directions with their library's own generator, take two losses, and step.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Setting(NamedTuple):
    pixels: int = 784
    neurons: int = 4
    clients: int = 5
    samples: int = 500
    local_steps: int = 20
    batch_size: int = 1
    stepsize: float = 1e-4
    smoothing: float = 0.01
    regularisation: float = 0.01

    @property
    def dim(self) -> int:
        return self.neurons * (self.pixels + 1)


def draw_data(setting: Setting) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.random((setting.clients, setting.samples, setting.pixels), np.float32)
    labels = rng.choice(np.float32([-1, 1]), (setting.clients, setting.samples))
    x0 = rng.normal(0, 1 / np.sqrt(setting.pixels), setting.dim).astype(np.float32)
    return images, labels, x0


def loss(xp, x, images, labels, setting):
    """xp is numpy or jax.numpy."""
    Z = x[: setting.neurons * setting.pixels].reshape(setting.neurons, setting.pixels)
    w = x[setting.neurons * setting.pixels :]
    errors = labels - xp.maximum(images @ Z.T, 0) @ w
    return xp.mean(errors**2) / 2 + setting.regularisation / 2 * xp.sum(x**2)


def numpy_round(x, images, labels, rng, setting):
    eta, n = np.float32(setting.smoothing), setting.dim
    ends = []
    for i in range(setting.clients):
        y = x.copy()
        for _ in range(setting.local_steps):
            rows = rng.integers(setting.samples, size=setting.batch_size)
            u, t = images[i, rows], labels[i, rows]
            v = rng.standard_normal(n, np.float32)
            v *= eta / np.linalg.norm(v)
            difference = loss(np, y + v, u, t, setting) - loss(np, y - v, u, t, setting)
            y -= np.float32(setting.stepsize) * (n / (2 * eta**2) * difference) * v
        ends.append(y)
    return np.mean(ends, axis=0)


@partial(jax.jit, static_argnames="setting")
def jax_round(x, images, labels, key, setting):
    eta, n = setting.smoothing, setting.dim

    def client(key, images, labels):
        def step(y, key):
            pick, draw = jax.random.split(key)
            rows = jax.random.randint(pick, (setting.batch_size,), 0, setting.samples)
            u, t = images[rows], labels[rows]
            v = jax.random.normal(draw, (n,))
            v = eta * v / jnp.linalg.norm(v)
            difference = loss(jnp, y + v, u, t, setting) - loss(jnp, y - v, u, t, setting)
            return y - setting.stepsize * n / (2 * eta**2) * difference * v, None

        return jax.lax.scan(step, x, jax.random.split(key, setting.local_steps))[0]

    return jnp.mean(jax.vmap(client)(jax.random.split(key, setting.clients), images, labels), axis=0)
