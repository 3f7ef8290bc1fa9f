"""What a certificate says, in numbers and in words."""

import dataclasses
import math
from typing import Any

from fedrzo.federation.protocol import Cost
from fedrzo.results import text


@dataclasses.dataclass(frozen=True)
class LowerQuality:
    """How well the lower level was solved, at x and at points around it.

    Attributes:
        residual: of the lower level's optimality conditions; the worst scenario's of any client for `TwoStage`.
        error: the bound on ||y - y(x)|| that follows from it and the modulus; likewise the worst scenario's.
        slope: L, the largest slope of a client's loss in y that was met at x and near it; None for a black box.
        effect: how far that error can move the gradient: n/eta times L times the error. None for a black box.
        share: the effect as a part of the width of the norm's interval; all of it at most.
    """

    residual: float
    error: float
    slope: float | None
    effect: float | None
    share: float | None


@dataclasses.dataclass(frozen=True, repr=False)
class Certificate:
    """What a point is worth: how nearly stationary it is for the smoothed problem, and how far from the clients' sets.

    The gradient is that of the paper's bold f: the smoothed mean loss plus the mean of dist(x, X_i)^2 / (2 eta),
    or over twice `moreau` where one was given.

    Attributes:
        smoothing: eta.
        confidence: of both intervals.
        squared_norm: an unbiased estimate of the squared norm of the gradient; below zero where the norm is small.
        interval: of the squared norm, not cut at zero.
        norm: the square root of the estimate, 0 where that is below zero.
        norm_interval: of the norm; its upper end is never below what the sample can resolve.
        directions: behind the interval.
        drawn: in all, pilots included.
        width: asked for, or None.
        narrow: whether the interval is as narrow as asked; None if nothing was asked.
        distances: from x to each client's set.
        distance: from x to the intersection of the sets; None if it was not found.
        delta: max(eta, distance) where the sets are identical, else None.
        epsilon: `upper` where the sets are identical, else None.
        meaning: what follows for the problem itself, and why.
        lower: how well the lower level was solved, where there is one.
        notes: what else should be known.
        cost: of the certificate alone, over all clients.
    """

    smoothing: float
    confidence: float
    squared_norm: float
    interval: tuple[float, float]
    norm: float
    norm_interval: tuple[float, float]
    directions: int
    drawn: int
    width: float | None
    narrow: bool | None
    distances: tuple[float, ...]
    distance: float | None
    delta: float | None
    epsilon: float | None
    meaning: str
    lower: LowerQuality | None
    notes: tuple[str, ...]
    cost: Cost

    @property
    def upper(self) -> float:
        """The upper confidence bound of the norm, with what the lower level's error may add."""
        if self.lower is None:
            return self.norm_interval[1]
        return math.inf if self.lower.effect is None else self.norm_interval[1] + self.lower.effect

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain values."""
        plain = dataclasses.asdict(self)
        return plain | {"cost": self.cost._asdict(), "upper": self.upper}

    def __repr__(self) -> str:
        return "\n".join([self._title(), *(f"  {name:9} {value}" for name, value in self._facts())])

    def _repr_html_(self) -> str:
        return text.table([self._title(), ""], self._facts())

    def _title(self) -> str:
        return f"Certificate at smoothing {self.smoothing:g}, from {self.directions:,} direction{'s' * (self.directions != 1)}"

    def _facts(self) -> list[tuple[str, str]]:
        """Return what is shown, by name."""
        percent = f"{100 * self.confidence:.4g} %"
        low, high = self.interval
        facts = [
            ("|grad|^2", f"{self.squared_norm:.4g}, {percent} interval [{low:.4g}, {high:.4g}]"),
            ("|grad|", f"{self.norm:.4g}, {percent} interval [{self.norm_interval[0]:.4g}, {self.norm_interval[1]:.4g}]"),
            ("distance", f"{_number(self.distance)} to all sets together, at most {max(self.distances):.4g} to one"),
            ("meaning", self.meaning),
        ]
        if (lower := self.lower) is not None:
            effect = f"moves the gradient by at most {_number(lower.effect, 2)}"
            facts.append(("lower", f"residual {lower.residual:.2g}, |y - y(x)| <= {lower.error:.2g}, {effect}"))
        return [*facts, ("cost", text.costs(self.cost._asdict())), *(("note", note) for note in self.notes)]


def _number(value: float | None, digits: int = 4) -> str:
    return "unknown" if value is None else f"{value:.{digits}g}"


FREE = (
    "an (eta, epsilon)-stationary point: the gradient lies in the eta-Clarke generalised gradient of the mean loss and has norm "
    "epsilon"
)
IDENTICAL = (
    "a (delta, epsilon)-stationary point of the loss over X: its loss part lies in the eta-Clarke generalised gradient, the "
    "other is normal to X at the nearest point, and their sum has norm epsilon"
)
DIFFERENT = (
    "stationarity of the smoothed problem and distances only: the clients' sets differ, and the mean of their normals need not "
    "be normal to the intersection at any one point, so no pair (delta, epsilon) follows"
)
