"""Words, numbers and tables as they are shown at a prompt and in a notebook."""

import html
from collections.abc import Sequence
from typing import Any

NAMES = {"evaluations": "evaluations", "gradients": "gradients", "lower_rounds": "lower-level rounds",
         "lower_steps": "lower-level steps"}  # fmt: skip
AT_FEASIBLE = "loss at x_feasible"
WORSE = "the end is worse than the start"  # what a note about it begins with


def short(value: Any) -> str:
    """Return a number with as many digits as one reads, other values as they are."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def label(setting: dict[str, Any]) -> str:
    """Return the name of one setting of a sweep."""
    return ", ".join(f"{name} = {short(value)}" for name, value in setting.items()) or "all"


def together(notes: Sequence[Sequence[str]]) -> list[str]:
    """Return the notes of some runs: all of a single one; of several, how many have a note of a kind, and the first of those."""
    if len(notes) == 1:
        return list(notes[0])
    found: dict[str, list[str]] = {}
    for text in (text for texts in notes for text in texts):
        found.setdefault(text.partition(":")[0], []).append(text)
    return [f"{len(texts)} of {len(notes)} runs: {texts[0]}" for texts in found.values()]


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
