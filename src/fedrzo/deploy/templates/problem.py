"""The problem, stated once: `fedrzo solve federation/problem.py` simulates it, `flwr run` solves it on the nodes.

`problem` holds stand-in data, which give shapes and a simulation. On a node they are replaced by what `client_data` returns.
"""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

rounds = 10
method = fz.FedRZOnn(stepsize=0.01, smoothing=0.05, local_steps=20, batch_size=8)


def loss(x, batch):
    """Return the mean absolute error of a linear model."""
    features, targets = batch
    return jnp.mean(jnp.abs(features @ x - targets))


def samples(client):
    """Return made-up samples of one client."""
    rng = np.random.default_rng(client)
    features = rng.normal(size=(200, 5))
    return features, features @ np.arange(1.0, 6.0) + client + rng.standard_t(2, size=200)


problem = fz.Nonsmooth(loss, fz.ClientData([samples(i) for i in range(3)]), x0=np.zeros(5))


def client_data(settings):
    """Return this node's own samples; `settings` is what the node was started with (`--node-config`)."""
    if "data" in settings:
        with np.load(settings["data"]) as file:
            return file["features"], file["targets"]
    return samples(settings["client-id"])


def client_constraint(settings):
    """Return this node's own set, which never leaves it."""
    return fz.sets.Box(-10.0, 10.0 + settings["client-id"])
