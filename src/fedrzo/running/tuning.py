"""`stepsize="auto"`: a short search for a stepsize, whose every loss value and byte is charged to the run.

Candidates lie on a geometric grid that starts at the theory's value. They run for a small part of the rounds; the best and its
neighbours go on to a larger part, where the next best is found. All candidates see the same directions, samples and cohorts,
drawn from a stream of the run's key that the run itself does not use, six runs at a time in one compiled program.

The stepsize that is best after h rounds is too long for R of them, since errors that are proportional to it remain: it is
multiplied by (h / R)^p. Where a transient falls like (stepsize x rounds)^-a beside such errors, p is a / (1 + a): 1/2 in the
theory, near 1 for strongly convex losses. But a run that still gains from every further round is not held up by those errors,
and p is then 0. How fast gains still grow is seen in the last two stages; docs/measured-stepsizes.md has measurements.

The run starts where the best trial ended, so that nothing that was found and paid for is lost. A second row of its history, of
round 0 like the first, shows what the search reached and cost. `stop` is asked after every few trials.
"""

import math
import sys
import time
from pathlib import Path

import jax
import numpy as np

from fedrzo.engines.base import Engine, Session
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.engines.simulation.rounds import start
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Cost
from fedrzo.methods.base import AUTO, Method
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import telling
from fedrzo.results.result import Tuning
from fedrzo.running.case import Case, StopRule
from fedrzo.running.checkpoint import Checkpoint
from fedrzo.running.search import Enough, Search, StoppedError
from fedrzo.support.interrupt import saying

STREAM = 5  # of the run's key that the search is drawn from
SHARES = (1 / 32, 1 / 12, 1 / 6)  # of the rounds, one stage after the other
THEORY = 0.5  # p as the theory has it: all there is to go by after a single stage
SETTLED = 0.8  # p where gains have ceased to grow
GROWING = 2.0  # what p falls by, times the power of the rounds that gains still grow by
ROUNDS = 4  # of the shortest stage, at least
STOPPED = "stopped while a stepsize was searched for, before the first round; pass a number to go without a search"


def is_auto(method: Method) -> bool:
    """Tell whether a method's stepsize is to be searched for."""
    stepsize = getattr(method, "stepsize", None)
    return isinstance(stepsize, str) and stepsize == AUTO


def tunings(
    case: Case, methods: list[Method], problem: Problem, engine: Engine, stored_in: Path | None, progress: bool, began: float
) -> list[Tuning | None]:
    """Return what was found for each run of a case, which is told where to start; None where a stepsize was given.

    The methods are prepared, the problem starts inside its sets. From a checkpoint in the folder `stored_in`, what was found
    then is read, not searched for again. `progress` says on standard error what was found. The run's clock shows `began`.
    """
    if not any(map(is_auto, methods)):
        return [None] * len(methods)
    stored = None if stored_in is None else Checkpoint.read(stored_in)
    if stored is not None and stored_in is not None:
        stored.check_identity(case.identity, stored_in)
        return [None if plain is None else Tuning.from_dict(plain) for plain in stored.tunings]
    found: list[Tuning | None] = []
    for i, (method, key) in enumerate(zip(methods, case.keys, strict=True)):
        tuning, x = None, None
        if is_auto(method):
            with saying(STOPPED), telling():
                enough = _enough(case, i, began)
                tuning, x = tune(method, problem, key, case.rounds, case.clients_per_round, engine, progress, enough)
            if progress:
                print(f"stepsize: {tuning.stepsize:.3g}, found in {len(tuning.trials)} trials", file=sys.stderr)
        found.append(tuning)
        case.starts.append(x)
    return found


def _enough(case: Case, i: int, began: float) -> Enough | None:
    """Return what asks the user's function whether to stop, with a row like those of the history."""
    stop = case.stop
    if stop is None or isinstance(stop, StopRule):  # such a rule looks at the run's own rows
        return None

    def enough(cost: Cost, seen: dict[str, float]) -> bool:
        spent = cost.plus(gradients=case.estimating[i])
        return bool(stop({"round": 0, **spent._asdict(), "seconds": time.perf_counter() - began, **seen}))

    return enough


def begin(session: Session, case: Case, methods: list[Method], problem: Problem) -> None:
    """Have a session that has run no round start where the searches ended."""
    points = [problem.x0 if x is None else x for x in case.starts]
    carries = [
        jax.tree.leaves(start(method, problem.moved_to(x), key, many=False))
        for method, x, key in zip(methods, points, case.keys, strict=True)
    ]
    session.restore([np.asarray(leaves[0]) if len(leaves) == 1 else np.stack(leaves) for leaves in zip(*carries, strict=True)], 0)


def tune(
    method: Method, problem: Problem, key: jax.Array, rounds: int, clients_per_round: int | None, engine: Engine,
    progress: bool = False, enough: Enough | None = None,
) -> tuple[Tuning, np.ndarray | None]:  # fmt: skip
    """Search for the stepsize of a prepared method, for a run with that key, rounds, clients and engine.

    Returns it with the best x that was met, None if that is x0. The search ends where `enough` says so.
    """
    if not engine.data_at_hand:
        raise InputError(
            f'stepsize: found "auto", but the engine {engine.name!r} has no data to search on; pass a number, such as '
            "result.tuning.stepsize of a simulated run"
        )
    trials = engine if engine.side_by_side else Simulation()
    search = Search(method, problem, jax.random.fold_in(key, STREAM), clients_per_round, trials, progress, enough)
    stepsize = theory = search.start(max(rounds, 1))
    try:
        if rounds > 0:
            stepsize = _by_stages(search, rounds)
    except StoppedError:
        stepsize = min(search.trials, key=lambda trial: trial.loss).stepsize
    return Tuning(stepsize, theory, search.loss, tuple(search.trials), search.cost, search.lowest), search.x


def _by_stages(search: Search, rounds: int) -> float:
    """Return the stepsize for so many rounds."""
    stages, best, gains = horizons(rounds), 0, []
    for i, h in enumerate(stages):
        best, loss = search.first_stage(h) if i == 0 else search.stage(h, best, walk=i < len(stages) - 1)
        gains.append(search.loss - loss)
    return search.stepsize(best) * (stages[-1] / rounds) ** falling(stages, gains)


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
