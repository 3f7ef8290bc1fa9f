"""A problem without sets, large enough that slopes and records are smaller than x."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

DIM = 60
rounds = 4
method = fz.FedRZOnn(stepsize=0.001, smoothing=0.05, local_steps=3, batch_size=4, communication="scalars")


def loss(x, batch):
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1))


def build(clients, constraint=None):
    return fz.Nonsmooth(loss, fz.ClientData(clients), np.zeros(DIM), constraint, weights="samples")


problem = build([np.ones((2, DIM))])


def client_data(settings):
    return np.random.default_rng(settings["client-id"]).normal(size=(20 + 7 * settings["client-id"], DIM))


def whole(clients=3):
    return build([client_data({"client-id": i}) for i in range(clients)])
