"""Whether a run is well: its steps before it starts, its way while it goes on, and its end beside its start."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Progress, Session
from fedrzo.errors import warn
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import bends_wrongly, points_around
from fedrzo.problems.questions import BY_SERVER
from fedrzo.results.history import History
from fedrzo.results.text import WORSE
from fedrzo.support.compiling import on_data

ALIKE = 1e-6  # relative: losses, or lengths of steps, that differ by less count as equal
ROUNDINGS = 100  # of one number: what a loss over all data may be off by, where that is more
LEFT = 1e6  # times max(1, |x0|): an x that far from its start,
ROWS = 10  # and farther in each of so many rows of the history, is lost
# A stationary point lies smoothing times the slope of the loss outside. Step sizes and smoothings are made for slopes near one;
# the published problems of the zoo, scaled to that within a factor of ten, end within 10 smoothings of their sets.
OUTSIDE = 20.0
# An error e of y moves a difference of losses by their slope in y times e, and a direction is as long as the smoothing: a bound
# above it may outweigh what the difference measures. Bounds are often loose by a factor of a few, and errors at x+v and x-v
# mostly alike, so that a run is stopped only where the bound is ten times that, and stays there.
UNSOLVED = 10.0
LOST = 0.01  # of what a search for a stepsize gained: more that a run gives away is said
BROKEN = 0.1  # of the largest violation that a run has seen: what is more at its end is warned of
NEARBY = 0.01  # where a loss is looked at that a method without a smoothing lost x by
DIRECTIONS = 16  # and their opposites


def warn_of_long_steps(methods: Sequence[Method], problem: Problem, rounds: int) -> None:
    """Warn of steps that cannot bring x back into a set; once, of the longest.

    They are not refused: where x never meets a set they do no harm, and which sets it meets only the run can tell.
    """
    found = [step for method in methods for step in _long_steps(method, problem, rounds)]
    if not found:
        return
    argument, length, limit, when = max(found, key=lambda step: step[1] / step[2])
    name = _pulled_by(methods[0]) if argument == "stepsize" else "smoothing"
    warn(
        f"{argument}: found {length:.4g}{when}, {2 * length / limit:.3g} times the {name}, where there are sets: a step from "
        f"outside of one leads {2 * length / limit - 1:.3g} times as far past its edge, so that x may never settle, or be lost; "
        f"pass at most twice the {name}, {limit:.4g}, or a larger {name}"
    )


def _long_steps(method: Method, problem: Problem, rounds: int) -> Iterator[tuple[str, float, float, str]]:
    """Yield too long a step of a method, and of the one that solves its lower level: its argument, length, limit and round."""
    levels = [("stepsize", method, not problem.sets.free, rounds)]
    if isinstance(lower := getattr(method, "lower", None), Method):
        most = _values(getattr(method, "lower_rounds", None), rounds).max(initial=0)
        levels.append(("lower: stepsize", lower, problem.lower_constrained, int(most)))
    for argument, part, constrained, count in levels:
        limit = part.longest_step(constrained)
        if math.isinf(limit):
            continue
        schedule = getattr(part, "stepsize", None)
        lengths = _values(schedule, count)
        if lengths.max(initial=0.0) > limit * (1 + ALIKE):
            longest = int(lengths.argmax())
            when = f" in round {longest}" if callable(schedule) else ""
            yield argument, float(lengths[longest]), limit, when


def _values(schedule: Any, rounds: int) -> np.ndarray:
    """Return a schedule's values in the rounds to be run; none where it is not given, or yet to be searched for."""
    if schedule is None or isinstance(schedule, str) or rounds == 0:
        return np.zeros(0)
    if not callable(schedule):
        return np.array([float(schedule)])
    return np.asarray(jax.vmap(lambda r: jnp.asarray(schedule(r)))(jnp.arange(rounds)), float)


def _pulled_by(method: Method) -> str:
    """Return the name of the number that a set's pull is made with."""
    return "smoothing" if getattr(method, "moreau", None) is None else "moreau"


def failure(method: Method, session: Session) -> str | None:
    """Say after which round a single run could not go on, and why; None if all is well."""
    record = session.progress()[0]
    if int(record.first_failed_round) < 0:
        return None
    before = np.asarray(record.x_good)
    largest = float(np.abs(before).max())
    reason = not_convex(method, session) or method.diagnose(session.states()[0], before) or _hole(method, session, record)
    reason = reason or (
        f"x is no longer finite (its largest entry before was {largest:.3g}); use a smaller stepsize, or check the loss for "
        "non-finite values"
    )
    return f"stopped after round {int(record.first_failed_round)}: {reason}"


def not_convex(method: Method, session: Session) -> str | None:
    """Say that the lower loss bends the wrong way near the last good x, where a server solves it; None where it does not."""
    problem: Any = session.problem
    if not session.data_at_hand or problem.lower_solved_by != BY_SERVER or problem.lower_blackbox:
        return None
    return bends_wrongly(
        problem, np.asarray(session.progress()[0].x_good, float), float(getattr(method, "smoothing", None) or NEARBY)
    )


def _hole(method: Method, session: Session, record: Progress) -> str | None:
    """Say that the loss is not finite as near to the last good x as a method asks for it; None where it is, as far as seen."""
    if not session.data_at_hand:
        return None
    smoothing = float(getattr(method, "smoothing", None) or NEARBY)
    around = points_around(np.asarray(record.x_good), smoothing, DIRECTIONS)
    bad = int(np.sum(~np.isfinite(losses_at(session.problem, around))))
    if not bad:
        return None
    first = int(record.first_failed_round) == 0
    where = "x0" if first else f"x = {np.array2string(np.asarray(record.x_good), precision=4, threshold=8)}"
    return (
        f"the loss is not finite at {bad} of {len(around)} points {smoothing:g} away from {where}; start farther inside its "
        "domain, use a smaller smoothing or stepsize, or let it return a large number outside"
    )


@on_data
def losses_at(problem: Problem, points: np.ndarray) -> jax.Array:
    """Return the monitored loss at each row."""
    return jax.vmap(lambda x: problem.evaluate(x)["loss"])(points)


def end_losses(
    session: Session, histories: Sequence[History], points: np.ndarray, feasible: np.ndarray
) -> Sequence[float | None]:
    """Return the loss at each projected point, None where nobody may know it; the history has it where nothing was projected."""
    if not session.data_at_hand:
        return [None] * len(points)
    moved = (points != feasible).any(axis=1)
    there = np.asarray(losses_at(session.problem, feasible)) if moved.any() else moved
    return [float(there[i] if moved[i] else histories[i].last["loss"]) for i in range(len(points))]


class Runaway:
    """Tells a run that has left its start, x0, for good, while its numbers may still be finite."""

    def __init__(self, x0: Any) -> None:
        self.limit = LEFT * max(1.0, float(np.linalg.norm(np.asarray(x0, float))))
        self.distance = 0.0
        self.rows = 0  # in a row, each beyond the limit and farther away than the one before

    def look(self, distance: float) -> str | None:
        """Take the distance of x from x0 in one more row of the history; say what is wrong with the run, if something is."""
        before, self.distance = self.distance, distance
        self.rows = self.rows + 1 if self.distance > max(self.limit, before) else 0
        if self.rows < ROWS:
            return None
        return (
            f"x is {self.distance:.3g} away from its start, and was farther in each of the last {ROWS} rows of the history; use "
            f"a smaller stepsize, or scale x so that its solution is within {self.limit:.3g} of x0"
        )


def worse_end(history: History, end: float | None, dtype: Any, constrained: bool) -> str | None:
    """Say that a run ended with a larger loss than it began with, both at points of the sets; None where it did not.

    A history's first row is that of the projected x0; a second one of round 0 is where a search for a stepsize had ended. `end`
    is the loss at x_feasible, or None where nobody knows it.
    """
    if end is None or history.last["round"] == 0:
        return None
    start, rounding = float(history["loss"][0]), max(ALIKE, ROUNDINGS * float(np.finfo(dtype).eps))
    found = float(history["loss"][1]) if history.searched and not constrained else None  # x may lie outside of sets
    if end <= start + rounding * max(abs(start), abs(end)):
        if found is None or end <= found + LOST * (start - found):
            return None
        return (
            f"stepsize: the search reached a loss of {found:.6g}, and {history.last['round']} rounds from there ended at "
            f"{end:.6g}; use larger batches, or pass a stepsize below result.tuning.stepsize"
        )
    where = " at x_feasible" if constrained else ""
    return (
        f"{WORSE}: the loss{where} is {end:.6g} after {history.last['round']} rounds, and was "
        f"{start:.6g} at x0; use a smaller stepsize, or larger batches"
    )


def far_outside(method: Method, history: History, units: Any) -> str | None:
    """Say that a run ended farther outside of a set than its smoothing explains; None where it did not."""
    distance = 0.0 if units else history.last.get("feasibility", 0.0)  # which is not in units of x, as the smoothing is
    ratio = 2 * distance / method.longest_step(constrained=True)  # zero where a method has no Moreau term
    if not OUTSIDE < ratio < math.inf:
        return None
    name = _pulled_by(method)
    return (
        f"feasibility: x ended {distance:.3g} outside of a client's set, {ratio:.3g} times the {name}; x comes to rest where "
        f"that distance is the {name} times the slope of the loss: divide the loss by about {ratio:.2g}, or use a smaller "
        f"{name}, with a stepsize of at most twice that"
    )


def broken(history: History) -> str | None:
    """Say that a run ended where constraints that involve y are broken; None where they are not, or hardly."""
    found = history.last.get("violation", 0.0)
    if found <= 1e-9 or found <= BROKEN * float(np.max(history["violation"])):
        return None
    return (
        f"violation: the coupling constraints are broken by {found:.3g} at the end; pass a larger penalty, or use fz.solve, "
        "which finds one"
    )


def unsolved(method: Method, history: History) -> str | None:
    """Say that the lower level has not been solved for many rows, and is not about to be; None where it is."""
    if not method.knows_lower_error or len(history) <= ROWS or (limit := _accuracy(method, history)) is None:
        return None
    errors = history["lower_error"][-ROWS:]
    if not errors.min() > UNSOLVED * limit or errors[-1] < errors[0] / 2:
        return None
    return (
        f"the lower level is not solved: the bound on its error has been {errors.min():.3g} or more for {ROWS} rows of the "
        f"history and does not fall, where the smoothing is {limit:.3g}; {_REMEDY}"
    )


def inaccurate_end(method: Method, history: History) -> str | None:
    """Say that a run ended with a lower level that was not solved to its smoothing; None where it was."""
    limit = _accuracy(method, history)
    if history.last["round"] == 0 or limit is None or not (error := history.last["lower_error"]) > limit:
        return None
    if math.isinf(error):  # where it is so from the start, it was warned of before the run
        return None if math.isinf(history["lower_error"][0]) else f"lower_error: {_LOST}"
    if not method.knows_lower_error:
        return (
            f"lower_error: the monitored loss uses a y that is known to {error:.3g} only, where the smoothing is {limit:.3g}; "
            "give the problem another monitor=, such as fz.vi.Accelerated(), or give modulus and smoothness"
        )
    return (
        f"lower_error: y is known to {error:.3g} only at the end, where the smoothing is {limit:.3g}, so "
        f"that x may be wrong; {_REMEDY}"
    )


_LOST = (
    "the lower level is not strongly monotone where x has come to, so that y may not be unique and its error has no bound; "
    "give a lower_domain on which it is"
)
_REMEDY = "give the lower level more rounds or steps, larger batches, or a smaller stepsize, or give modulus and smoothness"


def _accuracy(method: Method, history: History) -> float | None:
    """Return the smoothing, which a lower level's error should stay below; None where no error is known."""
    smoothing = getattr(method, "smoothing", None)
    return None if smoothing is None or "lower_error" not in history else float(smoothing)
