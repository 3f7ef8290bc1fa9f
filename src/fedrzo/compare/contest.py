"""How methods compete on one problem: a stepsize is chosen for each, then each is run to the same budgets.

The stepsize is the best of a grid, by the loss at the evaluation budget with a seed of its own. A winner at the edge has the
grid extended there, and is flagged if that does not help. Then the method is run with that stepsize and the seeds, once to the
evaluation budget and once to the byte budget. One gradient counts as three evaluations.

Where there are sets, every loss here is that at the projection of x onto all of them: the loss at an x outside may be below any
that is feasible, and would be won by whoever strays furthest.
"""

import dataclasses
import math
import warnings
from typing import Any

import numpy as np

from fedrzo.compare.candidates import LOCAL_STEPS, POINTS, RATIO, Candidate, Setting
from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.results.figure import spent
from fedrzo.results.history import History
from fedrzo.results.sweep import Sweep
from fedrzo.results.text import confidence_band
from fedrzo.running.run import sweep

ROUNDS, QUICK_ROUNDS = 300, 40  # of ten gradient steps a client: what the budget is by default
HIERARCHICAL = 10  # times as much where there is a lower level to be solved too,
LEAST, QUICK_LEAST = 30, 10  # and there no less than so many rounds of the costliest method
CAP, QUICK_CAP = 20_000, 2_000  # rounds that no method exceeds
TRIAL = 5  # rounds that tell what a round costs
ROWS = 30  # of a history
EXTENSIONS = 3  # of a grid
ROUNDING = 1e-6  # of a round
TUNING = 1_000  # added to the first seed: the seed that stepsizes are chosen with
BUDGETS = ("evaluations", "bytes")
AT_X, FEASIBLE = "loss", "loss_feasible"  # columns of a history


@dataclasses.dataclass
class Contest:
    """One method's way through a comparison."""

    candidate: Candidate  # the method
    problem: Problem  # what is solved
    cap: int  # rounds that it may not exceed
    per_round: dict[str, float] = dataclasses.field(default_factory=dict)  # what a round costs, by a short trial
    tried: dict[float, float] = dataclasses.field(default_factory=dict)  # the loss of each stepsize
    stepsize: float = math.nan  # the winner
    histories: dict[str, list[History]] = dataclasses.field(default_factory=dict)  # per budget, one per seed

    @property
    def limit(self) -> float:
        """The longest stepsize that can settle between the problem's sets."""
        return self.candidate.method.longest_step(not self.problem.sets.free)

    @property
    def grid(self) -> list[float]:
        """The stepsizes that are tried first: the candidate's, moved down where the longest ones could not settle."""
        grid = self.candidate.grid
        down = RATIO ** max(0, math.ceil(math.log(grid[-1] / self.limit, RATIO))) if math.isfinite(self.limit) else 1.0
        return [min(float(f"{value / down:.3g}"), self.limit) for value in grid]

    def sweep(self, rounds: int, seeds: list[int], grid: list[float]) -> Sweep:
        """Run some rounds; the last row is that of the last round."""
        every, problem = max(1, math.ceil(rounds / ROWS)), self.problem.following_projection()
        return sweep(self.candidate.method, problem, rounds, seeds, eval_every=every, progress=False, stepsize=grid)

    def trial(self, seed: int) -> None:
        """Find out what a round costs after the first, which may differ; the number of local steps may be random."""
        seeds = list(range(seed, seed + POINTS))  # as many runs as the grid has points: the same compiled program
        results = self.sweep(TRIAL, seeds, [self.grid[0]]).results[0]
        for budget in BUDGETS:
            costs = np.mean([spent(result.history, budget) for result in results], axis=0)
            self.per_round[budget] = float(costs[-1] - costs[1]) / (TRIAL - 1)

    def rounds(self, budgets: dict[str, float], budget: str) -> int:
        """Return the rounds that a budget pays for, at least one and at most the cap."""
        return min(self.cap, max(1, int(budgets[budget] / self.per_round[budget] + ROUNDING)))

    def refine(self, history: History, budgets: dict[str, float]) -> None:
        """Learn from a whole run what the trial could only guess: costs may be random, or grow."""
        for budget in BUDGETS:
            costs, rounds, limit = spent(history, budget), history["round"], budgets[budget]
            paid = np.interp(limit, costs, rounds) if costs[-1] > limit else rounds[-1] * limit / costs[-1]
            self.per_round[budget] = limit / float(paid)

    def tune(self, budgets: dict[str, float], seed: int) -> None:
        """Choose the stepsize; a winner at the edge of the grid is not believed before the grid was extended there."""
        grid, rounds = self.grid, self.rounds(budgets, "evaluations")
        for _ in range(1 + EXTENSIONS):
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # steps too long are tried on purpose
                found = self.sweep(rounds, [seed], grid)
            for value, [result] in zip(grid, found.results, strict=True):
                self.tried[value] = read(result.history, "evaluations", budgets)["loss"]
            self.refine(found.results[0][0].history, budgets)
            self.stepsize = min(self.tried, key=lambda value: (rank(self.tried[value]), value))
            if not self.at_edge:
                return
            down = self.stepsize == min(self.tried)
            grid = [float(f"{self.stepsize * RATIO ** (-i if down else i):.3g}") for i in range(1, POINTS + 1)]
            grid = [value for value in grid if value <= self.limit]

    @property
    def at_edge(self) -> bool:
        """Whether a stepsize beyond those tried may be better still."""
        allowed = self.stepsize * RATIO <= self.limit
        return self.stepsize == min(self.tried) or (self.stepsize == max(self.tried) and allowed)

    def compete(self, budgets: dict[str, float], seeds: list[int]) -> None:
        """Run with the chosen stepsize, to each of the budgets."""
        for budget in BUDGETS:
            found = self.sweep(self.rounds(budgets, budget), seeds, [self.stepsize])
            self.histories[budget] = [result.history for result in found.results[0]]

    def merged(self) -> list[History]:
        """Return one history per seed with the rows of both runs: a short run is a prefix of a long one."""
        merged = []
        for pair in zip(*self.histories.values(), strict=True):
            rows = {}
            for columns in (history.to_dict() for history in pair):
                for i, r in enumerate(columns["round"]):
                    rows[r] = {name: values[i] for name, values in columns.items()}
            merged.append(History({name: [rows[r][name] for r in sorted(rows)] for name in pair[0]}))
        return merged

    def entry(self, budgets: dict[str, float]) -> dict[str, Any]:
        """Return what is reported."""
        ends = {f"at_equal_{budget}": self.end(budget, budgets) for budget in BUDGETS}
        method = dataclasses.replace(self.candidate.method, stepsize=self.stepsize)  # type: ignore[type-var]
        grid = sorted(self.tried)
        values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}  # type: ignore[arg-type]
        return {
            "name": self.candidate.name,
            "method": repr(method),
            "fields": {name: v if v is None or isinstance(v, str | int | float) else repr(v) for name, v in values.items()},
            "stepsize": self.stepsize,
            "grid": grid,
            "grid_loss": [plain(self.tried[value]) for value in grid],
            "edge_of_grid": self.at_edge,
            **ends,
            "diverged": any(end["diverged"] for end in ends.values()),
        }

    def end(self, budget: str, budgets: dict[str, float]) -> dict[str, Any]:
        """Return mean and 95 % interval of the loss at a budget, and how far outside the sets x itself is there."""
        histories = self.histories[budget]
        start = histories[0][judged_by(histories[0])][0]
        rows = [read(history, budget, budgets) for history in histories]
        losses = np.array([row["loss"] for row in rows])
        with np.errstate(over="ignore", invalid="ignore"):
            mean, low, high = (plain(float(edge)) for edge in confidence_band(losses))
        return {
            "loss": mean, "low": low, "high": high, "rounds": int(np.mean([row["round"] for row in rows])),
            "feasibility": plain(float(np.mean([row["feasibility"] for row in rows]))),
            "share_of_budget": float(np.mean([row["spent"] for row in rows])) / budgets[budget],
            "capped": budgets[budget] / self.per_round[budget] > self.cap + 1,
            "diverged": not bool(np.all(np.isfinite(losses) & (losses <= start))),
        }  # fmt: skip


def read(history: History, budget: str, budgets: dict[str, float]) -> dict[str, float]:
    """Return the last row that a budget pays for; the first row after the start where it pays for none."""
    costs = spent(history, budget)
    i = max(1, int(np.searchsorted(costs, budgets[budget], side="right")) - 1)
    row = {name: float(history[name][i]) for name in ("round", "feasibility")}
    return row | {"loss": float(history[judged_by(history)][i]), "spent": float(costs[i])}


def judged_by(history: History) -> str:
    """Return the column that methods are compared by: the loss, at the projection of x where there are sets."""
    return FEASIBLE if FEASIBLE in history else AT_X


def enter(candidates: list[Candidate], problem: Problem, quick: bool, seed: int) -> tuple[list[Contest], dict[str, str]]:
    """Try each method for a few rounds; return who takes part, and who learned only now that the problem is not for it."""
    contests, refused = [], {}
    for candidate in candidates:
        contest = Contest(candidate, problem, QUICK_CAP if quick else CAP)
        try:
            contest.trial(seed + TUNING)
            contests.append(contest)
        except InputError as error:
            refused[candidate.name] = str(error)
    return contests, refused


def budgets_for(contests: list[Contest], budget: int | None, quick: bool) -> dict[str, float]:
    """Return the evaluation budget, and what the median method sends while it spends it."""
    problem = contests[0].problem
    per_round = problem.clients * 3 * LOCAL_STEPS * Setting.of(problem).batch_size  # of gradient steps
    evaluations = budget or (QUICK_ROUNDS if quick else ROUNDS) * per_round
    if budget is None and problem.hierarchical:
        costliest = max(contest.per_round["evaluations"] for contest in contests)
        evaluations = max(HIERARCHICAL * evaluations, round((QUICK_LEAST if quick else LEAST) * costliest))
    sent = [evaluations / contest.per_round["evaluations"] * contest.per_round["bytes"] for contest in contests]
    return {"evaluations": evaluations, "bytes": round(float(np.median(sent)))}


def rank(loss: float | None) -> float:
    """Return a loss to sort by: what is not finite comes last."""
    return math.inf if loss is None or not math.isfinite(loss) else loss


def distance(end: dict[str, Any]) -> str:
    """Return how far outside the sets x ended, to read."""
    return "not finite" if end["feasibility"] is None else f"{end['feasibility']:.3g}"


def plain(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else None
