"""A two-stage problem whose scenarios are drawn, not stored: what a node needs of the file is its own number."""

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz

rounds = 2
method = fz.FedRZO2s(stepsize=0.05, smoothing=0.1, local_steps=3, batch_size=2, solver=fz.vi.Projection())


def draw(key, client):
    return jax.random.normal(key, (2,)) + client


def loss(x, y, xi):
    return jnp.sum((y - xi) ** 2) + jnp.sum(jnp.abs(x))


def equilibrium(x, y, xi):
    return 2.0 * y + jnp.array([[0.0, 0.5], [-0.5, 0.0]]) @ y - x - xi


def build(clients):
    return fz.TwoStage(
        loss, equilibrium, fz.Sampler(draw, clients=clients, evaluation=16), x0=np.array([1.0, -1.0]), y0=np.zeros(2),
        constraint=fz.sets.Box(-2.0, 2.0), lower_constraint=fz.sets.Box(-1.0, 3.0), modulus=2.0, smoothness=2.1,
    )  # fmt: skip


problem = build(1)


def whole(clients=3):
    return build(clients)
