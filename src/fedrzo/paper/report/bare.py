"""Runs that have no record: what `fedrzo run`, `fedrzo solve`, `result.save` and checkpoints leave in a folder."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedrzo.errors import CheckpointError, InputError
from fedrzo.paper.record import Curves, Record, Setting, Table
from fedrzo.privacy.statement import statement
from fedrzo.results import bounds
from fedrzo.results.history import History
from fedrzo.results.text import together
from fedrzo.running.checkpoint import NAME, Checkpoint
from fedrzo.running.spec import Spec, slug
from fedrzo.support.settings import flat

SPEC = "spec.toml"
HISTORY = "history.csv"
STORED = "checkpoint"  # the folder of a run's checkpoint, beside its result
GO_ON = "go on with --resume on the command line, or resume=True"


class Run(NamedTuple):
    """One run: its history, what its result says of it, and its seed where it is one of several."""

    history: History
    spec: dict[str, Any]
    seed: int | None = None


def is_run(home: Path) -> bool:
    """Tell whether a folder holds a run: its result, those of its seeds, or a checkpoint."""
    there = (home / HISTORY, home / NAME, home / STORED / NAME)
    return any(path.is_file() for path in there) or any(home.glob(f"seed-*/{HISTORY}"))


def runs(homes: Sequence[Path], left_out: list[str]) -> dict[str, list[Run]]:
    """Return the runs of some folders by label; a line says what cannot be read."""
    found: dict[str, list[Run]] = {}
    for home in homes:
        found |= _labelled(home.resolve().name, home, left_out)
    return found


def record(home: Path, found: dict[str, list[Run]]) -> Record:
    """Return a record of some runs: their curves, their spec, why they stopped, what they certified; nothing is claimed."""
    # The spec of a single result is of another kind: it says what was run in words.
    written = (home / SPEC).is_file() and not (home / HISTORY).is_file()
    spec = Spec.read(home / SPEC).table if written else {}
    variants = spec.get("variant") or [{"label": spec.get("method", {}).get("name", "")}]
    labels = {slug(str(variant["label"])): str(variant["label"]) for variant in variants}
    order = list(labels)
    names = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    groups = {labels.get(name, name): found[name] for name in names}
    histories = {label: [run.history for run in group] for label, group in groups.items()}
    seeds = sorted({run.seed for group in found.values() for run in group if run.seed is not None})
    several = f" --seed {seeds[0]} --seeds {len(seeds)}" if seeds else ""
    name = home.resolve().name
    return Record(
        name, str(spec.get("title", "Loss and costs of each run")), f"fedrzo run {name}/{SPEC}{several}" if spec else "",
        _settings(spec), [Curves("Loss against its costs", histories)], tables=[*_ends(groups), *_certificates(groups)],
        claims=[], seeds=seeds, seconds=sum(max(map(seconds, group)) for group in histories.values()), quick=False,
        environment={}, notes=[f"{label}: {text}" for label, group in groups.items() for text in _notes(group)],
    )  # fmt: skip


def read_history(path: Path) -> History:
    """Read a history, or name the file that is none."""
    try:
        return History.read(path)
    except (IndexError, OSError, ValueError) as error:
        raise InputError(f"report: {path} is not a history ({error}); run it anew or remove it") from None


def seconds(history: History) -> float:
    """Return how long a run took, as far as is known."""
    return float(history["seconds"][-1]) if "seconds" in history and len(history) else 0.0


def natural(path: Path) -> list[tuple[int, str]]:
    """Order by numbers as numbers: `fig2` before `fig10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _labelled(label: str, home: Path, left_out: list[str]) -> dict[str, list[Run]]:
    """Return the runs of one folder: as saved, or from a checkpoint that goes further; there, each setting has a label."""
    saved = [home / HISTORY] if (home / HISTORY).is_file() else sorted(home.glob(f"seed-*/{HISTORY}"), key=_seed_folder)
    found = [Run(read_history(path), _spec(path), _seed(path)) for path in saved]
    stored = _stored(home, left_out)
    if stored is None or not stored.histories or (found and stored.round <= found[0].history.last["round"]):
        return {label: found} if found else {}
    why = stored.stopped or f"not finished, stored after round {stored.round}"
    methods: list[str] = stored.identity["method"]
    groups: dict[str, list[Run]] = {}
    for method, columns in zip(methods, stored.histories, strict=True):
        name = label if len(set(methods)) == 1 else f"{label}: {method}"
        groups.setdefault(name, []).append(Run(History(columns), {"stopped": why, "notes": [f"{why}; {GO_ON}"]}))
    return groups


def _stored(home: Path, left_out: list[str]) -> Checkpoint | None:
    for folder in (home, home / STORED):
        try:
            if (stored := Checkpoint.read(folder)) is not None:
                return stored
        except CheckpointError as error:
            left_out.append(str(error))
    return None


def _seed_folder(path: Path) -> list[tuple[int, str]]:
    return natural(path.parent)


def _seed(path: Path) -> int | None:
    found = re.fullmatch(r"seed-(\d+)", path.parent.name)
    return int(found[1]) if found else None


def _spec(path: Path) -> dict[str, Any]:
    """Return what the result beside a history says of its run; nothing where there is only the history."""
    spec = path.with_name(SPEC)
    return tomllib.loads(spec.read_text()) if spec.is_file() else {}


def _ends(groups: dict[str, list[Run]]) -> list[Table]:
    """Return why runs stopped, as a table, where that is known of any."""
    rows = dict.fromkeys(
        (label, f"{int(run.history.last['round']):,}", str(run.spec["stopped"]))
        for label, group in groups.items()
        for run in group
        if "stopped" in run.spec
    )
    return [Table("Why runs stopped", [["run", "rounds", "stopped"], *map(list, rows)])] if rows else []


def _certificates(groups: dict[str, list[Run]]) -> list[Table]:
    """Return what was certified, as a table, where anything was."""
    rows = [
        [label, *row]
        for label, group in groups.items()
        for run in group
        for row in bounds.rows(run.history, run.spec)[1:]
    ]  # fmt: skip
    return [Table("Certificates", [["run", *bounds.HEAD], *rows])] if rows else []


def _notes(group: list[Run]) -> list[str]:
    """Return what runs say about their ends, and what they promise for their records."""
    promises = [[f"privacy: {statement(run.spec['privacy'])}"] if "privacy" in run.spec else [] for run in group]
    return together([[*run.spec.get("notes", []), *promise] for run, promise in zip(group, promises, strict=True)])


def _settings(spec: dict[str, Any]) -> list[Setting]:
    common = {name: value for name, value in spec.items() if name not in ("title", "variant")}
    settings = [Setting(key, value, f"from {SPEC}") for key, value in flat(common).items()]
    for variant in spec.get("variant", []):
        own = {key: value for key, value in flat(variant).items() if key != "label"}
        changes = ", ".join(f"{key} = {value}" for key, value in own.items())
        settings.append(Setting(variant["label"], changes, f"a variant of {SPEC}"))
    return settings
