"""Runs that are looked at step by step: what `benchmarks/theory.py` measures, on losses whose smoothed gradient is known.

A federation shows what a server sees. The theory speaks of the mean iterate within a round and of the clients' distance to it, so
here each local step of `FedRZOnn` is taken on its own, by the method's own code, and the clients are averaged every H steps.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import betainc

from fedrzo import zoo
from fedrzo.data.client_data import ClientData
from fedrzo.federation.client import Client
from fedrzo.methods import FedRZOnn
from fedrzo.problems.nonsmooth import Nonsmooth

LONGEST = 64  # local steps of a round, at most, whose consensus is kept apart
SAMPLES = 8  # of the l1 problem
SPREAD = 0.25  # of its samples
TABLE = 4097  # points of the marginal's distribution function


def scaled_distance(x: jax.Array, batch: jax.Array) -> jax.Array:
    """The mean l1 distance to the samples over sqrt(n): 1-Lipschitz whatever n is."""
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1)) / np.sqrt(batch.shape[-1])


@dataclasses.dataclass(frozen=True)
class Known:
    """A problem whose constants and smoothed gradient are known.

    Attributes:
        problem: what is solved.
        smoothing: eta.
        lipschitz: L0.
        dissimilarity: B1 and B2.
        gap: at least f_eta(x0) - inf f_eta.
        gradient: "l1" or "linear", the closed form of grad f_eta; the Moreau term is added.
        table: what the closed form needs.
    """

    problem: Nonsmooth
    smoothing: float
    lipschitz: float
    dissimilarity: tuple[float, float]
    gap: float
    gradient: str
    table: np.ndarray


def l1(clients: int, dim: int, smoothing: float, distance: float = 2.0) -> Known:
    """Identical clients and the l1 distance to samples around 0, over sqrt(n); the start is `distance` away.

    L0 = 1, and neither L0 nor what there is to gain depends on n or m. Smoothed over a ball, |t| has the derivative
    sign(t) P(|u_1| <= |t|/eta), where u_1^2 has a beta distribution.
    """
    half = np.random.default_rng(0).normal(size=(SAMPLES // 2, dim)) * SPREAD / np.sqrt(dim)
    samples = np.concatenate([half, -half])  # symmetric, so that 0 is a minimiser
    start = np.full(dim, distance / np.sqrt(dim))
    problem = Nonsmooth(scaled_distance, ClientData.shared(samples, clients), start, name="l1")
    value, least = (np.abs(x - samples).sum(axis=1).mean() / np.sqrt(dim) for x in (start, np.zeros(dim)))
    # Smoothing raises a convex loss, by at most eta L0.
    table = betainc(0.5, (dim + 1) / 2, np.linspace(0, 1, TABLE) ** 2)
    return Known(problem, smoothing, 1.0, (0.0, 0.0), float(value - least) + smoothing, "l1", table)


def boxes(clients: int, smoothing: float) -> Known:
    """The zoo's `boxes`: a linear loss, one private half-space per client. B1 = 0 and B2 = sqrt(m) are exact."""
    problem = zoo.make("boxes", clients=clients)
    slopes = np.asarray(problem.data.flat).reshape(clients, -1, clients) - 1
    lipschitz = float(np.sqrt((slopes**2).sum(axis=2).mean(axis=1)).max())
    # The smoothed problem is least at x_i = 1 + m eta, with -m - m^2 eta / 2.
    gap = clients + clients**2 * smoothing / 2
    return Known(problem, smoothing, lipschitz, (0.0, float(np.sqrt(clients))), gap, "linear", np.zeros(0))


def gradient_of(kind: str, problem: Any, table: jax.Array, smoothing: Any, x: jax.Array) -> jax.Array:
    """Return grad f_eta with its Moreau term in closed form, interpolated in a table for l1 (to about 1e-7)."""
    if kind == "l1":
        t = x - problem.data.flat
        share = jnp.interp(jnp.minimum(jnp.abs(t) / smoothing, 1.0), jnp.linspace(0, 1, table.size), table)
        loss = jnp.mean(jnp.sign(t) * share, axis=0) / np.sqrt(x.size)
    else:
        loss = jnp.mean(problem.data.flat, axis=0) - 1
    if problem.sets.free:
        return loss
    away = x - jax.vmap(lambda i: problem.sets.project(i, x))(jnp.arange(problem.clients))
    return loss + jnp.mean(away, axis=0) / smoothing


class Trace(NamedTuple):
    """What runs showed, one entry per seed.

    Attributes:
        squared: the mean of ||grad f_eta||^2 over the mean iterates.
        consensus: the mean over rounds of mean_i ||x_i - mean||^2, by local step.
        gradients: the mean over rounds of ||grad f_eta||^2, by local step.
    """

    squared: np.ndarray
    consensus: np.ndarray
    gradients: np.ndarray


def trace(
    known: Known, stepsize: float, local_steps: int, iterations: int, seeds: list[int], clients: int | None = None
) -> Trace:
    """Run FedRZO_nn with each seed and look at every iterate 0 .. iterations.

    Only the first `clients` take part, all if not given: one compiled program serves for any number of them.
    """
    clients = known.problem.clients if clients is None else clients
    with known.problem.precision():
        keys = jnp.stack([jax.random.key(seed) for seed in seeds])
        numbers = (jnp.asarray(value, float) for value in (stepsize, known.smoothing))
        counts = (jnp.int32(value) for value in (local_steps, iterations + 1, clients))
        found = _trace(known.problem, known.gradient, jnp.asarray(known.table), keys, *numbers, *counts)
        return Trace(*(np.asarray(part) for part in found))


@functools.partial(jax.jit, static_argnames="kind")
def _trace(problem: Any, kind: str, table: Any, keys: Any, gamma: Any, eta: Any, H: Any, K: Any, m: Any) -> Any:
    clients = jnp.arange(problem.clients)
    weights = jnp.where(clients < m, 1.0 / m, 0.0)
    method = FedRZOnn(gamma, eta, 1)

    def one(key: jax.Array) -> Any:
        def body(k: Any, carry: Any) -> Any:
            xs, total, consensus, gradients = carry
            mean, place = weights @ xs, jnp.minimum(k % H, LONGEST - 1)
            squared = jnp.sum(gradient_of(kind, problem, table, eta, mean) ** 2)
            apart = weights @ jnp.sum((xs - mean) ** 2, axis=1)
            step_key = jax.random.fold_in(key, k)

            def step(i: Any, x: jax.Array) -> jax.Array:
                return method.client_steps(Client.of(problem, i), jax.random.fold_in(step_key, i), None, x).value

            xs = jax.vmap(step)(clients, xs)
            xs = jnp.where(k % H == H - 1, weights @ xs, xs)
            return xs, total + squared, consensus.at[place].add(apart), gradients.at[place].add(squared)

        start = jnp.tile(jnp.asarray(problem.x0), (problem.clients, 1))
        nothing = jnp.zeros(LONGEST)
        _, total, consensus, gradients = jax.lax.fori_loop(0, K, body, (start, jnp.zeros(()), nothing, nothing))
        places = jnp.arange(LONGEST)
        rounds = jnp.maximum((K - places + H - 1) // H, 1)  # in which a local step of that number was looked at
        return total / K, consensus / rounds, gradients / rounds

    return jax.vmap(one)(keys)
