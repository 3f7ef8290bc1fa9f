"""The constants of the theory, estimated on samples of a problem near a point, as intervals.

A Lipschitz constant is a supremum, so what samples show is a lower estimate of it: the truth is at least `low`, but for the
noise of sampling, and may be above `high`. `high` is a guess that adds, once more, the difference between the largest value
found and the mean one; it is at most twice `low` (plus noise), and equal to it where nothing varies. The modulus is an infimum:
there the same holds the other way round.
"""

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import errors
from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.problems.start import check_point
from fedrzo.support.arguments import checked_signature
from fedrzo.support.compiling import on_data
from fedrzo.support.interrupt import saying
from fedrzo.support.numbers import constant, whole
from fedrzo.theory.slopes import Slopes, slopes

POINTS = 8  # around the given one, half of them at the radius, half inside
OUTER = 256  # points for the sets, which cost no loss values
STOPPED = "stopped while constants were estimated from samples; give those that you know, such as lipschitz, or fewer points"
SIGMAS = 2.0  # of the sampling error that an interval takes in on either side


class EstimateWarning(UserWarning):
    """Said once per call: constants found on samples are estimates from inside."""


class Interval(NamedTuple):
    """What samples say about a constant."""

    low: float
    high: float

    def __repr__(self) -> str:
        return f"[{self.low:.4g}, {self.high:.4g}]"

    @classmethod
    def above(cls, largest: float, mean: float, noise: float = 0.0) -> Self:
        """Return the interval of a supremum from the largest and the mean of the values found, and their noise."""
        return cls(max(0.0, largest - noise), 2 * largest - mean + noise)

    @classmethod
    def of_supremum(cls, values: Any) -> Self:
        """Return the interval of a supremum from values at some points."""
        return cls.above(float(np.max(values)), float(np.mean(values)))

    @classmethod
    def of_infimum(cls, values: Any) -> Self:
        """Return the interval of an infimum that is not negative."""
        least = float(np.min(values))
        return cls(max(0.0, 2 * least - float(np.mean(values))), least)


@dataclasses.dataclass(frozen=True)
class Estimates:
    """The constants of one problem, near one point."""

    lipschitz: Interval  # L0; of problems with a lower level L0_imp, of the implicit loss
    # B1 and B2 of the clients' sets; exact, (0, 0) or (0, 1), where there are none or all are the same
    dissimilarity: tuple[Interval, Interval]
    lipschitz_y: Interval | None = None  # L_0,y^f, of the upper loss in y
    solution_lipschitz: Interval | None = None  # of y(x): what Theorem 2 bounds by L_xy/mu. Of bilevel problems
    modulus: Interval | None = None  # mu of the lower level; the user's where given
    smoothness: Interval | None = None  # L of the lower level; likewise
    distance: Interval | None = None  # the largest ||y(x, xi) - y0||^2. Of two-stage problems


@checked_signature(seed="key")
def estimate(
    problem: Problem, point: Any = None, radius: float = 1.0, *, points: int = POINTS, key: int = 0, warn: bool = True
) -> Estimates:
    """Estimate a problem's constants from loss values, gradients where there are any, and projections.

    Args:
        problem: any of the four classes.
        point: the centre, of x0's structure; x0 if not given.
        radius: how far around it is looked.
        points: at so many points.
        key: a seed.
        warn: say that these are estimates from inside.
    """
    here = point is None and isinstance(problem, Problem)
    x = np.asarray(problem.x0) if here else check_point(problem, point, "point")
    problem.refuse_hidden("estimating constants")
    radius, points = constant(radius, "radius"), whole(points, "points")
    if isinstance(key, bool) or not isinstance(key, int | np.integer) or key < 0:
        raise InputError(f"key: found {key!r}; pass a whole number that is not negative")
    with saying(STOPPED), problem.precision():
        around = ball(x, radius, points, key)
        found = slopes(problem, around, radius, key)
        sets = dissimilarity(problem, x, radius, key)
        more = _lower(problem, around, found)
    if warn:
        errors.warn(
            f"constants of {problem.name} are estimated from samples within {radius:g} of a point: Lipschitz constants are "
            "estimates from below, moduli from above; give them if you know them",
            EstimateWarning,
        )
    return Estimates(spread(found.norms, found.weights, found.noise, found.exact), sets, **more)


def ball(x: np.ndarray, radius: float, points: int, key: int) -> np.ndarray:
    """Return the centre and points around it, every other one on the sphere."""
    rng = np.random.default_rng(key)
    noise = rng.normal(size=(max(points - 1, 0), x.size))
    lengths = radius * np.where(np.arange(len(noise)) % 2, rng.uniform(size=len(noise)), 1.0)
    noise *= (lengths / np.linalg.norm(noise, axis=1))[:, None]
    return np.concatenate([x[None], x + noise]).astype(x.dtype)


def spread(norms: np.ndarray, weights: np.ndarray, noise: float, exact: bool) -> Interval:
    """Return the interval of max_i sqrt(E L(xi)^2) from gradients' norms by client, sample and point, and samples' weights.

    `noise` is the relative error of one norm, `exact` tells that these are all samples.
    """
    suprema = norms.max(axis=2)
    squares = np.einsum("cs,cs->c", weights, suprema**2)
    worst = int(np.argmax(squares))
    largest = float(np.sqrt(squares[worst]))
    at_points = np.sqrt(np.einsum("cs,csp->cp", weights, norms**2)).max(axis=0)
    sampling = 0.0
    if not exact and largest > 0:
        deviation = np.sqrt(np.sum(weights[worst] ** 2 * (suprema[worst] ** 2 - squares[worst]) ** 2))
        sampling = float(deviation) / (2 * largest)
    return Interval.above(largest, float(np.mean(at_points)), SIGMAS * (sampling + noise * largest))


def dissimilarity(problem: Problem, x: np.ndarray, radius: float, key: int) -> tuple[Interval, Interval]:
    """Return B1 and B2 with mean_i dist(x, X_i)^2 <= B1^2 + B2^2 ||x - mean_i P_i(x)||^2 at sampled points.

    Such pairs are many. B2 is the least that does without B1 at the farther half of the points, which lie up to ten radii
    away; B1 is what is then missing at the others.
    """
    zero, one = Interval(0.0, 0.0), Interval(1.0, 1.0)
    if problem.sets.free:
        return zero, zero
    if problem.sets.identical:
        return zero, one
    around = np.concatenate([ball(x, scale * radius, OUTER // 2, key + i) for i, scale in enumerate((1.0, 10.0))])
    distances, means = (np.asarray(part, float) for part in _set_distances(problem, jnp.asarray(around)))
    outside = distances > 1e-12
    if not outside.any():
        return zero, one
    distances, means = distances[outside], means[outside]
    far = (distances >= np.median(distances)) & (means > 1e-12 * distances)
    if not far.any():
        return Interval.of_supremum(np.sqrt(distances)), one
    b2 = Interval.of_supremum(np.sqrt(distances[far] / means[far]))
    missing = np.sqrt(np.maximum(distances - b2.low**2 * means * (1 + 1e-9), 0.0))
    return Interval.of_supremum(missing), b2


@on_data
def _set_distances(problem: Problem, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    clients = jnp.arange(problem.clients)

    def one(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        steps = x - jax.lax.map(lambda i: problem.sets.project(i, x), clients)
        return jnp.mean(jnp.sum(steps**2, axis=1)), jnp.sum(jnp.mean(steps, axis=0) ** 2)

    return jax.lax.map(one, points)


def _lower(problem: Problem, around: np.ndarray, found: Slopes) -> dict[str, Any]:
    """Return what there is to say about the lower level."""
    if found.norms_y is None:
        return {}
    more: dict[str, Any] = {"lipschitz_y": spread(found.norms_y, found.weights, 0.0, found.exact)}
    if found.solution is not None:
        more["solution_lipschitz"] = Interval.of_supremum(found.solution)
    if found.distances is not None:
        more["distance"] = Interval.of_supremum(found.distances)
    constants = [c for c in map(problem.constants_at, around[: len(around) // 2 + 1]) if c is not None]
    more["modulus"] = Interval.of_infimum([c.mu for c in constants])
    more["smoothness"] = Interval.of_supremum([c.L for c in constants])
    return more
