"""Figures for papers: a metric against what it cost. They use no pyplot, hence no window, no back-end and no global state."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrzo.results.figure import SHOWN, Picture, Surface, prepare
from fedrzo.results.history import History
from fedrzo.results.text import bytes_unit
from fedrzo.support.extras import require
from fedrzo.support.files import write_file

__all__ = ["bytes_unit", "curves", "draw", "encode", "save", "surface"]

PANEL = (3.4, 2.7)  # inches; three of them fill a page's width, turned
WIDTH = 1.6  # of a line, in points
MANY_DECADES = 1e4  # a larger ratio of values is labelled by powers of ten alone
TICKS = 12  # of a logarithmic axis, at most
COLOUR_MAP = "viridis"  # its lightness grows with the value, so it survives any colour vision and black-and-white print


def curves(
    groups: Mapping[str, Sequence[History]], metric: str = "loss", against: Sequence[str] = SHOWN, log: bool = True
) -> Any:
    """Draw a metric against its costs, one panel per cost.

    Args:
        groups: for each label, the histories of its seeds. They are drawn as their mean with its 95 % band; two, too few for
            a band, as their mean and, thinner, themselves.
        metric: the column to draw.
        against: any of `round`, `bytes`, `evaluations` and `seconds`.
        log: draw the metric on a logarithmic axis, provided that all its values are positive and span a factor of ten.

    Returns:
        A matplotlib figure.
    """
    return draw(prepare(groups, metric, against, log))


def draw(picture: Picture, panel: tuple[float, float] = PANEL) -> Any:
    """Draw what was prepared, one panel of that size in inches per cost; returns a matplotlib figure."""
    figures = require("matplotlib.figure", "plots")
    labels = [curve.label for curve in picture.curves]
    width = panel[0] * len(picture.axes)
    columns = _columns(labels, width)
    height = panel[1] + 0.2 + 0.2 * math.ceil(len(labels) / columns)
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1)  # inches, so that tick labels of neighbours do not touch
    panels = figure.subplots(1, len(picture.axes), sharey=True, squeeze=False)[0]
    for i, axes in enumerate(panels):
        _draw(axes, picture, i)
    _scale_metric(panels[0], picture)
    panels[0].set_ylabel(picture.metric + ", log scale" * picture.log, parse_math=False)
    means = panels[0].lines[: len(labels)]
    legend = figure.legend(means, [""] * len(labels), loc="outside upper center", ncols=columns, frameon=False)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        # Set here, labels are taken as they are: neither hidden for a leading underscore nor read as mathematics.
        text.set(text=label, parse_math=False)
    return figure


def surface(shape: Surface, panel: tuple[float, float] = PANEL) -> Any:
    """Draw a surface, and beside it the same as a map of colours; returns a matplotlib figure."""
    figures = require("matplotlib.figure", "plots")
    figure = figures.Figure(figsize=(2.6 * panel[0], 1.1 * panel[1]), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.2)
    solid, flat = figure.add_subplot(1, 2, 1, projection="3d"), figure.add_subplot(1, 2, 2)
    z = np.array(shape.z, float)
    solid.plot_surface(*np.meshgrid(shape.x, shape.y), z, cmap=COLOUR_MAP, rcount=60, ccount=60, linewidth=0)
    solid.set_zlabel(shape.labels[2], parse_math=False)
    colours = flat.pcolormesh(shape.x, shape.y, z, cmap=COLOUR_MAP, shading="nearest", rasterized=True)
    figure.colorbar(colours, ax=flat).set_label(shape.labels[2], parse_math=False)
    for axes in (solid, flat):
        axes.set_xlabel(shape.labels[0], parse_math=False)
        axes.set_ylabel(shape.labels[1], parse_math=False)
    return figure


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as `path.png` and `path.svg`; equal figures give equal files."""
    for suffix in ("png", "svg"):
        write_file(Path(f"{path}.{suffix}"), encode(figure, suffix))


def encode(figure: Any, suffix: str) -> bytes:
    """Return a figure as the content of a `png` or an `svg` file; equal figures give equal bytes."""
    matplotlib = require("matplotlib", "plots")
    options: dict[str, Any] = {"dpi": 200} if suffix == "png" else {"metadata": {"Date": None}}
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedrzo"}):
        figure.savefig(buffer, format=suffix, **options)
    return buffer.getvalue()


def _draw(panel: Any, picture: Picture, i: int) -> None:
    axis = picture.axes[i]
    for curve in picture.curves:
        x, style = curve.costs[axis.cost], (0, curve.dash) if curve.dash else "-"
        panel.plot(x, curve.mean, color=curve.colour, linestyle=style, linewidth=WIDTH)
        if curve.banded:
            low = curve.log_low if picture.log else curve.low
            panel.fill_between(x, low, curve.high, color=curve.colour, alpha=picture.opacity, linewidth=0)
    for curve in picture.curves:  # after all means, whose lines the legend takes
        for run in curve.runs:
            panel.plot(curve.costs[axis.cost], run, color=curve.colour, linewidth=WIDTH / 3)
    # Start at zero, with few ticks, written short: 200k rather than 200000.
    ticker, whole = require("matplotlib.ticker", "plots"), axis.cost in ("round", "evaluations")
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(ticker.MaxNLocator(5, steps=(1, 2, 2.5, 5, 10), integer=whole))
    if axis.cost == "evaluations":
        panel.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    panel.set_xlabel(axis.label)
    panel.grid(visible=True, color="0.88", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _scale_metric(panel: Any, picture: Picture) -> None:
    """On a logarithmic axis, label 1, 2 and 5, or only powers of ten where there are many; both ends of it have a label."""
    if picture.limits:
        panel.set_ylim(picture.limits)
    if not picture.log:
        return
    ticker = require("matplotlib.ticker", "plots")
    panel.set_yscale("log")
    low, high = picture.limits or picture.log_span
    many = high > MANY_DECADES * low
    steps = (1,) if many else (1, 2, 5)
    panel.set_ylim(_tick_below(low / 1.02, steps), 1 / _tick_below(1 / (high * 1.02), [10 / step for step in steps]))
    panel.yaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=TICKS))
    if not many:
        panel.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    panel.yaxis.set_minor_formatter(ticker.NullFormatter())


def _tick_below(value: float, steps: Sequence[float]) -> float:
    """Return the largest step times a power of ten that is no larger."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(tick for step in steps for tick in (step * power, step * power / 10) if tick <= value)


def _columns(labels: Sequence[str], width: float) -> int:
    """Return how many labels fit side by side above so many inches of panels."""
    longest = 0.75 + 0.085 * max(map(len, labels))  # inches: a sample of the line, then letters of the default size
    return max(1, min(len(labels), int(width / longest)))
