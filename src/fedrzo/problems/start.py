"""What is checked before the first round, on concrete values."""

from __future__ import annotations

import copy
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError, warn
from fedrzo.federation.estimators import measure_noise
from fedrzo.problems.base import INSIDE, Problem
from fedrzo.problems.inputs import check_loss, one_sample
from fedrzo.problems.monitor import worst_distance
from fedrzo.support.arguments import call_user, describe
from fedrzo.support.pytrees import as_float


def check_point(problem: Any, x: Any, argument: str) -> np.ndarray:
    """Return a point of a problem as a flat vector, or say what is wrong with either."""
    if not isinstance(problem, Problem):
        raise InputError(f"problem: found {type(problem).__name__}; pass fz.Nonsmooth(...) or another problem")
    layout = problem.layout
    leaves, structure = jax.tree.flatten(x)
    shapes = tuple(np.shape(leaf) for leaf in leaves)
    if structure != layout.treedef:
        raise InputError(f"{argument}: found {structure}, the problem's x0 is {layout.treedef}; pass a point like x0")
    if shapes != layout.shapes:
        raise InputError(
            f"{argument}: found shapes {shapes}, the problem's x0 has {layout.shapes}; pass a point like x0"
        )
    return layout.ravel(jax.tree.map(lambda leaf: as_float(leaf, argument).astype(layout.dtype), x))


def feasible_start(problem: Any) -> Any:
    """Return the problem with x0 inside all clients' sets, warning if it had to be moved."""
    moved = copy.copy(problem)
    if not problem.sets.free:
        moved = _moved_inside(moved)
    if problem.hierarchical:
        moved.y0 = moved.feasible_lower()
    return moved


def _moved_inside(problem: Any) -> Any:
    """Return the problem with x0 projected onto what the clients' sets have in common, if it is outside."""
    x0 = problem.x0
    problem.sets.refuse_empty(x0)
    near = INSIDE * (1 + float(np.linalg.norm(x0)))
    distance, left = map(float, _outside(problem, jnp.asarray(x0)))
    outside = distance > near
    if outside:
        problem = problem.moved_to(np.asarray(problem.project(jnp.asarray(x0))))
        left = float(_outside(problem, jnp.asarray(problem.x0))[1])
    # Sets that nobody could look into before may be empty still: what is left then is large against the way from x0.
    if left > 1e-3 * float(np.linalg.norm(problem.x0 - x0)) + 10 * near:
        raise InputError(
            f"constraint: found clients' sets that seem to have no point in common (the best found breaks a constraint by "
            f"{left:.3g}); correct the sets, or give an x0 that lies in all of them"
        )
    if outside:
        warn(f"x0: found a point {distance:.3g} outside a client's set; it is projected first")
    return problem


@jax.jit
def _outside(problem: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return how far x is from a client's set, and by how much it breaks a constraint of one."""
    return worst_distance(problem, x), problem.sets.worst_violation(x)


def check_start(problem: Any, method: Any) -> None:
    """Try the loss at x0 on a sample of the first client, and see whether the method's estimates can be trusted."""
    _check_labels(problem)
    if problem.hierarchical:
        problem.check_lower()
        _check_test(problem, problem.layout.unravel(problem.x0), problem.lower_layout.unravel(problem.y0))
        return
    point = problem.layout.unravel(jnp.asarray(problem.x0))
    value = check_loss(problem.loss_fn, "loss", "loss(x, batch)", point, one_sample(problem.data))
    _check_test(problem, point)
    for name, function in getattr(problem, "monitored", ()):
        check_loss(function, f"monitored: {name}", f"{name}(x, batch)", point, one_sample(problem.data))
    if getattr(problem, "pair_fn", None) is not None:
        _check_pair(problem)
    smoothing = getattr(method, "smoothing", None)
    if smoothing is not None and problem.layout.dtype == np.float32:
        _warn_of_rounding(problem, float(smoothing), value)


def _check_labels(problem: Any) -> None:
    """Refuse labels that a loss does not know, if it says which it does: see `fedrzo.zoo.labels`."""
    x = problem.layout.unravel(np.asarray(problem.x0))
    levels: tuple[tuple[str, Any, Any], ...] = (
        ("data", problem.loss_fn, problem.data),
        ("lower_data", getattr(problem, "lower_fn", None), getattr(problem, "lower_data", None)),
    )
    for argument, function, data in levels:
        if hasattr(function, "known_labels") and isinstance(data, ClientData):
            labels, known = (np.asarray(found) for found in function.known_labels(x, data.flat))
            bad = np.flatnonzero(~np.isin(labels, known))
            if bad.size:
                client = int(np.searchsorted(np.asarray(data.offsets), bad[0], side="right")) - 1
                raise InputError(
                    f"{argument}: client {client} has the label {labels[bad[0]]}; the loss knows "
                    f"{', '.join(map(str, known))}: number classes like that, and drop samples without one"
                )


def _check_test(problem: Any, *point: Any) -> None:
    """Try the loss and the metrics on the test batch."""
    if problem.test is None:
        return
    arguments = "x, y, test" if len(point) == 2 else "x, test"
    for name, function in (("test", problem.loss_fn), *((f"metrics: {name}", f) for name, f in problem.metrics)):
        call = f"{'loss' if name == 'test' else name.removeprefix('metrics: ')}({arguments})"
        found = call_user(functools.partial(jax.eval_shape, function), name, call, *point, problem.test)
        if jax.tree.map(jnp.shape, found) != ():
            raise InputError(f"{name}: {call} returns {describe(found)}; it must return one number")


def _check_pair(problem: Any) -> None:
    """Compare a user's `pair` with what it stands for, at x0 along one direction."""
    x = np.asarray(problem.x0)
    v = np.random.default_rng(0).standard_normal(x.size).astype(x.dtype) * 0.1 / np.sqrt(x.size)
    batch = one_sample(problem.data)
    value = jax.jit(problem.value)
    sides = [float(value(jnp.asarray(point), batch)) for point in (x + v, x - v)]
    trees = problem.layout.unravel(jnp.asarray(x)), problem.layout.unravel(jnp.asarray(v))
    found = check_loss(problem.pair_fn, "pair", "pair(x, v, batch)", *trees, batch)
    rounding = 100 * np.finfo(x.dtype).eps * (1 + max(map(abs, sides)))
    if not abs(found - (sides[0] - sides[1])) <= 1e-3 * abs(found) + rounding:
        raise InputError(
            f"pair: found {found:.6g} where loss(x+v) - loss(x-v) is {sides[0] - sides[1]:.6g}; they must agree"
        )


def _warn_of_rounding(problem: Any, smoothing: float, value: float) -> None:
    """Tell the user when f(x+v) - f(x-v) is mostly rounding in this precision."""
    noise = measure_noise(problem, np.asarray(problem.x0), smoothing)
    if noise.rounding >= noise.statistical:
        warn(
            f"smoothing: at {smoothing:g} the rounding noise of a gradient estimate ({noise.rounding:.3g}) exceeds its "
            f"statistical noise ({noise.statistical:.3g}) in float32, with losses near {value:.3g}; use a larger smoothing, "
            "or pass x0 in float64"
        )
