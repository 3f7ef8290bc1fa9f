"""The figure of `benchmarks/privacy.py`: accuracy against epsilon, a line for each method."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrzo.results.figure import COLOURS
from fedrzo.support.extras import require
from helpers.private_contestants import CLIPPED, NOISY, PLAIN, SILENT

MARKS = "os^Dvp"
ENDS = {NOISY: PLAIN, SILENT: CLIPPED}  # what a line leads to, where there is no noise


def figure(found: dict[str, Any]) -> Any:
    """Draw the means over the keys, with all runs as dots; epsilons are as far apart as one another."""
    drawn = require("matplotlib.figure", "plots").Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = drawn.subplots()
    for i, method in enumerate(dict.fromkeys(row["method"] for row in found["rows"])):
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKS[i % len(MARKS)]}
        axes.plot([], [], label=method, **look)
        for tuned, end in ENDS.items():
            runs = [values(found, method, level, tuned) for level in (*found["epsilons"], end)]
            at = [k for k, own in enumerate(runs) if len(own)]
            style = "-" if tuned == NOISY else ":"
            axes.plot(at, [np.mean(runs[k]) for k in at], style, markersize=5, linewidth=1.4, **look)
            for k in at:
                axes.plot([k] * len(runs[k]), runs[k], ".", color=look["color"], markersize=3, alpha=0.6)
    axes.plot([], [], "-", color="0.4", label="settings chosen at epsilon = 2; none: no clip")
    axes.plot([], [], ":", color="0.4", label="settings chosen without noise; none: clipped")
    axes.set_xticks(range(len(found["epsilons"]) + 1), [*(f"{level:g}" for level in found["epsilons"]), "none"])
    axes.set(xlabel=f"epsilon of each record (delta = {found['delta']:g})", ylabel="test accuracy [%]")
    axes.grid(visible=True, axis="y", color="0.88", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return drawn


def values(found: dict[str, Any], method: str, level: Any, tuned: str) -> np.ndarray:
    """Return the accuracies of all runs of a case, in per cent; what is plain has settings of its own."""
    return np.array([
        100 * row["accuracy"]
        for row in found["rows"]
        if (row["method"], row["level"]) == (method, level) and (level == PLAIN or row["tuned"] == tuned)
    ])  # fmt: skip
