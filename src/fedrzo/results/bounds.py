"""Which certificates a run made, read from its history and its spec: what was shown of the gradient, and after which round."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedrzo.results import text
from fedrzo.results.history import History
from fedrzo.support.columns import COST_COLUMNS, RULE_PREFIX

HEAD = ["round", "|grad| is at most", "confidence", "smoothing"]


class Bound(NamedTuple):
    """What one certificate says: after so many rounds, the smoothed problem's gradient is no longer than this."""

    round: int
    upper: float
    confidence: float
    smoothing: float

    def cells(self) -> list[str]:
        """Return the bound as a row below `HEAD`."""
        upper = f"{self.upper:.4g}" if math.isfinite(self.upper) else "no bound"
        return [f"{self.round:,}", upper, f"{100 * self.confidence:.4g} %", text.short(self.smoothing)]


def bounds(history: History, spec: Mapping[str, Any]) -> list[Bound]:
    """Return the certificates of a run, in their order: those of `fz.certified`, or of the start and the end of `fz.solve`."""
    if (rule := spec.get("certified")) is not None:  # all of them together hold with its confidence, hence each one does
        pairs = zip(history["round"].tolist(), history[RULE_PREFIX + "upper"].tolist(), strict=True)
        made = [(round, upper) for round, upper in pairs if round > 0 and round % rule["every"] == 0]
    elif "confidence" in (rule := spec.get("certificate", {})):
        made = [(0, rule["at_start"]), (history.last["round"], rule["at_end"])]
    else:
        return []
    return [Bound(int(round), float(upper), rule["confidence"], rule["smoothing"]) for round, upper in made]


def rows(history: History, spec: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each certificate, below a heading; none where none was made."""
    found = bounds(history, spec)
    return [HEAD, *text.elided([bound.cells() for bound in found])] if found else []


def shown(history: History, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a result shows of its certificates, by name: the rows, and what they cost where that was charged apart."""
    lines = [("certificates" * (i == 0), line) for i, line in enumerate(text.aligned(rows(history, spec)))]
    if "certified" not in spec:
        return lines
    spent = {name: history.last[RULE_PREFIX + name] for name in COST_COLUMNS}
    return [*lines, ("certifying", text.costs(spent))]
