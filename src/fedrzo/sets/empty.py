"""Whether sets have a point in common, in NumPy: for what is checked before anything is compiled.

A set counts as empty if it is so even with every number widened by a millionth, which is the precision of projections:
less cannot be told from the rounding of numbers that were printed, or computed in float32.
"""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # whose parts are imported when they are used

from fedrzo.errors import InputError
from fedrzo.sets.base import FOLD_LIMIT, Set, is_concrete
from fedrzo.sets.basic import Ball, Box

WIDER = 1e-6
LARGEST = 10_000_000  # entries of a matrix that is looked at, if only to try points that may satisfy it
FAR = 1e7  # where parallel planes meet by rounding, in units of the largest violation: at no point


class Constraints(NamedTuple):
    """Sets as bounds, rows `A y <= b` of unit norm, and balls, all of them widened."""

    lo: np.ndarray
    hi: np.ndarray
    A: np.ndarray
    b: np.ndarray
    centers: np.ndarray
    radii: np.ndarray


def refuse_empty(members: Iterable[Set], n: int | None, message: str, near: Any = None) -> None:
    """Raise `InputError` if sets have no point of R^n in common, as far as their numbers and n are known.

    Not looked at are sets of a user's own kind, balls in a part of x, and what is too large for a dense matrix: a run looks
    at the point where it starts. `near` is a point that may lie in all of them.
    """
    members = list(members)
    if n is None or not is_concrete(*jax.tree.leaves(members)):
        return
    sets, (E, f) = _describe(members, n)
    trials = [np.zeros(n) if near is None else np.asarray(near, float)]
    if len(f):
        trials.append(np.linalg.lstsq(E, f, rcond=None)[0])
    if any(_contains(sets, trial) for trial in trials):
        return
    bounds = np.sum(np.isfinite(sets.lo)) + np.sum(np.isfinite(sets.hi))
    equations = len(sets.b) == 2 * len(f) > 0 == len(sets.radii) + bounds
    alone = not len(sets.b) and len(sets.radii) <= 1  # which needs no matrix
    small = (len(sets.b) + len(sets.radii) + bounds) * n <= FOLD_LIMIT
    if (alone or small) and _has_point(sets, trials[0]):
        return
    if alone or small or equations:  # what least squares do not solve
        raise InputError(message)


def _describe(members: list[Set], n: int) -> tuple[Constraints, tuple[np.ndarray, np.ndarray]]:
    """Return sets as constraints, and the equations among them as they are."""
    lo, hi = np.full(n, -np.inf), np.full(n, np.inf)
    A, E, centers = ([np.zeros((0, n))] for _ in range(3))
    b, f, radii = ([np.zeros(0)] for _ in range(3))
    for part, place in itertools.chain.from_iterable(member._placed(0, n) for member in members):
        size = place.stop - place.start
        if isinstance(part, Box):
            lo[place], hi[place] = np.maximum(lo[place], part.lo), np.minimum(hi[place], part.hi)
        elif isinstance(part, Ball) and size == n:
            centers.append(np.broadcast_to(part.center, (1, n)))
            radii.append(np.reshape(part.radius, 1))
        elif (count := part._row_count(size)) is not None and count * size <= LARGEST:
            rows = part._rows(size, np.float64)
            for matrices, sides, M, side in ((A, b, rows.A, rows.b), (E, f, rows.E, rows.f)):
                matrices.append(np.zeros((len(M), n)))
                matrices[-1][:, place] = M
                sides.append(np.asarray(side))
    E1, f1 = _unit_rows(np.concatenate(E), np.concatenate(f), at_most=False)
    A1, b1 = _unit_rows(np.concatenate(A), np.concatenate(b))
    at_most = np.concatenate([A1, E1, -E1]), np.concatenate([b1, f1, -f1])
    eps = max((float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(members)), default=0.0)
    sets = Constraints(lo, hi, *at_most, np.concatenate(centers), np.concatenate(radii).astype(float))
    return _widened(sets, eps), (E1, f1)


def _unit_rows(A: np.ndarray, b: np.ndarray, at_most: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Scale rows to unit norm; of those that are zero or have no bound, keep what no point satisfies."""
    largest = np.max(np.abs(A), axis=1, initial=0)
    norms = np.where(largest > 0, largest * np.linalg.norm(A / np.where(largest > 0, largest, 1)[:, None], axis=1), 1)
    live = np.isfinite(b) & ((largest > 0) | ((b < 0) if at_most else (b != 0)))
    return A[live] / norms[live, None], b[live] / norms[live]


def _widened(sets: Constraints, eps: float) -> Constraints:
    """Widen by a millionth of each number, and by the digits that sums of the largest ones lose in their own precision."""
    lo, hi, A, b, centers, radii = sets
    numbers = np.concatenate([lo[np.isfinite(lo)], hi[np.isfinite(hi)], b, radii, centers.ravel()])
    rounding = 1e-12 + 16 * eps * np.max(np.abs(numbers), initial=0)
    low, high, row, radius = (WIDER * np.where(np.isfinite(v), np.abs(v), 0) + rounding for v in (lo, hi, b, radii))
    return Constraints(lo - low, hi + high, A, b + row, centers, radii + radius)


def _contains(sets: Constraints, y: np.ndarray) -> bool:
    within = np.all((sets.lo <= y) & (y <= sets.hi)) and np.all(sets.A @ y <= sets.b)
    return bool(within and np.all(np.linalg.norm(y - sets.centers, axis=1) <= sets.radii))


def _has_point(sets: Constraints, near: np.ndarray) -> bool:
    _, _, A, b, centers, radii = sets
    if not len(radii):
        return _nearest(sets, near) is not None
    # As in a projection onto several balls: a point is in the piece of the ball that it keeps least.
    for center, radius in zip(centers, radii, strict=True):
        apart = center - centers
        lengths = np.linalg.norm(apart, axis=1)
        power = (radii - radius) * (radii + radius) - lengths**2
        if np.any(power[lengths == 0] < 0):  # a smaller ball has the same centre
            continue
        others = lengths > 0
        normals = apart[others] / lengths[others, None]
        cuts = normals @ center + power[others] / (2 * lengths[others]) + WIDER * radius
        y = _nearest(sets._replace(A=np.vstack([A, normals]), b=np.r_[b, cuts]), center)
        if y is not None and np.linalg.norm(y - center) <= radius:
            return True
    return False


def _nearest(sets: Constraints, point: np.ndarray) -> np.ndarray | None:
    """Return the point within the bounds and rows that is nearest to another, if there is one.

    Lawson and Hanson's least-distance programming: rows that contradict each other, u >= 0 with A'u = 0 and b'u < 0, leave
    no residual, and only they do.
    """
    lo, hi, A, b = sets[:4]
    if np.any(lo > hi):
        return None
    if not len(b):
        return np.clip(point, lo, hi)
    eye = np.eye(len(point))
    upper, lower = np.isfinite(hi), np.isfinite(lo)
    A, b = np.vstack([A, eye[upper], -eye[lower]]), np.r_[b, hi[upper], -lo[lower]]
    slack = b - A @ point
    unit = np.max(-slack, initial=0)
    if unit <= 0:
        return point
    stacked = np.vstack([-A.T, -slack / unit])
    goal = np.r_[np.zeros(len(point)), 1.0]
    residual = stacked @ scipy.optimize.nnls(stacked, goal, maxiter=10 * sum(stacked.shape))[0] - goal
    return None if np.linalg.norm(residual) * FAR < 1 else point - unit * residual[:-1] / residual[-1]
