"""How results look at a prompt and in a notebook: text for `repr`, tables for `_repr_html_`."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedrzo.results import History, Result, Sweep

NAMES = {"evaluations": "evaluations", "gradients": "gradients", "lower_rounds": "lower-level rounds",
         "lower_steps": "lower-level steps"}  # fmt: skip
AT_FEASIBLE = "loss at x_feasible"
WORSE = "the end is worse than the start"  # what a note about it begins with
EDGE = 5  # rows of a long history that are shown at either end


def short(value: Any) -> str:
    """Return a number with as many digits as one reads, other values as they are."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def label(setting: dict[str, Any]) -> str:
    """Return the name of one setting of a sweep."""
    return ", ".join(f"{name} = {short(value)}" for name, value in setting.items()) or "all"


def result_text(result: Result) -> str:
    """Return what a result says of itself."""
    facts = _facts(result)
    width = max(map(len, facts))
    return "\n".join(
        [f"Result of {result.spec.get('method', 'a run')}", *(f"  {k:{width}}  {v}" for k, v in facts.items())]
    )


def result_html(result: Result) -> str:
    """Return the same as a table."""
    rows = [["method", str(result.spec.get("method", ""))], *([name, text] for name, text in _facts(result).items())]
    return table(["Result", ""], rows)


def history_html(history: History) -> str:
    """Return the first and the last rows as a table."""
    rows = [[short(value) for value in row] for row in zip(*history.to_dict().values(), strict=True)]
    if len(rows) > 2 * EDGE:
        rows = [*rows[:EDGE], ["..." for _ in history], *rows[-EDGE:]]
    return table(list(history), rows)


def sweep_text(sweep: Sweep) -> str:
    """Return the loss that each setting ended with, and how far outside the sets it ended, where there are some."""
    names, rows = _ends(sweep)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    title = f"Sweep of {len(rows)} settings with {len(sweep.results[0])} seeds each; {' and '.join(names)} at the end:"
    return "\n".join([title, *(f"  {line.rstrip()}" for line in lines)])


def sweep_html(sweep: Sweep) -> str:
    """Return the same as a table."""
    (loss, *others), rows = _ends(sweep)
    return table(["setting", f"{loss} at the end, {len(sweep.results[0])} seeds", *others], rows)


def constrained(results: Sequence[Result]) -> bool:
    """Tell whether there are sets that x may lie outside of; of a result that was loaded, whether it ever did."""
    return any(
        bool(np.any(result.history["feasibility"] > 0)) if result.problem is None else not result.problem.sets.free
        for result in results
        if "feasibility" in result.history
    )


def together(notes: Sequence[Sequence[str]]) -> list[str]:
    """Return the notes of some runs: all of a single one; of several, how many have a note of a kind, and the first of those."""
    if len(notes) == 1:
        return list(notes[0])
    found: dict[str, list[str]] = {}
    for text in (text for texts in notes for text in texts):
        found.setdefault(text.partition(":")[0], []).append(text)
    return [f"{len(texts)} of {len(notes)} runs: {texts[0]}" for texts in found.values()]


def mean_and_half(values: np.ndarray, digits: int = 6) -> str:
    """Return a mean and the half width of its 95 % interval, where there are several values."""
    from fedrzo.results import confidence_band

    if not np.all(np.isfinite(values)):
        return "diverged"
    mean, _, high = (float(edge) for edge in confidence_band(values))
    return f"{mean:.{digits}g}" + (f" ± {high - mean:.2g}" if len(values) > 1 else "")


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _facts(result: Result) -> dict[str, str]:
    from fedrzo.picture import bytes_unit
    from fedrzo.results import COLUMNS

    facts = {"problem": str(result.spec["problem"])} if "problem" in result.spec else {}
    if len(result.history) == 0:
        return {**facts, "history": "empty"}
    last = result.history.last
    if "loss" in last:
        first = short(float(result.history["loss"][0]))
        facts["loss"] = f"{short(last['loss'])} after {last['round']} rounds, {first} at the start"
    if result.loss_feasible is not None and constrained([result]):
        facts[AT_FEASIBLE] = short(result.loss_feasible)
    facts |= {name: short(value) for name, value in last.items() if name not in (*COLUMNS, "loss")}
    sent = [
        f"{last[name] / (unit := bytes_unit(last[name]))[0]:.4g} {unit[1]}"
        for name in ("upload_bytes", "download_bytes")
    ]
    counts = [f"{last[name]:,} {word}" for name, word in NAMES.items() if last[name]]
    facts["cost"] = ", ".join([f"{sent[0]} up, {sent[1]} down", *counts])
    compiling = f", {result.compile_seconds:.3g} of them compiling" if result.compile_seconds else ""
    facts["seconds"] = f"{last['seconds']:.3g}{compiling}"
    return facts | ({"note": "; ".join(result.notes)} if result.notes else {})


def _ends(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """Return what is shown of each setting's end, and a row for each: its name, then those."""
    several, results = range(len(sweep.settings)), [result for group in sweep.results for result in group]
    rows = [[label(sweep.settings[i]), mean_and_half(sweep.ends(i))] for i in several]
    names = ["loss"]
    if constrained(results):
        names = ["loss" if any(result.loss_feasible is None for result in results) else AT_FEASIBLE, "feasibility"]
        rows = [[*rows[i], f"{sweep.ends(i, 'feasibility').mean():.3g}"] for i in several]
    for row, group in zip(rows, sweep.results, strict=True):
        if worse := sum(note.startswith(WORSE) for result in group for note in result.notes):
            row[-1] += f"  ({worse} of {len(group)} worse than the start)"
    rows[sweep.best()][-1] += "  (best)" * (len(rows) > 1)
    return names, rows
