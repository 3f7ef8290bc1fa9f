"""A nonsmooth problem in single precision."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

rounds = 2
method = fz.FedRZOnn(stepsize=0.05, smoothing=0.5, local_steps=4, batch_size=2)


def loss(x, batch):
    return jnp.mean(jnp.abs(batch @ x - 1.0))


def client_data(settings):
    return np.random.default_rng(settings["client-id"]).normal(size=(12, 3)).astype(np.float32)


def whole(clients=3):
    data = fz.ClientData([client_data({"client-id": i}) for i in range(clients)])
    return fz.Nonsmooth(loss, data, x0=np.full(3, 0.1, np.float32))


problem = whole(1)
