"""FedRZO_bl by scalars, x long enough that clients rebuild it; the nodes' own data."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

DIM = 60
rounds = 3
method = fz.FedRZObl(0.01, 0.1, 2, 4, communication="scalars", lower_rounds=2)


def loss(x, y, batch):
    return 0.5 * jnp.mean(jnp.sum((x - batch) ** 2, -1)) + jnp.sum(y**2)


def lower(x, y, batch):
    return 0.5 * jnp.sum((y - x[:2] / 2) ** 2) + 0.0 * jnp.sum(batch)


def build(clients, constraint=None):
    data = fz.ClientData(clients)
    return fz.Bilevel(loss, lower, data, np.zeros(DIM), np.zeros(2), constraint, modulus=1.0, smoothness=1.0)


problem = build([np.ones((2, DIM))])


def client_data(settings):
    return np.random.default_rng(settings["client-id"]).normal(size=(20 + 7 * settings["client-id"], DIM))


def whole(clients=3):
    return build([client_data({"client-id": i}) for i in range(clients)])
