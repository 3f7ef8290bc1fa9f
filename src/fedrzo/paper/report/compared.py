"""Comparisons of methods: what `fedrzo compare --out` leaves in a folder."""

import csv
import json
from pathlib import Path
from typing import Any

from fedrzo.errors import InputError
from fedrzo.paper.record import Curves, Record, Setting, Table
from fedrzo.paper.report.bare import natural, read_history, seconds
from fedrzo.running.spec import slug

NUMBERS, ROWS = "table.json", "table.csv"


def is_comparison(home: Path) -> bool:
    """Tell whether a folder holds a comparison."""
    return (home / NUMBERS).is_file() and (home / ROWS).is_file()


def record(home: Path) -> Record:
    """Return a record of a comparison: its table, its curves, and what was equal for all methods."""
    try:
        return _record(home, json.loads((home / NUMBERS).read_text()))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = f"not a whole comparison ({type(error).__name__}: {error})"
        raise InputError(f"report: {home / NUMBERS} is {reason}; make it anew with fedrzo compare --out") from None


def _record(home: Path, found: dict[str, Any]) -> Record:
    seeds, budget, column = found["seeds"], found["budget"], found["column"]
    groups = {}
    for name in (entry["name"] for entry in found["methods"]):
        paths = sorted((home / slug(name)).glob("seed-*.csv"), key=natural)
        if len(paths) != len(seeds):
            raise InputError(
                f"report: {home / slug(name)} has {len(paths)} runs of {len(seeds)}; make it anew with fedrzo compare --out"
            )
        groups[name] = [read_history(path) for path in paths]
    with (home / ROWS).open(newline="") as file:
        head, *rows = list(csv.reader(file))
    remarked = any(row[-1] for row in rows)
    table = [[*head[:-1], "remarks"], *rows] if remarked else [row[:-1] for row in (head, *rows)]
    settings = [
        Setting("evaluations", f"{budget['evaluations']:,.0f}", "the first budget; a gradient counts as three"),
        Setting("bytes", f"{budget['bytes']:,.0f}", "the second: what the methods' median sends meanwhile"),
        Setting("local_steps", found["local_steps"], "the same for all methods"),
        Setting("batch_size", found["batch_size"], "the same for all methods"),
        *(Setting(entry["name"], entry["method"], "its stepsize is the best of a grid") for entry in found["methods"]),
    ]
    options = f"--seed {seeds[0]} --seeds {len(seeds)} --budget {budget['evaluations']:.0f}"
    curves = Curves("Loss against its costs", groups, column, caption="Each method with its best stepsize.")
    return Record(
        home.resolve().name, f"Methods compared on {found['problem']}", f"fedrzo compare {found['problem']} {options}", settings,
        [curves], [Table("At equal cost, best first", table)], claims=[], seeds=seeds,
        seconds=sum(max(map(seconds, histories)) for histories in groups.values()), quick=False, environment={},
        notes=list(found.get("remarks", [found["note"]])),
    )  # fmt: skip
