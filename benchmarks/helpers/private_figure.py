"""The figure of `benchmarks/privacy.py`: accuracy against epsilon, a panel for each choice of settings."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrzo.results.figure import COLOURS
from fedrzo.support.extras import require
from helpers.private_contestants import CLIPPED, NOISY, PLAIN, SILENT

MARKS = "os^Dvp"
ENDS = {NOISY: PLAIN, SILENT: CLIPPED}  # what the lines of a panel lead to, where there is no noise
NAMES = {PLAIN: "none", CLIPPED: "none,\nclipped"}


def figure(found: dict[str, Any]) -> Any:
    """Draw the means over the keys, with all runs as dots; epsilons are as far apart as one another."""
    drawn = require("matplotlib.figure", "plots").Figure(figsize=(7.6, 4.0), layout="constrained")
    methods = list(dict.fromkeys(row["method"] for row in found["rows"]))
    for axes, (tuned, end) in zip(drawn.subplots(1, 2), ENDS.items(), strict=True):
        levels = [*found["epsilons"], end]
        for i, method in enumerate(methods):
            runs = [values(found, method, level, tuned) for level in levels]
            at = [k for k, own in enumerate(runs) if len(own)]
            colour = COLOURS[i % len(COLOURS)]
            means = [np.mean(runs[k]) for k in at]
            axes.plot(at, means, color=colour, marker=MARKS[i % len(MARKS)], markersize=5, linewidth=1.4, label=method)
            for k in at:
                axes.plot([k] * len(runs[k]), runs[k], ".", color=colour, markersize=3, alpha=0.6)
        axes.set_xticks(range(len(levels)), [NAMES[level] if isinstance(level, str) else f"{level:g}" for level in levels])
        axes.set_title(f"step sizes and clips chosen {tuned}", fontsize=9)
        axes.set_xlabel(f"epsilon of each record (delta = {found['delta']:g})")
        axes.grid(visible=True, axis="y", color="0.88", linewidth=0.6)
    drawn.axes[0].set_ylabel("test accuracy [%]")
    drawn.axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    return drawn


def values(found: dict[str, Any], method: str, level: Any, tuned: str) -> np.ndarray:
    """Return the accuracies of all runs of a case, in per cent; what is plain has settings of its own."""
    return np.array([
        100 * row["accuracy"]
        for row in found["rows"]
        if (row["method"], row["level"]) == (method, level) and (level == PLAIN or row["tuned"] == tuned)
    ])  # fmt: skip
