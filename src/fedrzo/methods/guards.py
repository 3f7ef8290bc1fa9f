"""Check what the parts of a method return, whatever engine calls them, so that one line says what is wrong.

What client steps return is checked where they are run: see `fedrzo.federation.protocol.run_step`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.support.arguments import call_part, check_arrays, kind, mismatch
from fedrzo.support.columns import LOWER_COLUMNS, taken


def guard(cls: type) -> None:
    """Check the parts that a class of methods itself defines whenever they return."""
    solves: Any = cls.__dict__.get("solves", ())
    if not isinstance(solves, tuple):
        raise InputError(f"solves: {cls.__name__} has {kind(solves)}; write a tuple, such as solves = (fz.Bilevel,)")
    for name, (takes, check) in PARTS.items():
        part = cls.__dict__.get(name)
        if inspect.isfunction(part):
            setattr(cls, name, _guarded(name, part, takes, check))


def _guarded(name: str, part: Callable, takes: str, check: Callable[..., None]) -> Callable:
    @functools.wraps(part)
    def guarded(self: Any, *arguments: Any) -> Any:
        said = f"{name}: {type(self).__name__}.{name}"
        found = call_part(part, said, takes, self, *arguments)
        check(f"{said} returned", found, self, *arguments)
        return found

    return guarded


def with_metrics(row: dict[str, Any], method: Any, state: Any) -> dict[str, Any]:
    """Return what a problem monitors and, beside it, what the method does; neither may take the place of the other's."""
    numbers = method.metrics(state)
    if both := sorted(row.keys() & numbers):
        raise InputError(
            f"metrics: {type(method).__name__}.metrics returned {both[0]!r}, which the problem monitors too; "
            "use another name in one of them"
        )
    return row | numbers


def _first_state(said: str, found: Any, method: Any, problem: Problem, key: Any) -> None:
    _has_x(said, found)
    shape, wanted = np.shape(found.x), np.shape(problem.x0)
    if shape != wanted:
        raise InputError(f"{said} x of shape {shape}, where problem.x0 has shape {wanted}; start from problem.x0")


def _next_state(said: str, found: Any, method: Any, federation: Any, state: Any, r: Any) -> None:
    _has_x(said, found)
    if wrong := mismatch(found, state):
        raise InputError(f"{said} {wrong}; keep the structure, shapes and types of the state that it is given")


def _has_x(said: str, found: Any) -> None:
    if not hasattr(found, "x"):
        raise InputError(f"{said} {kind(found)}, without a field x; return a NamedTuple of arrays with one, such as fz.State(x)")
    check_arrays(found, f"{said} a state that holds")


def _same_method(said: str, found: Any, method: Any, *given: Any) -> None:
    if not isinstance(getattr(found, "bare", None), type(method)):
        raise InputError(f"{said} {kind(found)}; return the method: self, or dataclasses.replace(self, ...)")


def _numbers(said: str, found: Any, method: Any, state: Any) -> None:
    if not isinstance(found, dict):
        raise InputError(f"{said} {kind(found)}; return a dictionary of numbers by name")
    check_arrays(found, f"{said} a dictionary that holds")
    for name, value in found.items():
        if taken(name) and name not in LOWER_COLUMNS:
            raise InputError(f"{said} {name!r}, a column that the history has already; return another name")
        if np.shape(value) != ():
            raise InputError(f"{said} {name!r} of shape {np.shape(value)}; return one number for each name")


def _truth(said: str, found: Any, method: Any, state: Any) -> None:
    if np.shape(found) != () or np.dtype(getattr(found, "dtype", type(found))) != np.dtype(bool):
        raise InputError(f"{said} {kind(found)}; return one truth value, such as jnp.all(...)")


# By name: what a part is called with, and what is asked of what it returns.
PARTS: dict[str, tuple[str, Callable[..., None]]] = {
    "init": ("self, problem, key", _first_state),
    "init_memory": ("self, problem", lambda said, found, *_: check_arrays(found, f"{said} a memory that holds")),
    "prepare": ("self, problem", _same_method),
    "for_cohort": ("self, problem, size", _same_method),
    "round": ("self, federation, state, r", _next_state),
    "metrics": ("self, state", _numbers),
    "healthy": ("self, state", _truth),
}
