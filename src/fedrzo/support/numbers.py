"""Checks of numbers that a user passes: positive ones, whole ones, and functions of the round that return them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedrzo.errors import InputError, first_line

Schedule = float | int | str | Callable[[Any], Any]


def _check_schedule(schedule: Callable, argument: str, whole: bool) -> Callable:
    """Try a function of the round at its first two rounds, as it will be called: on a traced whole number."""
    try:
        values = [np.asarray(jax.jit(schedule)(np.int32(r))) for r in (0, 1)]
    except Exception as error:
        raise InputError(
            f"{argument}: calling it with a round failed: {first_line(error)}; write it with jax.numpy"
        ) from error
    wanted = "a whole number of at least 1" if whole else "a positive number"
    for r, value in enumerate(values):
        wrong_kind = whole and not np.issubdtype(value.dtype, np.integer)
        if value.shape != () or wrong_kind or not value > 0 or not np.isfinite(value):
            raise InputError(f"{argument}: its value in round {r} is {value} ({value.dtype}); it must return {wanted}")
    return schedule


def positive(value: Any, argument: str) -> Any:
    """Return a positive number as a float; a function of the round is tried, a traced value left alone."""
    if isinstance(value, jax.core.Tracer):
        return value
    if callable(value):
        return _check_schedule(value, argument, whole=False)
    if isinstance(value, bool | str) or value is None or np.ndim(value) != 0 or not np.isfinite(value) or not value > 0:
        raise InputError(f"{argument}: found {value!r}; pass a positive number")
    return float(value)


def constant(value: Any, argument: str) -> Any:
    """Return a positive number that stays the same in all rounds."""
    if callable(value):
        raise InputError(f"{argument}: found a function; pass a positive number, the same for all rounds")
    return positive(value, argument)


def count(value: Any, argument: str) -> Any:
    """Return a whole number of at least one; a function of the round is tried, a traced value left alone."""
    if isinstance(value, jax.core.Tracer):
        return value
    if callable(value):
        return _check_schedule(value, argument, whole=True)
    if (
        isinstance(value, bool | str)
        or value is None
        or np.ndim(value) != 0
        or not 1 <= value < np.inf
        or value != np.round(value)
    ):
        raise InputError(f"{argument}: found {value!r}; pass a whole number of at least 1")
    return int(value)


def whole(value: Any, argument: str) -> Any:
    """Return a whole number of at least one that stays the same in all rounds."""
    if callable(value):
        raise InputError(f"{argument}: found a function; pass a whole number of at least 1")
    return count(value, argument)
