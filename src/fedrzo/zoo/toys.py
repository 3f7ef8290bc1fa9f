"""Toys with closed-form answers, for tests, checks and first steps. Each states its answer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError
from fedrzo.problems.nonsmooth import Nonsmooth


def squared_distance(x: jax.Array, batch: jax.Array) -> jax.Array:
    """Half the mean squared distance to the samples."""
    return 0.5 * jnp.mean(jnp.sum((x - batch) ** 2, axis=-1))


def distance_sum(x: jax.Array, batch: jax.Array) -> jax.Array:
    """The mean l1 distance to the samples."""
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1))


def linear(x: jax.Array, batch: jax.Array) -> jax.Array:
    """Minus the sum of x, plus a zero-mean term per sample."""
    return jnp.mean(batch @ x) - jnp.sum(x)


def quadratic(clients: int = 5, dim: int = 10, samples: int = 8, seed: int = 0, dtype: str = "float64") -> Nonsmooth:
    """Smooth and strongly convex: the minimiser is the mean of all samples."""
    data = _clouds(clients, dim, samples, seed)
    return Nonsmooth(squared_distance, ClientData(data), np.zeros(dim, dtype), name="quadratic")


def median(clients: int = 5, dim: int = 3, samples: int = 7, seed: int = 0, dtype: str = "float64") -> Nonsmooth:
    """Nonsmooth and convex: the minimiser is the coordinatewise median of all samples (an odd number of them)."""
    if clients * samples % 2 == 0:
        raise InputError(f"median: {clients} clients x {samples} samples is even; choose an odd number, so that it is unique")
    data = _clouds(clients, dim, samples, seed)
    return Nonsmooth(distance_sum, ClientData(data), np.zeros(dim, dtype), name="median")


def boxes(clients: int = 2, dtype: str = "float64") -> Nonsmooth:
    """A linear loss and one private half-space per client: the solution is (1, ..., 1).

    Client i allows x_i <= 1 and knows nothing of the others. At smoothing eta the smoothed problem is stationary exactly
    at x_i = 1 + m eta, so infeasibility falls with slope 1 in eta, as the paper's Proposition 2 says.
    """
    noise = np.random.default_rng(0).normal(size=(clients, 4, clients))
    samples = list(noise - noise.mean(axis=1, keepdims=True))
    private = [sets.Halfspace(np.eye(clients)[i], 1.0) for i in range(clients)]
    return Nonsmooth(linear, ClientData(samples), np.zeros(clients, dtype), private, name="boxes")


def answer(problem: Any) -> np.ndarray:
    """Return the closed-form minimiser of a toy."""
    samples = np.asarray(problem.data.flat)
    if problem.name == "quadratic":
        return samples.mean(axis=0)
    if problem.name == "median":
        return np.median(samples, axis=0)
    if problem.name == "boxes":
        return np.ones(problem.dim)
    raise InputError(f"problem: {problem.name!r} has no closed-form answer")


def _clouds(clients: int, dim: int, samples: int, seed: int) -> list[np.ndarray]:
    """Gaussian samples around a centre per client, so that clients differ."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=dim) + 0.5 * rng.normal(size=(samples, dim)) for _ in range(clients)]
