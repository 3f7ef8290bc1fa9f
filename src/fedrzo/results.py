"""What a run returns and how it is kept: `History`, `Result`, `Sweep`. Files are CSV, npz and TOML, all open formats."""

from __future__ import annotations

import csv
import dataclasses
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedrzo import show
from fedrzo.errors import InputError, nearest
from fedrzo.files import write_folder
from fedrzo.pytrees import read_trees, write_trees

COST_COLUMNS = ("lower_rounds", "upload_bytes", "download_bytes", "evaluations", "gradients", "lower_steps")
COLUMNS = ("round", *COST_COLUMNS, "seconds")
WIRE_COLUMNS = ("wire_upload_bytes", "wire_download_bytes", "failures")  # of engines that leave this process
PROBLEM_COLUMNS = ("loss", "loss_feasible", "feasibility", "test_loss")
LOWER_COLUMNS = ("lower_error",)  # of methods and problems with a lower level
RULE_PREFIX = "certificate_"  # how a stopping rule's columns begin


def taken(name: str) -> bool:
    """Tell whether a column of this name is the history's own, or may become so: no metric of a user's may be called so."""
    own = (*COLUMNS, *WIRE_COLUMNS, *PROBLEM_COLUMNS, *LOWER_COLUMNS)
    return name in own or name.startswith(RULE_PREFIX)


class History:
    """Columns of equal length: `round`, the cumulative costs, `seconds`, then the problem's own metrics. Row 0 is the start."""

    def __init__(self, columns: dict[str, list] | None = None) -> None:
        self._columns: dict[str, list] = {name: list(values) for name, values in (columns or {}).items()}

    def append(self, row: dict[str, int | float]) -> None:
        """Add a row."""
        for name, value in row.items():
            self._columns.setdefault(name, []).append(value)

    def drop_last(self) -> None:
        """Remove the newest row."""
        for values in self._columns.values():
            values.pop()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise InputError(f"history: no column {name!r}{nearest(name, self._columns)}")
        return np.array(self._columns[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"History({len(self)} rows: {', '.join(self._columns)})"

    def _repr_html_(self) -> str:
        return show.history_html(self)

    @property
    def last(self) -> dict[str, int | float]:
        """The newest row."""
        return {name: values[-1] for name, values in self._columns.items()}

    def to_dict(self) -> dict[str, list]:
        """Return plain lists of Python numbers."""
        return {name: list(values) for name, values in self._columns.items()}

    def write(self, path: Path) -> None:
        """Write a CSV file; floats keep all their digits."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            writer.writerows(zip(*self._columns.values(), strict=True))

    @classmethod
    def read(cls, path: Path) -> History:
        """Read what `write` wrote."""
        with path.open(newline="") as file:
            names, *rows = list(csv.reader(file))
        return cls({name: [_number(row[j]) for row in rows] for j, name in enumerate(names)})


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        x: the last average, as the problem's pytree.
        x_feasible: its projection onto the intersection of the clients' sets.
        x_random: x at a synchronisation drawn uniformly from 0 .. rounds. It stands in for the theory's random iterate,
            which falls inside a round and never reaches a server.
        random_round: which synchronisation that was.
        history: what was monitored and what it cost.
        spec: what was run, in plain values.
        compile_seconds: how long the first chunk took beyond a later one: compilation, shown apart.
        y: an accurate lower-level solution at x, for problems that have one.
        loss_feasible: the loss at x_feasible over all clients' data; None where nobody has all of them, as in a deployment.
        problem: what was solved; not saved.
        notes: what there is to say about the end: that its loss is worse than at the start, or that x is far outside of a set.
    """

    x: Any
    x_feasible: Any
    x_random: Any
    random_round: int
    history: History
    spec: dict[str, Any]
    compile_seconds: float = 0.0
    y: Any = None
    loss_feasible: float | None = None
    problem: Any = dataclasses.field(default=None, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def tuning(self) -> Any:
        """How the stepsize was found (a `fedrzo.tuning.Tuning`), where it was `"auto"`; else None."""
        from fedrzo.tuning import Tuning

        return Tuning.from_dict(self.spec["tuning"]) if "tuning" in self.spec else None

    @property
    def events(self) -> list[Any]:
        """What went wrong with clients on the way (`fedrzo.engines.Event`), on the engines that leave this process."""
        from fedrzo.engines.receive import Event

        return [Event(*event) for event in self.spec.get("events", [])]

    def lower(self, xi: Any) -> Any:
        """Return an accurate lower-level solution at x for one scenario of a two-stage problem."""
        if not hasattr(self.problem, "lower"):
            raise InputError("lower: only the result of a run on a TwoStage problem has it, not one that was loaded")
        return self.problem.lower(self.x, xi)

    def __repr__(self) -> str:
        return show.result_text(self)

    def _repr_html_(self) -> str:
        return show.result_html(self)

    def to_frame(self) -> Any:
        """Return the history as a pandas DataFrame."""
        from fedrzo.extras import require

        return require("pandas", "plots").DataFrame(self.history.to_dict())

    def plot(self, **options: Any) -> Any:
        """Draw loss against rounds, bytes and evaluations; returns a matplotlib figure."""
        from fedrzo import plots

        return plots.curves({str(self.spec.get("method", "run")): [self.history]}, **options)

    def save(self, folder: str | Path) -> None:
        """Write history.csv, arrays.npz and spec.toml into a folder, all or nothing; an earlier result there is replaced."""
        names = ("x", "x_feasible", "x_random", "y")
        points = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        spec = {**self.spec, "random_round": self.random_round, "compile_seconds": self.compile_seconds}
        spec |= {} if self.loss_feasible is None else {"loss_feasible": self.loss_feasible}  # TOML has no None
        spec |= {"notes": list(self.notes)} if self.notes else {}

        def fill(target: Path) -> None:
            self.history.write(target / "history.csv")
            write_trees(target / "arrays.npz", points)
            (target / "spec.toml").write_text(tomli_w.dumps(spec))

        write_folder(Path(folder), fill)

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read what `save` wrote."""
        folder = Path(folder)
        for name in ("history.csv", "arrays.npz", "spec.toml"):
            if not (folder / name).is_file():
                raise InputError(f"folder: {folder} holds no {name}; pass a folder that result.save wrote")
        spec = tomllib.loads((folder / "spec.toml").read_text())
        points = read_trees(folder / "arrays.npz")
        random_round, seconds = spec.pop("random_round"), spec.pop("compile_seconds")
        loss, notes = spec.pop("loss_feasible", None), tuple(spec.pop("notes", ()))
        return cls(**points, random_round=random_round, loss_feasible=loss, spec=spec, notes=notes,
                   history=History.read(folder / "history.csv"), compile_seconds=seconds)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Several settings, several seeds each, from one compiled run.

    Attributes:
        settings: the swept values of each setting.
        results: for each setting, one `Result` per seed.
        seeds: which, in that order; None if that was not kept.
    """

    settings: list[dict[str, Any]]
    results: list[list[Result]]
    seeds: list[int] | None = None

    def __repr__(self) -> str:
        return show.sweep_text(self)

    def _repr_html_(self) -> str:
        return show.sweep_html(self)

    def values(self, setting: int, column: str) -> np.ndarray:
        """Return one column of one setting, seeds by rows."""
        count = len(self.results)
        if not isinstance(setting, int | np.integer) or not -count <= setting < count:
            raise InputError(f"setting: found {setting!r}; pass its place in `settings`, from 0 to {count - 1}")
        return np.array([result.history[column] for result in self.results[setting]])

    def band(self, setting: int, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, low and high of the 95 % confidence band (Student's t over seeds)."""
        return confidence_band(self.values(setting, column))

    def ends(self, setting: int, column: str = "loss") -> np.ndarray:
        """Return what each seed of a setting ended with; of the loss, the one at x_feasible, where that is known."""
        values = self.values(setting, column)[:, -1]
        feasible = [result.loss_feasible for result in self.results[setting]]
        if column != "loss" or None in feasible:
            return values
        # A set may well bring an x that diverged back to a point like any other.
        return np.where(np.isfinite(values), np.array(feasible, float), values)

    def best(self, column: str = "loss") -> int:
        """Return the setting with the smallest mean of its `ends`; settings that diverged never win.

        By the loss at x itself, a setting would win that strays from the sets.
        """
        means = [self.ends(i, column).mean() for i in range(len(self.settings))]
        return int(np.argmin([value if math.isfinite(value) else math.inf for value in means]))

    def to_frame(self) -> Any:
        """Return all histories as one long pandas DataFrame, with a column per swept value and one for the seed."""
        from fedrzo.extras import require

        pandas = require("pandas", "plots")
        frames = [
            pandas.DataFrame(result.history.to_dict()).assign(seed=seed, **setting)
            for setting, results in zip(self.settings, self.results, strict=True)
            for seed, result in zip(self.seeds or range(len(results)), results, strict=True)
        ]
        return pandas.concat(frames, ignore_index=True)

    def plot(self, **options: Any) -> Any:
        """Draw one curve per setting with its 95 % band; returns a matplotlib figure."""
        from fedrzo import plots

        groups = {}
        for setting, results in zip(self.settings, self.results, strict=True):
            method = str(results[0].spec.get("method", "all")).partition("(")[0]  # where nothing is swept, its name
            groups[show.label(setting) if setting else method] = [result.history for result in results]
        return plots.curves(groups, **options)


def confidence_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, low and high of the 95 % confidence interval of the mean over the leading axis (Student's t)."""
    from scipy import stats

    mean, n = values.mean(axis=0), len(values)
    if n == 1:
        return mean, mean, mean
    half = stats.t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
