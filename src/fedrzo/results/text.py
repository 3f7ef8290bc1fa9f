"""Words, numbers and tables as they are shown at a prompt and in a notebook, means over seeds with their intervals among them."""

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

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


def confidence_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, low and high of the 95 % confidence interval of the mean over the leading axis (Student's t)."""
    mean, n = values.mean(axis=0), len(values)
    if n == 1:
        return mean, mean, mean
    half = special.stdtrit(n - 1, 0.975) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def mean_and_half(values: np.ndarray, digits: int = 6) -> str:
    """Return a mean and the half width of its 95 % interval, where there are several values."""
    if not np.all(np.isfinite(values)):
        return "diverged"
    mean, _, high = (float(edge) for edge in confidence_band(values))
    return f"{mean:.{digits}g}" + (f" ± {high - mean:.2g}" if len(values) > 1 else "")
