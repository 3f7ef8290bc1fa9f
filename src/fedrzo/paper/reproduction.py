"""Where reproductions are worked at: sweeps and small results that are kept as they come, so that nothing is done twice."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedrzo.errors import MissingExtraError
from fedrzo.methods import Method
from fedrzo.paper.record import Claim, Curves, Record, Setting, Table
from fedrzo.problems.base import Problem
from fedrzo.results import plots
from fedrzo.results.figure import Surface
from fedrzo.results.history import History
from fedrzo.results.sweep import Sweep
from fedrzo.running.run import sweep
from fedrzo.running.spec import slug
from fedrzo.support.files import check_writable, write_file

Chosen = TypeVar("Chosen")


def duration(minutes: float, quick: bool) -> str:
    """Return a rough time in words: processor time of a quick version, the time on two cores of a full one."""
    length = f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"
    return f"about {length} {'of processor time' if quick else 'on two cores'}"


@dataclasses.dataclass
class Reproduction:
    """One reproduction at work."""

    name: str  # as in `fedrzo reproduce NAME`
    quick: bool = False  # whether to do the short version
    seed: int = 0  # the first one
    out: Path | None = None  # the folder of all reproductions; each has a sub-folder in it. None keeps nothing
    data: str | None = None  # the folder of the data sets, where they are not in the usual places
    progress: bool = True  # whether to say on standard error what is going on

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.worked = 0.0  # seconds that the parts took, in this sitting or an earlier one
        if self.out is not None:
            check_writable(self.home, "--out")

    @property
    def home(self) -> Path:
        """The folder of this reproduction."""
        assert self.out is not None
        return self.out / self.name

    def say(self, text: str) -> None:
        """Print on standard error, unless told to be quiet."""
        if self.progress:
            print(text, file=sys.stderr)

    def budget(self, text: str, minutes: tuple[float, float]) -> None:
        """Say what is going to be done and how long its quick or full version takes."""
        kept = "" if self.out else "; with --out it is kept, and continued after an interruption"
        shown = duration(self.choose(*minutes), self.quick)
        self.say(f"{self.name}{' (quick)' if self.quick else ''}: {text}; {shown}{kept}")

    def choose(self, quick: Chosen, full: Chosen) -> Chosen:
        """Return what the quick version has, or the full one."""
        return quick if self.quick else full

    def seeds(self, quick: int, full: int) -> list[int]:
        """Return the seeds to run."""
        return list(range(self.seed, self.seed + self.choose(quick, full)))

    def rounds(self, rounds: int, reason: str) -> Setting:
        """Return the setting that says how many rounds were run, and why in the full version."""
        return Setting("rounds", rounds, self.choose("short version", reason))

    def sweep(
        self, label: str, method: Method, problem: Problem, rounds: int, seeds: list[int], eval_every: int, **grid: Any
    ) -> Sweep:
        """Run a sweep in one compiled program, or go on with it where an earlier sitting stopped."""
        self.say(f"{self.name}: {label}")
        folder = None if self.out is None else self._kept(label)
        found = sweep(
            method, problem, rounds, seeds, eval_every=eval_every, progress=self.progress, checkpoint=folder,
            resume=folder is not None, **grid,
        )  # fmt: skip
        self.worked += float(found.results[0][0].history["seconds"][-1])  # earlier sittings included
        return found

    def histories(
        self, label: str, method: Method, problem: Problem, rounds: int, seeds: list[int], eval_every: int, **grid: Any
    ) -> dict[Any, list[History]]:
        """Run a sweep and return the seeds' histories by the values of the grid: by tuples of them, where it has several."""
        found = self.sweep(label, method, problem, rounds, seeds, eval_every, **grid)
        keys = [tuple(setting.values()) for setting in found.settings]
        return {
            key[0] if len(grid) == 1 else key: [result.history for result in results]
            for key, results in zip(keys, found.results, strict=True)
        }

    def once(self, label: str, compute: Callable[[], Any]) -> Any:
        """Return what `compute` returns, plain values, from an earlier sitting if there was one."""
        path = None if self.out is None else self._kept(label) / "value.json"
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
        else:
            self.say(f"{self.name}: {label}")
            began = time.perf_counter()
            kept = {"value": compute(), "seconds": time.perf_counter() - began}
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, json.dumps(kept).encode())
        self.worked += kept["seconds"]
        return kept["value"]

    def _kept(self, label: str) -> Path:
        """Return where a part is kept; other versions and other seeds lie elsewhere."""
        version = ("quick" if self.quick else "full") + (f"-seed-{self.seed}" if self.seed else "")
        return self.home / version / slug(label)

    def record(
        self, title: str, settings: list[Setting], seeds: list[int], figures: Sequence[Curves | Surface] = (),
        tables: Sequence[Table] = (), claims: Sequence[Claim] = (), data: dict[str, Any] | None = None,
    ) -> Record:  # fmt: skip
        """Put together what the reproduction leaves behind, and write it where there is an output folder."""
        given = {"--seed": self.seed or None, "--data": self.data, "--out": self.out}
        options = [" --quick"] * self.quick + [f" {name} {value}" for name, value in given.items() if value is not None]
        record = Record(
            self.name, title, f"fedrzo reproduce {self.name}{''.join(options)}", settings, list(figures), list(tables),
            list(claims), seeds, max(self.worked, time.perf_counter() - self.began), self.quick, data=data or {},
        )  # fmt: skip
        if self.out is not None:
            record.save(self.home)
            self._draw(record)
        return record

    def _draw(self, record: Record) -> None:
        """Write each figure as PNG and SVG, for papers; the report draws its own from the record."""
        try:
            for i, figure in enumerate(record.figures, 1):
                path = self.home / f"{i:02d}-{slug(figure.title)}"
                if isinstance(figure, Curves):
                    plots.save(plots.curves(figure.groups, figure.metric, log=figure.log), path)
                else:
                    plots.save(plots.surface(figure), path)
        except MissingExtraError as error:
            self.say(f"{self.name}: no figures: {error}")
