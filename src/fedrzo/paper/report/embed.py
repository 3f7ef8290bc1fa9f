"""Figures as data that a page can hold: JSON for the interactive drawing, an image for print and for pages without scripts."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from fedrzo.errors import InputError
from fedrzo.paper.record import Curves
from fedrzo.results import plots
from fedrzo.results.figure import Picture, Surface, known_costs, prepare

ROWS = 1000  # of a curve; a screen shows no more
PANEL = (3.0, 2.4)  # inches; smaller than in a paper, so that on a printed page the letters stay large enough
BUTTONS = {"round": "rounds", "bytes": "bytes", "evaluations": "evaluations"}


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


def surface_data(surface: Surface) -> dict[str, Any]:
    """Return what the page draws a surface from."""
    grid = {name: numbers(getattr(surface, name)) for name in ("x", "y")}
    return {"kind": "surface", **grid, "z": [numbers(row) for row in surface.z], "labels": list(surface.labels)}


def to_json(data: dict[str, Any]) -> str:
    """Return JSON that may stand inside a script element: nothing in it can end the element or start another."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def numbers(values: Any) -> list[float | None]:
    """Return numbers of six digits; what is not finite becomes null, at which a line is interrupted."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def curves_image(shown: Picture) -> str:
    """Return curves as the address of an image that the page itself contains."""
    return _address(plots.encode(plots.draw(shown, PANEL), "svg"), "svg+xml")


def surface_image(surface: Surface) -> str:
    """Return a surface as such an address."""
    return _address(plots.encode(plots.surface(surface, PANEL), "png"), "png")


def _address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
