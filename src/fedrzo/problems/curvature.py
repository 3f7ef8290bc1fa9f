"""The constants that step sizes are made of, estimated where the user gives none: strong convexity and smoothness."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError, warn
from fedrzo.federation.client import FULL, Client
from fedrzo.problems.base import Problem
from fedrzo.problems.inputs import Data
from fedrzo.problems.lower_level import LowerLevel, WithLowerLoss
from fedrzo.problems.monitor import mean_gradient
from fedrzo.support.compiling import on_data
from fedrzo.vi.spectrum import largest_eigenvalue

DENSE = 200  # Hessians up to this size are formed; larger ones are probed by power iteration
POINTS = 3
CURVED = "add a term such as 0.01 * jnp.sum(y**2), or bound y by a lower_constraint"
POSITIVE = "fz.sets.Box(0.01, np.inf) where x is the weight of a penalty"
AROUND, SCALES = 3, 8  # directions (and opposites) and distances in which it is asked whether a lower loss still bends upwards
LARGEST, LEAST = 60, 200  # steps of power iteration for the largest and the least eigenvalue
CLEAR = 0.5  # of the strongest positive curvature: a negative one that neither noise nor a few odd directions explain
TINY = 1e-6  # a curvature that may be the rounding of a linear loss
FLOOR = 1e-3  # the modulus assumed, relative to the smoothness, where none was found
VISIBLE = 1e-7  # a step as long as this, relative to 1 + what it may be, shows curvature and not rounding
CHANGED = 1e-3  # relative: what curvature must differ by to be corrected, so that rounding corrects nothing
ROOM = 1.2  # by how much a corrected smoothness exceeds the steepest curvature seen
AT_ONCE = 10.0  # the factor by which one closing step may correct: one that a lost client falsified must not decide

_spent: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("gradients spent on estimates", default=None)


class StepConstants(NamedTuple):
    """What the schedules of the theory are made of."""

    modulus: Any  # mu, the strong convexity of the loss
    smoothness: Any  # L, the Lipschitz constant of its gradient
    clients: Any  # m
    dim: Any  # n, the dimension of the upper level (of the problem itself where there is none)

    @property
    def kappa(self) -> Any:
        """The condition number."""
        return self.smoothness / self.modulus


@contextlib.contextmanager
def counting() -> Iterator[list[int]]:
    """Collect, one number for each estimate made inside, how many sample gradients it took; a Hessian product counts as two."""
    found: list[int] = []
    token = _spent.set(found)
    try:
        yield found
    finally:
        _spent.reset(token)


def single_level(problem: Problem, convex: bool = True) -> StepConstants:
    """Return the constants of a single-level problem's own mean loss, estimated near x0.

    Where it is not `convex`, no modulus is needed: none is returned, and curvature of either sign counts for L.
    """
    modulus, smoothness = _overall(_at_points(_single_extremes, problem, problem.data, problem.start))
    if not convex:
        return StepConstants(None, max(smoothness, -modulus) or 1.0, problem.clients, problem.dim)
    return StepConstants(*_usable(modulus, smoothness, "loss"), problem.clients, problem.dim)


def lower_level(problem: WithLowerLoss, strict: bool = True) -> StepConstants:
    """Return the constants of a bilevel problem's lower level at x0: the user's, else estimated.

    A lower loss that bends the wrong way is refused where `strict`, else warned of.
    """
    modulus, smoothness = problem.modulus, problem.smoothness
    if modulus is None or smoothness is None:
        found = _at_points(_lower_extremes, problem, problem.lower_data, problem.start_below)
        if strict:
            _refuse_wrong_sign(problem, found)
        usable = _usable(*_overall(found), "lower")
        modulus, smoothness = modulus or usable[0], smoothness or usable[1]
    return StepConstants(float(modulus), float(max(smoothness, modulus)), problem.clients, problem.dim)


def check_sign(problem: WithLowerLoss) -> None:
    """Refuse a bilevel problem's lower loss where it bends the wrong way, whatever method is to solve it.

    Who gives both constants vouches for it. A large y, which takes long to look at, is left to methods that need constants.
    """
    if problem.estimated and not problem.lower_blackbox and problem.y0.size <= DENSE:
        _refuse_wrong_sign(problem, _at_points(_lower_extremes, problem, problem.lower_data, problem.start_below))


def _refuse_wrong_sign(problem: WithLowerLoss, found: np.ndarray) -> None:
    """Refuse where the strongest curvature is negative at every point: lower solves would run away.

    A loss that bends a little both ways, or that is convex at some points, may be solved all the same.
    """
    least, largest = found.T
    if np.all(least < np.minimum(-TINY, -CLEAR * largest)):
        what = "{}: not {}".format(*problem.convexity)
        raise InputError(
            f"{what} in y (measured modulus {least.min():.3g}); check its sign, or give modulus and smoothness to go on"
        )


def bends_wrongly(problem: WithLowerLoss, x: np.ndarray, distance: float) -> str | None:
    """Say that the mean lower loss is not strongly convex in y where a run was, or may have been; None where it is.

    A run whose last x is given has solved its lower level so far around it. A wrong answer may have thrown x there from
    elsewhere: points that are no farther from x0 are asked about, too.
    """

    def least(point: np.ndarray) -> float:
        return _overall(_at_points(_lower_extremes, problem.moved_to(point), problem.lower_data, problem.start_below))[0]

    start, points = np.asarray(problem.x0, float), [x, *points_around(x, distance, AROUND)]
    if problem.y0.size <= DENSE:
        reach = np.linalg.norm(x - start)
        points += [point for k in range(SCALES) if (d := distance * 4**k) <= reach for point in points_around(start, d, AROUND)]
    found = [least(point) for point in points]
    worst = int(np.argmin(found))
    if not found[worst] <= 0:
        return None
    mend = (
        f"it is not at x0 either: {CURVED}"
        if least(start) <= 0
        else f"give a lower_domain of x on which it is, such as {POSITIVE}"
    )
    at_x = np.array2string(points[worst], precision=4, threshold=8)
    what = "{}: not strongly {} in y".format(*problem.convexity)
    return (
        f"{what} at x = {at_x} (measured modulus {found[worst]:.3g}), about where the run was, so that lower solves fail; {mend}"
    )


def points_around(x: np.ndarray, distance: float, directions: int) -> np.ndarray:
    """Return points so far from x, along some directions and their opposites."""
    noise = np.random.default_rng(0).normal(size=(directions, x.size))
    steps = distance * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return x + np.concatenate([steps, -steps]).astype(x.dtype)


def client_smoothness(problem: Problem) -> float:
    """Return the largest smoothness of any one client's loss, estimated near x0: what a client's own steps must respect."""
    return _overall(_at_points(_client_extremes, problem, problem.data, problem.start))[1]


def _overall(found: np.ndarray) -> tuple[float, float]:
    """Return the least and the largest eigenvalue of a Hessian over a few points: sampled, so bounds from inside."""
    return float(found[:, 0].min()), float(found[:, 1].max())


def _at_points(probe: Callable[..., Any], problem: Problem, data: Data, x: jax.Array) -> np.ndarray:
    """Return the least and the largest eigenvalue at x and a few points around it, in rows."""
    if (spent := _spent.get()) is not None:
        spent.append(2 * POINTS * (x.size if x.size <= DENSE else LARGEST + LEAST + 2) * data.samples)
    rng = np.random.default_rng(0)
    points = [x] + [np.asarray(x) + rng.normal(size=x.size).astype(x.dtype) for _ in range(POINTS - 1)]  # nothing to compile
    return np.array([probe(problem, point) for point in points])


@on_data
def _single_extremes(problem: Problem, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _extremes(lambda x: mean_gradient(problem, x), x)


@on_data
def _client_extremes(problem: Problem, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def one(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        client, data = Client.of(problem, i), problem.data
        batch = client.sample(jax.random.key(0), FULL) if data.stored else data.everything_of(i)
        return _extremes(lambda x: client.gradient(x, batch), x)

    least, largest = jax.lax.map(one, jnp.arange(problem.clients))
    return jnp.min(least), jnp.max(largest)


@on_data
def _lower_extremes(problem: WithLowerLoss, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    level = LowerLevel(problem, problem.start[None])
    return _extremes(lambda y: mean_gradient(level, y), y)


def _extremes(gradient: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    if x.size <= DENSE:
        hessian = jax.jacfwd(gradient)(x)
        values = jnp.linalg.eigvalsh((hessian + hessian.T) / 2)
        return values[0], values[-1]

    def product(v: jax.Array) -> jax.Array:
        return jax.jvp(gradient, (x,), (v,))[1]

    # Power iteration ends inside the spectrum: a little is added to the largest, half is taken off a least that is positive.
    largest = 1.05 * largest_eigenvalue(product, x, LARGEST)
    least = largest - largest_eigenvalue(lambda v: largest * v - product(v), x, LEAST)
    return jnp.minimum(least, least / 2), largest


def _usable(modulus: float, smoothness: float, argument: str) -> tuple[float, float]:
    """Return constants that a step size can be made of, warning where the loss is not strongly convex."""
    smoothness = smoothness if smoothness > 0 else 1.0
    if modulus <= 1e-9 * smoothness:
        warn(
            f"{argument}: not strongly convex on samples (measured modulus {modulus:.3g}, smoothness {smoothness:.3g}); "
            f"step sizes assume {FLOOR * smoothness:.3g}: give modulus and smoothness if you know them"
            + (f"; else {CURVED}" if argument == "lower" else "")
        )
        modulus = FLOOR * smoothness
    return modulus, smoothness


def correct(curvature: Any, moved: jax.Array, change: jax.Array) -> jax.Array:
    """Return mu and L, made to agree with how much the gradient changed along a step.

    They were measured where the run began, and the lower level may be steeper or flatter where x has come to. Steps that are too
    long grow along the steepest direction, and slow ones last along the flattest, so that a closing step shows just these.
    """
    mu, L = curvature
    length = jnp.linalg.norm(moved)
    seen = length > VISIBLE * (1 + jnp.linalg.norm(change) / L)
    safe = jnp.where(seen, length, 1)
    steepest = jnp.where(seen, jnp.linalg.norm(change) / safe, 0)
    flattest = jnp.where(seen, jnp.vdot(change, moved) / safe**2, jnp.inf)
    L = jnp.where(steepest > (1 + CHANGED) * L, jnp.minimum(ROOM * steepest, AT_ONCE * L), L)
    lowest = jnp.maximum(jnp.maximum(flattest, FLOOR * L), mu / AT_ONCE)
    mu = jnp.where(flattest < (1 - CHANGED) * mu, jnp.minimum(mu, lowest), mu)
    return jnp.stack([mu, L])
