"""The figure of `benchmarks/solve.py`: the share of the problems that each solver has solved after so many seconds."""

from __future__ import annotations

from typing import Any

from fedrzo.support.extras import require

LOOKS = {
    "fedrzo": ("C0", "-", "fz.solve, fz.minimize"), "ipopt": ("C1", "-", "IPOPT, relaxed"), "slsqp": ("C2", "--", "SLSQP"),
    "lbfgsb": ("C3", "--", "L-BFGS-B"), "cma": ("C4", ":", "CMA-ES"),
}  # fmt: skip


def figure(found: dict[str, Any]) -> Any:
    """Draw a curve for each solver: all problems on the left, those that were held out on the right."""
    drawn = require("matplotlib.figure", "plots").Figure(figsize=(9.0, 4.0), layout="constrained")
    parts = drawn.subplots(1, 2, sharey=True)
    for axes, title, rows in zip(
        parts, ("all problems", "held out"), (found["rows"], [row for row in found["rows"] if row["held_out"]]), strict=True
    ):
        count = max(1, len({row["problem"] for row in rows}))
        for solver, (colour, line, label) in LOOKS.items():
            own = [row for row in rows if row["solver"] == solver]
            if not own:
                continue
            times = sorted(row["solved_after"] for row in own if row["solved_after"] is not None)
            steps = [0.01, *times, found["seconds"] * 2]
            shares = [0.0, *((i + 1) / count for i in range(len(times))), len(times) / count]
            asked = sum(row["applies"] for row in own)
            axes.step(steps, shares, colour, where="post", linestyle=line, label=f"{label} ({len(times)} of {asked})")
        axes.set_xscale("log")
        axes.set(
            xlabel="seconds, compilation included", title=f"{title}: {count}", xlim=(0.02, found["seconds"] * 2), ylim=(0, 1.02)
        )
        axes.grid(visible=True, color="0.88", linewidth=0.6)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8, loc="upper left")
    parts[0].set_ylabel("share of the problems solved")
    return drawn
