"""Releases of made-up slopes: the mechanism alone, without a problem, as one compiled function."""

import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo.federation.client import Client
from fedrzo.privacy import mechanism
from fedrzo.privacy.privacy import Calibrated

EVERYONE = 2**32 - 1  # a threshold that takes every record, but for one in four billion


def client_of(sizes, dtype="float32", index=0, longest=None, private=None):
    """Return a client whose records are places in a table; its sizes may be traced."""
    largest = None if longest else max(sizes)
    sizes = jnp.asarray(sizes)
    offsets = jnp.concatenate([jnp.zeros(1, sizes.dtype), jnp.cumsum(sizes)[:-1]])
    data = types.SimpleNamespace(offsets=offsets, sizes=sizes, longest=longest or largest)
    level = types.SimpleNamespace(data=data, dtype=np.dtype(dtype))
    return Client(level, index, index, jax.random.key(0) if private is None else private)


def promise(noise=0.0, threshold=EVERYONE, expected=1.0, secret=None, clip=1.0, clients=1):
    """Return a calibrated promise, the same for all clients."""
    words = jnp.full(clients, threshold, jnp.uint32)
    known = Calibrated(jnp.full(clients, noise), words, jnp.full(clients, float(expected)), secret)
    return fz.Privacy(noise=1.0, clip=clip).with_calibrated(known)


def release(client, privacy, key, table, clip=1.0, batch_size="full"):
    """Return the noisy mean, and the next clip, of the slopes in a table."""
    return mechanism.release(client, privacy, key, batch_size, lambda rows: table[rows], table.shape[1], jnp.asarray(clip, float))


def whole_sum(*args, **options):
    """Return the sum, before noise, in units of the clip: all that a release is made of, the clip's own entry included."""
    seen, original = [], mechanism._poisson_sum

    def spy(*given):
        seen.append(original(*given))
        return seen[0]

    with mock.patch.object(mechanism, "_poisson_sum", spy):
        release(*args, **options)
    return seen[0]
