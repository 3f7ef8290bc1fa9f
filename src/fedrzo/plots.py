"""Figures: a metric against what it cost. They use no pyplot, hence no window, no back-end and no global state."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrzo.errors import InputError, nearest
from fedrzo.extras import require
from fedrzo.files import write_file
from fedrzo.results import History, confidence_band

# Okabe and Ito's palette, told apart with any colour vision; seven colours and four styles repeat only after 28 curves.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (5, 1.5, 1, 1.5)))
COSTS = {
    "round": "communication rounds",
    "bytes": "upload + download",
    "evaluations": "loss evaluations (1 gradient = 3)",
    "seconds": "seconds",
}
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
PANEL = (3.4, 2.7)  # inches; three of them fill a page's width, turned


def curves(
    groups: Mapping[str, Sequence[History]],
    metric: str = "loss",
    against: Sequence[str] = ("round", "bytes", "evaluations"),
    log: bool = True,
) -> Any:
    """Draw a metric against its costs, one panel per cost.

    Args:
        groups: for each label, the histories of its seeds; several are drawn as their mean and its 95 % band.
        metric: the column to draw.
        against: any of `round`, `bytes`, `evaluations` and `seconds`.
        log: draw the metric on a logarithmic axis, provided that all its values are positive.

    Returns:
        A matplotlib figure.
    """
    _check(groups, against)
    figures = require("matplotlib.figure", "plots")
    figure = figures.Figure(figsize=(PANEL[0] * len(against), PANEL[1] + 0.4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1)  # inches, so that tick labels of neighbours do not touch
    panels = figure.subplots(1, len(against), sharey=True, squeeze=False)[0]
    bands = {label: confidence_band(_stack(label, histories, metric)) for label, histories in groups.items()}
    log = log and all(np.all(mean[np.isfinite(mean)] > 0) for mean, _, _ in bands.values())
    for panel, cost in zip(panels, against, strict=True):
        _draw(panel, groups, bands, cost, log)
    _scale_metric(panels[0], bands, log)
    panels[0].set_ylabel(metric.replace("_", " "))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=_columns(labels, len(against)), frameon=False)
    return figure


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as `path.png` and `path.svg`; equal figures give equal files."""
    matplotlib = require("matplotlib", "plots")
    for suffix, options in (("png", {"dpi": 200}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "fedrzo"}):
            figure.savefig(buffer, format=suffix, **options)
        write_file(Path(f"{path}.{suffix}"), buffer.getvalue())


def bytes_unit(largest: float) -> tuple[float, str]:
    """Return the factor and the name of the unit in which a number of bytes is read most easily."""
    power = 0 if largest < 1 else min(int(math.log10(largest) // 3), len(BYTE_UNITS) - 1)
    return 1000.0**power, BYTE_UNITS[power]


def _check(groups: Mapping[str, Sequence[History]], against: Sequence[str]) -> None:
    if not groups or not all(groups.values()):
        raise InputError(f"groups: found {dict(groups)!r}; pass at least one history for each label")
    if isinstance(against, str) or not against:
        raise InputError(f"against: found {against!r}; pass a list such as ['round', 'bytes']")
    for cost in against:
        if cost not in COSTS:
            raise InputError(f"against: found {cost!r}{nearest(cost, COSTS)}")


def _stack(label: str, histories: Sequence[History], metric: str) -> np.ndarray:
    if len({len(history) for history in histories}) > 1:
        lengths = [len(history) for history in histories]
        raise InputError(f"groups: the histories of {label!r} have {lengths} rows; pass runs of equal length")
    return np.array([history[metric] for history in histories], float)


def _cost(history: History, cost: str) -> np.ndarray:
    if cost == "bytes":
        return history["upload_bytes"] + history["download_bytes"]
    if cost == "evaluations":
        return history["evaluations"] + 3 * history["gradients"]
    return history[cost]


def _draw(panel: Any, groups: Mapping[str, Sequence[History]], bands: Mapping[str, Any], cost: str, log: bool) -> None:
    costs = {label: np.mean([_cost(h, cost) for h in histories], axis=0) for label, histories in groups.items()}
    factor, unit = bytes_unit(max(c[-1] for c in costs.values())) if cost == "bytes" else (1.0, "")
    for i, (label, (mean, low, high)) in enumerate(bands.items()):
        colour, x = COLOURS[i % len(COLOURS)], costs[label] / factor
        panel.plot(x, mean, color=colour, linestyle=STYLES[i % len(STYLES)], linewidth=1.6, label=label)
        if len(groups[label]) > 1:
            # On a logarithmic axis a band that reaches zero would stretch it without end.
            floor = mean / 10 if log else low
            panel.fill_between(x, np.maximum(low, floor), high, color=colour, alpha=0.2, linewidth=0)
    _scale_cost(panel, cost)
    panel.set_xlabel(COSTS[cost] + (f" [{unit}]" if unit else ""))
    panel.grid(visible=True, color="0.88", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _scale_cost(panel: Any, cost: str) -> None:
    """Start at zero, with few ticks, written short: 200k rather than 200000."""
    ticker = require("matplotlib.ticker", "plots")
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(
        ticker.MaxNLocator(5, steps=(1, 2, 2.5, 5, 10), integer=cost in ("round", "evaluations"))
    )
    if cost == "evaluations":
        panel.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))


def _scale_metric(panel: Any, bands: Mapping[str, Any], log: bool) -> None:
    if not log:
        return
    ticker = require("matplotlib.ticker", "plots")
    values = np.concatenate([mean[np.isfinite(mean)] for mean, _, _ in bands.values()])
    panel.set_yscale("log")
    if values.size and values.max() < 30 * values.min():  # too few powers of ten for labels: label 2 and 5 too, or more
        steps = (1, 2, 5) if values.max() > 5 * values.min() else range(1, 10)
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=steps))
        panel.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        panel.yaxis.set_minor_formatter(ticker.NullFormatter())


def _columns(labels: Sequence[str], panels: int) -> int:
    """Return how many labels fit side by side above the panels."""
    room = 26 * panels  # characters, at the default font size
    return max(1, min(len(labels), room // (max(map(len, labels)) + 7)))
