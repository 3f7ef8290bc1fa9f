"""A few rounds, tried: what they cost, and what the whole run will."""

import dataclasses
import time
import warnings
from typing import Any

import jax
import numpy as np

from fedrzo.checks.report import NOTE, OK, PROBLEM, Finding
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.errors import DivergedError
from fedrzo.federation.protocol import Cost
from fedrzo.methods.base import AUTO, Method
from fedrzo.problems.base import Problem
from fedrzo.results.figure import in_bytes
from fedrzo.running.health import failure
from fedrzo.running.private import calibrated, plan_privacy

ROUNDS = 3  # tried at the start of a run
TINY = 1e-6  # stands for a stepsize that is yet to be searched for: costs do not depend on it


@dataclasses.dataclass(frozen=True)
class Tried:
    """What the trial showed."""

    # Of the rounds that were tried: the first ones, the last one, and some in between where that differs
    costs: dict[int, Cost]
    before: float  # the monitored loss at x0
    after: float  # the same after the first rounds
    failure: str | None  # why the method could not go on from there, if so
    first: float  # seconds of the first round and the first evaluation, compilation included
    each: float  # seconds of one round and its evaluation, later


def trial(problem: Problem, method: Method, rounds: int, key: int) -> list[Finding]:
    """Try a few rounds, and predict what all of them will cost."""
    if rounds == 0:
        return []
    searched = getattr(method, "stepsize", None) == AUTO
    if searched:
        method = dataclasses.replace(method, stepsize=TINY)  # type: ignore[type-var]
    tried = _try(problem, method, rounds, key)
    outcome = _outcome(tried, min(rounds, ROUNDS), searched)
    return [outcome] if tried.failure is not None else [outcome, _prediction(tried, rounds, searched)]


def _try(problem: Problem, method: Method, rounds: int, key: int) -> Tried:
    """Run the first rounds, which compiles what the run itself will use, and some later ones, whose costs may differ."""
    began = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):  # what there is to say of constants has been said
        prepared = method.prepare(problem)
        [plan] = plan_privacy([method], problem, rounds, [jax.random.key(key)], None, None, None)
        method = calibrated(prepared, plan).for_cohort(problem, problem.clients)
    session = Simulation().start([method], problem, [jax.random.key(key)], None)
    before = after = float(problem.merit(session.evaluate())[0])
    costs, seconds, first = {}, [], 0.0
    for r in range(min(rounds, ROUNDS)):
        start = time.perf_counter()
        costs[r] = _cost_of(session, r)
        after = float(problem.merit(session.evaluate())[0])
        seconds.append(time.perf_counter() - start)
        first = first or time.perf_counter() - began
    found = failure(method, session)
    if found is None and rounds > ROUNDS:
        last = costs[rounds - 1] = _cost_of(session, rounds - 1)
        if last != costs[ROUNDS - 1]:  # plans that grow mostly do so like a logarithm: rounds twice as far each time
            costs |= {r: _cost_of(session, r) for r in (3 * 2**k for k in range(12)) if r < rounds - 1}
    return Tried(costs, before, after, found, first, min(seconds[1:], default=first))


def _cost_of(session: Any, r: int) -> Cost:
    """Run one round, as if it were the r-th, and return what it costs."""
    before = session.costs()[0]
    session.round = r
    session.advance(1)
    return Cost(*(now - then for now, then in zip(session.costs()[0], before, strict=True)))


def _outcome(tried: Tried, rounds: int, searched: bool) -> Finding:
    facts = {"rounds": rounds, "before": tried.before, "after": tried.after}
    went = f"after {rounds} round{'s' * (rounds > 1)} the loss went from {tried.before:.5g} to {tried.after:.5g}"
    if tried.failure is not None:
        return Finding(PROBLEM, "trial", tried.failure, facts, DivergedError(tried.failure))
    if tried.after > tried.before + 0.1 * abs(tried.before) + 1e-9:
        return Finding(NOTE, "stepsize", f"{went}; it may be too long: use a smaller one, or more directions", facts)
    return Finding(OK, "trial", went + (", without a step to speak of: the stepsize is searched for" * searched), facts)


def _prediction(tried: Tried, rounds: int, searched: bool) -> Finding:
    total, rough = predict(tried.costs, rounds)
    compiling = max(0.0, tried.first - tried.each)
    seconds = compiling + rounds * tried.each
    traffic = total.upload_bytes + total.download_bytes
    facts = {**total._asdict(), "exact": not rough, "seconds": seconds, "compile_seconds": compiling}
    parts = [f"{_about(rough, 'upload_bytes', 'download_bytes')}{in_bytes(traffic)} up and down"]
    for name, words in (("evaluations", "loss evaluations"), ("gradients", "gradients")):
        if getattr(total, name):
            parts.append(f"{_about(rough, name)}{getattr(total, name):,} {words}")
    text = (
        f"{rounds} round{'s' * (rounds > 1)} take {', '.join(parts)}; here about {_seconds(seconds)}, "
        f"{_seconds(compiling)} of them to compile" + ("; the search for a stepsize comes on top" if searched else "")
    )
    return Finding(OK, "costs", text, facts)


def predict(costs: dict[int, Cost], rounds: int) -> tuple[Cost, set[str]]:
    """Return the costs of all rounds from those of some, and the names of those that are not exact.

    A cost is, unless a method decides otherwise as it goes, where all rounds but the first have the same. Else rounds that were
    not tried are taken to lie on a line between those that were.
    """
    tried, total, rough = sorted(costs), {}, set()
    for name in Cost._fields:
        values = [getattr(costs[r], name) for r in tried]
        if len(set(values[1:])) <= 1:
            total[name] = values[0] + (rounds - 1) * values[-1]
        else:
            total[name] = round(float(np.interp(np.arange(rounds), tried, values).sum()))
            rough |= set() if len(costs) >= rounds else {name}
    return Cost(**total), rough


def _about(rough: set[str], *names: str) -> str:
    return "about " if rough.intersection(names) else ""


def _seconds(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.2g} s"
