"""Figures as a page can hold them: JSON to draw from, an image for print and for pages without scripts, words and a table."""

import base64
import json
import math
from typing import Any

import numpy as np

from fedrzo.errors import InputError
from fedrzo.paper.record import Curves
from fedrzo.results import plots
from fedrzo.results.figure import Axis, Curve, Picture, Surface, known_costs, prepare
from fedrzo.running.health import ALIKE

ROWS = 1000  # of a curve; a screen shows no more
PANEL = (3.0, 2.4)  # inches; smaller than in a paper, so that on a printed page the letters stay large enough
BUTTONS = {"round": "rounds", "bytes": "bytes", "evaluations": "evaluations"}


def shown(figure: Curves | Surface, anchor: str) -> dict[str, Any]:
    """Return what the page shows of a figure: data and an image to draw, and words and a table that stand in for them."""
    common = {"anchor": anchor, "title": figure.title, "caption": figure.caption}
    if isinstance(figure, Surface):
        check(figure)
        data = {"x": numbers(figure.x), "y": numbers(figure.y), "z": [numbers(row) for row in figure.z]}
        return common | {
            "kind": "surface",
            "says": describe_surface(figure),
            "image": _image(plots.surface(figure, PANEL), "png"),
            "data": to_json({"kind": "surface", **data, "labels": list(figure.labels)}),
            "values": _surface_values(figure),
        }
    drawn = picture(figure)
    return common | {
        "kind": "curves",
        "metric": drawn.metric,
        "says": describe_curves(drawn, figure.title),
        "image": _image(plots.draw(drawn, PANEL), "svg"),
        "data": to_json(curves_data(drawn)),
        "values": _curve_values(drawn),
        "axes": [(axis.cost, BUTTONS[axis.cost]) for axis in drawn.axes],
        "log": drawn.log,
        "positive": drawn.positive,
        "legend": [(curve, " ".join(f"{2 * length:g}" for length in curve.dash)) for curve in drawn.curves],
    }


def picture(curves: Curves) -> Picture:
    """Prepare curves against those costs that all their histories have."""
    costs = known_costs(curves.groups)
    if not costs:
        raise InputError(f"{curves.title!r} has histories without rounds, bytes and evaluations; make them anew")
    return prepare(curves.groups, curves.metric, costs, curves.log, rows=ROWS)


def check(surface: Surface) -> None:
    """Refuse a surface whose grid and values do not fit."""
    shape, rows = (len(surface.y), len(surface.x)), [len(row) for row in surface.z]
    if min(shape) < 2 or rows != [shape[1]] * shape[0]:
        found = f"{len(rows)} rows of {sorted(set(rows))}"
        raise InputError(f"{surface.title!r} has {found} values on a grid of {shape[0]} x {shape[1]}; make it anew")


def curves_data(shown: Picture) -> dict[str, Any]:
    """Return what the page draws curves from."""
    curves = []
    for curve in shown.curves:
        look = {"label": curve.label, "colours": [curve.colour, curve.dark_colour], "dash": list(curve.dash)}
        costs = {cost: numbers(values) for cost, values in curve.costs.items()}
        entry = {**look, "costs": costs, "mean": numbers(curve.mean)}
        if curve.runs:
            entry["runs"] = [numbers(run) for run in curve.runs]
        if curve.banded:
            entry |= {"low": numbers(curve.low), "high": numbers(curve.high), "logLow": numbers(curve.log_low)}
        curves.append(entry)
    axes = {axis.cost: {"label": axis.label, "unit": axis.unit} for axis in shown.axes}
    said = {"metric": shown.metric, "log": shown.log, "limits": shown.limits and numbers(shown.limits)}
    return {"kind": "curves", "opacity": shown.opacity, **said, "axes": axes, "curves": curves}


def to_json(data: dict[str, Any]) -> str:
    """Return JSON that may stand inside a script element: nothing in it can end the element or start another."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def numbers(values: Any) -> list[float | None]:
    """Return numbers of six digits; what is not finite becomes null, at which a line is interrupted."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def _image(figure: Any, suffix: str) -> str:
    """Return a matplotlib figure as the address of an image that the page itself contains."""
    kind, content = {"svg": "svg+xml"}.get(suffix, suffix), plots.encode(figure, suffix)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def count(number: int, noun: str) -> str:
    """Return `1 figure`, `2 figures`, `no figures`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def number(value: float, digits: int = 4) -> str:
    """Return a number to read."""
    return f"{value:.{digits}g}" if math.isfinite(value) else "not finite"


def describe_curves(shown: Picture, title: str) -> str:
    """Return what curves show, in a few sentences, for those who do not see them."""
    against = " and ".join(axis.label for axis in shown.axes[-2:])
    against = ", ".join([*(axis.label for axis in shown.axes[:-2]), against])
    said = [f"{title}: {shown.metric} of {count(len(shown.curves), 'curve')} against {against}."]
    ends = {curve.label: float(curve.mean[-1]) for curve in shown.curves if np.isfinite(curve.mean[-1])}
    if ends:
        lowest, highest = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
        said.append(f"Lowest at the end is {lowest} with {number(ends[lowest])}")
        said[-1] += f", highest is {highest} with {number(ends[highest])}." if len(ends) > 1 else "."
    lost = [curve.label for curve in shown.curves if curve.diverged]
    if lost:
        said.append(f"Runs diverged in {', '.join(lost)}; the mean ends where the first of them does.")
    return " ".join(said)


def describe_surface(surface: Surface) -> str:
    """Return what a surface shows, in a few sentences."""
    x, y, z = surface.labels
    values = np.array(surface.z, float)
    said = [
        f"{surface.title}: {z} over {x} from {number(min(surface.x))} to {number(max(surface.x))}",
        f"and {y} from {number(min(surface.y))} to {number(max(surface.y))}.",
    ]
    if np.isfinite(values).any():
        for word, place in (("Lowest", np.nanargmin), ("Highest", np.nanargmax)):
            i, j = np.unravel_index(place(np.where(np.isfinite(values), values, np.nan)), values.shape)
            where = f"{x} = {number(surface.x[j])}, {y} = {number(surface.y[i])}"
            said.append(f"{word} is {number(float(values[i, j]))} at {where}.")
    return " ".join(said)


def _curve_values(shown: Picture) -> list[list[str]]:
    """Return the table that stands in for curves: the start and the end of each, and what it cost."""
    costs = [f"{BUTTONS[axis.cost]}{f' [{axis.unit}]' if axis.unit else ''}" for axis in shown.axes]
    rows = [["curve", f"{shown.metric} at the start", "at the end", "95 % interval", "seeds", *costs]]
    for curve in shown.curves:
        end = [number(curve.mean[-1]), _interval(curve) if np.isfinite(curve.mean[-1]) else "none"]
        if shown.metric == "loss" and curve.mean[-1] > curve.mean[0] + ALIKE * abs(curve.mean[0]):
            end[0] += " (worse than the start)"
        if curve.diverged:
            end[0] = f"diverged ({curve.diverged} of {curve.seeds})"
        spent = [_spent(curve, axis) for axis in shown.axes]
        rows.append([curve.label, number(curve.mean[0]), *end, str(curve.seeds), *spent])
    return rows


def _interval(curve: Curve) -> str:
    if curve.banded:
        return f"{number(curve.low[-1], 3)} to {number(curve.high[-1], 3)}"
    return f"runs: {', '.join(number(run[-1], 3) for run in curve.runs)}" if curve.runs else "one run"


def _spent(curve: Curve, axis: Axis) -> str:
    value = float(curve.costs[axis.cost][-1])
    return number(value) if axis.unit or not math.isfinite(value) else f"{value:,.0f}"


def _surface_values(surface: Surface) -> list[list[str]]:
    """Return a coarse table of a surface: up to seven of its rows and columns."""
    down, across = (np.unique(np.linspace(0, n - 1, 7).round().astype(int)) for n in (len(surface.y), len(surface.x)))
    corner = f"{surface.labels[2]}: {surface.labels[1]} down, {surface.labels[0]} across"
    rows = [[corner, *(number(surface.x[j], 3) for j in across)]]
    return rows + [[number(surface.y[i], 3), *(number(surface.z[i][j], 3) for j in across)] for i in down]
