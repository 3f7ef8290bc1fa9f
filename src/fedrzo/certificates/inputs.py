"""What a certificate is asked for, checked before anything is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fedrzo.certificates.sampling import Sampling
from fedrzo.errors import InputError
from fedrzo.federation.client import FULL, check_batch_size
from fedrzo.methods.base import Method, batch
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.problems.base import Problem
from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.curvature import lower_level
from fedrzo.problems.questions import BY_CLIENTS, BY_SERVER
from fedrzo.problems.two_stage import TwoStage, check_solver
from fedrzo.support.numbers import constant, whole
from fedrzo.vi.base import Solver

DRAWN = 64  # samples per loss value where they are drawn on demand
ACCURATE = 1e-10  # by what factor the lower level's first error is brought down


def check_numbers(directions: Any, width: Any, max_directions: Any, confidence: Any, threshold: Any) -> None:
    """Refuse numbers that say nothing."""
    whole(directions, "directions")
    whole(max_directions, "max_directions")
    check_confidence(confidence)
    if width is not None:
        constant(width, "width")
    if threshold is not None:
        constant(threshold, "threshold")
        if width is None:
            raise InputError("threshold: found one without a width; only an adaptive sample has pilots: pass width=")


def check_confidence(confidence: Any) -> None:
    """Refuse a confidence that is none."""
    if constant(confidence, "confidence") >= 1:
        raise InputError(f"confidence: found {confidence!r}; pass a number between 0 and 1, such as 0.95")


def sampling_program(problem: Problem, smoothing: Any, batch_size: Any, lower: Any) -> Sampling:
    """Return what samples directions at the problem's x0; refuse what cannot work on this problem."""
    smoothing = constant(smoothing, "smoothing")
    chosen = batch((FULL if problem.data.stored else DRAWN) if batch_size is None else batch_size, "batch_size")
    check_batch_size(chosen, problem.data)
    return Sampling(smoothing, 1, chosen, *LOWER[problem.lower_solved_by](problem, lower))


def _nothing(problem: Problem, lower: Any) -> tuple[None, None]:
    """Refuse what is to solve a lower level where there is none."""
    if lower is not None:
        raise InputError("lower: found one, but the problem has no lower level; leave it out")
    return None, None


def _solver(problem: TwoStage, lower: Any) -> tuple[Solver, None]:
    """Return what solves each scenario's lower level."""
    return problem.monitor if lower is None else check_solver(lower, "lower"), None


def _method(problem: Bilevel, lower: Any) -> tuple[Any, Any]:
    """Return what solves the one lower level of all clients, and the constants that bound its error."""
    if problem.lower_blackbox:
        raise InputError(
            "lower: the lower loss is a black box; its error is bounded by gradients, so it must be JAX code"
        )
    if lower is None and not problem.lower_data.stored:
        raise InputError(
            "lower: lower data drawn on demand allow no exact solve; pass a method, such as fz.LocalSGD(), or store samples"
        )
    chosen = LocalSGD(batch_size=FULL, tolerance=ACCURATE) if lower is None else lower
    if not isinstance(chosen, Method) or not hasattr(chosen, "plan"):
        raise InputError(f"lower: found {type(chosen).__name__}; pass a method such as fz.LocalSGD() or fz.FedAC()")
    check_batch_size(getattr(chosen, "batch_size", 1), problem.lower_data)
    constants = lower_level(problem)
    if getattr(chosen, "constants", constants) is None:
        chosen = dataclasses.replace(chosen, constants=constants)  # type: ignore[type-var]
    return chosen, constants


LOWER: dict[str | None, Callable[..., tuple[Any, Any]]] = {None: _nothing, BY_CLIENTS: _solver, BY_SERVER: _method}
