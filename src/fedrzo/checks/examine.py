"""The order in which things are looked at, and what happens where one of them fails."""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from fedrzo.checks.losses import losses
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
from fedrzo.support.progress import Bar, is_wanted

# Modest: ten steps a round, each short enough for losses of slope and curvature near one in up to a few hundred variables.
USUAL: dict[str, Any] = {"stepsize": 1e-3, "smoothing": 0.01, "local_steps": 10}
ROUNDS = 200
PARTS = ("x0", "the data", "x0 and the sets", "the sets", "the stepsize", "the loss at x0", "the loss around x0", "slopes",
         "a few rounds", "gradients")  # what is looked at, in this order  # fmt: skip


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
) -> Report:
    """Look at a problem before it is solved: shapes, sizes, sets, the loss, the lower level, a few rounds and their cost.

    Args:
        problem: any of the four classes.
        method: what it is to be solved by; the usual method for its class if not given.
        rounds: of the run that bytes and time are predicted for; 200 if not given.
        key: a seed.
        progress: as for `fz.run`.

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
    try:
        Case([method], problem, [jax.random.key(key)], rounds, None, 1)
    except FedrzoError as error:
        return report((Finding.of_message(PROBLEM, str(error), "method", error),))
    looking_at = ""
    stopped = "stopped while fz.check looked at {}; nothing was kept: call it again, or go on without it"
    shown = Bar(len(PARTS), 0, is_wanted(progress), "part")
    with saying(lambda: stopped.format(looking_at)), shown as bar, problem.precision():
        for done, part in enumerate(_parts(problem, method, rounds, key)):
            looking_at = PARTS[done]
            bar.note(done, looking_at)
            found = _guarded(part)
            findings += found
            if any(finding.level == PROBLEM and finding.error is not None for finding in found):
                break  # what comes after would fail in the same way
    return report(tuple(findings))


def _parts(problem: Problem, method: Method, rounds: int, key: int) -> Iterator[Callable[[], Any]]:
    """Yield the parts of a check, functions that may return findings; later ones rely on earlier ones having gone well."""
    yield lambda: start(problem)
    yield lambda: data(problem, method)
    moved: list[Problem] = []
    yield lambda: moved.append(feasible_start(problem))
    [problem] = moved
    yield lambda: sets(problem, method)
    yield lambda: warn_of_long_steps([method], problem, rounds)
    yield lambda: check_start(problem, method)
    yield lambda: losses(problem, method, key)
    yield lambda: steepness(problem, key)
    yield lambda: trial(problem, method, rounds, key)
    yield lambda: oracle(problem, method, key)


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
