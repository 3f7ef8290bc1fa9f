"""Checks of numbers that a user passes: positive ones, whole ones, and functions of the round that return them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedrzo.errors import InputError, first_line

Schedule = float | int | str | Callable[[Any], Any]


def check_counts(**values: Any) -> None:
    """Refuse arguments, given by their names, that are not whole numbers of at least one."""
    for argument, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{argument}: found {value!r}; pass a whole number of at least 1")


def _number(value: Any, argument: str, whole: bool, schedule: bool) -> Any:
    if isinstance(value, jax.core.Tracer):
        return value
    wanted = "a whole number of at least 1" if whole else "a positive number"
    if callable(value) and not schedule:
        raise InputError(f"{argument}: found a function; pass {wanted}{', the same for all rounds' if not whole else ''}")
    if callable(value):
        return _check_schedule(value, argument, whole, wanted)
    single = not isinstance(value, bool | str) and value is not None and np.ndim(value) == 0
    if not single or not 0 < value < np.inf or (whole and value != np.round(value)):
        raise InputError(f"{argument}: found {value!r}; pass {wanted}")
    return int(value) if whole else float(value)


def _check_schedule(schedule: Callable, argument: str, whole: bool, wanted: str) -> Callable:
    """Try a function of the round at its first two rounds, as it will be called: on a traced whole number."""
    try:
        values = [np.asarray(jax.jit(schedule)(np.int32(r))) for r in (0, 1)]
    except Exception as error:
        raise InputError(f"{argument}: calling it with a round failed: {first_line(error)}; write it with jax.numpy") from error
    for r, value in enumerate(values):
        wrong_kind = whole and not np.issubdtype(value.dtype, np.integer)
        if value.shape != () or wrong_kind or not value > 0 or not np.isfinite(value):
            raise InputError(f"{argument}: its value in round {r} is {value} ({value.dtype}); it must return {wanted}")
    return schedule


# Checks of a field or an argument. Each returns the number, as a float or an int; a traced value is left alone, a function of the
# round is tried where it may be one.
positive = functools.partial(_number, whole=False, schedule=True)  # a positive number, or a function that returns such numbers
constant = functools.partial(_number, whole=False, schedule=False)  # a positive number that stays the same in all rounds
count = functools.partial(_number, whole=True, schedule=True)  # a whole number of at least one, or such a function
whole = functools.partial(_number, whole=True, schedule=False)  # a whole number of at least one, the same in all rounds
