"""Problems whose data are loaded where clients are; see `fedrzo.data.loader`."""

from collections.abc import Callable
from typing import Any, TypeVar

from fedrzo.data.loader import Loader
from fedrzo.problems.base import Problem

Some = TypeVar("Some", bound=Problem)


def loads(problem: Problem) -> bool:
    """Tell whether some data of a problem are not here yet."""
    return any(isinstance(level.data, Loader) for level in problem.stated)


def loaded(problem: Some) -> Some:
    """Return a problem with all samples here."""
    return _with_data(problem, lambda data: data.loaded() if isinstance(data, Loader) else data)


def sketched(problem: Some) -> Some:
    """Return a problem that compiled code can be traced for, but not run, without samples."""
    return _with_data(problem, lambda data: data.sketched() if isinstance(data, Loader) else data)


def at_hand(problem: Some) -> Some:
    """Return a problem whose samples are all here: the same one, or client 0's part, whose samples a `Loader` has."""
    return sketched(problem).part([0]) if loads(problem) else problem


def _with_data(problem: Some, change: Callable[[Any], Any]) -> Some:
    if not loads(problem):
        return problem
    upper, lower = problem.data, getattr(problem, "lower_data", problem.data)
    data = change(upper)
    return problem.with_data(data, data if lower is upper else change(lower))
