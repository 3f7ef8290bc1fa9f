"""How claims are judged: paired differences over seeds, with a 95 % confidence interval, at equal cost where that matters."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from fedrzo.paper.record import Claim
from fedrzo.results.figure import spent
from fedrzo.results.history import History
from fedrzo.results.text import confidence_band

UPPER = "upper evaluations"
COSTS = {"evaluations": "loss evaluations", UPPER: "upper-level evaluations"}
VERDICTS = {True: "holds", False: "does not hold", None: "cannot tell"}  # what `Claim.holds` says


def at_cost(histories: Sequence[History], metric: str, name: str, budget: float) -> np.ndarray:
    """Return each run's metric when it had spent so much, between two rows on the line that joins them."""
    return np.array([np.interp(budget, spent(history, name), history[metric]) for history in histories])


def common_budget(groups: Sequence[Sequence[History]], name: str) -> float:
    """Return the largest cost that all runs reached."""
    return float(min(spent(history, name)[-1] for histories in groups for history in histories))


def final(histories: Sequence[History], metric: str, row: int = -1) -> np.ndarray:
    """Return each run's metric at the end, or in another row."""
    return np.array([history[metric][row] for history in histories])


def smaller(text: str, measured: str, left: np.ndarray, right: np.ndarray, note: str = "", own: bool = False) -> Claim:
    """Judge "left is smaller than right" by the mean of left - right over seeds.

    It holds if the whole interval lies below zero, fails if it lies above, and cannot be told otherwise. Where runs diverged
    on one side only, that decides it.
    """
    good_left, good_right = np.all(np.isfinite(left)), np.all(np.isfinite(right))
    if not (good_left and good_right):
        holds = True if good_left else (False if good_right else None)
        return Claim(text, measured, float("nan"), None, None, holds, f"{note} Some runs diverged.".strip(), own)
    mean, low, high = (float(part) for part in confidence_band(np.asarray(left - right, float)))
    if len(left) == 1:
        return Claim(text, measured, mean, None, None, None, f"{note} One seed gives no interval.".strip(), own)
    holds = True if high < 0 else (False if low > 0 else None)
    return Claim(text, measured, mean, low, high, holds, note, own)


def more_local_steps(
    groups: Mapping[int, Sequence[History]], metric: str = "loss", where: str = "", own: bool = False,
    costs: Sequence[str] = ("evaluations",),
) -> list[Claim]:  # fmt: skip
    """Judge "more local steps are better": each H against the next at equal rounds, few against many at equal costs.

    The runs of each H come from few to many, seeds in the same order. Comparisons at equal cost are always our own; `UPPER` is
    one where a lower level takes most evaluations. `where` is shown behind each claim.
    """
    place = f" ({where})" if where else ""
    word = metric.replace("_", " ")
    found = []
    for less, more in itertools.pairwise(groups):
        found.append(
            smaller(f"At equal rounds, H = {more} reaches a lower {word} than H = {less}{place}",
                    f"{word} at the last round, H = {more} minus H = {less}, paired by seed",
                    final(groups[more], metric), final(groups[less], metric),
                    f"Confounded: H = {more} takes {more / less:g} times as many steps.", own)
        )  # fmt: skip
    return found + [_at_equal(groups, metric, word, place, name) for name in costs]


def _at_equal(groups: Mapping[int, Sequence[History]], metric: str, word: str, place: str, name: str) -> Claim:
    """Compare many with few local steps when both have spent as much."""
    few, many = min(groups), max(groups)
    budget = common_budget([groups[few], groups[many]], name)
    late, early = (at_cost(groups[H], metric, name, budget) for H in (many, few))
    rounds = {H: at_cost(groups[H], "round", name, budget).mean() for H in (many, few)}
    counted = "a gradient is three" if name == "evaluations" else "the lower level's gradients not counted"
    return smaller(
        f"At equal {COSTS[name]}, H = {many} reaches a lower {word} than H = {few}{place}",
        f"{word} after {budget:,.0f} evaluations ({counted}), H = {many} minus H = {few}, paired by seed", late, early,
        f"By then H = {many} has made {rounds[many]:.3g} rounds, H = {few} {rounds[few]:.3g}.", own=True,
    )  # fmt: skip


def between(
    text: str, measured: str, values: np.ndarray, limits: tuple[float, float], note: str = "", own: bool = False
) -> Claim:
    """Judge "this number lies within these limits" by the interval of its mean over seeds."""
    mean, low, high = (float(part) for part in confidence_band(np.asarray(values, float)))
    outside = low > limits[1] or high < limits[0]
    holds = True if limits[0] <= low and high <= limits[1] else (False if outside else None)
    several = len(values) > 1
    return Claim(text, measured, mean, low if several else None, high if several else None, holds, note, own)


def exact(text: str, measured: str, value: float, holds: bool, note: str = "", own: bool = False) -> Claim:
    """State a claim about numbers without noise."""
    return Claim(text, measured, float(value), None, None, bool(holds), note, own)


def summary(claims: Sequence[Claim]) -> list[list[str]]:
    """Return rows to print."""
    rows = [["claim (* ours, not the paper's)", "value", "95 % interval", "verdict"]]
    for claim in claims:
        interval = "" if claim.low is None or claim.high is None else f"{claim.low:.3g} to {claim.high:.3g}"
        rows.append([claim.text + " *" * claim.own, f"{claim.value:.4g}", interval, VERDICTS[claim.holds]])
    return rows
