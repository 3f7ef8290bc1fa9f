"""How results look at a prompt and in a notebook: text for `repr`, tables for `_repr_html_`."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrzo.results import History, Result, Sweep

NAMES = {"evaluations": "evaluations", "gradients": "gradients", "lower_rounds": "lower-level rounds",
         "lower_steps": "lower-level steps"}  # fmt: skip
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
    """Return the loss that each setting ended with."""
    rows = _ends(sweep)
    width = max(len(name) for name, _ in rows)
    title = f"Sweep of {len(sweep.settings)} settings with {len(sweep.results[0])} seeds each; loss at the end:"
    return "\n".join([title, *(f"  {name:{width}}  {loss}" for name, loss in rows)])


def sweep_html(sweep: Sweep) -> str:
    """Return the same as a table."""
    return table(["setting", f"loss at the end, {len(sweep.results[0])} seeds"], _ends(sweep))


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
    facts |= {name: short(value) for name, value in last.items() if name not in (*COLUMNS, "loss")}
    sent = [
        f"{last[name] / (unit := bytes_unit(last[name]))[0]:.4g} {unit[1]}"
        for name in ("upload_bytes", "download_bytes")
    ]
    counts = [f"{last[name]:,} {word}" for name, word in NAMES.items() if last[name]]
    facts["cost"] = ", ".join([f"{sent[0]} up, {sent[1]} down", *counts])
    compiling = f", {result.compile_seconds:.3g} of them compiling" if result.compile_seconds else ""
    return {**facts, "seconds": f"{last['seconds']:.3g}{compiling}"}


def _ends(sweep: Sweep) -> list[list[str]]:
    rows = []
    for i, setting in enumerate(sweep.settings):
        mean, _, high = (float(values[-1]) for values in sweep.band(i, "loss"))
        half = f" ± {high - mean:.2g}" if len(sweep.results[i]) > 1 else ""
        rows.append([label(setting), f"{short(mean)}{half}" if math.isfinite(mean) else "diverged"])
    rows[sweep.best()][1] += "  (best)" * (len(rows) > 1)
    return rows
