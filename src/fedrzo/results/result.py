"""`Result`: what a run returns, kept as CSV, npz and TOML, all open formats; `Tuning`: how its stepsize was found."""

import dataclasses
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w

from fedrzo.engines.messages.receive import Event
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Cost
from fedrzo.privacy.statement import statement
from fedrzo.problems.questions import BY_CLIENTS, BY_SERVER
from fedrzo.results import plots, text
from fedrzo.results.bounds import Bound, bounds, shown
from fedrzo.results.history import History
from fedrzo.support.columns import COLUMNS, RULE_PREFIX
from fedrzo.support.extras import require
from fedrzo.support.files import write_folder
from fedrzo.support.pytrees import read_trees, write_trees

POINTS = ("x_feasible", "x")  # where a lower level can be solved
TRIED, CHOSEN = ("stepsize", "rounds", "loss", ""), "<- chosen"


@dataclasses.dataclass(frozen=True)
class Trial:
    """A stepsize that was tried."""

    stepsize: float  # the candidate
    rounds: int  # how long it ran
    loss: float  # the clients' mean with the Moreau terms after that; the mean over keys, infinite where x was lost


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What a search found and what it cost."""

    stepsize: float  # the answer
    theory: float  # where the search started: the theory's stepsize, with a Lipschitz constant from slopes at x0
    loss: float  # at x0, as trials are judged
    trials: tuple[Trial, ...]  # in the order in which they were made
    cost: Cost  # of the whole search; the run's history has it in all rows but the first
    reached: float = math.nan  # the least loss that a trial ended at, where the run starts; the loss at x0 if none was below

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        trials = [list(dataclasses.astuple(trial)) for trial in self.trials]
        return {**dataclasses.asdict(self), "trials": trials, "cost": self.cost._asdict()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        trials = tuple(Trial(*entry) for entry in plain["trials"])
        return cls(**{**plain, "trials": trials, "cost": Cost(**plain["cost"])})

    def __repr__(self) -> str:
        lines = text.aligned([list(TRIED), *self._rows()])
        return "\n".join([f"Tuning: {self._summary()}", *(f"  {line}" for line in lines), f"  cost: {self._spent()}"])

    def _repr_html_(self) -> str:
        empty = [""] * (len(TRIED) - 2)
        return text.table(TRIED, [*self._rows(), ["Tuning", self._summary(), *empty], ["cost", self._spent(), *empty]])

    def _summary(self) -> str:
        chosen = f"stepsize {self.stepsize:.4g} was chosen, the theory's is {self.theory:.4g}"
        untried = all(trial.stepsize != self.stepsize for trial in self.trials)
        why = " (no trial's: that of the longest ones, made smaller for a run of more rounds)" if self.trials and untried else ""
        return f"{chosen}{why}; the loss at x0 is {text.short(self.loss)}"

    def _spent(self) -> str:
        return text.costs(self.cost._asdict())

    def _rows(self) -> list[list[str]]:
        """Return a row for each trial, short ones first, and the answer marked: it may be none of them."""
        trials = sorted(self.trials, key=lambda trial: (trial.rounds, trial.stepsize))
        chosen = max((trial for trial in trials if trial.stepsize == self.stepsize), key=lambda t: t.rounds, default=None)
        rows = [
            [f"{trial.stepsize:.4g}", str(trial.rounds), text.short(trial.loss) if math.isfinite(trial.loss) else "lost",
             CHOSEN * (trial is chosen)]
            for trial in trials
        ]  # fmt: skip
        return rows if chosen is not None else [*rows, [f"{self.stepsize:.4g}", "the run", "", CHOSEN]]


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
    def tuning(self) -> Tuning | None:
        """How the stepsize was found (a `fedrzo.results.result.Tuning`), where it was `"auto"`; else None."""
        return Tuning.from_dict(self.spec["tuning"]) if "tuning" in self.spec else None

    @property
    def stopped(self) -> str | None:
        """Why the run ended, in one line; None of a result that an older version saved."""
        return self.spec.get("stopped")

    @property
    def certificates(self) -> list[Bound]:
        """What was certified on the way (`fedrzo.results.bounds.Bound`): by `stop=fz.certified(...)`, or by `fz.solve`."""
        return bounds(self.history, self.spec)

    @property
    def privacy(self) -> str | None:
        """What the run promises for each record, and what it does not, in one paragraph; None where it promises nothing."""
        return statement(self.spec["privacy"]) if "privacy" in self.spec else None

    @property
    def remarks(self) -> list[str]:
        """The notes, and what the run promises."""
        return [*self.notes, *([] if self.privacy is None else [f"privacy: {self.privacy}"])]

    @property
    def events(self) -> list[Event]:
        """What went wrong with clients on the way (`fedrzo.engines.Event`), on the engines that leave this process."""
        return [Event(*event) for event in self.spec.get("events", [])]

    def lower(self, xi: Any, at: str = "x_feasible") -> Any:
        """Return an accurate lower-level solution for one scenario of a two-stage problem, at `x_feasible` or at `x`."""
        if at not in POINTS:
            raise InputError(f"at: found {at!r}; pass {' or '.join(map(repr, POINTS))}")
        if self.problem is None or self.problem.lower_solved_by != BY_CLIENTS:
            raise InputError("lower: only the result of a run on a TwoStage problem has it, not one that was loaded")
        return self.problem.lower(getattr(self, at), xi)

    @property
    def multipliers(self) -> dict[str, np.ndarray] | None:
        """The multipliers of Y(x)'s constraints at x, of a bilevel problem; None where Y is not polyhedral, or too large.

        Of a box, `lower` and `upper`; else `inequalities` and `equations`, in the order of its rows.
        """
        known = self.problem is not None and self.loss_feasible is not None  # else nobody here has the clients' data
        if not known or self.problem.lower_solved_by != BY_SERVER:
            raise InputError(
                "multipliers: only the result of a run on a Bilevel or Minimax problem has them, not one that was loaded"
            )
        return self.problem.lower_multipliers(self.x)

    def __repr__(self) -> str:
        facts = _facts(self)
        width = max(len(name) for name, _ in facts)
        lines = [f"  {name:{width}}  {value}" for name, value in facts]
        return "\n".join([f"Result of {self.spec.get('method', 'a run')}", *lines])

    def _repr_html_(self) -> str:
        rows = [["method", str(self.spec.get("method", ""))], *map(list, _facts(self))]
        return text.table(["Result", ""], rows)

    def to_frame(self) -> Any:
        """Return the history as a pandas DataFrame."""
        return require("pandas", "plots").DataFrame(self.history.to_dict())

    def plot(self, metric: str = "loss", **options: Any) -> Any:
        """Draw a column against rounds, bytes and evaluations; returns a matplotlib figure."""
        # A stepsize that was searched for has sixteen digits.
        label = re.sub(r"\d+\.\d{5,}(e-?\d+)?", lambda found: f"{float(found[0]):.4g}", str(self.spec.get("method", "run")))
        return plots.curves({label: [self.history]}, metric, **options)

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
    def load(cls, folder: str | Path) -> Self:
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


def constrained(results: Sequence[Result]) -> bool:
    """Tell whether there are sets that x may lie outside of; of a result that was loaded, whether it ever did."""
    return any(
        bool(np.any(result.history["feasibility"] > 0)) if result.problem is None else not result.problem.sets.free
        for result in results
        if "feasibility" in result.history
    )


def _facts(result: Result) -> list[tuple[str, str]]:
    """Return what is shown of a result, by name; several facts may have the same one."""
    facts = {"problem": str(result.spec["problem"])} if "problem" in result.spec else {}
    if len(result.history) == 0:
        return [*facts.items(), ("history", "empty")]
    last = result.history.last
    if "loss" in last:
        first = text.short(float(result.history["loss"][0]))
        facts["loss"] = f"{text.short(last['loss'])} after {last['round']} rounds, {first} at the start"
    if result.loss_feasible is not None and constrained([result]):
        facts[text.AT_FEASIBLE] = text.short(result.loss_feasible)
    metrics = {name: value for name, value in last.items() if name not in (*COLUMNS, "loss") and not name.startswith(RULE_PREFIX)}
    facts |= {name: text.short(value) for name, value in metrics.items()}
    facts["cost"] = text.costs(last)
    compiling = f", {result.compile_seconds:.3g} of them compiling" if result.compile_seconds else ""
    facts["seconds"] = f"{last['seconds']:.3g}{compiling}"
    if (promise := result.spec.get("privacy")) is not None:
        spent = f"({text.short(promise['epsilon'])}, {promise['delta']:g})-DP for each record"
        facts["privacy"] = f"{spent if math.isfinite(promise['epsilon']) else 'no record is protected'}; see result.privacy"
    facts |= {} if result.stopped is None else {"stopped": result.stopped}
    return [*facts.items(), *shown(result.history, result.spec), *(("note", note) for note in result.notes)]
