"""What `stepsize="auto"` is worth on the zoo: final loss gaps against the best of a fine grid, and what the search costs.

    python benchmarks/stepsizes.py [NAME ...] [--seeds 8] [--first 0]

Gaps are those of the loss with its Moreau terms, which is what the methods minimise: over private sets a loss alone can be
below the optimum. They are taken to the best known value: in closed form, published, from a long run of a first-order method
where there is one, else the least that any run here has seen. Gaps below 1e-4 of the start's count as that much.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo import zoo
from fedrzo.zoo import bilevel, published, toys

SOLVED = 1e-4  # of the gap at the start
POINTS, RATIO = 13, 10**0.25  # of the grid, around the mean of what was found


class Case(NamedTuple):
    """A problem, a method without a stepsize, rounds, and the best known value."""

    problem: Any
    method: Any
    rounds: int
    known: float = math.inf


class Row(NamedTuple):
    """What came of a case. Gaps and costs are means over seeds."""

    found: list[float]
    gap: float
    best: float
    best_gap: float
    cost: float  # evaluations of the search over those of the run
    typical: float  # the ratio of medians over seeds, in place of means
    inside: bool  # the grid's best is none of its ends, or solves the problem: no longer grid would do better

    @property
    def ratio(self) -> float:
        return self.gap / self.best_gap


def _nn(smoothing: float, local_steps: int, batch_size: int | str) -> fz.FedRZOnn:
    return fz.FedRZOnn("auto", smoothing, local_steps, batch_size)


def _bl(smoothing: float, local_steps: int, batch_size: int | str) -> fz.FedRZObl:
    return fz.FedRZObl("auto", smoothing, local_steps, batch_size)


def _toy(name: str, method: Any, rounds: int) -> Case:
    problem = zoo.make(name)
    return Case(problem, method, rounds, value(problem, toys.answer(problem), method.smoothing))


def boxes() -> Case:
    """The penalised loss -sum(x) + sum((x_i - 1)^2) / (2 eta m) is least at x_i = 1 + m eta: -m - m^2 eta / 2."""
    return Case(zoo.make("boxes"), _nn(0.1, 10, "full"), 200, -2 - 2 * 0.1)


def direct() -> Case:
    problem = zoo.make("direct")
    return Case(problem, _bl(0.1, 2, 4), 200, value(problem, bilevel.direct_answer(problem), 0.1))


def coupled() -> Case:
    problem = zoo.make("coupled")
    return Case(problem, _bl(0.1, 2, 4), 200, value(problem, bilevel.coupled_answer(problem), 0.1))


def entry(name: str, smoothing: float, rounds: int) -> Case:
    """A published problem; its value is best known, not proved."""
    known = published.ENTRIES[name]
    return Case(known.make(), _bl(smoothing, 1, "full"), rounds, known.published)


def cournot() -> Case:
    solver = fz.vi.Accelerated()
    return Case(zoo.make("cournot", evaluation=64), fz.FedRZO2s("auto", 0.5, 5, 4, solver), 100)


# Found by 3,000 rounds of FedAvg with full gradients and one local step: relu-digits at 0.125, logistic at 5.
FIRST_ORDER = {"relu-digits": 0.14675, "logistic": 0.0678703}

CASES: dict[str, Callable[[], Case]] = {
    "quadratic": lambda: _toy("quadratic", _nn(0.01, 10, 1), 100),
    "quadratic, 1000 rounds": lambda: _toy("quadratic", _nn(0.01, 5, 1), 1000),
    "median": lambda: _toy("median", _nn(0.01, 10, 1), 200),
    "boxes": boxes,
    "relu-digits": lambda: Case(zoo.make("relu-digits"), _nn(0.01, 20, 16), 200, FIRST_ORDER["relu-digits"]),
    "logistic": lambda: Case(zoo.make("logistic"), _nn(0.01, 10, 8), 200, FIRST_ORDER["logistic"]),
    "synthetic": lambda: Case(zoo.make("synthetic"), _nn(0.01, 10, 8), 100),
    "direct": direct,
    "coupled": coupled,
    "hyper-digits": lambda: Case(zoo.make("hyper-digits"), _bl(0.01, 2, 8), 100),
    "ncsc": lambda: Case(zoo.make("ncsc"), _bl(0.1, 2, 4), 200),
    "fednest-minimax": lambda: Case(zoo.make("fednest-minimax", clients=20), _bl(0.1, 1, 1), 200, 0.0),
    "cournot": cournot,
    "desilva": lambda: entry("desilva", 0.02, 400),
    "qpec1": lambda: entry("qpec1", 0.05, 400),
    "jr1": lambda: entry("jr1", 0.05, 60),
}


def value(problem: Any, x: Any, smoothing: float) -> float:
    """Return the loss over all data with the Moreau terms, at any pytree or flat x."""
    flat = np.asarray(problem.layout.ravel(x)) if not isinstance(x, np.ndarray) else x.ravel()
    with problem.precision():
        at = jnp.asarray(flat)
        distances = [float(problem.sets.distance(i, at)) for i in range(problem.clients)]
        loss = float(problem.evaluate(at)["loss"])
    return loss + float(np.mean(np.square(distances))) / (2 * smoothing)


def ends(case: Case, sweep: fz.Sweep) -> np.ndarray:
    """Return the final penalised losses, settings by rows; infinite where x was lost."""

    def end(result: fz.Result) -> float:
        loss = float(result.history["loss"][-1])
        flat = case.problem.layout.ravel(result.x)
        if not np.isfinite(loss) or not np.all(np.isfinite(flat)):
            return math.inf
        with case.problem.precision():
            distances = [float(case.problem.sets.distance(i, jnp.asarray(flat))) for i in range(case.problem.clients)]
        return loss + float(np.mean(np.square(distances))) / (2 * case.method.smoothing)

    return np.array([[end(result) for result in results] for results in sweep.results])


def measure(case: Case, seeds: list[int]) -> Row:
    """Run the search and its result, then a fine grid around, all with the same seeds."""
    options = {"seeds": seeds, "eval_every": case.rounds, "progress": False}
    auto = fz.sweep(case.method, case.problem, case.rounds, **options)
    tunings = [result.tuning for result in auto.results[0]]
    found = [tuning.stepsize for tuning in tunings]
    middle = float(np.exp(np.mean(np.log(found))))
    longest = case.method.longest_step(not case.problem.sets.free)  # no grid should go beyond
    grid = [middle * RATIO**i for i in range(-(POINTS // 2), POINTS // 2 + 1) if middle * RATIO**i <= longest]
    fine = fz.sweep(case.method, case.problem, case.rounds, stepsize=grid, **options)
    ours, theirs = ends(case, auto)[0], ends(case, fine)
    start = float(auto.results[0][0].history["loss"][0])
    known = min(case.known, float(ours.min()), float(theirs[np.isfinite(theirs)].min()))
    floor = SOLVED * (start - known)
    means, medians = (np.maximum(of(theirs, axis=1) - known, floor) for of in (np.mean, np.median))
    best = int(np.argmin(means))
    inside = 0 < best < POINTS - 1 or bool(means[best] == floor)
    gap, typical = max(ours.mean() - known, floor), max(float(np.median(ours)) - known, floor)
    per_run = auto.results[0][0].history["evaluations"][-1] - tunings[0].cost.evaluations
    cost = float(np.mean([tuning.cost.evaluations for tuning in tunings])) / per_run
    return Row(found, gap, grid[best], means[best], cost, typical / medians.min(), inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *CASES])
    parser.add_argument("--seeds", type=int, default=8, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    options = parser.parse_args()
    heads = ("problem", "auto's stepsize", "its gap", "best of grid", "its gap", "ratio", "of medians", "search / run")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in options.names or CASES:
        row = measure(CASES[name](), list(range(options.first, options.first + options.seeds)))
        span = f"{min(row.found):.2g} to {max(row.found):.2g}"
        gaps = f"{row.gap:.2g} | {row.best:.2g} | {row.best_gap:.2g} | {row.ratio:.2f} | {row.typical:.2f}"
        note = "" if row.inside else " best at an end of the grid"
        print(f"| {name} | {span} | {gaps} | {row.cost:.1f} |{note}", flush=True)


if __name__ == "__main__":
    main()
