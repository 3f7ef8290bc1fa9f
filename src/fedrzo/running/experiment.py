"""Running experiments: specs become tasks, tasks become results, tables and figures.

The TOML files in `specs` are the built-in ones; `fedrzo.running.spec` says how they are written.
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedrzo.engines.base import Engine
from fedrzo.errors import InputError
from fedrzo.methods import Method
from fedrzo.problems.base import Problem
from fedrzo.results import plots
from fedrzo.results.result import Result
from fedrzo.running.case import Case
from fedrzo.running.checkpoint import Checkpoint, refuse_stored
from fedrzo.running.run import run, sweep
from fedrzo.running.spec import Spec, slug
from fedrzo.support.files import check_writable, refuse_existing
from fedrzo.support.numbers import check_counts

FIGURES = ("figure.png", "figure.svg")
HISTORY = "history.csv"


@dataclasses.dataclass(frozen=True)
class Task:
    """One method on one problem, checked as far as is possible without starting."""

    label: str
    method: Method
    problem: Problem
    rounds: int
    seed: int = 0
    clients_per_round: int | None = None
    eval_every: int | None = None
    engine: str | Engine = "simulation"

    def __post_init__(self) -> None:
        Case([self.method], self.problem, [], self.rounds, self.clients_per_round, self.eval_every)

    def run(self, seeds: int | None, **options: Any) -> list[Result]:
        """Run once, or once for each of so many seeds, all in one compiled program."""
        options |= {"clients_per_round": self.clients_per_round, "eval_every": self.eval_every}
        if seeds is None:
            return [run(self.method, self.problem, self.rounds, key=self.seed, engine=self.engine, **options)]
        chosen = list(range(self.seed, self.seed + seeds))
        return sweep(self.method, self.problem, self.rounds, chosen, **options).results[0]


def tasks(spec: Spec) -> list[Task]:
    """Return one task per variant, all of them built before any of them runs. Variants share equal problems."""
    problems: dict[str, Problem] = {}
    made = []
    for variant in spec.variants():
        method, options = variant.method(), variant.run
        key = repr(variant.table["problem"])
        if key not in problems:
            problems[key] = variant.problem()
        label = variant.label or type(method).__name__
        made.append(Task(label, method, problems[key], **options))
    return made


def execute(
    tasks: list[Task],
    seeds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    spec: Spec | None = None,
) -> dict[str, list[Result]]:
    """Run tasks one after another, each with so many seeds, or once; return and save the results of each, by its label.

    The folder `out` gets results and checkpoints, from which `resume` goes on, and the spec that the tasks come from.
    """
    folder = None if out is None else Path(out)
    check_tasks(tasks, seeds, folder, resume, spec)
    if folder is not None and spec is not None and not resume:
        spec.write(folder / "spec.toml")
    outcomes = {}
    for i, task in enumerate(tasks):
        if progress and len(tasks) > 1:
            print(f"{task.label} ({i + 1} of {len(tasks)})", file=sys.stderr)
        checkpoint = None if folder is None else _checkpoint(folder, task)
        outcomes[task.label] = results = task.run(seeds, progress=progress, checkpoint=checkpoint, resume=resume)
        if checkpoint is not None:
            for seed, result in enumerate(results, task.seed):
                result.save(checkpoint.parent if seeds is None else checkpoint.parent / f"seed-{seed}")
    if folder is not None and spec is not None and resume:  # not sooner: the folder may be that of another experiment
        spec.write(folder / "spec.toml")
    return outcomes


def written(tasks: list[Task], spec: Spec | None) -> list[str]:
    """Return what `execute` leaves in its folder."""
    return [*(["spec.toml"] if spec else []), *(f"{slug(task.label)}/" for task in tasks)]


def draw(outcomes: dict[str, list[Result]], out: str | Path) -> list[str]:
    """Write `figure.png` and `figure.svg`: loss against rounds, bytes and evaluations; return their names."""
    groups = {label: [result.history for result in results] for label, results in outcomes.items()}
    plots.save(plots.curves(groups), Path(out) / "figure")
    return list(FIGURES)


def check_tasks(tasks: list[Task], seeds: int | None, folder: Path | None, resume: bool, spec: Spec | None = None) -> None:
    """Refuse options that cannot be followed, before any work starts."""
    if seeds is not None:
        check_counts(**{"--seeds": seeds})
    for task in tasks:
        if seeds is not None and task.engine != "simulation":
            raise InputError(f'--seeds: needs engine "simulation", {task.label!r} has {task.engine!r}; leave one of them out')
    if resume and folder is None:
        raise InputError("--resume: found no --out; pass the folder that the run was stored in")
    if folder is not None:
        check_writable(folder, "--out")
        for task in tasks if not resume else []:
            refuse_stored(_checkpoint(folder, task), "--out", "--resume")
        if not any(Checkpoint.read(_checkpoint(folder, task)) for task in tasks):
            refuse_existing(folder, _replaced(folder, tasks, spec), "--out")


def _replaced(folder: Path, tasks: list[Task], spec: Spec | None) -> Iterator[str]:
    """Yield the files that a run which starts here would replace, except for an equal spec."""
    yield from FIGURES
    if spec is not None and (folder / "spec.toml").exists() and (folder / "spec.toml").read_bytes() != spec.content:
        yield "spec.toml"
    for home in (folder / slug(task.label) for task in tasks):
        yield from (str(path.relative_to(folder)) for path in (home / HISTORY, *sorted(home.glob(f"seed-*/{HISTORY}"))[:1]))


def _checkpoint(folder: Path, task: Task) -> Path:
    return folder / slug(task.label) / "checkpoint"
