"""The theorem for a given problem, with estimated constants where none are given."""

from typing import Any

from fedrzo.errors import InputError, nearest
from fedrzo.problems.base import Problem
from fedrzo.support.arguments import checked_signature
from fedrzo.theory.equilibrium import twostage
from fedrzo.theory.estimates import Estimates, estimate
from fedrzo.theory.implicit import bilevel
from fedrzo.theory.plan import Plan
from fedrzo.theory.single import nonsmooth

TINY = 1e-6  # the Lipschitz constant of a loss that is flat wherever it was looked at
NEEDED = {
    "nonsmooth": ("lipschitz", "dissimilarity"),
    "bilevel": ("lipschitz", "dissimilarity", "lipschitz_y", "cross_lipschitz", "modulus"),
    "twostage": ("lipschitz", "dissimilarity", "lipschitz_y", "modulus", "smoothness", "distance"),
}
THEOREMS: dict[str, Any] = {"nonsmooth": nonsmooth, "bilevel": bilevel, "twostage": twostage}
OPTIONS = ("budget", "epsilon", "gap", "stepsize", "local_steps", "inexactness")


@checked_signature(seed="key")
def for_problem(
    problem: Problem, smoothing: float = 0.1, *, radius: float = 1.0, key: int = 0, warn: bool = True, **given: Any
) -> Plan:
    """Return what the theorem for this class of problems prescribes, with estimated constants where none are given.

    Of an estimated constant the careful end is used: `high` of Lipschitz constants, `low` of a modulus.

    Args:
        problem: any of the four classes.
        smoothing: eta.
        radius: how far around x0 samples are taken for estimates.
        key: their seed.
        warn: say that constants are estimated, where they are.
        given: the arguments of `nonsmooth`, `bilevel` or `twostage`, such as `budget` and, if known, `lipschitz`.
    """
    if not isinstance(problem, Problem):
        raise InputError(f"problem: found {type(problem).__name__}; pass fz.Nonsmooth(...) or another problem")
    kind = problem.theorem
    needed = NEEDED[kind]
    for name in given:
        if name not in (*needed, *OPTIONS) or (name == "inexactness" and kind != "bilevel"):
            raise InputError(f"{name}: {kind} problems have no such constant{nearest(name, (*needed, *OPTIONS))}")
    if "dissimilarity" not in given and (problem.sets.free or problem.sets.identical):
        given["dissimilarity"] = (0.0, 0.0 if problem.sets.free else 1.0)
    if any(name not in given for name in needed):
        with problem.precision():
            problem.check_curvature()
        given = _careful(estimate(problem, radius=radius, key=key, warn=warn)) | given
    chosen = {name: value for name, value in given.items() if name in (*needed, *OPTIONS)}
    return THEOREMS[kind](problem.clients, problem.dim, smoothing, **chosen)


def _careful(found: Estimates) -> dict[str, Any]:
    """Return one number for each constant."""
    values: dict[str, Any] = {"dissimilarity": tuple(interval.high for interval in found.dissimilarity)}
    for name in ("lipschitz", "lipschitz_y", "smoothness", "distance"):
        if (interval := getattr(found, name)) is not None:
            values[name] = max(interval.high, TINY)
    if found.modulus is not None:
        values["modulus"] = found.modulus.low or found.modulus.high
    if found.solution_lipschitz is not None:
        # y(x) itself was looked at: the ratio L_xy/mu that the theorem uses comes out as what was found there.
        values["cross_lipschitz"] = max(found.solution_lipschitz.high, TINY) * values["modulus"]
    return values
