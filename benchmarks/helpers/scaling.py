"""How iterations to a target grow with the number of clients and with the dimension, and the slope of that in log-log."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedrzo import theory
from helpers.traces import Known, trace

FACTORS = (0.25, 0.5, 1.0)  # of a first guess: the numbers of iterations that are tried
EXTENSIONS = 4  # doublings beyond, where the target is not reached
RESAMPLES = 2000
LEVEL = 95.0  # per cent of an interval


class Curve(NamedTuple):
    """What was found for one number of clients, or one dimension.

    Attributes:
        iterations: the budgets tried, each with the step size and the local steps prescribed for it.
        squared: E||grad f_eta||^2 at each (rows), by seed (columns).
    """

    iterations: list[int]
    squared: np.ndarray


def curve(known: Known, clients: int, epsilon: float, seeds: list[int]) -> Curve:
    """Run with growing budgets until the mean over seeds is below the target at the last one, and above it at the first."""
    n, eta = known.problem.dim, known.smoothing
    # Where the gap's share of the error is gap / (gamma K): what the prescribed gamma makes of that.
    guess = known.gap**2 * n**1.5 * known.lipschitz**3 / (eta * clients * epsilon**2)
    found: dict[int, np.ndarray] = {}

    def add(K: int) -> None:
        plan = theory.nonsmooth(clients, n, eta, known.lipschitz, budget=K)
        found[K] = trace(known, plan.stepsize, plan.local_steps, K, seeds, clients).squared

    for factor in FACTORS:
        add(max(4, round(factor * guess)))
    for _ in range(EXTENSIONS):
        if found[max(found)].mean() <= epsilon:
            break
        add(2 * max(found))
    while found[min(found)].mean() <= epsilon and min(found) > 4:
        add(max(4, min(found) // 4))
    budgets = sorted(found)
    return Curve(budgets, np.stack([found[K] for K in budgets]))


def crossing(iterations: list[int], squared: np.ndarray, epsilon: float) -> float:
    """Return where a curve first falls below the target, by interpolation in log-log; infinite where it does not."""
    below = np.nonzero(squared <= epsilon)[0]
    if len(below) == 0:
        return math.inf
    j = int(below[0])
    if j == 0:
        return float(iterations[0])
    (x0, x1), (y0, y1) = np.log(iterations[j - 1 : j + 1]), np.log(squared[j - 1 : j + 1])
    return float(np.exp(x0 + (x1 - x0) * (y0 - np.log(epsilon)) / (y0 - y1)))


def slope(at: list[int], curves: list[Curve], epsilon: float) -> dict[str, Any]:
    """Return iterations to the target for each entry, and the slope of the log-log line with its bootstrap interval.

    Seeds are drawn anew, for each budget of each entry on its own; those resamples in which some curve misses the target are
    left out, and counted.
    """
    rng = np.random.default_rng(0)

    def fit(pick: Callable[[np.ndarray], np.ndarray]) -> tuple[list[float], float]:
        reached = [crossing(c.iterations, pick(c.squared), epsilon) for c in curves]
        usable = all(map(math.isfinite, reached))
        return reached, float(np.polyfit(np.log(at), np.log(reached), 1)[0]) if usable else math.nan

    def resample(squared: np.ndarray) -> np.ndarray:
        chosen = rng.integers(squared.shape[1], size=squared.shape)
        return np.take_along_axis(squared, chosen, axis=1).mean(axis=1)

    reached, best = fit(lambda squared: squared.mean(axis=1))
    drawn = np.array([fit(resample)[1] for _ in range(RESAMPLES)])
    kept = drawn[np.isfinite(drawn)]
    tails = ((100 - LEVEL) / 2, (100 + LEVEL) / 2)
    low, high = np.percentile(kept, tails) if len(kept) else (math.nan, math.nan)
    return {
        "at": at, "iterations": reached, "slope": best, "low": float(low), "high": float(high),
        "resamples_left_out": int(len(drawn) - len(kept)), "epsilon": epsilon,
    }  # fmt: skip
