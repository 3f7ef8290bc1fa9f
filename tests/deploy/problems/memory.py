"""A smooth problem whose method has clients remember: SCAFFOLD's control variates."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

rounds = 4
method = fz.Scaffold(stepsize=0.05, local_steps=3, batch_size=2)


def loss(x, batch):
    return jnp.mean((batch @ x - 1.0) ** 2)


problem = fz.Nonsmooth(loss, fz.ClientData([np.ones((1, 2))]), x0=np.zeros(2))


def client_data(settings):
    return np.random.default_rng(settings["client-id"]).normal(size=(10, 2)) + settings["client-id"]


def whole(clients=3):
    return fz.Nonsmooth(loss, fz.ClientData([client_data({"client-id": i}) for i in range(clients)]), x0=np.zeros(2))
