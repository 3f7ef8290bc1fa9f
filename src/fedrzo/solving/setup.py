"""What is settled before the first stage of `solve`: the method, the oracle, the batch, the scales of x and of the loss."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.client import FULL
from fedrzo.federation.protocol import Cost
from fedrzo.methods import METHODS, LocalSGD
from fedrzo.methods.fedrzo import GRADIENTS, VALUES, check_gradients
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import counting
from fedrzo.problems.questions import BY_SERVER
from fedrzo.running.health import losses_at

LANES = 6  # runs side by side in a stage
REACH = 0.1  # the first smoothing, in units of the size of x0's entries
FACTOR = 4.0  # between the smoothings of two stages
PROBES = 8  # directions that a loss is probed along
WIDENINGS = 12  # how often the first smoothing is made larger, where the loss does not change within it
WHOLE = 64  # samples of a client that are all used in every step; of more, some are drawn
DRAWN = 16


class Setup(NamedTuple):
    """What all stages share."""

    problem: Problem  # it starts inside its sets, and keeps the samples that it is judged on
    method: Any  # prepared
    smoothing: float  # of the first stage
    slope: float  # of the loss, near the start
    loss: float  # at the start
    cost: Cost  # of finding this out


def losses(problem: Problem, points: np.ndarray) -> np.ndarray:
    """Return the loss over all data at each row, with accurate lower solutions; a few rows at a time, by one program."""
    padded = np.concatenate([points, np.repeat(points[-1:], -len(points) % LANES, axis=0)])
    found = [np.asarray(losses_at(problem, rows), float) for rows in np.split(padded, len(padded) // LANES)]
    return np.concatenate(found)[: len(points)]


def seed_of(key: int, *path: int) -> int:
    """Return a seed of its own for one of the things that a key is used for."""
    return int(np.random.SeedSequence([key, *path]).generate_state(1)[0])


def prepare(problem: Problem, key: int) -> Setup:
    """Choose what to solve a problem by; it starts inside its sets."""
    below: dict[str, Any] = {}
    if problem.lower_solved_by == BY_SERVER:
        if problem.lower_blackbox:
            raise InputError(
                "problem: its lower loss is a black box, of which nothing tells how well it is solved; use fz.run with "
                "fz.FedRZObl(..., lower=fz.FedRZOnn(...), lower_rounds=..., closing=False)"
            )
        if not problem.stated[-1].data.stored:
            below = {"lower": LocalSGD(batch_size=DRAWN)}
    problem = problem.keeping_samples()
    smoothing, slope, loss, looks = scales(problem, np.random.default_rng(seed_of(key)))
    data = problem.data
    everything = data.stored and int(np.max(data.sizes)) <= WHOLE
    oracle = GRADIENTS if differentiable(problem, smoothing) else VALUES
    usual: Any = METHODS[problem.usual]
    method = usual(
        stepsize=smoothing, smoothing=smoothing, batch_size=FULL if everything else DRAWN, oracle=oracle, moreau=smoothing,
        **below,
    )  # fmt: skip
    method.check(problem)
    with counting() as spent:
        method = method.prepare(problem)
    cost = Cost(evaluations=looks * judged_on(problem), gradients=sum(spent) + problem.measured_gradients)
    return Setup(problem, method, smoothing, slope, loss, cost)


def judged_on(problem: Problem) -> int:
    """Return how many samples a loss is judged on."""
    data = problem.data
    return data.samples if data.stored else data.clients * int(data.full_batch)


def differentiable(problem: Problem, smoothing: float) -> bool:
    """Tell whether the losses have gradients that are those of their values."""
    try:
        check_gradients(problem, smoothing)
    except InputError:
        return False
    return True


def scales(problem: Problem, rng: np.random.Generator) -> tuple[float, float, float, int]:
    """Return the first smoothing, the slope of the loss over such distances, the loss at the start, and how many were computed.

    Points are looked at where all sets are kept. Where the loss does not change around the start, wider circles are drawn.
    """
    x0, n = np.asarray(problem.x0, float), problem.dim
    noise = rng.standard_normal((min(PROBES, 2**n), n))  # few directions differ where x is short
    rays = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    smoothing = REACH * (math.sqrt(n) + float(np.linalg.norm(x0)))
    for times in range(1, WIDENINGS + 1):
        around = np.concatenate([x0[None], x0 + smoothing * rays, x0 - smoothing * rays]).astype(problem.dtype)
        points = np.asarray(problem.project(jnp.asarray(around)))
        values = losses(problem, points)
        rise, length = values[1:] - values[0], np.linalg.norm(points[1:] - points[0], axis=1)
        seen = np.isfinite(rise) & (length > 1e-3 * smoothing)
        if np.any(rise[seen] != 0):
            # Of a linear function, the mean square of the slope along a ray is that of the gradient over n.
            slope = math.sqrt(n * float(np.mean((rise[seen] / length[seen]) ** 2)))
            return smoothing, slope, float(values[0]), times * len(points)
        smoothing *= FACTOR if np.isfinite(rise).any() else 1 / FACTOR
    if not np.isfinite(rise).any():
        raise InputError("loss: it is not finite anywhere near x0; start farther inside its domain, or give a constraint")
    raise InputError(
        f"loss: found the same value, {values[0]:.6g}, at all points up to {smoothing:.2g} around x0; nothing to gain"
    )
