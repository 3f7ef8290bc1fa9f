"""A bilevel problem whose x is longer than what a round of scalars leaves on record."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo.zoo import toys


def upper(x, y, batch):
    return 0.5 * jnp.mean(jnp.sum((x - batch) ** 2, -1)) + jnp.sum(y**2)


def lower(x, y, batch):
    return 0.5 * jnp.sum((y - x[:2] / 2) ** 2) + 0.0 * jnp.sum(batch)


def halved(clients=3, dim=40, constraint=None):
    """Find the mean of the clients' targets; y is half of x's first two entries."""
    data = toys.quadratic(clients=clients, dim=dim).data
    return fz.Bilevel(upper, lower, data, np.zeros(dim), np.zeros(2), constraint, modulus=1.0, smoothness=1.0)
