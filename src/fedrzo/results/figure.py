"""What a figure shows, before it is drawn: means, bands, costs in their units, colours. Papers and pages are drawn from it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedrzo.errors import InputError, nearest
from fedrzo.results.history import History
from fedrzo.results.text import AT_FEASIBLE, bytes_unit, confidence_band

# After Okabe and Ito, told apart with any colour vision; yellow and sky blue are darkened, so that each has a contrast of
# three to one on white. Seven colours and four styles repeat only after 28 curves.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#C46A9B", "#B07A00", "#2B93D1", "#000000")
DARK_COLOURS = ("#5BB0E8", "#F08A4B", "#2CC79A", "#E29CC4", "#E6B23C", "#9AD4F7", "#FFFFFF")  # the same, on black
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1, 1.3), (5, 1.5, 1, 1.5))  # on, off, ..., in widths of the line
COSTS = {
    "round": "communication rounds",
    "bytes": "upload + download",
    "evaluations": "loss evaluations (1 gradient = 3)",
    "seconds": "seconds",
}
SHOWN = ("round", "bytes", "evaluations")
COLUMNS = {  # that a cost is made of, and what each counts
    "bytes": {"upload_bytes": 1, "download_bytes": 1},
    "evaluations": {"evaluations": 1, "gradients": 3},
    "upper evaluations": {"evaluations": 1},  # without the gradients of a lower level
}
NAMES = {  # of metrics whose column says less
    "feasibility": "infeasibility (distance to sets)",
    "violation": "violation of coupling constraints",
    "loss_feasible": AT_FEASIBLE,
}
DISTANCES = ("feasibility", "violation", "lower_error", "adjoint_error")  # never below zero, hence neither are their bands
FEW = 3  # runs: the interval of two is thirteen times as wide as they are apart, and says nothing
DECADE = 10  # values that differ by less are read more easily on a linear axis
EXPLODED = 1000  # times as high as the median curve gets: a curve that gets there has left the picture
MANY = 6  # curves
INSTEAD = ("test_loss", "epsilon")  # what is drawn of runs whose losses nobody sees


@dataclasses.dataclass(frozen=True)
class Axis:
    """A cost, as it is written: `upload + download [MB]`."""

    cost: str
    label: str
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Curve:
    """The mean over the seeds of one setting, with its 95 % band, or with the runs themselves where they are few."""

    label: str  # its name
    colour: str  # on a white page
    dark_colour: str  # on a black one
    dash: tuple[float, ...]  # its style, one of `DASHES`
    seeds: int  # how many runs it is the mean of
    diverged: int  # how many of them are not finite at the end. The mean stops where the first of them does
    costs: dict[str, np.ndarray]  # for each axis, in its unit, the mean over the runs
    mean: np.ndarray  # of the metric; NaN where a run is not finite
    low: np.ndarray  # of the band; of few runs, the lowest
    high: np.ndarray  # of the band; of few runs, the highest
    runs: tuple[np.ndarray, ...] = ()  # the metric of each run, where they are several, but too few for a band

    @property
    def banded(self) -> bool:
        """Whether it has a band."""
        return self.seeds >= FEW

    @property
    def log_low(self) -> np.ndarray:
        """The band's lower edge for a logarithmic axis, which one that reaches zero would stretch without end."""
        return np.maximum(self.low, self.mean / 10)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A metric against its costs."""

    metric: str  # its name, as it is written
    log: bool  # whether the metric's axis starts out logarithmic
    positive: bool  # whether it can be
    axes: list[Axis]  # the costs
    curves: list[Curve]  # what is drawn
    limits: tuple[float, float] | None  # of the metric's axis, where some curves leave the picture; else None

    @property
    def log_span(self) -> tuple[float, float]:
        """The lowest and the highest value of a logarithmic axis, bands included."""
        low = np.concatenate([edge for curve in self.curves for edge in (curve.mean, curve.log_low)])
        high = np.concatenate([edge for curve in self.curves for edge in (curve.mean, curve.high)])
        return float(np.nanmin(low)), float(np.nanmax(high))

    @property
    def opacity(self) -> float:
        """Of the bands: many of them, one over another, are lighter."""
        return 0.2 if len(self.curves) <= MANY else 0.1


@dataclasses.dataclass(frozen=True)
class Surface:
    """z over a grid: z[i][j] at (x[j], y[i])."""

    title: str
    x: list[float]
    y: list[float]
    z: list[list[float]]
    labels: tuple[str, str, str]
    caption: str = ""


def _all_have(groups: Mapping[str, Sequence[History]], column: str) -> bool:
    return all(column in history for histories in groups.values() for history in histories)


def prepare(
    groups: Mapping[str, Sequence[History]],
    metric: str = "loss",
    against: Sequence[str] = SHOWN,
    log: bool = True,
    rows: int | None = None,
) -> Picture:
    """Prepare what `fz.plots.curves` draws; of longer histories keep only so many rows, evenly spaced, both ends among them."""
    _check(groups, against)
    if metric == "loss" and not _all_have(groups, "loss"):  # of private records nobody sees it
        metric = next((name for name in INSTEAD if _all_have(groups, name)), metric)
    values = {label: _stack(label, histories, metric) for label, histories in groups.items()}
    costs = {
        label: {cost: np.mean([spent(history, cost) for history in histories], axis=0) for cost in against}
        for label, histories in groups.items()
    }
    axes, factors = [], {}
    for cost in against:
        largest = max(float(np.nanmax(costs[label][cost], initial=0.0)) for label in groups)
        factors[cost], unit = bytes_unit(largest) if cost == "bytes" else (1.0, "")
        axes.append(Axis(cost, COSTS[cost] + (f" [{unit}]" if unit else ""), unit))
    curves = []
    for i, (label, table) in enumerate(values.items()):
        kept = paid = _kept(table.shape[1], rows)
        if all(
            history.searched for history in groups[label]
        ):  # x0 was all there was until the search had ended: a step, not a slope
            kept, paid = np.insert(kept, 1, 0), np.insert(kept, 1, 1)
        mean, low, high = (edge[kept] for edge in _band(table, metric))
        scaled = {cost: costs[label][cost][paid] / factors[cost] for cost in against}
        look = COLOURS[i % len(COLOURS)], DARK_COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
        diverged = int((~np.isfinite(table[:, -1])).sum())
        runs = tuple(np.where(np.isfinite(mean), table[:, kept], np.nan)) if 1 < len(table) < FEW else ()
        curves.append(Curve(label, *look, len(table), diverged, scaled, mean, low, high, runs))
    finite = np.concatenate([curve.mean[np.isfinite(curve.mean)] for curve in curves])
    positive = bool(finite.size and np.all(finite > 0))
    limits = _limits(curves, positive)
    log = log and positive and bool(min(limits[1] if limits else np.inf, finite.max()) >= DECADE * finite.min())
    return Picture(NAMES.get(metric, metric.replace("_", " ")), log, positive, axes, curves, limits)


def known_costs(groups: Mapping[str, Sequence[History]]) -> list[str]:
    """Return those costs, of the three usually shown, that every history has."""
    histories = [history for runs in groups.values() for history in runs]
    return [cost for cost in SHOWN if all(set(COLUMNS.get(cost, {cost: 1})) <= set(history) for history in histories)]


def spent(history: History, cost: str) -> np.ndarray:
    """Return a cumulative cost of a run: rounds, bytes both ways, evaluations with a gradient worth three, or seconds."""
    return np.sum([count * history[name] for name, count in COLUMNS.get(cost, {cost: 1}).items()], axis=0)


def _check(groups: Mapping[str, Sequence[History]], against: Sequence[str]) -> None:
    if not groups or not all(groups.values()):
        raise InputError(f"groups: found {dict(groups)!r}; pass at least one history for each label")
    if isinstance(against, str) or not against:
        raise InputError(f"against: found {against!r}; pass a list such as ['round', 'bytes']")
    for cost in against:
        if cost not in COSTS:
            raise InputError(f"against: found {cost!r}{nearest(cost, COSTS)}")


def _stack(label: str, histories: Sequence[History], metric: str) -> np.ndarray:
    lengths = [len(history) for history in histories]
    if len(set(lengths)) > 1:
        raise InputError(f"groups: the histories of {label!r} have {lengths} rows; pass runs of equal length")
    if not lengths[0]:
        raise InputError(f"groups: the histories of {label!r} are empty; pass runs of at least one row")
    return np.array([history[metric] for history in histories], float)


def _band(values: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean and its band; a run that is infinite has no mean, and neither have numbers too large to be squared."""
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.where(np.isfinite(values), values, np.nan)
        few = len(values) < FEW
        edges = (finite.mean(axis=0), finite.min(axis=0), finite.max(axis=0)) if few else confidence_band(finite)
    mean, low, high = (np.where(np.isfinite(edges[0]) & np.isfinite(edge), edge, np.nan) for edge in edges)
    return mean, np.maximum(low, 0) if metric in DISTANCES else low, high


def _limits(curves: Sequence[Curve], positive: bool) -> tuple[float, float] | None:
    """Return an axis for the curves that stay: those that explode would press all others into one line."""
    tops = [(curve, float(curve.mean[np.isfinite(curve.mean)].max())) for curve in curves if np.isfinite(curve.mean).any()]
    roof = EXPLODED * float(np.median([top for _, top in tops])) if tops and positive else math.inf
    staying = [curve for curve, top in tops if not curve.diverged and top <= roof]
    if not staying or len(staying) == len(curves):
        return None
    low = min(float(np.nanmin([*(curve.log_low if positive else curve.low), *curve.mean])) for curve in staying)
    high = max(float(np.nanmax([*curve.high, *curve.mean])) for curve in staying)
    room = 0.05 * (high - low)
    return (low / 1.1, high * 1.1) if positive else (low - room, high + room)


def _kept(length: int, rows: int | None) -> np.ndarray:
    if rows is None or length <= rows:
        return np.arange(length)
    return np.linspace(0, length - 1, rows).round().astype(int)
