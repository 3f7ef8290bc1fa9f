"""The parts of a check that call a black box: those that tell most for a call come first, and get no more than is left."""

from collections.abc import Callable, Iterator
from typing import Any

from fedrzo.checks.budget import Budget
from fedrzo.checks.losses import EXTENTS, Extent, losses, lower_mean, price
from fedrzo.checks.parts import slope_points, steepness
from fedrzo.checks.report import Finding
from fedrzo.checks.trial import ROUNDS, Rehearsal, metered_trial, rehearse
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.start import check_start
from fedrzo.support.progress import Bar
from fedrzo.theory.slopes import calls as calls_of_slopes

Part = tuple[str, Callable[[], Any]]  # the name of a part of the check, and its function, which may return findings


def metered_parts(budget: Budget, method: Method, rounds: int, key: int, bar: Bar) -> Iterator[Part]:
    """Yield the parts; the first finds out how many calls are allowed, without any."""
    problem, rehearsals = budget.problem, list[Rehearsal]()
    yield "the calls of ten rounds", lambda: rehearsals.append(rehearse(budget, method, rounds, key))
    [known] = rehearsals
    budget.usual = known.usual
    bar.say(f"fz.check: at most {budget.allowed:,} calls of the black box; a run of ten rounds takes {budget.usual:,}")
    yield "the loss at x0", lambda: _first_calls(problem, method)
    upper = "the loss around x0", lambda: _around(budget, known, method, rounds, key)
    few = "a few rounds", lambda: metered_trial(budget, known, method, rounds, key)
    yield "the lower loss", lambda: _below(budget, known, method, rounds, key)
    # Each upper loss takes a lower solution, which takes an unknown number of calls if the lower loss is a black box.
    yield from (few, upper) if problem.lower_blackbox else (upper, few)
    yield "slopes", lambda: _slopes(budget, key)


def _first_calls(problem: Problem, method: Method) -> None:
    method.check(problem)  # a private method asks for losses of records that are made up
    check_start(problem, method)


def _around(budget: Budget, known: Rehearsal, method: Method, rounds: int, key: int) -> list[Finding]:
    problem = budget.problem
    if not is_blackbox(problem.loss_fn):
        return losses(problem, method, key)
    extent = _affordable(budget, known, rounds, lambda extent: price(problem, extent))
    if extent is None:
        budget.leave_out("the loss around x0", price(problem, EXTENTS[-1]))
        return []
    if not extent.directions and not problem.hierarchical:
        budget.leave_out("kinks")
    return losses(problem, method, key, extent)


def _below(budget: Budget, known: Rehearsal, method: Method, rounds: int, key: int) -> list[Finding]:
    problem = budget.problem
    if len(problem.stated) < 2 or not problem.lower_blackbox:
        return lower_mean(problem, method, key)
    extent = _affordable(budget, known, rounds, lambda extent: price(problem, extent, lower=True))
    if extent is None:
        budget.leave_out("the lower loss", price(problem, EXTENTS[-1], lower=True))
        return []
    return lower_mean(problem, method, key, extent)


def _affordable(budget: Budget, known: Rehearsal, rounds: int, price: Callable[[Extent], int]) -> Extent | None:
    """Return the largest extent that leaves enough calls for a trial of some rounds, or of one, or that fits at all."""
    trials = known.price(min(rounds, ROUNDS)), known.price(min(rounds, 1)), 0
    return next((extent for spared in trials for extent in EXTENTS if price(extent) <= budget.left - spared), None)


def _slopes(budget: Budget, key: int) -> list[Finding]:
    problem: Problem = budget.problem
    asked = is_blackbox(problem.loss_fn) and not problem.lower_blackbox
    if asked and (taken := calls_of_slopes(problem, slope_points(problem))) > budget.left:
        budget.leave_out("slopes", taken)
        return []
    return steepness(problem, key)
