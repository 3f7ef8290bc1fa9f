"""`run` and `sweep`: chunks of compiled rounds; in between, Python evaluates, logs, shows progress and stores checkpoints."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from fedrzo import engines
from fedrzo.engines.base import Engine
from fedrzo.errors import InputError, nearest, warn
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.courtesy import ask
from fedrzo.problems.curvature import counting
from fedrzo.problems.loading import loaded, loads
from fedrzo.problems.mistakes import warn_of_mistakes
from fedrzo.problems.start import check_start, feasible_start
from fedrzo.results.result import Result
from fedrzo.results.sweep import Sweep
from fedrzo.running.case import Case, StopRule, tuned
from fedrzo.running.checkpoint import Checkpoint, refuse_stored
from fedrzo.running.ending import ending
from fedrzo.running.health import warn_of_long_steps
from fedrzo.running.job import Job
from fedrzo.running.loggers import Row, Sink, logging
from fedrzo.running.private import calibrated
from fedrzo.running.tuning import begin, tunings
from fedrzo.support.arguments import check_row_function, checked_signature, kind
from fedrzo.support.files import check_writable
from fedrzo.support.hardware import warn_of_idle_gpu
from fedrzo.support.interrupt import saying
from fedrzo.support.progress import is_wanted
from fedrzo.support.settings import fields

Returned = TypeVar("Returned", Result, Sweep)


@checked_signature(seed="key", privacy="method=fz.FedRZOnn(..., privacy=...)")
def run(
    method: Method,
    problem: Problem,
    rounds: int,
    key: int | jax.Array = 0,
    engine: str | Engine = "simulation",
    clients_per_round: int | None = None,
    eval_every: int | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    log: Iterable[Sink] = (),
    stop: Callable[[Row], bool] | StopRule | None = None,
) -> Result:
    """Solve a problem by a method.

    Args:
        method: such as `fz.FedRZOnn(...)`.
        problem: such as `fz.Nonsmooth(...)`.
        rounds: communication rounds of the (upper-level) method.
        key: a seed, or a JAX key. Equal keys give equal results; a short run is a prefix of a long one.
        engine: `"simulation"`, `"loop"`, `"ray"`, or an engine object such as `fz.engines.Ray(...)`; see docs/engines.md.
        clients_per_round: how many clients, drawn anew each round, take part; all if not given.
        eval_every: rounds between two rows of the history; if not given, the smallest power of two that makes at most 200 rows of
            the rounds (a run that is resumed keeps its own).
        progress: show on standard error how far the run is and the time left: a bar in terminals and notebooks. Elsewhere it
            is silent, unless True is given: then a line comes every half minute. False is silent everywhere.
        checkpoint: a folder to store the run in as it goes. One that holds a run is refused, unless `resume` is True.
        resume: go on from the checkpoint, if there is one.
        log: functions called with each new row, or loggers such as `fz.loggers.TensorBoard("runs/a")`.
        stop: called with each new row; the run ends when it returns True. Or `fz.certified(epsilon=..., every=...)`.

    Returns:
        The last average, its projection, and the history.

    Raises:
        KeyboardInterrupt: on Ctrl-C, once the rounds under way have ended; its `result` is what was reached (None where a second
            Ctrl-C cut rounds short), its message says how to go on.
    """
    _check_order(method, problem)
    case = Case([method], problem, [run_key(key)], rounds, clients_per_round, eval_every, stop)
    if callable(log) or not isinstance(log, Iterable):
        raise InputError(f"log: found {type(log).__name__}; pass a list of functions of a row, such as [print]")
    sinks = tuple(check_row_function(sink, "log") for sink in log)
    return _run(case, engines.get(engine), progress, checkpoint, resume, sinks, lambda results: results[0])


@checked_signature(seed="seeds", key="seeds")
def sweep(
    method: Method,
    problem: Problem,
    rounds: int,
    seeds: int | list[int] = 5,
    *,
    clients_per_round: int | None = None,
    eval_every: int | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    **grid: Any,
) -> Sweep:
    """Run a method with several seeds and several values of its numbers, all in one compiled program.

    Args:
        method: the method whose fields are swept.
        problem: what to solve.
        rounds: rounds of each run.
        seeds: how many (0, 1, ...), or which.
        clients_per_round: as for `run`.
        eval_every: as for `run`.
        progress: as for `run`.
        checkpoint: as for `run`.
        resume: as for `run`.
        grid: for each field to sweep, the list of its values; all combinations are run. Fields that shape the compiled
            program, such as `batch_size`, are not numbers in this sense.

    Returns:
        Mean and 95 % band of every column, per setting.
    """
    _check_order(method, problem)
    settings = _settings(method, grid)
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise InputError(f"seeds: found {seeds!r}; pass at least one")
    pairs = list(itertools.product(settings, chosen))
    methods = [dataclasses.replace(method, **setting) for setting, _ in pairs]  # type: ignore[type-var]
    if len({jax.tree.structure(method) for method in methods}) > 1:
        raise InputError(f"sweep: the values of {', '.join(grid)} differ in kind, not in numbers alone; sweep each kind alone")
    case = Case(methods, problem, [run_key(seed) for _, seed in pairs], rounds, clients_per_round, eval_every)
    per = len(chosen)

    def pack(results: list[Result]) -> Sweep:
        return Sweep(settings, [results[i * per : (i + 1) * per] for i in range(len(settings))], chosen)

    return _run(case, engines.get("simulation"), progress, checkpoint, resume, (), pack)


def _run(
    case: Case, engine: Engine, progress: bool | None, checkpoint: str | Path | None, resume: bool, log: tuple[Sink, ...],
    pack: Callable[[list[Result]], Returned],
) -> Returned:  # fmt: skip
    """Run a case; `pack` makes one thing of its results."""
    if loads(case.problem) and not engine.loads_in_place:
        case.stated, case.problem = case.problem, loaded(case.problem)
    folder = None if checkpoint is None else Path(checkpoint)
    if resume and folder is None:
        raise InputError("resume: found True without a checkpoint; pass the folder that the run was stored in")
    if folder is not None:
        check_writable(folder, "checkpoint")
        if not resume:
            refuse_stored(folder, "checkpoint", "resume=True")
    stored = Checkpoint.read(folder) if resume and folder is not None else None
    case.plan_privacy(engine, None if stored is None else stored.notes.get("noises"))
    case.choose_rows(None if stored is None else stored.identity)
    shown = is_wanted(progress)
    warn_of_idle_gpu()
    ask(lambda: warn_of_long_steps(case.methods, case.problem, case.rounds))
    watch = case.stop.begin(case, engine) if isinstance(case.stop, StopRule) else None
    began = time.perf_counter()
    with saying("stopped before the first round; nothing was kept: call it again"), case.problem.precision():
        problem = feasible_start(case.problem)
        if not problem.hidden:
            check_start(problem, case.methods[0])
            if engine.data_at_hand and not loads(problem):
                warn_of_mistakes(problem, case.methods[0])
        size = case.clients_per_round or problem.clients
        methods = []
        for method, plan in zip(case.methods, case.plans, strict=True):
            with counting() as spent:
                prepared = method.prepare(problem)
            case.estimating.append(sum(spent) + problem.measured_gradients)
            methods.append(calibrated(prepared, plan).for_cohort(problem, size))
        case.tunings = tunings(case, methods, problem, engine, folder if resume else None, shown, began)
        methods = [tuned(method, tuning) for method, tuning in zip(methods, case.tunings, strict=True)]
        session = engine.start(methods, problem, case.keys, case.clients_per_round)
        session.every = case.every
        session.data_at_hand = session.data_at_hand and not problem.hidden
        try:
            searched = functools.partial(begin, session, case, methods, problem) if case.starts else None
            job = Job(case, session, folder, log, watch, began, searched)  # a search for a stepsize takes time too
            if stored is not None and folder is not None:
                job.resume(stored, folder)
            try:
                with logging(log, methods[0], case.spec(0, engine.name), session.round):
                    job.go(shown)
            except KeyboardInterrupt as stopped:
                stopped.result = pack(ending(job, engine.name)[0]) if job.whole else None  # type: ignore[attr-defined]
                raise
            results, doubts = ending(job, engine.name)
            for doubt in doubts:
                warn(doubt)
            return pack(results)
        finally:
            session.close()


def _check_order(method: Any, problem: Any) -> None:
    if isinstance(method, Problem) and isinstance(problem, Method):
        raise InputError(
            f"method: found {kind(method)}, and problem: found {kind(problem)}; they are swapped: the method comes first"
        )


def run_key(key: int | jax.Array) -> jax.Array:
    """Return the key that a user gave, or meant by a number."""
    if isinstance(key, bool) or (isinstance(key, int | np.integer) and not 0 <= key < 2**32):
        raise InputError(f"key: found {key!r}; pass a whole number from 0 to 2**32 - 1, or jax.random.key(...)")
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    if not (isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0):
        raise InputError(f"key: found {type(key).__name__}; pass a whole number, or one key made by jax.random.key(...)")
    return key


def _settings(method: Method, grid: dict[str, Any]) -> list[dict[str, Any]]:
    known = fields(method)
    for name, values in grid.items():
        if name not in known:
            raise InputError(f"sweep: {type(method).__name__} has no field {name!r}{nearest(name, known)}")
        if known[name].metadata.get("static"):
            raise InputError(f"sweep: {name} shapes the compiled program; call fz.sweep once for each of its values")
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"sweep: {name} is {values!r}; pass a list of values")
        if any(callable(value) for value in values):
            raise InputError(f"sweep: {name} holds a function; only numbers can be swept in one compiled program")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
