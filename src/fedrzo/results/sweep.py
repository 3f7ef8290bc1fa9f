"""`Sweep`: the results of several settings with several seeds each."""

import dataclasses
import math
from typing import Any

import numpy as np

from fedrzo.errors import InputError
from fedrzo.results import plots, text
from fedrzo.results.result import Result, constrained
from fedrzo.results.text import confidence_band, mean_and_half
from fedrzo.support.extras import require


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Several settings, several seeds each, from one compiled run.

    Attributes:
        settings: the swept values of each setting.
        results: for each setting, one `Result` per seed.
        seeds: which, in that order; None if that was not kept.
    """

    settings: list[dict[str, Any]]
    results: list[list[Result]]
    seeds: list[int] | None = None

    def __repr__(self) -> str:
        names, rows = _ends(self)
        counts = f"{len(rows)} settings with {len(self.results[0])} seeds each"
        title = f"Sweep of {counts}; {' and '.join(names)} at the end:"
        return "\n".join([title, *(f"  {line}" for line in text.aligned(rows))])

    def _repr_html_(self) -> str:
        (loss, *others), rows = _ends(self)
        return text.table(["setting", f"{loss} at the end, {len(self.results[0])} seeds", *others], rows)

    def values(self, setting: int, column: str) -> np.ndarray:
        """Return one column of one setting, seeds by rows."""
        count = len(self.results)
        if not isinstance(setting, int | np.integer) or not -count <= setting < count:
            raise InputError(f"setting: found {setting!r}; pass its place in `settings`, from 0 to {count - 1}")
        return np.array([result.history[column] for result in self.results[setting]])

    def band(self, setting: int, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, low and high of the 95 % confidence band (Student's t over seeds)."""
        return confidence_band(self.values(setting, column))

    def ends(self, setting: int, column: str = "loss") -> np.ndarray:
        """Return what each seed of a setting ended with; of the loss, the one at x_feasible, where that is known."""
        values = self.values(setting, column)[:, -1]
        feasible = [result.loss_feasible for result in self.results[setting]]
        if column != "loss" or None in feasible:
            return values
        # A set may well bring an x that diverged back to a point like any other.
        return np.where(np.isfinite(values), np.array(feasible, float), values)

    def _merits(self, setting: int, column: str) -> list[float]:
        """Return the `ends` of a setting, of the loss with the penalty for what each breaks."""
        ends, results = self.ends(setting, column), self.results[setting]
        if column != "loss" or results[0].problem is None:
            return list(ends)
        return [result.problem.merit({**result.history.last, "loss": end}) for result, end in zip(results, ends, strict=True)]

    def best(self, column: str = "loss") -> int:
        """Return the setting with the smallest mean of its `ends`; settings that diverged never win.

        By the loss at x itself, a setting would win that strays from the sets; without the penalty, one that breaks constraints.
        """
        means = [float(np.mean(self._merits(i, column))) for i in range(len(self.settings))]
        return int(np.argmin([value if math.isfinite(value) else math.inf for value in means]))

    def to_frame(self) -> Any:
        """Return all histories as one long pandas DataFrame, with a column per swept value and one for the seed."""
        pandas = require("pandas", "plots")
        frames = [
            pandas.DataFrame(result.history.to_dict()).assign(seed=seed, **setting)
            for setting, results in zip(self.settings, self.results, strict=True)
            for seed, result in zip(self.seeds or range(len(results)), results, strict=True)
        ]
        return pandas.concat(frames, ignore_index=True)

    def plot(self, metric: str = "loss", **options: Any) -> Any:
        """Draw one curve per setting with its 95 % band; returns a matplotlib figure."""
        groups = {}
        for setting, results in zip(self.settings, self.results, strict=True):
            method = str(results[0].spec.get("method", "all")).partition("(")[0]  # where nothing is swept, its name
            groups[text.label(setting) if setting else method] = [result.history for result in results]
        return plots.curves(groups, metric, **options)


def _ends(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """Return what is shown of each setting's end, the loss and where there are sets the feasibility, and a row for each."""
    several, results = range(len(sweep.settings)), [result for group in sweep.results for result in group]
    rows = [[text.label(sweep.settings[i]), mean_and_half(sweep.ends(i))] for i in several]
    names = ["loss"]
    if constrained(results):
        names = ["loss" if any(result.loss_feasible is None for result in results) else text.AT_FEASIBLE, "feasibility"]
        rows = [[*rows[i], f"{sweep.ends(i, 'feasibility').mean():.3g}"] for i in several]
    for row, group in zip(rows, sweep.results, strict=True):
        if worse := sum(note.startswith(text.WORSE) for result in group for note in result.notes):
            row[-1] += f"  ({worse} of {len(group)} worse than the start)"
    rows[sweep.best()][-1] += "  (best)" * (len(rows) > 1)
    return names, rows
