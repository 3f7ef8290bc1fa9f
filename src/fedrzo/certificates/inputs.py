"""What a certificate is asked for, checked before anything is computed."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedrzo.certificates.sampling import Sampling
from fedrzo.errors import InputError
from fedrzo.federation.client import FULL, check_batch_size
from fedrzo.methods.base import Method, batch
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.curvature import lower_level
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.problems.two_stage import TwoStage, check_solver
from fedrzo.support.numbers import constant, whole

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


def sampling_program(problem: Any, smoothing: Any, batch_size: Any, lower: Any) -> Sampling:
    """Return what samples directions at the problem's x0; refuse what cannot work on this problem."""
    smoothing = constant(smoothing, "smoothing")
    stored = hasattr(problem.data, "sizes")
    chosen = batch((FULL if stored else DRAWN) if batch_size is None else batch_size, "batch_size")
    check_batch_size(chosen, problem.data)
    return Sampling(smoothing, 1, chosen, *_lower(problem, lower))


def _lower(problem: Any, lower: Any) -> tuple[Any, Any]:
    """Return what solves the lower level, and the constants that bound its error."""
    if isinstance(problem, Nonsmooth):
        if lower is not None:
            raise InputError("lower: found one, but the problem has no lower level; leave it out")
        return None, None
    if isinstance(problem, TwoStage):
        return problem.monitor if lower is None else check_solver(lower, "lower"), None
    assert isinstance(problem, Bilevel)
    if getattr(problem.lower_fn, "is_blackbox", False):
        raise InputError(
            "lower: the lower loss is a black box; its error is bounded by gradients, so it must be JAX code"
        )
    if lower is None and not hasattr(problem.lower_data, "sizes"):
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
