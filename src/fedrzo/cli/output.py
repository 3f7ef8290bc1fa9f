"""What commands print on standard output: a small table, or one JSON object."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from fedrzo.paper.record import Record
    from fedrzo.results.result import Result

LONG = 32  # characters of a cell that may be wrapped


def report(title: str, outcomes: dict[str, list[Result]], seeds: int | None, as_json: bool) -> None:
    """Print the results of some tasks, by label: a row for each, with the loss at the end and what it cost.

    As JSON, a single task gives `{"history": {column: [...]}, "stopped"}`, several give `{"variants": [{"label", "history",
    "stopped"}, ...]}`; with seeds, `history` and `stopped` are lists, with an entry for each.
    """
    notes = _notes(outcomes)
    if not as_json:
        columns = _columns([result for results in outcomes.values() for result in results])
        rows = [[label, *(_cell(results, name) for name in columns)] for label, results in outcomes.items()]
        print_rows(title, [["", *columns.values()], *rows])
        _print_certificates(outcomes)
        for line in [*_stopped(outcomes), *notes]:
            print(line)
        return
    print(*notes, sep="\n", end="\n" * bool(notes), file=sys.stderr)
    entries = []
    for label, results in outcomes.items():
        told: dict[str, list[Any]] = {"history": [result.history.to_dict() for result in results]}
        told["stopped"] = [result.stopped for result in results]
        entries.append({"label": label, **{name: values[0] if seeds is None else values for name, values in told.items()}})
    print_json({"variants": entries} if len(entries) > 1 else {name: entries[0][name] for name in ("history", "stopped")})


def show(as_json: bool, content: dict[str, Any], text: object) -> None:
    """Print what a command found: as JSON, or in words."""
    if as_json:
        print_json(content)
    else:
        print(text)


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on one line; what JSON cannot hold, the infinities and NaN of a diverged run, becomes null."""
    print(json.dumps(_finite(content), allow_nan=False))


def print_records(records: list[Record]) -> None:
    """Print the tables of some reproductions, then the verdict on each claim."""
    from fedrzo.paper.claims import summary

    for record in records:
        for table in record.tables:
            print_rows(f"{record.name}: {table.title}", table.rows)
        if record.claims:
            print_rows(f"{record.name}: {record.title}", summary(record.claims))


def print_rows(title: str, rows: list[list[str]]) -> None:
    """Print a table whose first row holds the names of its columns. Long cells are wrapped at spaces, nothing is cut."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=None if sys.stdout.isatty() else 140)
    unbounded = console.options.update(width=10_000)
    table = _table(title, rows)
    if Measurement.get(console, unbounded, table).maximum > console.width:
        bodies = zip(*rows[1:], strict=True)
        heads = [_wrapped(head, max(map(len, cells))) for head, cells in zip(rows[0], bodies, strict=True)]
        table = _table(title, [heads, *rows[1:]])
        console.width = max(console.width, Measurement.get(console, unbounded, table).minimum)
    console.print(table)


def _table(title: str, rows: list[list[str]]) -> Table:
    """Return a table whose columns wrap if they hold long cells, but not within a word."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for i, (head, *cells) in enumerate(zip(*rows, strict=True)):
        wraps = any(len(cell) > LONG for cell in cells)
        parts = [part for cell in (head, *cells) for part in (cell.split() if wraps else cell.split("\n"))]
        table.add_column(head, justify="right" if i else "left", no_wrap=not wraps, min_width=max(map(len, parts), default=0))
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _wrapped(head: str, width: int) -> str:
    """Return a heading with lines as long as the cells below it, or as its longest word."""
    width = max(width, *(len(word) for word in head.split() or [""]), 1)
    return "\n".join(part for line in head.split("\n") for part in textwrap.wrap(line, width) or [""])


def _notes(outcomes: dict[str, list[Result]]) -> list[str]:
    """Return what the results say about their ends, one line each."""
    from fedrzo.results.text import together

    notes = {label: together([result.remarks for result in results]) for label, results in outcomes.items()}
    return [f"{f'{label}: ' * (len(outcomes) > 1)}{text}" for label, texts in notes.items() for text in texts]


def _stopped(outcomes: dict[str, list[Result]]) -> list[str]:
    """Return why the runs ended: one line where all of them have the same reason."""
    said = dict.fromkeys((label, f"stopped: {result.stopped}") for label, results in outcomes.items() for result in results)
    several = len({text for _, text in said}) > 1
    return list(dict.fromkeys(f"{f'{label}: ' * several}{text}" for label, text in said))


def _print_certificates(outcomes: dict[str, list[Result]]) -> None:
    """Print the certificates of each run that made any."""
    from fedrzo.results.bounds import rows

    for label, result in ((label, result) for label, results in outcomes.items() for result in results):
        if found := rows(result.history, result.spec):
            print_rows("certificates" + f" of {label}" * (len(outcomes) > 1), found)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _columns(results: list[Result]) -> dict[str, str]:
    """Return what a table shows of some results, and its headings: what is zero for all of them is left out."""
    from fedrzo.results.result import constrained
    from fedrzo.results.text import AT_FEASIBLE, NAMES

    columns = {name: name for name in ("loss", "epsilon") if all(name in result.history for result in results)}
    if constrained(results):
        columns["feasibility"] = "feasibility"
        if all(result.loss_feasible is not None for result in results):
            columns["loss_feasible"] = AT_FEASIBLE
    columns |= {"round": "rounds", "bytes": "up + down", "evaluations": "evaluations"}
    columns |= {name: shown for name, shown in NAMES.items() if any(result.history[name][-1] for result in results)}
    columns["seconds"] = "seconds"
    return {name: "\n".join(shown.rsplit(" ", len(shown) > 12)) for name, shown in columns.items()}


def _cell(results: list[Result], name: str) -> str:
    """Return what the seeds of a task ended with in one column."""
    import numpy as np

    from fedrzo.results.text import mean_and_half, size

    def end(result: Result) -> float:
        last = result.history.last
        known = {"bytes": last["upload_bytes"] + last["download_bytes"], "loss_feasible": result.loss_feasible}
        return float(known[name] if name in known else last[name])  # type: ignore[arg-type]

    ends = np.array([end(result) for result in results])
    if name in ("loss", "loss_feasible", "epsilon"):
        return mean_and_half(ends, 5)
    mean = float(ends.mean())
    if name == "bytes":
        return size(mean)
    return {"feasibility": f"{mean:.3g}", "seconds": f"{mean:.1f}"}.get(name, f"{mean:,.0f}")
