"""What commands print on standard output: a small table, or one JSON object."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrzo.experiments import Outcome
    from fedrzo.experiments.record import Record


def report(title: str, outcomes: list[Outcome], seeds: int | None, as_json: bool) -> None:
    """Print the outcomes of some tasks.

    As JSON, a single task gives `{"history": {column: [...]}}`, several give `{"variants": [{"label", "history"}, ...]}`;
    with seeds, `history` is a list of such histories.
    """
    if not as_json:
        print_table(title, outcomes)
        return
    entries = [{"label": outcome.label, "history": _histories(outcome, seeds)} for outcome in outcomes]
    print_json({"variants": entries} if len(entries) > 1 else {"history": entries[0]["history"]})


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on one line; what JSON cannot hold, the infinities and NaN of a diverged run, becomes null."""
    print(json.dumps(_finite(content), allow_nan=False))


def print_table(title: str, outcomes: list[Outcome]) -> None:
    """Print one row per task: the loss at the end, and what it cost."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("")
    for name in ("loss", "rounds", "up + down", "evaluations", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        table.add_row(outcome.label, *_cells(outcome))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def print_records(records: list[Record]) -> None:
    """Print the tables of some reproductions, then the verdict on each claim."""
    from fedrzo.experiments.claims import summary

    for record in records:
        for table in record.tables:
            print_rows(f"{record.name}: {table.title}", table.rows)
        if record.claims:
            print_rows(f"{record.name}: {record.title}", summary(record.claims))


def print_rows(title: str, rows: list[list[str]]) -> None:
    """Print a table whose first row holds the names of its columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for i, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if i else "left", no_wrap=i > 0)
    for row in rows[1:]:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _histories(outcome: Outcome, seeds: int | None) -> Any:
    histories = [result.history.to_dict() for result in outcome.results]
    return histories[0] if seeds is None else histories


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _cells(outcome: Outcome) -> list[str]:
    import numpy as np

    from fedrzo.plots import bytes_unit
    from fedrzo.results import confidence_band

    rows = [result.history.last for result in outcome.results]
    mean, low, high = confidence_band(np.array([row["loss"] for row in rows]))
    half = f" ± {(high - low) / 2:.2g}" if len(rows) > 1 else ""
    average = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    traffic = average["upload_bytes"] + average["download_bytes"]
    factor, unit = bytes_unit(traffic)
    return [
        f"{mean:.5g}{half}",
        f"{average['round']:.0f}",
        f"{traffic / factor:.4g} {unit}",
        f"{average['evaluations']:,.0f}",
        f"{average['seconds']:.1f}",
    ]
