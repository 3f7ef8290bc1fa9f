"""What is checked before the first round, on concrete values."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.errors import InputError, warn
from fedrzo.federation.estimators import Noise, measure_noise
from fedrzo.problems.base import INSIDE, Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.courtesy import ask
from fedrzo.problems.inputs import one_sample, some_samples
from fedrzo.problems.loading import at_hand
from fedrzo.support.arguments import call_user, describe
from fedrzo.support.known import known
from fedrzo.support.pytrees import as_float


def check_point(problem: Any, x: Any, argument: str) -> np.ndarray:
    """Return a point of a problem as a flat vector, or say what is wrong with either."""
    if not isinstance(problem, Problem):
        raise InputError(f"problem: found {type(problem).__name__}; pass fz.Nonsmooth(...) or another problem")
    if hasattr(x, "x_feasible"):
        raise InputError(f"{argument}: found a {type(x).__name__}; pass its point: result.x, or result.x_feasible")
    layout = problem.layout
    leaves, structure = jax.tree.flatten(x)
    shapes = tuple(np.shape(leaf) for leaf in leaves)
    if structure != layout.treedef:
        raise InputError(f"{argument}: found {structure}, the problem's x0 is {layout.treedef}; pass a point like x0")
    if shapes != layout.shapes:
        raise InputError(f"{argument}: found shapes {shapes}, the problem's x0 has {layout.shapes}; pass a point like x0")
    return layout.ravel(jax.tree.map(lambda leaf: as_float(leaf, argument).astype(layout.dtype), x))


def feasible_start(problem: Problem) -> Problem:
    """Return the problem with x0 inside all clients' sets, and y0 inside Y(x0), warning if they had to be moved."""
    if problem.sets.free:
        return problem.inside_lower()
    x0 = problem.x0
    ask(lambda: known(problem, "sets in common", lambda: problem.sets.refuse_empty(x0)))
    near, apart = (INSIDE * (1 + float(np.linalg.norm(point))) for point in (x0, problem.layout.plain(x0)))
    stands = known(problem, "x0 outside", lambda: problem.standing(np.asarray(x0)[None]))
    distance, left = float(stands.distance[0]), float(stands.left[0])
    outside = distance > apart  # which has no units, as what is left has
    if outside:
        sets.warn_of_error("constraint", stands.error, stands.allowed)
        problem = problem.moved_to(stands.nearest[0])
    # Sets that nobody could look into before may be empty still: what is left then is large against the way from x0.
    if left > 1e-3 * float(np.linalg.norm(problem.x0 - x0)) + 10 * near:
        raise InputError(
            f"constraint: found clients' sets that seem to have no point in common (the best found breaks a constraint by "
            f"{left:.3g}); correct the sets, or give an x0 that lies in all of them"
        )
    if outside:
        warn(f"x0: found a point {distance:.3g} outside a client's set; it is projected first")
    return problem.inside_lower()


def check_start(problem: Problem, method: Any) -> None:
    """Try the loss at x0 on a sample of the first client, and see whether the method's estimates can be trusted."""
    _check_labels(problem)
    value = problem.try_losses()
    _try_batches(problem, method)
    _check_test(problem, *problem.stated[0].trees(problem.start))
    smoothing = getattr(method, "smoothing", None)
    by_values = not getattr(method, "by_gradients", False)
    if smoothing is not None and by_values and problem.dtype == np.float32:
        ask(lambda: _warn_of_rounding(problem, float(smoothing), value))


def _try_batches(problem: Problem, method: Any) -> None:
    """Trace the losses for the batches of a run: of a step, and whole ones where all clients' are alike."""
    for level in problem.stated if problem.takes_batches else ():
        if is_blackbox(level.loss):
            continue
        part = method if level.argument == "loss" else getattr(method, "lower", None)
        sizes = {getattr(part, "batch_size", None), level.data.equal_size if level.data.stored else None}
        single = one_sample(level.data)
        for size in sorted(size for size in sizes if isinstance(size, int) and size > 1):
            batch = single if level.data.fixed is None else single[0]
            batch = jax.tree.map(lambda leaf, size=size: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), batch)
            given = batch if level.data.fixed is None else (batch, single[1])
            trees = level.trees(jnp.asarray(level.start, problem.dtype))
            call = f"{level.argument}({'x, y' if len(trees) == 2 else 'x'}, batch)"
            call_user(functools.partial(jax.eval_shape, level.loss), level.argument, call, *trees, given)


def _check_labels(problem: Problem) -> None:
    """Refuse labels that a loss does not know, if it says which it does: see `fedrzo.zoo.samples`."""
    x = problem.layout.unravel(np.asarray(problem.x0))
    for level in problem.stated:
        data = level.data
        if hasattr(level.loss, "known_labels") and data.stored:
            labels, known = (np.asarray(found) for found in level.loss.known_labels(x, data.flat))
            bad = np.flatnonzero(~np.isin(labels, known))
            if bad.size:
                client = int(np.searchsorted(np.asarray(data.offsets), bad[0], side="right")) - 1
                raise InputError(
                    f"{level.source}: client {client} has the label {labels[bad[0]]}; the loss knows "
                    f"{', '.join(map(str, known))}: number classes like that, and drop samples without one"
                )


def _check_test(problem: Problem, *point: Any) -> None:
    """Try the loss and the metrics on the test batch."""
    if problem.test is None:
        return
    arguments = "x, y, test" if len(point) == 2 else "x, test"
    for name, function in (("test", problem.loss_fn), *((f"metrics: {name}", f) for name, f in problem.metrics)):
        call = f"{'loss' if name == 'test' else name.removeprefix('metrics: ')}({arguments})"
        found = call_user(functools.partial(jax.eval_shape, function), name, call, *point, problem.test)
        if jax.tree.map(jnp.shape, found) != ():
            raise InputError(f"{name}: {call} returns {describe(found)}; it must return one number")


def _warn_of_rounding(problem: Problem, smoothing: float, value: float) -> None:
    """Warn if f(x+v) - f(x-v) is mostly rounding in this precision."""

    def measured() -> Noise:
        batch = jax.tree.map(np.asarray, some_samples(at_hand(problem).data, 0, 1))
        return measure_noise(at_hand(problem), batch, np.asarray(problem.x0), smoothing)

    noise = known(problem, ("noise", smoothing), measured)
    if noise.rounding >= noise.statistical:
        warn(
            f"smoothing: at {smoothing:g} the rounding noise of a gradient estimate ({noise.rounding:.3g}) exceeds its "
            f"statistical noise ({noise.statistical:.3g}) in float32, with losses near {value:.3g}; use a larger smoothing, "
            "or pass x0 in float64"
        )
