"""The figure of `benchmarks/mpec.py`: seconds against the size of a game for each solver, with the gaps that are left."""

from __future__ import annotations

from typing import Any

from fedrzo.support.extras import require

NEAR = 1e-3  # the gap that counts as solved
LOOKS = {"fedrzo": ("C0", "o", "fz.solve"), "ipopt": ("C1", "s", "IPOPT, relaxed"), "mpecss": ("C2", "^", "mpecss")}


def figure(found: dict[str, Any]) -> Any:
    """Draw the games in the order of their sizes; hollow marks are of solvers that did not come within 1e-3."""
    drawn = require("matplotlib.figure", "plots").Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = drawn.subplots()
    games = list(dict.fromkeys(row["problem"] for row in found["rows"] if row["problem"][0].isdigit()))
    for solver, (colour, mark, label) in LOOKS.items():
        rows = [row for row in found["rows"] if row["solver"] == solver and row["problem"] in games and row["seconds"]]
        if not rows:
            continue
        at, seconds = [games.index(row["problem"]) for row in rows], [row["seconds"] for row in rows]
        axes.plot(at, seconds, colour, linewidth=1, alpha=0.6)
        for x, y, row in zip(at, seconds, rows, strict=True):
            axes.plot(x, y, colour, marker=mark, markersize=7, markerfacecolor=colour if solved(row) else "white")
            above = y == max(other["seconds"] or 0 for other in found["rows"] if other["problem"] == row["problem"])
            axes.annotate(
                said(row), (x, y), (0, 8 if above else -14), textcoords="offset points", ha="center", color=colour, fontsize=7
            )
        axes.plot([], [], colour, marker=mark, label=label)
    axes.plot([], [], "0.4", marker="o", markerfacecolor="white", linestyle="", label="hollow: not within 1e-3")
    axes.set_yscale("log")
    names = ["{:,} x {:,}".format(*map(int, name.split("x"))) for name in games]
    axes.set_xticks(range(len(games)), names, fontsize=8)
    axes.set(xlabel="followers x scenarios", ylabel="seconds, compilation included", xlim=(-0.5, len(games) - 0.5))
    axes.margins(y=0.15)
    axes.grid(visible=True, axis="y", color="0.88", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return drawn


def solved(row: dict[str, Any]) -> bool:
    """Tell whether a solver came near the optimum, be it that it was stopped later."""
    return row.get("gap") is not None and bool(row["gap"] <= NEAR)


def said(row: dict[str, Any]) -> str:
    """Return what is written at a mark: the gap, or that there was no answer."""
    if row.get("gap") is None:
        return "out of memory" if "memory" in row["why"] else "no answer"
    return f"{max(row['gap'], 0.0):.0e}" if row["gap"] > 1e-9 else "< 1e-9"
