"""Records in words and rows: what the page's template fills in. Nothing here is markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedrzo.errors import InputError
from fedrzo.paper.record import FILE, Claim, Curves, Record, Setting, Table
from fedrzo.paper.report import embed
from fedrzo.paper.report.find import Found
from fedrzo.results.figure import Axis, Curve, Picture, Surface
from fedrzo.running.health import ALIKE
from fedrzo.running.spec import slug

VERDICTS = {True: "hold", False: "fail", None: "open"}
WORDS = {"hold": "holds", "fail": "does not hold", "open": "cannot tell"}


def page(found: list[Found], claims: dict[str, int], checks: dict[str, int]) -> dict[str, Any]:
    """Return all that the page says."""
    records = [_record(item, anchor) for item, anchor in zip(found, _anchors(found), strict=True)]
    names = [item.record.name for item in found]
    figures = sum(len(item.record.figures) for item in found)
    tables = sum(len(item.record.tables) for item in found)
    return {
        "title": f"fedrzo report: {', '.join(names)}",
        "lead": f"{count(figures, 'figure')} and {count(tables, 'table')} from {count(len(found), 'experiment')}.",
        "claims_line": all_verdicts(claims, checks),
        "lists": [
            {
                "title": title,
                "own": own,
                "verdicts": [{"kind": kind, "words": WORDS[kind], "count": n} for kind, n in verdicts.items()],
            }
            for title, own, verdicts in (("The paper's claims", False, claims), ("Our own checks", True, checks))
            if sum(verdicts.values())
        ],
        "quick": [item.record.name for item in found if item.record.quick],
        "records": records,
        "environments": _environments(found),
    }


def count(number: int, noun: str) -> str:
    """Return `1 figure`, `2 figures`, `no figures`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def all_verdicts(claims: dict[str, int], checks: dict[str, int]) -> str:
    """Return how the paper's claims and our own questions fared."""
    told = (verdict_counts(claims, "claim"), verdict_counts(checks, "further check"))
    return " ".join(filter(None, told)) or "Nothing is claimed."


def verdict_counts(verdicts: dict[str, int], noun: str) -> str:
    """Return how some claims fared, in one sentence; nothing where there are none."""
    total = sum(verdicts.values())
    if not total:
        return ""
    hold, fail, unclear = (verdicts[kind] for kind in ("hold", "fail", "open"))
    told = f"{hold} {'holds' if hold == 1 else 'hold'}, {fail} {'does' if fail == 1 else 'do'} not hold"
    rest = f", {unclear} cannot be told from these runs" if unclear else ""
    return f"Of {count(total, noun)}, {told}{rest}."


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
        said += [f"{word} is {_extreme(surface, values, place)}." for word, place in _PLACES.items()]
    return " ".join(said)


_PLACES: dict[str, Any] = {"Lowest": np.nanargmin, "Highest": np.nanargmax}


def _extreme(surface: Surface, values: np.ndarray, place: Any) -> str:
    i, j = np.unravel_index(place(np.where(np.isfinite(values), values, np.nan)), values.shape)
    where = f"{surface.labels[0]} = {number(surface.x[j])}, {surface.labels[1]} = {number(surface.y[i])}"
    return f"{number(float(values[i, j]))} at {where}"


def _anchors(found: list[Found]) -> list[str]:
    """Return a name for each record's place in the page, no two alike."""
    anchors: list[str] = []
    for item in found:
        base = name = f"r-{slug(item.record.name)}"
        while name in anchors:
            name = f"{base}-{sum(anchor.startswith(base) for anchor in anchors) + 1}"
        anchors.append(name)
    return anchors


def _record(item: Found, anchor: str) -> dict[str, Any]:
    record = item.record
    try:
        figures = [_figure(figure, f"{anchor}-figure-{i + 1}") for i, figure in enumerate(record.figures)]
        tables = [_table(table, f"{anchor}-table-{i + 1}") for i, table in enumerate(record.tables)]
        claims = [_claim(claim) for claim in record.claims]
    except (IndexError, TypeError, ValueError) as error:  # InputError is a ValueError
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"report: {item.home / FILE} cannot be shown ({reason})") from None
    return {
        "anchor": anchor,
        "name": record.name,
        "title": record.title,
        "command": record.command,
        "facts": _facts(record),
        "figures": figures,
        "tables": tables,
        "claims": claims,
        "settings": [_setting(setting) for setting in record.settings],
        "quick": record.quick,
        "notes": record.notes,
    }


def _facts(record: Record) -> list[tuple[str, str]]:
    """Return how it was run, as names and values."""
    seeds = ", ".join(map(str, record.seeds))
    facts = [
        ("seeds", f"{seeds} ({len(record.seeds)})" if len(record.seeds) > 3 else seeds),
        ("took", duration(record.seconds)),
        ("version", "quick: fewer rounds or seeds than the full one" if record.quick else "full"),
    ]
    return [(name, value) for name, value in facts if value]


def duration(seconds: float) -> str:
    """Return a time to read: `42 s`, `3 min 5 s`, `2 h 10 min`."""
    if not math.isfinite(seconds) or seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _figure(figure: Curves | Surface, anchor: str) -> dict[str, Any]:
    common = {"anchor": anchor, "title": figure.title, "caption": figure.caption}
    if isinstance(figure, Surface):
        embed.check(figure)
        return common | {
            "kind": "surface",
            "says": describe_surface(figure),
            "image": embed.surface_image(figure),
            "data": embed.to_json(embed.surface_data(figure)),
            "values": _surface_values(figure),
        }
    shown = embed.picture(figure)
    return common | {
        "kind": "curves",
        "metric": shown.metric,
        "says": describe_curves(shown, figure.title),
        "image": embed.curves_image(shown),
        "data": embed.to_json(embed.curves_data(shown)),
        "values": _curve_values(shown),
        "axes": [(axis.cost, embed.BUTTONS[axis.cost]) for axis in shown.axes],
        "log": shown.log,
        "positive": shown.positive,
        "legend": [_legend(curve) for curve in shown.curves],
    }


def _legend(curve: Curve) -> dict[str, Any]:
    dash = " ".join(f"{2 * length:g}" for length in curve.dash)
    return {"label": curve.label, "colour": curve.colour, "dark": curve.dark_colour, "dash": dash}


def _curve_values(shown: Picture) -> list[list[str]]:
    """Return the table that stands in for curves: the start and the end of each, and what it cost."""
    costs = [f"{embed.BUTTONS[axis.cost]}{f' [{axis.unit}]' if axis.unit else ''}" for axis in shown.axes]
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


def _table(table: Table, anchor: str) -> dict[str, Any]:
    rows = [[str(cell) for cell in row] for row in table.rows]
    if not rows or len({len(row) for row in rows}) > 1:
        lengths = [len(row) for row in rows]
        raise InputError(f"table {table.title!r} has rows of {lengths} cells; make it anew")
    return {"anchor": anchor, "title": table.title, "caption": table.caption, "rows": rows}


def _claim(claim: Claim) -> dict[str, Any]:
    kind = VERDICTS[claim.holds]
    interval = ""
    if claim.low is not None and claim.high is not None:
        interval = f"{number(claim.low, 3)} to {number(claim.high, 3)}"
    said = {"text": claim.text, "measured": claim.measured, "note": claim.note, "own": claim.own}
    value = number(claim.value) if math.isfinite(claim.value) else "none"
    return said | {"value": value, "interval": interval, "kind": kind, "words": WORDS[kind]}


def _setting(setting: Setting) -> dict[str, str]:
    value = setting.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ", ".join(map(str, value))
    return {"name": setting.name, "value": str(value), "reason": setting.reason}


def _environments(found: list[Found]) -> dict[str, Any]:
    """Return versions and machine, one column for each environment that differs from the others."""
    columns: list[tuple[list[str], dict[str, str]]] = []
    for item in found:
        names = next((names for names, known in columns if known == item.record.environment), None)
        if names is None:
            columns.append(([item.record.name], item.record.environment))
        else:
            names.append(item.record.name)
    keys = list(dict.fromkeys(key for _, known in columns for key in known))
    heads = [", ".join(names) for names, _ in columns] if len(columns) > 1 else ["all experiments"]
    cells = [[key, *(str(known.get(key, "not recorded")) for _, known in columns)] for key in keys]
    return {"rows": [["", *heads], *cells] if keys else []}
