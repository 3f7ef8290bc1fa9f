"""A few rounds, tried: what they cost, and what the whole run will."""

import dataclasses
import functools
import time
import warnings
from typing import Any

import jax
import numpy as np

from fedrzo.checks.budget import Budget
from fedrzo.checks.report import NOTE, OK, PROBLEM, Finding
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.errors import DivergedError
from fedrzo.federation.protocol import Cost
from fedrzo.methods.base import AUTO, Method
from fedrzo.problems.base import Problem
from fedrzo.problems.mistakes import warn_of_mistakes
from fedrzo.problems.start import check_start
from fedrzo.results.text import size
from fedrzo.running.health import failure
from fedrzo.running.private import calibrated, plan_privacy

ROUNDS = 3  # tried at the start of a run
TEN = 10  # rounds whose calls of a black box a check may make
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


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What a run costs, from rounds in which zeros stood for a black box's answers."""

    costs: dict[int, Cost]  # as in `Tried`
    compiling: float  # seconds that a run takes longer than its rounds
    before: int  # calls before the first round
    row: int  # calls for a row of the history
    rounds: tuple[int, ...]  # calls in each of the first rounds

    @property
    def usual(self) -> int:
        """The number of calls of a run of `TEN` rounds with a row at its start and one at its end."""
        return self.before + 2 * self.row + sum(self.rounds)

    def price(self, rounds: int) -> int:
        """Return the number of calls that a trial of so many rounds takes."""
        return (rounds + 1) * self.row + sum(self.rounds[:rounds])


def rehearse(budget: Budget, method: Method, rounds: int, key: int) -> Rehearsal:
    """Rehearse the start of a run, and some later rounds."""
    method = _stepping(method)
    with budget.rehearsal() as problem, warnings.catch_warnings(action="ignore"):
        before = budget.count(functools.partial(method.check, problem))
        before += budget.count(functools.partial(check_start, problem, method))
        before += budget.count(functools.partial(warn_of_mistakes, problem, method))
        began = time.perf_counter()
        session = _start(problem, method, max(rounds, TEN), key)[1]
        row = budget.count(session.evaluate)
        costs: dict[int, Cost] = {}
        calls: dict[int, int] = {}

        def one(r: int) -> None:
            calls[r] = budget.count(lambda: costs.setdefault(r, _cost_of(session, r)))

        one(0)
        first = time.perf_counter()
        for r in (1, ROUNDS - 1, TEN - 1):
            one(r)
        compiling = max(0.0, first - began - (time.perf_counter() - first) / 3)
        if calls[1] != calls[TEN - 1]:
            for r in range(ROUNDS, TEN - 1):
                one(r)
        shown = {r: cost for r, cost in costs.items() if r < min(rounds, ROUNDS)}
        _try_later(session, shown, rounds)
    each = tuple(calls.get(r, calls[1]) for r in range(TEN))
    return Rehearsal(shown, compiling, before, row, each)


def trial(problem: Problem, method: Method, rounds: int, key: int) -> list[Finding]:
    """Try a few rounds, and predict what all of them will cost."""
    if rounds == 0:
        return []
    searched = _searched(method)
    tried = _try(problem, _stepping(method), rounds, key)
    outcome = _outcome(tried, min(rounds, ROUNDS), searched)
    return [outcome] if tried.failure is not None else [outcome, _prediction(tried, rounds, searched)]


def metered_trial(budget: Budget, known: Rehearsal, method: Method, rounds: int, key: int) -> list[Finding]:
    """Try as many of the first rounds as the remaining calls allow; the rehearsal predicts the costs of all."""
    count = next((n for n in range(min(rounds, ROUNDS), 0, -1) if known.price(n) <= budget.left), 0)
    if count == 0:
        if rounds:
            budget.leave_out("a few rounds", known.price(1))
        return []
    searched = _searched(method)
    tried = _try(budget.problem, _stepping(method), count, key, ask_again=False)
    outcome = _outcome(tried, count, searched)
    if tried.failure is not None:
        return [outcome]
    whole = dataclasses.replace(tried, costs=known.costs, first=known.compiling + tried.each)
    return [outcome, _prediction(whole, rounds, searched)]


def _searched(method: Method) -> bool:
    """Return whether a run searches for the stepsize."""
    return getattr(method, "stepsize", None) == AUTO


def _stepping(method: Method) -> Method:
    """Return the method with a stepsize, if that is yet to be searched for."""
    return dataclasses.replace(method, stepsize=TINY) if _searched(method) else method  # type: ignore[type-var]


def _start(problem: Problem, method: Method, rounds: int, key: int) -> tuple[Any, Any]:
    """Return the prepared method, and a session of it."""
    with warnings.catch_warnings(action="ignore"):  # what there is to say of constants has been said
        prepared = method.prepare(problem)
        [plan] = plan_privacy([method], problem, rounds, [jax.random.key(key)], None, None, None)
        method = calibrated(prepared, plan).for_cohort(problem, problem.clients)
    return method, Simulation().start([method], problem, [jax.random.key(key)], None)


def _try(problem: Problem, method: Method, rounds: int, key: int, ask_again: bool = True) -> Tried:
    """Run the first rounds, which compiles what the run itself will use, and some later ones, whose costs may differ.

    A run that fails has the loss around its last point asked for, to say why; not if `ask_again` is False.
    """
    began = time.perf_counter()
    method, session = _start(problem, method, rounds, key)
    session.data_at_hand = ask_again
    before = after = float(problem.merit(session.evaluate())[0])
    costs, seconds, first = {}, [], 0.0
    for r in range(min(rounds, ROUNDS)):
        start = time.perf_counter()
        costs[r] = _cost_of(session, r)
        after = float(problem.merit(session.evaluate())[0])
        seconds.append(time.perf_counter() - start)
        first = first or time.perf_counter() - began
    found = failure(method, session)
    if found is None:
        _try_later(session, costs, rounds)
    return Tried(costs, before, after, found, first, min(seconds[1:], default=first))


def _try_later(session: Any, costs: dict[int, Cost], rounds: int) -> None:
    """Add the cost of the last round and, if it differs from that of the first ones, of some in between."""
    if rounds <= ROUNDS:
        return
    last = costs[rounds - 1] = _cost_of(session, rounds - 1)
    if last != costs[ROUNDS - 1]:  # plans that grow mostly do so like a logarithm: rounds twice as far each time
        costs |= {r: _cost_of(session, r) for r in (3 * 2**k for k in range(12)) if r < rounds - 1}


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
    parts = [f"{_about(rough, 'upload_bytes', 'download_bytes')}{size(traffic)} up and down"]
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
