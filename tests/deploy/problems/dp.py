"""A nonsmooth problem whose nodes promise privacy; each finds its own clip, so that it also remembers something."""

import os

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

rounds = 3
promise = fz.Privacy(epsilon=2.0, delta=1e-4, clip="auto")
method = fz.FedRZOnn(stepsize=0.01, smoothing=0.05, local_steps=2, batch_size=10, privacy=promise)
# What a test wants to see a node refuse.
if os.environ.get("DP_PROMISE") == "none":
    method = fz.FedRZOnn(stepsize=0.01, smoothing=0.05, local_steps=2, batch_size=10)
elif os.environ.get("DP_PROMISE"):
    changes = {"simulation": {"epsilon": 2.0, "simulation": True}, "noise": {"noise": 2.0}, "broken": {"epsilon": 2.0}}[
        os.environ["DP_PROMISE"]
    ]
    method = fz.FedRZOnn(stepsize=0.01, smoothing=0.05, local_steps=2, batch_size=10, privacy=fz.Privacy(**changes))


def loss(x, batch):
    features, targets = batch
    return jnp.mean(jnp.abs(features @ x - targets))


problem = fz.Nonsmooth(loss, fz.ClientData([(np.ones((2, 3)), np.ones(2))]), np.zeros(3))


def client_data(settings):
    if os.environ.get("DP_PROMISE") == "broken":
        raise ValueError("could not read the secret cell")
    rng = np.random.default_rng(settings["client-id"])
    features = rng.normal(size=(40 + 20 * settings["client-id"], 3))
    return features, features @ np.array([1.0, -2.0, 3.0])
