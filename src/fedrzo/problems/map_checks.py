"""Checks of a two-stage problem's map and of Y, before the first round."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets, vi
from fedrzo.errors import InputError, warn
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.inputs import one_sample
from fedrzo.problems.scenarios import Measured, WithMap
from fedrzo.support.arguments import call_user

EMPTY = 1e-4  # a projection onto Y that still breaks a constraint by more than this says that Y is empty
FAR = 1e6  # a projection that moves this far out, from twice as far, says that Y is unbounded


def check_map(problem: WithMap) -> None:
    """Refuse a map that cannot be differentiated, or that does not return one number for each entry of y."""
    x, y = problem.trees(jnp.asarray(problem.x0), jnp.asarray(problem.y0))
    if is_blackbox(problem.map_fn):
        raise InputError("map: found a black box; its derivatives are needed, so write it with jax.numpy")
    traced = functools.partial(jax.eval_shape, problem.map_fn)
    found = call_user(traced, "map", "map(x, y, xi)", x, y, problem.alone(one_sample(problem.data)))
    shapes, wanted = (jax.tree.map(lambda leaf: jnp.shape(leaf), tree) for tree in (found, y))
    if shapes != wanted:
        raise InputError(f"map: found {shapes} for a y of {wanted}; it must return one number for each entry of y")


def check_nonempty(measured: Measured, x: jax.Array) -> None:
    """Refuse a Y that was found to be empty at x."""
    if measured.violation > EMPTY:
        at_x = np.array2string(np.asarray(x), precision=4, threshold=8)
        raise InputError(
            f"lower_constraint: Y is empty (the nearest y breaks it by {measured.violation:.3g}) at x = {at_x}; correct it, "
            "start elsewhere, or give a lower_domain"
        )


def check_monotone(problem: WithMap, measured: vi.Constants, lower_set: sets.Set) -> None:
    """Warn of a map that is not strongly monotone; refuse it on an unbounded Y, where it may have no solution at all."""
    if measured.mu <= 0 and _is_unbounded(lower_set, problem.lower_layout.size):
        raise InputError(
            f"lower_constraint: Y is unbounded and the map's measured modulus is {measured.mu:.3g}: there may be no lower "
            "solution; bound Y, or make the map strongly monotone"
        )
    if measured.mu <= 0:
        warn(
            f"map: not strongly monotone on samples (measured modulus {measured.mu:.3g}); lower solutions may not be "
            "unique, and their error has no bound"
        )
    elif problem.modulus is not None and problem.modulus > measured.mu * (1 + 1e-6):
        warn(
            f"modulus: found {problem.modulus:.4g}, but measured {measured.mu:.4g} on samples; bounds on the lower level's "
            "error are too small"
        )


def _is_unbounded(lower_set: sets.Set, size: int) -> bool:
    """Tell whether projections of far points keep moving out, in some directions and their opposites."""
    noise = np.random.default_rng(0).normal(size=(8, size))
    rays = np.concatenate([noise, -noise]) / np.linalg.norm(noise, axis=1).max()
    near, far = (np.array([lower_set.project(jnp.asarray(scale * ray)) for ray in rays]) for scale in (FAR, 2 * FAR))
    return bool(np.max(np.linalg.norm(far - near, axis=1)) > 1e-3 * FAR)
