"""What a folder holds: records, comparisons, and runs without a record; and what of it no page can show."""

from pathlib import Path
from typing import NamedTuple

from fedrzo.errors import InputError
from fedrzo.paper.record import FILE, Record
from fedrzo.paper.report import bare, compared
from fedrzo.paper.report.bare import HISTORY, natural
from fedrzo.running.checkpoint import NAME


class Found(NamedTuple):
    """What a page shows, by folder, `fig2` before `fig10`; and a line for each thing that it does not."""

    records: dict[Path, Record]
    left_out: list[str]


def find(folder: Path) -> Found:
    """Look in a folder, and in the folders of it. One that has a record or a comparison is shown as that only."""
    if not folder.is_dir():
        raise InputError(f"report: there is no folder {folder}; make one with fedrzo reproduce --out {folder}")
    left_out: list[str] = []
    homes = (folder, *_parts(folder))
    records = {home: record for home in homes if (record := _finished(home)) is not None}
    if folder not in records:
        records |= _bare(folder, [part for part in homes[1:] if part not in records], left_out)
    if not records:
        reasons = "; ".join(left_out)
        raise InputError(
            f"report: {folder} holds neither {FILE} nor {HISTORY}; make them with fedrzo reproduce --out {folder}"
            + (f" (left out: {reasons})" if reasons else "")
        )
    return Found({home: records[home] for home in homes if home in records}, left_out)


def _bare(folder: Path, parts: list[Path], left_out: list[str]) -> dict[Path, Record]:
    """Return a record of the runs right in a folder, and one of those in each part of it; a line says what is neither."""
    alone = bare.is_run(folder)
    homes = {folder: [folder] if alone else [part for part in parts if bare.is_run(part)]}
    for part in [] if alone else [part for part in parts if part not in homes[folder]]:
        homes[part] = [run for run in _parts(part) if bare.is_run(run)]
        if not homes[part]:
            left_out.append(f"{part}: {_why_not(part)}")
    found = {home: bare.runs(inside, left_out) for home, inside in homes.items()}
    return {home: bare.record(home, runs) for home, runs in found.items() if runs}


def _finished(home: Path) -> Record | None:
    """Return the record of a folder that has one, or a comparison."""
    if (home / FILE).is_file():
        return Record.load(home)
    return compared.record(home) if compared.is_comparison(home) else None


def _parts(folder: Path) -> list[Path]:
    return sorted((part for part in folder.iterdir() if part.is_dir()), key=natural)


def _why_not(part: Path) -> str:
    """Return why nothing of a folder is shown."""
    marks = {FILE: 2, compared.NUMBERS: 2, HISTORY: 3}  # levels from a finished file up to the folder to pass
    below = [path for name in marks for path in part.rglob(name)]
    if below:
        first = min(below, key=lambda path: (len(path.parts), path))
        home = first.parents[marks[first.name] - 1]
        return f"its results lie further down; use fedrzo report {home if part in home.parents else part}"
    if kept := len(list(part.rglob(NAME))):
        return f"it was interrupted before its record was written ({kept} of its parts are stored); the same command goes on"
    return f"it holds no {FILE}, {HISTORY}, {compared.NUMBERS} or {NAME}"
