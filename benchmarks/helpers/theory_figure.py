"""The figure of `benchmarks/theory.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrzo.support.extras import require

PANEL = (3.4, 2.7)  # inches


def figure(found: dict[str, Any]) -> Any:
    """Draw measured against bound, consensus within a round, and iterations against m and n with the stated slopes."""
    figures, ticker = require("matplotlib.figure", "plots"), require("matplotlib.ticker", "plots")
    drawn = figures.Figure(figsize=(4 * PANEL[0], PANEL[1] + 0.3), layout="constrained")
    panels = drawn.subplots(1, 4)
    for i, name in enumerate(dict.fromkeys(row["problem"] for row in found["bound"])):
        rows = [row for row in found["bound"] if row["problem"] == name]
        x = [row["iterations"] for row in rows]
        panels[0].plot(x, [row["bound"] for row in rows], f"C{i}--", label=f"{name}: bound")
        panels[0].plot(x, [row["measured"] for row in rows], f"C{i}o-", label=f"{name}: measured")
        row = next(row for row in found["consensus"] if row["problem"] == name)
        steps = range(1, row["local_steps"])
        panels[1].plot(steps, row["bound"], f"C{i}--", label=f"{name}: Lemma 9")
        panels[1].plot(steps, row["measured"], f"C{i}o-", label=f"{name}: measured")
    for panel, name, stated in ((panels[2], "clients", -1.0), (panels[3], "dimension", 1.5)):
        at, reached = np.array(found[name]["at"], float), np.array(found[name]["iterations"], float)
        panel.plot(at, reached, "C0o-", label=interval(found[name]))
        panel.plot(at, reached[0] * (at / at[0]) ** stated, "0.5", linestyle="--", label=f"slope {stated:g}")
        panel.set_xscale("log")
        panel.set_xticks(at, [f"{value:g}" for value in at])
        panel.xaxis.set_minor_locator(ticker.NullLocator())
    titles = (
        ("iterations K", "E||grad||^2"), ("local step", "consensus error"), ("clients m", "iterations to the target"),
        ("dimension n", "iterations to the target"),
    )  # fmt: skip
    for panel, (x_label, y_label) in zip(panels, titles, strict=True):
        panel.set(xlabel=x_label, ylabel=y_label, yscale="log")
        panel.legend(frameon=False, fontsize=6)
        panel.grid(visible=True, color="0.88", linewidth=0.6)
    panels[0].set_xscale("log")
    return drawn


def interval(fit: dict[str, Any]) -> str:
    """Return a slope with its interval, in words."""
    return f"slope {_round(fit['slope'])} [{_round(fit['low'])}, {_round(fit['high'])}]"


def _round(value: float) -> str:
    return f"{value + 0.0:.3g}" if abs(value) > 1e-6 else "0"
