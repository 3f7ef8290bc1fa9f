"""What a folder holds: records, and runs without one."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedrzo.errors import InputError
from fedrzo.paper.record import FILE, Curves, Record, Setting
from fedrzo.privacy.statement import statement
from fedrzo.results.history import History
from fedrzo.results.text import together
from fedrzo.running.spec import Spec, slug
from fedrzo.support.settings import flat

SPEC = "spec.toml"
HISTORY = "history.csv"


def find(folder: Path) -> dict[Path, Record]:
    """Return the records in a folder and in the folders of it, by folder, `fig2` before `fig10`; bare runs become a record."""
    if not folder.is_dir():
        raise InputError(f"report: there is no folder {folder}; make one with fedrzo reproduce --out {folder}")
    parts = sorted((part for part in folder.iterdir() if part.is_dir()), key=_natural)
    found = {home: Record.load(home) for home in (folder, *parts) if (home / FILE).is_file()}
    for home in [folder] if _runs(folder) else parts:
        if home not in found and (runs := _runs(home)):
            found[home] = _plain(home, runs)
    if not found:
        raise InputError(f"report: {folder} holds neither {FILE} nor {HISTORY}; make them with fedrzo reproduce --out {folder}")
    return found


def _runs(home: Path) -> dict[str, list[Path]]:
    """Return the histories that `fedrzo run --out` left in a folder: for each label, those of its seeds."""
    if (home / HISTORY).is_file():
        return {home.resolve().name: [home / HISTORY]}
    runs = {}
    for part in sorted((part for part in home.iterdir() if part.is_dir()), key=_natural):
        seeds = sorted(part.glob(f"seed-*/{HISTORY}"), key=lambda path: _natural(path.parent))
        histories = [part / HISTORY] if (part / HISTORY).is_file() else seeds
        if histories and not (part / FILE).is_file():
            runs[part.name] = histories
    return runs


def _plain(home: Path, runs: dict[str, list[Path]]) -> Record:
    """Return a record of runs that have none: their curves and their spec, and nothing claimed."""
    # The spec of a single result is of another kind: it says what was run in words.
    written = (home / SPEC).is_file() and not (home / HISTORY).is_file()
    spec = Spec.read(home / SPEC).table if written else {}
    variants = spec.get("variant") or [{"label": spec.get("method", {}).get("name", "")}]
    labels = {slug(str(variant["label"])): str(variant["label"]) for variant in variants}
    order = list(labels)
    names = sorted(runs, key=lambda name: order.index(name) if name in order else len(order))
    groups = {labels.get(name, name): [_read_history(path) for path in runs[name]] for name in names}
    parents = [path.parent.name for paths in runs.values() for path in paths]
    seeds = sorted({int(n) for parent in parents for n in re.findall(r"^seed-(\d+)$", parent)})
    several = f" --seed {seeds[0]} --seeds {len(seeds)}" if seeds else ""
    name = home.resolve().name
    return Record(
        name, str(spec.get("title", "runs without a record")), f"fedrzo run {name}/{SPEC}{several}" if spec else "",
        _settings(spec), [Curves("Loss against its costs", groups)], tables=[], claims=[], seeds=seeds,
        seconds=sum(max(map(_seconds, histories)) for histories in groups.values()), quick=False, environment={},
        notes=[f"{labels.get(name, name)}: {text}" for name in names for text in _notes(runs[name])],
    )  # fmt: skip


def _notes(paths: list[Path]) -> list[str]:
    """Return what the results beside some histories say about their ends."""
    specs = [tomllib.loads(spec.read_text()) if (spec := path.with_name(SPEC)).is_file() else {} for path in paths]
    return together([[*spec.get("notes", []), *_promise(spec)] for spec in specs])


def _promise(spec: dict[str, Any]) -> list[str]:
    """Return what a run promised for its records."""
    return [f"privacy: {statement(spec['privacy'])}"] if "privacy" in spec else []


def _read_history(path: Path) -> History:
    try:
        return History.read(path)
    except (IndexError, OSError, ValueError) as error:
        raise InputError(f"report: {path} is not a history ({error}); run it anew or remove it") from None


def _settings(spec: dict[str, Any]) -> list[Setting]:
    common = {name: value for name, value in spec.items() if name not in ("title", "variant")}
    settings = [Setting(key, value, f"from {SPEC}") for key, value in flat(common).items()]
    for variant in spec.get("variant", []):
        own = {key: value for key, value in flat(variant).items() if key != "label"}
        changes = ", ".join(f"{key} = {value}" for key, value in own.items())
        settings.append(Setting(variant["label"], changes, f"a variant of {SPEC}"))
    return settings


def _seconds(history: History) -> float:
    return float(history["seconds"][-1]) if "seconds" in history and len(history) else 0.0


def _natural(path: Path) -> list[tuple[int, str]]:
    """Order by numbers as numbers: `fig2` before `fig10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
