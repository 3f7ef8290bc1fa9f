"""What is settled before the first stage of `solve`: the method, the oracle, the batch, the scales of x and of the loss."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.client import FULL
from fedrzo.federation.protocol import Cost
from fedrzo.methods import METHODS, LocalSGD, QuasiNewton
from fedrzo.methods.descent import TRIALS
from fedrzo.methods.fedrzo import GRADIENTS, VALUES, check_gradients
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.curvature import counting
from fedrzo.problems.mistakes import doubt
from fedrzo.problems.questions import BY_CLIENTS, BY_SERVER
from fedrzo.solving.judging import LANES, judged_on, looks
from fedrzo.support.known import known

REACH = 0.1  # the first smoothing, in units of the size of x0's entries
FACTOR = 4.0  # between the smoothings of two stages
FIRM = 2.0  # the first penalty, in units of what balances the loss where coupling constraints are broken
PROBES = 8  # directions that a loss is probed along
WIDENINGS = 12  # how often the first smoothing is made larger, where the loss does not change within it
LOOKED_AT = 256  # entries of x, at most, whose units are looked for
SWEEPS = 6  # over them
PART = 0.2  # unit of an entry in a box, as a fraction of the box's width
WIDEST = 1e4  # widest box that gives a unit, relative to 1 + |x0|: wider ones are stated for safety and say nothing of x
APART = 100.0  # between what the loss changes by along two entries: from then on their units differ
ROUNDS, FEWEST = 64, 4  # of the first stage; how few at least, where each solves for a lot
WORK, STAGE = 1e5, 2e6  # unknowns of lower levels that a round, and the first stage, solve for at most, if that can be
SOLVING = 500  # work of an iterative lower solve, per unknown
AT_ONCE = 1e8  # numbers that a look of `QuasiNewton` works on at most: samples by entries of x by points
WHOLE = 64  # samples of a client that are all used in every step; of more, some are drawn
DRAWN = 16


class Scales(NamedTuple):
    """What is found by looking around the start."""

    smoothing: float  # of the first stage
    slope: float  # of the loss over such distances, with the penalty
    bare: float  # likewise, without it
    breaking: float  # likewise, of what breaks coupling constraints
    loss: float  # at the start, with the penalty
    violation: float  # of coupling constraints at the start
    looks: int  # how many losses that took


class Setup(NamedTuple):
    """What all stages share."""

    problem: Problem  # it starts inside its sets, keeps the samples that it is judged on, and has units of its own
    method: Any  # prepared
    scales: Scales
    cost: Cost  # of finding this out
    caveat: str  # what could not be done
    remark: str = ""  # why steps take all samples of a client; empty if small batches will do, or samples are few


def seed_of(key: int, *path: int) -> int:
    """Return a seed of its own for one of the things that a key is used for."""
    return int(np.random.SeedSequence([key, *path]).generate_state(1)[0])


def prepare(problem: Problem, key: int, lanes: bool = False) -> Setup:
    """Choose what to solve a problem by, a FedRZO method if `lanes`; it starts inside its sets."""
    below: dict[str, Any] = {}
    if problem.lower_solved_by == BY_SERVER:
        if problem.lower_blackbox:
            raise InputError(
                "problem: its lower loss is a black box, of which nothing tells how well it is solved; use fz.run with "
                "fz.FedRZObl(..., lower=fz.FedRZOnn(...), lower_rounds=..., closing=False)"
            )
        if not problem.stated[-1].data.stored:
            below = {"lower": LocalSGD(batch_size=DRAWN)}
    problem, seed, sought = problem.keeping_samples(), seed_of(key), 0
    if problem.coupled:
        found = scales(problem, seed)
        problem, sought = problem.penalised(FIRM * (found.bare or found.slope) / (found.breaking or 1.0)), found.looks
    problem, times, caveat = in_units(problem)
    found = scales(problem, seed)
    smoothing = found.smoothing
    oracle = GRADIENTS if differentiable(problem, smoothing) else VALUES
    batch, remark = batch_for(problem), ""
    method: Any
    if oracle == GRADIENTS and not lanes and all_at_once(problem):
        method = QuasiNewton(stepsize=smoothing, moreau=smoothing / found.slope)
    else:
        if batch != FULL and (remark := whole_batches(problem, smoothing)):
            batch = FULL
        method = METHODS[problem.usual](
            stepsize=smoothing, smoothing=smoothing, batch_size=batch, oracle=oracle, moreau=smoothing,
            **below,
        )  # type: ignore[call-arg]  # fmt: skip
    method.check(problem)
    with counting() as spent:
        method = method.prepare(problem)
    cost = Cost(
        evaluations=(sought + times + found.looks) * judged_on(problem), gradients=sum(spent) + problem.measured_gradients
    )
    return Setup(problem, method, found, cost, caveat, remark)


def guess(problem: Problem) -> tuple[Any, Problem] | None:
    """Return a method and a problem of the structure that `prepare` is likely to find; None if `QuasiNewton` does not fit."""
    if not all_at_once(problem) or any(map(is_blackbox, problem.functions.values())):
        return None
    if problem.coupled:
        problem = problem.penalised(1.0)
    units, boxed = units_of_boxes(problem)
    if problem.layout.scale is None and problem.dim <= LOOKED_AT and boxed.any():
        problem = problem.scaled_by(units)
    return QuasiNewton(stepsize=1.0, moreau=1.0), problem


def first_rounds(setup: Setup) -> int:
    """Return how many rounds the first stage has: fewer where each solves for a lot, since several stages lead farther."""
    problem, batch = setup.problem, setup.method.batch_size
    if problem.lower_solved_by != BY_CLIENTS:
        return ROUNDS
    scenarios = problem.data.samples if batch == FULL else problem.clients * batch
    return max(FEWEST, int(min(ROUNDS, STAGE / (LANES * scenarios * problem.layouts["y0"].size))))


def all_at_once(problem: Problem) -> bool:
    """Return whether `QuasiNewton` solves a problem, at a cost that a round can bear: the gradients over all data."""
    try:
        QuasiNewton(1.0).check(problem)
    except InputError:
        return False
    return work_of(problem) * TRIALS <= AT_ONCE


def work_of(problem: Problem) -> float:
    """Return how many numbers one evaluation of a loss and of its derivatives works on, over all data."""
    work: float = (problem.data.samples if problem.data.stored else problem.clients) * problem.dim
    if problem.lower_solved_by == BY_SERVER and problem.stated[-1].data.stored:
        work += problem.stated[-1].data.samples * problem.layouts["y0"].size ** 2
    if problem.lower_solved_by == BY_CLIENTS:
        work += problem.data.samples * problem.layouts["y0"].size * SOLVING if problem.data.stored else math.inf
    return work


def batch_for(problem: Problem) -> int | str:
    """Return how many samples of a client a step is made of: all where there are few, fewer where each solves for a lot."""
    data = problem.data
    whole, most = WHOLE, DRAWN
    if problem.lower_solved_by == BY_CLIENTS:
        fits = max(1, int(WORK / (LANES * problem.clients * problem.layouts["y0"].size)))
        whole, most = min(WHOLE, fits), min(DRAWN, fits)
    return FULL if data.stored and int(np.max(data.sizes)) <= whole else most


def whole_batches(problem: Problem, smoothing: float) -> str:
    """Return why a black box has to get all samples of a client; nothing if it is a mean, or if no client has all of them."""
    if not (problem.takes_batches and problem.data.stored):
        return ""
    doubted = doubt(problem.stated[0], smoothing, problem.dtype)
    return "" if doubted is None else f"each step takes all samples of a client: the loss {doubted}"


def differentiable(problem: Problem, smoothing: float) -> bool:
    """Tell whether the losses have gradients that are those of their values."""
    try:
        check_gradients(problem, smoothing)
    except InputError:
        return False
    return True


def in_units(problem: Problem) -> tuple[Problem, int, str]:
    """Return a problem with a unit for each entry of x, the number of losses that this took, and a caveat.

    The unit of an entry with a box is a fraction of the box's width. The others are those in which the loss changes alike along
    all entries. The problem is unchanged if the user gave units, if there is no box and the loss changes alike already, or if
    its sets cannot be converted.
    """
    n = problem.dim
    if problem.layout.scale is not None or n > LOOKED_AT:
        return problem, 0, ""
    start, boxed = units_of_boxes(problem)
    units, times = (start, 0) if boxed.all() or n == 1 else _alike(problem, start, boxed)
    if units is start and not boxed.any():
        return problem, times, ""
    try:
        return problem.scaled_by(units), times, ""
    except InputError:  # a set of the user's own
        if units.max() < APART**0.5 * units.min():
            return problem, times, ""
        caveat = f"x has entries of sizes from {units.min():.2g} to {units.max():.2g}, and a set that knows no units: scale x"
        return problem, times, caveat


def in_boxes(problem: Problem) -> Problem:
    """Return a problem in the units of its boxes, if every entry of x has one, and the user gave no other units.

    It is the same one each time, so that what is found out about it is known to the next solve.
    """

    def scaled() -> Problem | None:
        units, boxed = units_of_boxes(problem)
        try:
            return problem.scaled_by(units) if boxed.all() else None
        except InputError:  # a set that knows no units
            return None

    if problem.layout.scale is not None or problem.dim > LOOKED_AT:
        return problem
    found = known(problem, "in boxes", scaled)
    return problem if found is None else found


def units_of_boxes(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return a unit for each entry of x, a fraction of its box's width if it has one, and whether it has."""
    usual = 1 + np.abs(np.asarray(problem.x0, float))
    low, high = problem.sets.bounds(problem.dim)
    boxed = (high > low) & (high - low <= WIDEST * usual)
    return np.where(boxed, PART * np.where(boxed, high - low, 0.0), usual), boxed


def _alike(problem: Problem, start: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, int]:
    """Return units in which the loss changes alike along the entries that are not `fixed`, and the number of losses asked for.

    The units at the start are returned themselves if the loss changes alike already.
    """
    x0, wanted, length, times = np.asarray(problem.x0, float), None, REACH * start, 0
    along = np.ones(x0.size, bool)
    for _ in range(SWEEPS):
        rise, room = rises(problem, x0, length, along)
        times += 2 * int(along.sum()) + 1
        seen = rise > 0
        if not seen.any() or (wanted is None and rise[seen].max() < APART * rise[seen].min()):
            return start, times
        wanted = np.median(rise[seen]) if wanted is None else wanted
        # Half of the way, in digits, where the loss is linear; all of it where it is quadratic.
        # But no farther than sets leave room for.
        longer = np.where(room < length / 2, room, length * np.sqrt(wanted / np.where(seen, rise, wanted)))
        along = ~fixed
        length = np.where(seen & along, longer, length)
    return length / REACH, times


def rises(problem: Problem, x0: np.ndarray, length: np.ndarray, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the change of the loss over a length along each entry, and the distance that sets allow, in the better direction.

    Entries that are not asked for by the mask `along` have zeros.
    """
    steps = np.diag(length)[along]
    around = np.concatenate([x0[None], x0 + steps, x0 - steps]).astype(problem.dtype)
    points = np.asarray(problem.project(jnp.asarray(around)))
    values = looks(problem, points).merits
    change, way = np.abs(values[1:] - values[0]), np.linalg.norm(points[1:] - points[0], axis=1)
    both = np.zeros((2, x0.size))
    both[:, along] = [np.max(np.where(np.isfinite(change), each, 0.0).reshape(2, -1), axis=0) for each in (change, way)]
    return both[0], both[1]


def scales(problem: Problem, seed: int) -> Scales:
    """Look around the start, along rays of a seed.

    Points are looked at where all sets are kept. Where the loss does not change around the start, wider circles are drawn.
    """
    x0, n = np.asarray(problem.x0, float), problem.dim
    directions = min(PROBES, 2**n)  # few differ where x is short
    noise = np.random.default_rng(seed).standard_normal((directions, n))
    rays = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    size = math.sqrt(n) + (0.0 if problem.layout.scale else float(np.linalg.norm(x0)))  # units are those of a change, not of x
    smoothing = REACH * size
    for times in range(1, WIDENINGS + 1):
        around = np.concatenate([x0[None], x0 + smoothing * rays, x0 - smoothing * rays]).astype(problem.dtype)
        points = np.asarray(problem.project(jnp.asarray(around)))
        found = looks(problem, points)
        rise, bare_rise, breaking_rise = (values[1:] - values[0] for values in found[:3])
        length = np.linalg.norm(points[1:] - points[0], axis=1)
        seen = np.isfinite(rise) & (length > 1e-3 * smoothing)
        if np.any(rise[seen] != 0):
            # Of a linear function, the mean square of the slope along a ray is that of the gradient over n.
            parts = rise, bare_rise, breaking_rise
            slope, bare, breaking = (math.sqrt(n * float(np.mean((part[seen] / length[seen]) ** 2))) for part in parts)
            start = float(found.merits[0]), float(found.broken[0])
            return Scales(smoothing, slope, bare, breaking, *start, times * len(points))
        smoothing *= FACTOR if np.isfinite(rise).any() else 1 / FACTOR
    if not np.isfinite(rise).any():
        raise InputError("loss: it is not finite anywhere near x0; start farther inside its domain, or give a constraint")
    raise InputError(
        f"loss: found the same value, {found.merits[0]:.6g}, at all points up to {smoothing:.2g} around x0; nothing to gain"
    )
