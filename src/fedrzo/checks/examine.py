"""The order in which things are looked at, and what happens where one of them fails."""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from fedrzo.checks.budget import Budget
from fedrzo.checks.losses import losses, lower_mean
from fedrzo.checks.metered import Part, metered_parts
from fedrzo.checks.oracle import oracle
from fedrzo.checks.parts import data, sets, start, steepness
from fedrzo.checks.report import NOTE, PROBLEM, Finding, Report
from fedrzo.checks.trial import trial
from fedrzo.errors import FedrzoError, InputError
from fedrzo.methods import METHODS
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import telling
from fedrzo.problems.start import check_start, feasible_start
from fedrzo.running.case import Case
from fedrzo.running.health import warn_of_long_steps
from fedrzo.running.private import hides
from fedrzo.support.arguments import checked_signature
from fedrzo.support.interrupt import saying
from fedrzo.support.numbers import whole
from fedrzo.support.progress import Bar, is_wanted

# Modest: ten steps a round, each short enough for losses of slope and curvature near one in up to a few hundred variables.
USUAL: dict[str, Any] = {"stepsize": 1e-3, "smoothing": 0.01, "local_steps": 10}
ROUNDS = 200
PARTS = 11  # of a check


def usual_method(problem: Problem) -> Method:
    """Return the method that a problem is solved by where none is named."""
    return METHODS[problem.usual](**USUAL)


@checked_signature(seed="key")
def check(
    problem: Problem,
    method: Method | None = None,
    rounds: int | None = None,
    key: int = 0,
    progress: bool | None = None,
    calls: int | None = None,
) -> Report:
    """Look at a problem before it is solved: shapes, sizes, sets, the loss, the lower level, a few rounds and their cost.

    Args:
        problem: any of the four classes.
        method: what it is to be solved by; the usual method for its class if not given.
        rounds: of the run that bytes and time are predicted for; 200 if not given.
        key: a seed.
        progress: as for `fz.run`.
        calls: of black boxes, at most; if not given, as many as ten rounds of the method take. Parts that do not fit are left
            out, and the finding `report["calls"]` names them.

    Returns:
        One finding for each thing that was looked at; `report.ok` says whether the problem can be solved as it is.
    """
    if not isinstance(problem, Problem):
        raise InputError(f"problem: found {type(problem).__name__}; pass fz.Nonsmooth(...) or another problem")
    (problem.hiding() if hides([method]) else problem).refuse_hidden("fz.check")
    if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < 2**32:
        raise InputError(f"key: found {key!r}; pass a whole number from 0 to 2**32 - 1")
    method = usual_method(problem) if method is None else method
    rounds = ROUNDS if rounds is None else rounds
    report = functools.partial(Report, repr(problem), repr(method), rounds)
    findings: list[Finding] = []
    budget = Budget(problem)
    try:
        with budget.rehearsal() as rehearsed:
            Case([method], rehearsed, [jax.random.key(key)], rounds, None, 1)
    except FedrzoError as error:
        return report((Finding.of_message(PROBLEM, str(error), "method", error),))
    if calls is not None and not budget.metered:
        raise InputError(f"calls: found {calls!r}, but no loss is a black box; leave it out")
    budget.wanted = None if calls is None else whole(calls, "calls")
    looking_at = ""
    stopped = "stopped while fz.check looked at {}; nothing was kept: call it again, or go on without it"
    shown = Bar(PARTS, 0, is_wanted(progress), "part")
    with saying(lambda: stopped.format(looking_at)), shown as bar, budget.problem.precision():
        for done, (looking_at, part) in enumerate(_parts(budget, method, rounds, key, bar)):
            bar.note(done, looking_at)
            found = _guarded(part)
            if budget.refused():
                budget.leave_out(looking_at)
                continue
            findings += found
            if any(finding.level == PROBLEM and finding.error is not None for finding in found):
                break  # what comes after would fail in the same way
    return report((*findings, *budget.findings()))


def _parts(budget: Budget, method: Method, rounds: int, key: int, bar: Bar) -> Iterator[Part]:
    """Yield the parts of a check; later ones rely on earlier ones having gone well."""
    problem = budget.problem
    yield "x0", lambda: start(problem)
    yield "the data", lambda: data(problem, method)
    yield "x0 and the sets", lambda: setattr(budget, "problem", feasible_start(problem))
    problem = budget.problem
    yield "the sets", lambda: sets(problem, method)
    yield "the stepsize", lambda: warn_of_long_steps([method], problem, rounds)
    if budget.metered:
        yield from metered_parts(budget, method, rounds, key, bar)
        return
    yield "the loss at x0", lambda: check_start(problem, method)
    yield "the loss around x0", lambda: losses(problem, method, key)
    yield "the lower loss", lambda: lower_mean(problem, method, key)
    yield "a few rounds", lambda: trial(problem, method, rounds, key)
    yield "slopes", lambda: steepness(problem, key)
    yield "gradients", lambda: oracle(problem, method, key)


def _guarded(part: Callable[[], Any]) -> list[Finding]:
    """Return what a part of a check finds, with its warnings as notes; an error is a finding too."""
    with warnings.catch_warnings(record=True, action="always") as warned:
        try:
            with telling():
                found = part() or []
        except FedrzoError as error:
            found = [Finding.of_message(PROBLEM, str(error), "problem", error)]
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            found = [Finding(PROBLEM, "problem", text, error=error)]
    notes = dict.fromkeys(str(warning.message) for warning in warned if issubclass(warning.category, UserWarning))
    return [Finding.of_message(NOTE, text, "problem") for text in notes] + found
