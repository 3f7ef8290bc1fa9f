"""The figure of `benchmarks/privacy.py`: accuracy against epsilon, a line for each method."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrzo.results.figure import COLOURS, DASHES
from fedrzo.support.extras import require
from helpers.private_contestants import CLIPPED, PLAIN

MARKS = "os^Dvp"
NAMES = {CLIPPED: "clipped,\nno noise", PLAIN: "plain"}


def figure(found: dict[str, Any]) -> Any:
    """Draw the means over the seeds, with all runs as dots; epsilons are as far apart as one another."""
    drawn = require("matplotlib.figure", "plots").Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = drawn.subplots()
    levels = [*found["epsilons"], CLIPPED, PLAIN]
    for i, name in enumerate(dict.fromkeys(row["method"] for row in found["rows"])):
        runs = [[row["accuracy"] for row in found["rows"] if (row["method"], row["level"]) == (name, level)] for level in levels]
        at = [k for k, values in enumerate(runs) if values]
        means = [100 * np.mean(runs[k]) for k in at]
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKS[i % len(MARKS)]}
        axes.plot(at, means, label=name, dashes=DASHES[i // 3 % len(DASHES)] or (None, None), markersize=6, linewidth=1.4, **look)
        for k in at:
            axes.plot([k] * len(runs[k]), 100 * np.array(runs[k]), ".", color=look["color"], markersize=3, alpha=0.6)
    axes.set_xticks(range(len(levels)), [NAMES[level] if isinstance(level, str) else f"{level:g}" for level in levels])
    axes.set(xlabel="epsilon (delta = 1e-5) of each record", ylabel="test accuracy [%]", xlim=(-0.3, len(levels) - 0.7))
    axes.grid(visible=True, axis="y", color="0.88", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return drawn
