"""Whether a function's gradients are those of its values: asked before a run that goes by gradients.

Along a random v, f(x+v) - f(x-v) is the mean over t in [-1, 1] of 2 <f'(x+tv), v>, for every f whose slope may be integrated,
kinks or not. It is not for one that jumps, or whose gradient was stopped or replaced. All is computed in float64, so that what
rounding does to differences is no reason.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import FedrzoError, InputError
from fedrzo.problems.base import Problem
from fedrzo.problems.courtesy import ask
from fedrzo.problems.inputs import SAMPLES, Data, some_samples
from fedrzo.support.compiling import once
from fedrzo.support.known import known

DIRECTIONS = 256
CERTAIN = 5.0  # standard deviations: what chance alone does once in three million
SMALL = 0.03  # relative: differences below this are left alone


class Slopes(NamedTuple):
    """What differences and gradients say along random directions: root mean squares, and whether they disagree."""

    values: float
    gradients: float
    disagree: bool


def refuse_wrong_gradients(problem: Problem, smoothing: float) -> None:
    """Refuse a problem with a function whose gradients are not those of its values, near the start."""
    for index, (argument, function, data) in enumerate(_functions(problem)):
        _refuse_failing(argument, function, _start(problem), _samples(data))
        compared = functools.partial(compare, problem, index, smoothing)
        found = ask(functools.partial(known, problem, ("slopes", argument, smoothing), compared))
        if found is None:
            continue
        if found.disagree:
            raise InputError(
                f"{argument}: its gradients are not those of its values: near the start it changes by {found.values:.3g} along "
                f"random directions of length {smoothing:g}, by its gradients {found.gradients:.3g} (root mean squares); it "
                'jumps, or a gradient is stopped, replaced or not finite: use oracle="values"'
            )


def _refuse_failing(argument: str, function: Callable[[Any, Any], Any], start: np.ndarray, batch: Any) -> None:
    """Refuse a function that cannot be differentiated in its own precision; nothing is computed."""
    try:
        jax.eval_shape(jax.grad(function), start, batch)
    except FedrzoError:
        raise
    except Exception as error:  # whatever differentiating a user's function may lead to
        said = " ".join(str(error).split())[:120]
        raise InputError(
            f'oracle: found "gradients", but differentiating {argument} fails with {type(error).__name__}: {said}; use '
            'oracle="values"'
        ) from error


def _samples(data: Data) -> Any:
    """Return a few samples of the first client."""
    return some_samples(data, 0, min(SAMPLES, int(np.asarray(data.sizes)[0])) if data.stored else 1)


def _functions(problem: Problem) -> Iterator[tuple[str, Callable[[Any, Any], Any], Data]]:
    """Return the functions that are differentiated, each of all its variables in one flat vector and a batch."""

    def split(z: jax.Array) -> tuple[Any, ...]:
        sizes = [layout.size for layout in problem.layouts.values()]
        return problem.trees(*jnp.split(z, np.cumsum(sizes)[:-1]))

    def flat(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        return lambda z, batch: _sum(function(*split(z), problem.alone(batch)))

    for level in problem.stated:
        yield level.argument, flat(level.loss), level.data
        if level.argument == "lower":  # its adjoint takes second derivatives
            yield "lower's slope in y", flat(jax.grad(level.loss, 1)), level.data
    if not problem.takes_batches:
        yield "map", flat(problem.functions["map"]), problem.data


def _sum(tree: Any) -> Any:
    """Return one number of a tree, with weights that no two entries share."""
    flat = jax.flatten_util.ravel_pytree(tree)[0]
    return jnp.cos(jnp.arange(flat.size)) @ flat


def _start(problem: Problem) -> np.ndarray:
    parts = [problem.start] + ([problem.start_below] if len(problem.layouts) > 1 else [])
    return np.concatenate([np.asarray(part) for part in parts])


def compare(problem: Problem, index: int, smoothing: float) -> Slopes:
    """Compare differences of a problem's function with its gradients around the start, on a few samples of the first client.

    With D a difference and G, G' what gradients at two places say of it, (D - G)(D - G') has the mean zero if they agree, and
    else the square of what they differ by, along each direction.
    """

    def wide(leaf: Any) -> Any:
        return np.asarray(leaf, np.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    _, _, data = list(_functions(problem))[index]
    batch = jax.tree.map(wide, _samples(data))
    start, rng = np.asarray(_start(problem), np.float64), np.random.default_rng(0)
    with jax.enable_x64(True):
        asked = [_along(problem, batch, *_line(rng, start, smoothing), index=index) for _ in range(DIRECTIONS)]
        differences, (first, second) = (np.array(found).T for found in zip(*asked, strict=True))
    if np.isfinite(differences).all() and not np.isfinite(first + second).all():
        return Slopes(float(np.sqrt(np.mean(differences**2))), float("nan"), True)
    apart = (differences - first) * (differences - second)
    scale = np.mean(differences**2) + np.mean(np.abs(first * second))
    certain = np.mean(apart) > CERTAIN * np.std(apart) / np.sqrt(DIRECTIONS)
    disagree = bool(certain and np.mean(apart) > SMALL**2 * scale)
    root = lambda square: float(np.sqrt(max(square, 0.0)))  # noqa: E731
    return Slopes(root(np.mean(differences**2)), root(np.mean(first * second)), disagree)


def _line(rng: np.random.Generator, start: np.ndarray, smoothing: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw a direction, and the points of a line along it: two for a difference, two where gradients are asked for.

    The line does not go through the start, where a symmetric function would hide what is wrong.
    """
    v, away = (smoothing / np.linalg.norm(each) * each for each in rng.uniform(-1, 1, (2, start.size)))
    return v, start + away + np.array([1.0, -1.0, *rng.uniform(-1, 1, 2)])[:, None] * v


def _along_direction(problem: Problem, batch: Any, v: jax.Array, points: jax.Array, *, index: int) -> tuple[jax.Array, jax.Array]:
    """Return a difference along a direction, and what gradients at two places of it say of that."""
    _, function, _ = list(_functions(problem))[index]
    values, slopes = jax.vmap(lambda z: jax.value_and_grad(function)(z, batch))(points)
    return values[0] - values[1], 2 * slopes[2:] @ v


_along = once(_along_direction, ("index",))
