"""`stepsize="auto"`: a short search for a stepsize, whose every loss value and byte is charged to the run.

Candidates lie on a geometric grid that starts at the theory's value. They run for a small part of the rounds; the best and its
neighbours go on to a larger part, where the next best is found. All candidates see the same directions, samples and cohorts,
drawn from a stream of the run's key that the run itself does not use, six runs at a time in one compiled program.

The stepsize that is best after h rounds is too long for R of them, since errors that are proportional to it remain: it is
multiplied by (h / R)^p. Where a transient falls like (stepsize x rounds)^-a beside such errors, p is a / (1 + a): 1/2 in the
theory, near 1 for strongly convex losses. But a run that still gains from every further round is not held up by those errors,
and p is then 0. How fast gains still grow is seen in the last two stages; docs/measured-stepsizes.md has measurements.
"""

import math
import sys
from pathlib import Path

import jax

from fedrzo.engines.base import Engine
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.errors import InputError
from fedrzo.methods.base import AUTO, Method
from fedrzo.problems.base import Problem
from fedrzo.results.result import Tuning
from fedrzo.running.case import Case
from fedrzo.running.checkpoint import Checkpoint
from fedrzo.running.search import Search

STREAM = 5  # of the run's key that the search is drawn from
SHARES = (1 / 32, 1 / 12, 1 / 6)  # of the rounds, one stage after the other
THEORY = 0.5  # p as the theory has it: all there is to go by after a single stage
SETTLED = 0.8  # p where gains have ceased to grow
GROWING = 2.0  # what p falls by, times the power of the rounds that gains still grow by
ROUNDS = 4  # of the shortest stage, at least


def is_auto(method: Method) -> bool:
    """Tell whether a method's stepsize is to be searched for."""
    stepsize = getattr(method, "stepsize", None)
    return isinstance(stepsize, str) and stepsize == AUTO


def tunings(
    case: Case, methods: list[Method], problem: Problem, engine: Engine, stored_in: Path | None, progress: bool
) -> list[Tuning | None]:
    """Return what was found for each run of a case; None where a stepsize was given.

    The methods are prepared, the problem starts inside its sets. From a checkpoint in the folder `stored_in`, what was found
    then is read, not searched for again. `progress` says on standard error what was found.
    """
    if not any(map(is_auto, methods)):
        return [None] * len(methods)
    stored = None if stored_in is None else Checkpoint.read(stored_in)
    if stored is not None and stored_in is not None:
        stored.check_identity(case.identity, stored_in)
        return [None if plain is None else Tuning.from_dict(plain) for plain in stored.tunings]
    found: list[Tuning | None] = []
    for method, key in zip(methods, case.keys, strict=True):
        tuning = None
        if is_auto(method):
            try:
                tuning = tune(method, problem, key, case.rounds, case.clients_per_round, engine, progress)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    "stopped while a stepsize was searched for, before the first round; pass a number to go without a search"
                ) from None
            if progress:
                print(f"stepsize: {tuning.stepsize:.3g}, found in {len(tuning.trials)} trials", file=sys.stderr)
        found.append(tuning)
    return found


def tune(
    method: Method, problem: Problem, key: jax.Array, rounds: int, clients_per_round: int | None, engine: Engine,
    progress: bool = False,
) -> Tuning:  # fmt: skip
    """Search for the stepsize of a prepared method, for a run with that key, rounds, clients and engine."""
    if not engine.data_at_hand:
        raise InputError(
            f'stepsize: found "auto", but the engine {engine.name!r} has no data to search on; pass a number, such as '
            "result.tuning.stepsize of a simulated run"
        )
    trials = engine if engine.side_by_side else Simulation()
    search = Search(method, problem, jax.random.fold_in(key, STREAM), clients_per_round, trials, progress)
    theory = search.start(max(rounds, 1))
    stages, best, gains = horizons(rounds), 0, []
    for i, h in enumerate(stages):
        best, loss = search.first_stage(h) if i == 0 else search.stage(h, best, walk=i < len(stages) - 1)
        gains.append(search.loss - loss)
    stepsize = search.stepsize(best) * (stages[-1] / rounds) ** falling(stages, gains) if stages else theory
    return Tuning(stepsize, theory, search.loss, tuple(search.trials), search.cost)


def horizons(rounds: int) -> list[int]:
    """Return how many rounds each stage takes, for a run of so many."""
    least = [min(rounds, max(ROUNDS, math.ceil(share * rounds))) for share in SHARES]
    return sorted({h for h in least if h > 0})


def falling(stages: list[int], gains: list[float]) -> float:
    """Return by which power of the rounds the best stepsize is taken to fall, by the gains over x0 of each stage's best."""
    if len(stages) < 2:
        return THEORY
    if gains[-2] <= 0 or gains[-1] <= 0:  # too early to tell
        return 0.0
    growth = math.log(gains[-1] / gains[-2]) / math.log(stages[-1] / stages[-2])
    return min(SETTLED, max(0.0, SETTLED - GROWING * growth))
