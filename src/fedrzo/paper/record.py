"""What an experiment leaves behind: curves, surfaces, tables, claims and settings, in one JSON file that a report is made of."""

import dataclasses
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import jax

import fedrzo
from fedrzo.errors import InputError
from fedrzo.results.figure import Surface
from fedrzo.results.history import History
from fedrzo.support.files import write_file

FILE = "record.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Setting:
    """A choice, with where it comes from: the paper, or our own reason where the paper prints nothing."""

    name: str
    value: Any
    reason: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of the paper as a check."""

    text: str  # the claim, in our words
    measured: str  # how it was measured
    value: float  # what came out
    low: float | None  # of its 95 % confidence interval, if it has one
    high: float | None  # likewise
    holds: bool | None  # whether the claim holds; None where this run cannot tell
    note: str = ""  # what to know beside it, such as a confounder
    own: bool = False  # whether it is a question of ours that the paper does not claim anything about


@dataclasses.dataclass(frozen=True)
class Curves:
    """Histories by label, one per seed, drawn against rounds, bytes and evaluations: means with 95 % bands, or with few runs."""

    title: str
    groups: dict[str, list[History]]
    metric: str = "loss"
    log: bool = True
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows to read, first the names of the columns; numbers are already written as they should be."""

    title: str
    rows: list[list[str]]
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Record:
    """Everything on one figure or table of the paper."""

    name: str  # as in `fedrzo reproduce NAME`
    title: str  # one line
    command: str  # what reproduces it
    settings: list[Setting]  # every choice and its reason
    figures: list[Curves | Surface]  # `Curves` and `Surface`
    tables: list[Table]  # with the paper's numbers beside ours where it prints any
    claims: list[Claim]  # what the figure is to support, checked
    seeds: list[int]  # which were run
    seconds: float  # how long it took
    quick: bool  # whether this is the short version
    environment: dict[str, str] = dataclasses.field(default_factory=lambda: environment())  # versions and machine
    data: dict[str, Any] = dataclasses.field(default_factory=dict)  # what `--json` prints, where others rely on it
    # What runs say about their ends, such as that one is worse than its start
    notes: list[str] = dataclasses.field(default_factory=list)

    def save(self, folder: str | Path) -> None:
        """Write `record.json`, whole or not at all."""
        write_file(Path(folder) / FILE, json.dumps(self.to_dict(), allow_nan=True).encode())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        figures = []
        for figure in self.figures:
            table = {**vars(figure), "kind": type(figure).__name__}
            if isinstance(figure, Curves):
                table["groups"] = {label: [h.to_dict() for h in runs] for label, runs in figure.groups.items()}
            figures.append(table)
        plain = {name: [vars(item) for item in getattr(self, name)] for name in ("settings", "tables", "claims")}
        return {"format": FORMAT, **vars(self), **plain, "figures": figures}

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote."""
        path = Path(folder) / FILE
        try:
            table = json.loads(path.read_text())
        except OSError as error:
            raise InputError(f"report: cannot read {path} ({error.strerror}); make it with fedrzo reproduce --out") from None
        except ValueError:
            raise InputError(f"report: {path} is not JSON; make it anew with fedrzo reproduce --out") from None
        if not isinstance(table, dict) or table.pop("format", None) != FORMAT:
            raise InputError(f"report: {path} is not of format {FORMAT}; make it anew with fedrzo reproduce --out")
        kinds: dict[str, Any] = {"settings": Setting, "tables": Table, "claims": Claim}
        try:
            items = {name: [kind(**item) for item in table[name]] for name, kind in kinds.items()}
            return cls(**{**table, **items, "figures": [_figure(item) for item in table["figures"]]})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"not a whole record ({type(error).__name__}: {error})"
            raise InputError(f"report: {path} is {reason}; make it anew with fedrzo reproduce --out") from None


def _figure(table: dict[str, Any]) -> Curves | Surface:
    kind = table.pop("kind")
    if kind == "Surface":
        return Surface(**{**table, "labels": tuple(table["labels"])})
    groups = {label: [History(columns) for columns in runs] for label, runs in table["groups"].items()}
    return Curves(**{**table, "groups": groups})


def environment() -> dict[str, str]:
    """Return the versions and the machine at hand."""
    versions = {package: metadata.version(package) for package in ("jax", "jaxlib", "numpy", "scipy", "optax")}
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        "fedrzo": fedrzo.__version__,
        **versions,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": f"{len(jax.devices())} x {device.device_kind}",
    }
