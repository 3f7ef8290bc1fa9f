"""`run` and `sweep`: chunks of compiled rounds; in between, Python evaluates, logs, shows progress and stores checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedrzo import engines
from fedrzo.checkpoint import Checkpoint
from fedrzo.errors import DivergedError, InputError, nearest
from fedrzo.files import check_writable
from fedrzo.methods.base import Method
from fedrzo.problems import Problem
from fedrzo.progress import Bar
from fedrzo.results import History, Result, Sweep
from fedrzo.startup import check_start, feasible_start

Row = dict[str, int | float]
CHECKPOINT_SECONDS = 1.0  # a checkpoint is stored at most this often, and at the end


def run(
    method: Method,
    problem: Problem,
    rounds: int,
    key: int | jax.Array = 0,
    engine: Any = "simulation",
    clients_per_round: int | None = None,
    eval_every: int = 1,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    log: Iterable[Callable[[Row], None]] = (),
    stop: Callable[[Row], bool] | None = None,
) -> Result:
    """Solve a problem by a method.

    Args:
        method: such as `fz.FedRZOnn(...)`.
        problem: such as `fz.Nonsmooth(...)`.
        rounds: communication rounds of the (upper-level) method.
        key: a seed, or a JAX key. Equal keys give equal results; a short run is a prefix of a long one.
        engine: `"simulation"`, `"loop"`, or an engine object.
        clients_per_round: how many clients, drawn anew each round, take part; all if not given.
        eval_every: rounds between two rows of the history.
        progress: show a progress bar on standard error.
        checkpoint: a folder to store the run in as it goes.
        resume: go on from the checkpoint, if there is one.
        log: functions called with each new row.
        stop: called with each new row; the run ends when it returns True.

    Returns:
        The last average, its projection, and the history.
    """
    case = Case([method], problem, [_key(key)], rounds, clients_per_round, eval_every)
    [result] = _run(case, engine, progress, checkpoint, resume, tuple(log), stop)
    return result


def sweep(
    method: Method,
    problem: Problem,
    rounds: int,
    seeds: int | list[int] = 5,
    *,
    clients_per_round: int | None = None,
    eval_every: int = 1,
    progress: bool = True,
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
    settings = _settings(method, grid)
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise InputError(f"seeds: found {seeds!r}; pass at least one")
    pairs = list(itertools.product(settings, chosen))
    methods = [dataclasses.replace(method, **setting) for setting, _ in pairs]  # type: ignore[type-var]
    case = Case(methods, problem, [_key(seed) for _, seed in pairs], rounds, clients_per_round, eval_every)
    results = _run(case, "simulation", progress, checkpoint, resume, (), None)
    per = len(chosen)
    return Sweep(settings, [results[i * per : (i + 1) * per] for i in range(len(settings))])


@dataclasses.dataclass
class Case:
    """What is to be run, checked: nothing has started while one of these is made."""

    methods: list[Method]
    problem: Problem
    keys: list[jax.Array]
    rounds: int
    clients_per_round: int | None
    eval_every: int

    def __post_init__(self) -> None:
        if not isinstance(self.problem, Problem):
            raise InputError(f"problem: found {type(self.problem).__name__}; pass fz.Nonsmooth(...) or another problem")
        for method in self.methods:
            if not isinstance(method, Method):
                raise InputError(f"method: found {type(method).__name__}; pass a method such as fz.FedRZOnn(...)")
            method.check(self.problem)
        for name, low in (("rounds", 0), ("eval_every", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
                raise InputError(f"{name}: found {value!r}; pass a whole number of at least {low}")
        size, clients = self.clients_per_round, self.problem.clients
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= clients):
            raise InputError(
                f"clients_per_round: found {size!r}; pass a whole number from 1 to {clients}, the clients there are"
            )

    def identity(self) -> dict[str, Any]:
        """Return what tells this case from another, for checkpoints. Rounds may grow, so they do not count."""
        return {
            "method": [repr(method) for method in self.methods],
            "problem": repr(self.problem),
            "key": [np.asarray(jax.random.key_data(key)).tolist() for key in self.keys],
            "clients_per_round": self.clients_per_round,
            "eval_every": self.eval_every,
        }

    def spec(self, i: int, engine: str) -> dict[str, Any]:
        """Return one run's settings in plain values."""
        size = {} if self.clients_per_round is None else {"clients_per_round": self.clients_per_round}
        return {
            "method": repr(self.methods[i]),
            "problem": repr(self.problem),
            "rounds": int(self.rounds),
            "key": np.asarray(jax.random.key_data(self.keys[i])).tolist(),
            "engine": engine,
            "eval_every": int(self.eval_every),
            **size,
        }


def _run(
    case: Case,
    engine: Any,
    progress: bool,
    checkpoint: str | Path | None,
    resume: bool,
    log: tuple[Callable[[Row], None], ...],
    stop: Callable[[Row], bool] | None,
) -> list[Result]:
    engine = engines.get(engine)
    folder = None if checkpoint is None else Path(checkpoint)
    if resume and folder is None:
        raise InputError("resume: found True without a checkpoint; pass the folder that the run was stored in")
    if folder is not None:
        check_writable(folder, "checkpoint")
    with case.problem.precision():
        problem = feasible_start(case.problem)
        check_start(problem, case.methods[0])
        methods = [method.prepare(problem) for method in case.methods]
        session = engine.start(methods, problem, case.keys, case.clients_per_round)
        job = Job(case, session, folder, log)
        if resume and folder is not None:
            job.resume(folder)
        job.go(progress, stop)
        return job.results(engine.name)


class Job:
    """A run as Python sees it: a session of some engine, the histories so far, and the clock."""

    def __init__(self, case: Case, session: Any, folder: Path | None, log: tuple[Callable[[Row], None], ...]) -> None:
        self.case = case
        self.session = session
        self.folder = folder
        self.log = log
        self.histories = [History() for _ in case.methods]
        self.before = 0.0
        self.began = time.perf_counter()
        self.stored = -math.inf
        self.chunk_seconds: list[float] = []
        self.whole = True  # whether session and histories belong together, so that they can be stored

    @property
    def seconds(self) -> float:
        """Seconds spent on this run, earlier sittings included."""
        return self.before + time.perf_counter() - self.began

    def resume(self, folder: Path) -> None:
        """Go on from a stored checkpoint, if there is one."""
        stored = Checkpoint.read(folder)
        if stored is None:
            return
        stored.check(self.case.identity(), self.session.store(), folder)
        if stored.round > self.case.rounds:
            raise InputError(
                f"rounds: found {self.case.rounds}, the checkpoint is at {stored.round}; pass at least that many"
            )
        self.session.restore(stored.arrays, stored.round)
        self.histories = [History(columns) for columns in stored.histories]
        self.before = stored.seconds

    def go(self, progress: bool, stop: Callable[[Row], bool] | None) -> None:
        """Run to the end, or until `stop` says so."""
        rounds = self.case.rounds
        with Bar(rounds, self.session.round, progress) as bar, self._saving_on_interrupt():
            if len(self.histories[0]) == 0:
                self._append_rows()
            bar.show(self.session.round, self.histories[0].last)
            while self.session.round < rounds:
                self._chunk(min(self.case.eval_every, rounds - self.session.round))
                bar.show(self.session.round, self.histories[0].last)
                if stop is not None and stop(self.histories[0].last):
                    break
        self.store()

    def _chunk(self, rounds: int) -> None:
        start = time.perf_counter()
        self.whole = False
        self.session.advance(rounds)
        self._raise_trouble()
        self.chunk_seconds.append(time.perf_counter() - start)
        self._append_rows()
        if self.seconds - self.stored >= CHECKPOINT_SECONDS:
            self.store()

    def _append_rows(self) -> None:
        metrics, costs, seconds = self.session.evaluate(), self.session.costs(), self.seconds
        for i, (history, cost) in enumerate(zip(self.histories, costs, strict=True)):
            row: Row = {"round": self.session.round, **cost._asdict(), "seconds": seconds}
            row |= {name: float(values[i]) for name, values in metrics.items()}
            history.append(row)
        self.whole = True
        for sink in self.log:
            sink(self.histories[0].last)

    def _raise_trouble(self) -> None:
        """Stop a single run whose x is no longer finite; a sweep goes on, since its other settings may be well."""
        records = self.session.progress()
        if len(records) > 1 or int(records[0].trouble) < 0:
            return
        kept = "" if self.folder is None else f"; the checkpoint in {self.folder} is from before"
        largest = float(np.abs(records[0].x_good).max())
        known = self.case.methods[0].diagnose(self.session.states()[0])
        reason = known or (
            f"x is no longer finite (its largest entry before was {largest:.3g}); use a smaller stepsize, or check the loss for "
            "non-finite values"
        )
        raise DivergedError(f"stopped after round {int(records[0].trouble)}: {reason}{kept}")

    def store(self) -> None:
        """Write a checkpoint, if one is wanted."""
        if self.folder is None:
            return
        histories = [history.to_dict() for history in self.histories]
        Checkpoint(self.case.identity(), self.session.round, self.seconds, histories, self.session.store()).write(
            self.folder
        )
        self.stored = self.seconds

    @contextlib.contextmanager
    def _saving_on_interrupt(self) -> Any:
        try:
            yield
        except KeyboardInterrupt:
            if self.folder is not None and self.whole and len(self.histories[0]):
                self.store()
                print(f"\nstopped after round {self.session.round}; go on with resume=True, checkpoint={str(self.folder)!r}",
                      file=sys.stderr)  # fmt: skip
            raise

    def results(self, engine: str) -> list[Result]:
        """Return one result per run."""
        problem = self.case.problem
        unravel = problem.layout.unravel
        first, *later = self.chunk_seconds or [0.0]
        compiling = max(0.0, first - float(np.median(later))) if later else first
        states, records, found = self.session.states(), self.session.progress(), []
        points = np.stack([state.x for state in states])
        feasible, lower = problem.project_all(points), problem.lower_solutions(points)
        for i, (state, record) in enumerate(zip(states, records, strict=True)):
            found.append(
                Result(unravel(state.x), unravel(feasible[i]), unravel(record.x_random), int(record.random_round),
                       self.histories[i], self.case.spec(i, engine), compiling, lower[i], problem)
            )  # fmt: skip
        return found


def _key(key: int | jax.Array) -> jax.Array:
    if isinstance(key, bool) or (isinstance(key, int | np.integer) and key < 0):
        raise InputError(f"key: found {key!r}; pass a whole number of at least 0, or jax.random.key(...)")
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    if not (isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0):
        raise InputError(
            f"key: found {type(key).__name__}; pass a whole number, or one key made by jax.random.key(...)"
        )
    return key


def _settings(method: Method, grid: dict[str, Any]) -> list[dict[str, Any]]:
    fields = {field.name: field for field in dataclasses.fields(method)}  # type: ignore[arg-type]
    for name, values in grid.items():
        if name not in fields:
            raise InputError(f"sweep: {type(method).__name__} has no field {name!r}{nearest(name, fields)}")
        if fields[name].metadata.get("static"):
            raise InputError(f"sweep: {name} shapes the compiled program; call fz.sweep once for each of its values")
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"sweep: {name} is {values!r}; pass a list of values")
        if any(callable(value) for value in values):
            raise InputError(f"sweep: {name} holds a function; only numbers can be swept in one compiled program")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
