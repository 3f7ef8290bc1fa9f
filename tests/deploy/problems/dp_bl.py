"""A private upper level over public lower data, by scalars: steps of the lower level are named otherwise then."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

DIM = 60
rounds = 2
promise = fz.Privacy(epsilon=4.0, delta=1e-3, clip=1.0, public_lower_data=True)
lower_method = fz.LocalSGD(stepsize=0.5, rounds=20, batch_size="full")  # more messages than a node keeps replies
method = fz.FedRZObl(0.01, 0.1, 1, 10, lower=lower_method, communication="scalars", privacy=promise)


def loss(x, y, batch):
    return jnp.mean(jnp.abs(batch @ x - y[0]))


def lower(x, y, batch):
    return 0.5 * jnp.mean(jnp.sum((y - x[:2] / 2 - batch) ** 2, -1))


def build(upper, below):
    given = {"modulus": 1.0, "smoothness": 1.0, "lower_data": fz.ClientData(below)}
    return fz.Bilevel(loss, lower, fz.ClientData(upper), np.zeros(DIM), np.zeros(2), **given)


problem = build([np.ones((2, DIM))], [np.ones((2, 2))])


def client_data(settings):
    return np.random.default_rng(settings["client-id"]).normal(size=(40, DIM))


def client_lower_data(settings):
    return np.random.default_rng(9 + settings["client-id"]).normal(size=(10, 2))
