"""A bilevel problem: clients agree on a ridge weight; both levels have data of their own."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

rounds = 1
method = fz.FedRZObl(
    stepsize=0.02, smoothing=1.0, local_steps=3, batch_size=2, lower=fz.LocalSGD(stepsize=0.1, local_steps=4, rounds=2)
)


def upper(x, y, batch):
    features, targets = batch
    return jnp.mean((features @ y - targets) ** 2) + 0.01 * jnp.sum(jnp.abs(x))


def lower(x, y, batch):
    features, targets = batch
    return jnp.mean((features @ y - targets) ** 2) + (0.5 + jnp.sum(x**2)) * jnp.sum(y**2)


def build(clients, below):
    return fz.Bilevel(
        upper, lower, fz.ClientData(clients), x0=np.array([0.5, -0.3]), y0=np.zeros(2), lower_data=fz.ClientData(below),
        lower_constraint=fz.sets.Box(-0.4, 0.4), modulus=1.0, smoothness=12.0,
    )  # fmt: skip


problem = build([(np.ones((2, 2)), np.ones(2))], [(np.ones((2, 2)), np.ones(2))])


def samples(seed, count):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 2))
    return features, features @ np.array([1.0, -0.5]) + 0.1 * rng.normal(size=count)


def client_data(settings):
    return samples(settings["client-id"], 10)


def client_lower_data(settings):
    return samples(100 + settings["client-id"], 8 + settings["client-id"])


def whole(clients=3):
    nodes = [{"client-id": i} for i in range(clients)]
    return build([client_data(node) for node in nodes], [client_lower_data(node) for node in nodes])
