"""Words, numbers and tables as they are shown at a prompt and in a notebook, means over seeds with their intervals among them."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

NAMES = {"evaluations": "evaluations", "gradients": "gradients", "lower_rounds": "lower-level rounds",
         "lower_steps": "lower-level steps"}  # fmt: skip
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
ROUNDING = 8 * float(np.finfo(np.float64).eps)  # of a mean over equal values, relative to it
AT_FEASIBLE = "loss at x_feasible"
WORSE = "the end is worse than the start"  # what a note about it begins with


def short(value: Any) -> str:
    """Return a number with as many digits as one reads, other values as they are."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def bytes_unit(largest: float) -> tuple[float, str]:
    """Return the factor and the name of the unit in which a number of bytes is read most easily."""
    power = 0 if largest < 1 else min(int(math.log10(largest) // 3), len(BYTE_UNITS) - 1)
    return 1000.0**power, BYTE_UNITS[power]


def size(count: float) -> str:
    """Return a number of bytes in a unit that is read easily."""
    factor, unit = bytes_unit(count)
    return f"{count / factor:.4g} {unit}"


def costs(spent: Mapping[str, Any]) -> str:
    """Return what was spent, by the names of a history's columns, in one line."""
    counts = [f"{spent[name]:,} {word}" for name, word in NAMES.items() if spent[name]]
    return ", ".join([f"{size(spent['upload_bytes'])} up, {size(spent['download_bytes'])} down", *counts])


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


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with columns below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]  # none of no rows
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in lines]


def elided(rows: Sequence[Sequence[str]], edge: int = 5) -> list[list[str]]:
    """Return rows to read: of many, some at either end."""
    shown = [list(row) for row in rows]
    return [*shown[:edge], ["..."] * len(shown[0]), *shown[-edge:]] if len(shown) > 2 * edge else shown


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
    half = scipy.special.stdtrit(n - 1, 0.975) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def mean_and_half(values: np.ndarray, digits: int = 6) -> str:
    """Return a mean and the half width of its 95 % interval, where there are several values."""
    if not np.all(np.isfinite(values)):
        return "diverged"
    mean, _, high = (float(edge) for edge in confidence_band(values))
    return f"{mean:.{digits}g}{spread(mean, high - mean)}"


def spread(mean: float, half: float, digits: int = 2) -> str:
    """Return the half width of a mean's interval as it stands behind the mean; nothing if it is only rounding of the mean."""
    return f" ± {half:.{digits}g}" if half > ROUNDING * abs(mean) else ""
