"""The constants that theory and step sizes are made of, estimated near x0 and compared with those that were given."""

from __future__ import annotations

import warnings

from fedrzo.checks.report import NOTE, OK, Finding
from fedrzo.problems.base import Problem
from fedrzo.theory.estimates import Estimates, Interval, estimate

RADIUS = 1.0
POINTS = 4
LOWER_POINTS = 2  # where each takes dozens of lower solves
TOLERANCE = 0.01  # relative: what a given constant may be off by before it is worth a note


def steepness(problem: Problem, key: int) -> list[Finding]:
    """Estimate the slope of the loss and, of the lower level, its modulus and smoothness."""
    if problem.lower_blackbox:
        text = "a black box has no Hessian to measure; give modulus and smoothness if you know them"
        return [Finding(OK, "lower", text)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        points = LOWER_POINTS if problem.hierarchical else POINTS
        found = estimate(problem.without_constants(), radius=RADIUS, points=points, key=key, warn=False)
    findings = [_slope(found, problem)]
    if warned:  # said once for each point that was looked at; once is enough
        return [*findings, Finding.of_message(NOTE, str(warned[0].message), "lower")]
    if found.modulus is None or found.smoothness is None or found.modulus.high <= 0:
        return findings  # that a map is not strongly monotone has been said by the look at the lower level
    return findings + _lower(problem, found.modulus, found.smoothness)


def _slope(found: Estimates, problem: Problem) -> Finding:
    low, high = found.lipschitz
    of = "the loss with its lower solutions" if problem.hierarchical else "the loss"
    text = f"slopes of {of} reach {low:.3g} to {high:.3g} within {RADIUS:g} of x0 (an estimate from samples)"
    return Finding(OK, "lipschitz", text, {"low": low, "high": high})


def _lower(problem: Problem, modulus: Interval, smoothness: Interval) -> list[Finding]:
    facts = {"modulus": list(modulus), "smoothness": list(smoothness)}
    condition = smoothness.low / modulus.high
    text = (
        f"modulus about {modulus.high:.3g}, smoothness about {smoothness.low:.3g} in y: condition number {condition:.3g}"
        + ("" if condition < 1e4 else ", so that lower solves are slow")
    )
    found = [Finding(OK, "lower", text, facts)]
    given, largest = problem.given
    if given is not None and given > modulus.high * (1 + TOLERANCE):
        words = (
            f"{given:.4g} was given, {modulus.high:.4g} measured on samples; lower solves trust it: give a smaller one"
        )
        found.append(Finding(NOTE, "modulus", words, {"given": given, "measured": modulus.high}))
    if largest is not None and largest < smoothness.low * (1 - TOLERANCE):
        words = f"{largest:.4g} was given, {smoothness.low:.4g} measured on samples; steps may be too long: give a larger one"
        found.append(Finding(NOTE, "smoothness", words, {"given": largest, "measured": smoothness.low}))
    return found
