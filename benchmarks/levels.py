"""The speed of bilevel and two-stage problems that users write, against plain JAX: `python benchmarks/levels.py`.

Each row of benchmarks/user_levels.py asks two questions. Same steps: both solve each lower level by so many projected gradient
steps of one length from y0. Same accuracy: the library as it comes, with no solver, length or count named; the plain version
takes as many of its steps as make its lower solution at x0 as accurate as the library's. Both run once to compile, then take
turns in one process; ratios are of medians of the rounds' time.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from bilevel import error, last_round
from fedrzo.compare.options import Options
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.problems.two_stage import solve_once
from helpers.command import main
from helpers.results import save, standing
from helpers.timing import measured, medians
from user_levels import BATCH, LOCAL, SMOOTHING, STEPSIZE, Plain, Row, rows

PROBLEM = "lower levels that users write"
SEEDS = 1
STEPS = 20  # of a lower solve, where both take the same
MOST = 20_000  # steps that the plain version is allowed for the library's accuracy
SCENARIOS = 4  # whose solutions are looked at
ROUNDS, QUICK_ROUNDS = 20, 2
REPETITIONS, QUICK_REPETITIONS = 7, 3


def run(options: Options) -> dict[str, Any]:
    """Measure every row; `--quick` takes shorter runs."""
    found = measured(options, PROBLEM, rows(), measure, lambda row: f"{row.y0.size} lower variables")
    save(found, options.out, "levels")
    return found


def measure(row: Row, quick: bool = False) -> dict[str, Any]:
    """Ask both questions of one row."""
    problem = row.problem()
    with problem.precision():
        method = default_method(row, problem)
        length = step_length(row, problem, method)
        plain = Plain(row, length)
        steps, errors = as_accurate(row, problem, plain, method)
        asked = {
            "same_steps": (same_steps(row, length), STEPS),
            "same_accuracy": (method, steps),
        }
        found = {name: compare(problem, plain, ours, steps, quick) for name, (ours, steps) in asked.items()}
    facts = {"name": row.name, "n": row.x0.size, "lower": row.y0.size, "clients": row.clients, "steps": steps, "errors": errors}
    return facts | found


def default_method(row: Row, problem: Any) -> Any:
    """Return the library's method as it comes."""
    if row.two_stage:
        return fz.FedRZO2s(STEPSIZE, SMOOTHING, LOCAL)
    return fz.FedRZObl(STEPSIZE, SMOOTHING, LOCAL, BATCH).prepare(problem)


def same_steps(row: Row, length: float) -> Any:
    """Return a method that takes the plain version's steps."""
    if row.two_stage:
        return fz.FedRZO2s(STEPSIZE, SMOOTHING, LOCAL, solver=fz.vi.Projection(stepsize=length, steps=STEPS))
    lower = fz.LocalSGD(length, rounds=STEPS, batch_size="full")
    return fz.FedRZObl(STEPSIZE, SMOOTHING, LOCAL, BATCH, lower=lower, warm_start=False, closing=False)


def step_length(row: Row, problem: Any, method: Any) -> float:
    """Return the length that suits gradients, and one that suits maps, which need not be symmetric."""
    if not row.two_stage:
        return float(2 / (method.constants.modulus + method.constants.smoothness))
    mu, L = problem.hardest()
    return float(mu / L**2) if row.name.startswith("firms") else 1 / float(L)


def as_accurate(row: Row, problem: Any, plain: Plain, method: Any) -> tuple[int, dict[str, float]]:
    """Return how many steps make the plain version's lower solution at x0 as accurate as the library's, and both errors."""
    x = jnp.asarray(row.x0)
    if row.two_stage:
        given = [jax.tree.map(lambda leaf, k=k: jnp.asarray(leaf)[0, k], row.data) for k in range(SCENARIOS)]
        exact = [solve_once(problem, x, xi, fz.vi.Accelerated(1e-13), 0).y for xi in given]
        ours = [solve_once(problem, x, xi, method.solver, 0).y for xi in given]
    else:
        given, exact = [plain.data], [np.ravel(problem.lower_solutions(row.x0[None])[0])]
    reached, steps = worst(ours, exact) if row.two_stage else error_in_rounds(problem, method), 1
    while (error := worst([plain.below(x, one, steps=steps) for one in given], exact)) > max(reached, 1e-12) and steps < MOST:
        steps = min(MOST, int(1.2 * steps) + 1)
    return steps, {"plain": error, "fedrzo": reached}


def error_in_rounds(problem: Any, method: Any) -> float:
    """Return the largest error of the lower solutions that some rounds of a bilevel method use, after some others."""
    key = jax.random.key(0)
    session = Simulation().start([method], problem, [key], None)
    session.advance(5)
    return max(error(problem, *last_round(session, method, key)) for _ in range(5))


def worst(ys: list, exact: list) -> float:
    """Return the largest relative distance."""
    return float(max(np.linalg.norm(y - z) / np.linalg.norm(z) for y, z in zip(ys, exact, strict=True)))


def compare(problem: Any, plain: Plain, method: Any, steps: int, quick: bool) -> dict[str, Any]:
    """Compare the time of rounds."""
    key, count = jax.random.key(0), QUICK_ROUNDS if quick else ROUNDS
    session = Simulation().start([method.prepare(problem)], problem, [key], None)

    def ours() -> Any:
        session.advance(count)
        return session.carry.state.x

    contestants = {
        "plain": lambda: plain.run(jnp.asarray(plain.row.x0), key, plain.data, rounds=count, steps=steps),
        "fedrzo": ours,
    }
    seconds = medians(contestants, QUICK_REPETITIONS if quick else REPETITIONS)
    times = {name: 1e3 * taken / count for name, taken in seconds.items()}
    return {"milliseconds": times, "ratio": times["plain"] / times["fedrzo"]}


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    shown = [["problem", "x, y", "clients", "same steps", "same accuracy", "steps of the plain version", "errors of y"]]
    for row in found["rows"]:
        cells = [
            f"{part['milliseconds']['plain']:.3g}, {part['milliseconds']['fedrzo']:.3g} ms: {part['ratio']:.1f} x"
            for part in (row["same_steps"], row["same_accuracy"])
        ]
        errors = f"{row['errors']['plain']:.1e}, {row['errors']['fedrzo']:.1e}"
        shown.append([row["name"], f"{row['n']}, {row['lower']}", str(row["clients"]), *cells, str(row["steps"]), errors])
    return shown


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    least = {name: min(row[name]["ratio"] for row in found["rows"]) for name in ("same_steps", "same_accuracy")}
    return [
        f"Milliseconds a round on {found['device']}, plain JAX and fedrzo; the least ratios are {least['same_steps']:.2f} x at "
        f"the same steps and {least['same_accuracy']:.2f} x at the same accuracy."
    ]


def verdict(found: dict[str, Any]) -> str:
    """Say who wins each question."""
    said = []
    for asked in ("same_steps", "same_accuracy"):
        ratios = {f"{row['name']}, {row['lower']} below": row[asked]["ratio"] for row in found["rows"]}
        said.append(f"{asked.replace('_', ' ').capitalize()}: {standing(ratios, 'plain JAX')}")
    return " ".join(said)


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
