"""What the promise would not hold for, each refused in one line; no private record is looked at on the way."""

from typing import Any

import jax
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.errors import FedrzoError, InputError, first_line
from fedrzo.privacy.privacy import Privacy
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.mistakes import CLEAR, mistake
from fedrzo.problems.questions import BY_CLIENTS
from fedrzo.support.known import known

RECORDS = 4  # that are made up, to see what a loss does with several


def check_privacy(privacy: Privacy, problem: Problem, method: Any) -> None:
    """Refuse a problem, or a setting, whose records this promise would not protect."""
    name, data = type(method).__name__, problem.data
    if problem.zero_sum:
        raise InputError(f"privacy: {type(problem).__name__} is not offered: its lower rounds send gradients of the same records")
    if not data.stored:
        raise InputError("privacy: found a Sampler, which has no records to protect; pass fz.ClientData")
    if data.identical:
        raise InputError("privacy: found ClientData.shared, whose records are used by all clients; give each client its own")
    if getattr(method, "by_gradients", False):
        raise InputError(f'privacy: {name} has oracle="gradients"; only slopes from loss values are protected: use "values"')
    if isinstance(method.stepsize, str):
        raise InputError('privacy: found stepsize="auto", whose search looks at losses; pass a number')
    if problem.lower_solved_by is not None:
        _check_lower(privacy, problem)
    largest = int(np.max(data.sizes))
    if privacy.delta * largest >= 1:
        raise InputError(
            f"privacy: delta = {privacy.delta:g} with {largest} records lets one be given away; pass well below {1 / largest:.2g}"
        )
    if problem.takes_batches:
        _check_singles(problem, float(method.smoothing))


def _check_lower(privacy: Privacy, problem: Problem) -> None:
    if problem.lower_solved_by == BY_CLIENTS:
        if None in problem.given:
            raise InputError(
                "privacy: modulus and smoothness are measured from the scenarios, unless they are given; pass both to TwoStage"
            )
    elif problem.stated[-1].data is problem.data:
        raise InputError("privacy: the lower rounds send gradients of the same records; pass other, public ones as lower_data")
    elif not privacy.public_lower_data:
        raise InputError(
            "privacy: the lower rounds send gradients of lower_data, which are not protected; if those are public, pass "
            "fz.Privacy(..., public_lower_data=True)"
        )


def _check_singles(problem: Problem, smoothing: float) -> None:
    """Refuse a loss that cannot be asked for one record, or that is no mean over records; by records that are made up."""
    level = problem.stated[0]
    if getattr(level.loss, "vectorized", False):
        raise InputError(
            "privacy: found a vectorized black box, which gets many records in one call, so that one could change what others "
            "add; pass fz.blackbox(fn)"
        )
    level = level._replace(data=made_up(level.data))
    try:
        with problem.precision():
            found = known(problem, ("made up", smoothing), lambda: mistake(level, smoothing, problem.dtype))
    except FedrzoError as error:
        if not is_blackbox(level.loss):
            raise
        raise InputError(
            f"privacy: the black box cannot be asked for one record at a time ({first_line(error)}); let it take a batch of one"
        ) from None
    if found is not None and found.moves and found.apart >= CLEAR:
        raise InputError(
            f"privacy: the loss of a batch has to be the mean of its records' own losses, since they are asked for one by one: "
            f"{found.text}"
        )


def made_up(data: Any) -> ClientData:
    """Return one client with a few records that look like these, but are drawn at random: whole numbers are all zero."""
    rng = np.random.default_rng(0)

    def like(leaf: Any, shape: tuple[int, ...]) -> np.ndarray:
        dtype = np.dtype(leaf.dtype)
        return rng.normal(size=shape).astype(dtype) if np.issubdtype(dtype, np.floating) else np.zeros(shape, dtype)

    records = jax.tree.map(lambda leaf: like(leaf, (RECORDS, *leaf.shape[1:])), data.flat)
    fixed = jax.tree.map(lambda leaf: like(leaf, leaf.shape[1:]), data.fixed)
    return ClientData([records], fixed=None if data.fixed is None else [fixed])
