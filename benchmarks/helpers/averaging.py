"""What averaging m clients does to the variance of an estimate, where each draws its direction and where they share one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.methods import FedRZObl, FedRZOnn, LocalSGD
from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.running.run import sweep
from helpers.traces import scaled_distance

DIM, SMOOTHING = 4, 0.5
RUNS, QUICK_RUNS = 400, 200
RESAMPLES = 2000


def follow(x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
    """A lower loss whose solution is x."""
    del batch
    return 0.5 * jnp.sum((y - x) ** 2)


def nearness(x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
    """The l1 loss, seen through y."""
    del x
    return scaled_distance(y, batch)


def directions(clients: list[int], runs: int = RUNS) -> dict[str, Any]:
    """Measure the variance of one round's averaged estimate at x0, for FedRZO_nn and for FedRZO_bl with an exact lower level."""
    samples = np.random.default_rng(0).normal(size=(8, DIM))
    start = np.full(DIM, 2.0)
    lower = LocalSGD(stepsize=1.0, rounds=1, batch_size="full")  # one step of length 1 solves it exactly
    methods = {
        "own": FedRZOnn(1.0, SMOOTHING, batch_size="full"),
        "shared": FedRZObl(1.0, SMOOTHING, batch_size="full", lower=lower, closing=False),
    }
    found: dict[str, Any] = {}
    for name, method in methods.items():
        moves = []
        for m in clients:
            data = ClientData.shared(samples, m)
            problem: Any = Nonsmooth(scaled_distance, data, start)
            if name == "shared":
                problem = Bilevel(nearness, follow, data, start, start, modulus=1.0, smoothness=1.0)
            results = sweep(method, problem, 1, runs, eval_every=1, progress=False).results[0]
            moves.append(np.stack([start - np.asarray(result.x) for result in results]))  # a step of length 1
        fitted = dataclasses.asdict(fit(clients, moves, lambda group: group.var(axis=0).sum()))
        found[name] = {"variance": fitted.pop("values"), **fitted}
    return found


@dataclasses.dataclass(frozen=True)
class Fit:
    """Values, and the slope of their log-log line with a 95 % bootstrap interval."""

    at: list[int]
    values: list[float]
    slope: float
    low: float
    high: float


def fit(at: list[int], samples: list[np.ndarray], statistic: Callable[[np.ndarray], Any]) -> Fit:
    """Fit a power of `at` to a statistic of samples, one for each."""
    rng = np.random.default_rng(0)

    def line(groups: list[np.ndarray]) -> tuple[list[float], float]:
        values = [float(statistic(group)) for group in groups]
        return values, float(np.polyfit(np.log(at), np.log(values), 1)[0])

    values, slope = line(samples)
    drawn = [line([group[rng.integers(len(group), size=len(group))] for group in samples])[1] for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Fit(at, values, slope, float(low), float(high))
