"""What is settled before the first stage of `solve`: the method, the oracle, the batch, the scales of x and of the loss."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.client import FULL
from fedrzo.methods import METHODS
from fedrzo.methods.fedrzo import GRADIENTS, VALUES, check_gradients
from fedrzo.problems.base import Problem

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


@jax.jit
def _losses(problem: Problem, points: jax.Array) -> jax.Array:
    return jax.vmap(lambda x: problem.evaluate(x)["loss"])(points)


def losses(problem: Problem, points: np.ndarray) -> np.ndarray:
    """Return the loss over all data at each row, with accurate lower solutions; a few rows at a time, by one program."""
    padded = np.concatenate([points, np.repeat(points[-1:], -len(points) % LANES, axis=0)])
    found = [np.asarray(_losses(problem, jnp.asarray(rows)), float) for rows in np.split(padded, len(padded) // LANES)]
    return np.concatenate(found)[: len(points)]


def seed_of(key: int, *path: int) -> int:
    """Return a seed of its own for one of the things that a key is used for."""
    return int(np.random.SeedSequence([key, *path]).generate_state(1)[0])


def prepare(problem: Problem, key: int) -> Setup:
    """Choose what to solve a problem by; it starts inside its sets."""
    problem = problem.keeping_samples()
    smoothing, slope, loss = scales(problem, np.random.default_rng(seed_of(key)))
    data = problem.data
    everything = data.stored and int(np.max(data.sizes)) <= WHOLE
    oracle = GRADIENTS if differentiable(problem, smoothing) else VALUES
    usual: Any = METHODS[problem.usual]
    method = usual(
        stepsize=smoothing, smoothing=smoothing, batch_size=FULL if everything else DRAWN, oracle=oracle, moreau=smoothing
    )
    method.check(problem)
    return Setup(problem, method.prepare(problem), smoothing, slope, loss)


def differentiable(problem: Problem, smoothing: float) -> bool:
    """Tell whether the losses have gradients that are those of their values."""
    try:
        check_gradients(problem, smoothing)
    except InputError:
        return False
    return True


def scales(problem: Problem, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return the first smoothing, the slope of the loss over such distances, and the loss at the start.

    Points are looked at where all sets are kept. Where the loss does not change around the start, wider circles are drawn.
    """
    x0, n = np.asarray(problem.x0, float), problem.dim
    noise = rng.standard_normal((PROBES, n))
    rays = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    smoothing = REACH * (math.sqrt(n) + float(np.linalg.norm(x0)))
    for _ in range(WIDENINGS):
        around = np.concatenate([x0[None], x0 + smoothing * rays, x0 - smoothing * rays]).astype(problem.dtype)
        points = np.asarray(problem.project(jnp.asarray(around)))
        values = losses(problem, points)
        rise, length = values[1:] - values[0], np.linalg.norm(points[1:] - points[0], axis=1)
        seen = np.isfinite(rise) & (length > 1e-3 * smoothing)
        if np.any(rise[seen] != 0):
            # Of a linear function, the mean square of the slope along a ray is that of the gradient over n.
            slope = math.sqrt(n * float(np.mean((rise[seen] / length[seen]) ** 2)))
            return smoothing, slope, float(values[0])
        smoothing *= FACTOR if np.isfinite(rise).any() else 1 / FACTOR
    if not np.isfinite(rise).any():
        raise InputError("loss: it is not finite anywhere near x0; start farther inside its domain, or give a constraint")
    raise InputError(
        f"loss: found the same value, {values[0]:.6g}, at all points up to {smoothing:.2g} around x0; nothing to gain"
    )
