"""A nonsmooth problem whose stand-in data and sets are not the nodes' own."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

rounds = 3
method = fz.FedRZOnn(stepsize=0.01, smoothing=0.05, local_steps=5, batch_size=4)


def loss(x, batch):
    features, targets = batch
    return jnp.mean(jnp.abs(features @ x["slope"] + x["offset"] - targets))


def build(clients, constraint=None):
    start = {"slope": np.full(3, 0.25), "offset": np.array(0.5)}
    return fz.Nonsmooth(loss, fz.ClientData(clients), start, constraint, weights="samples")


problem = build([(np.ones((2, 3)), np.ones(2))])


def client_data(settings):
    rng = np.random.default_rng(settings["client-id"])
    features = rng.normal(size=(20 + 7 * settings["client-id"], 3))
    return features, features @ np.array([1.0, -2.0, 3.0]) + 4 * settings["client-id"]


def client_constraint(settings):
    return fz.sets.Product({"slope": fz.sets.Box(-1.0, 0.3 + 0.1 * settings["client-id"]), "offset": fz.sets.Reals()})


def whole(clients=3):
    """The same problem for a simulation, with everybody's data and sets."""
    nodes = [{"client-id": i} for i in range(clients)]
    return build([client_data(node) for node in nodes], [client_constraint(node) for node in nodes])
