"""The paper's table of Section 5.4 (Stackelberg-Nash-Cournot games): as printed, and with the lower level solved.

The printed lower-level settings leave the followers where they start, near zero, so the printed values are those of a leader
without rivals. `cells` repeats them with the printed settings; `certified` solves the stated problem.
"""

import functools
import itertools
import json
import warnings
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.methods import FedRZO2s
from fedrzo.paper.claims import exact
from fedrzo.paper.record import Claim, Record, Setting, Table
from fedrzo.paper.reproduction import Reproduction
from fedrzo.problems.base import Problem
from fedrzo.running.run import run as run_method
from fedrzo.zoo import cournot

TITLE = "Stackelberg-Nash-Cournot games: as printed, and solved"
MINUTES = (1.4, 4)  # quick: of processor time, with nothing cached; full: on two cores
CAPTION = "Each cell: the leader's mean loss at the end, ours and in brackets the paper's. Solved: followers in equilibrium."
ROUNDS = cournot.ROUNDS
LOCAL_STEPS = (1, 10, 20)
SMOOTHINGS = (1.0, 0.1, 0.01)
SLOPES = (0.5, 1.0)
STEPSIZE = 1e-3
CERTIFIED_STEPSIZE = 1.0  # the loss has curvature c_0 + 2 b s, between 0.1 and 0.3: stable, and fast in 2,000 steps
CERTIFIED_SMOOTHING = 0.5  # such a step settles at a limit of x where it is at most twice the smoothing
QUADRATURE = 64  # evenly spread demands that stand for the mean over a; losses are nearly linear in a
QUICK = (20, 100)  # the followers of a quick run: the two in the middle
SETTINGS = [
    Setting("R, gamma, alpha, tau", "100, 1e-3, 1e-4 to 1e-8, 20 to 80", "printed in the paper"),
    Setting("clients", 5, "not printed: as in its other experiments"),
    Setting("c_0, x0, y0", "0.1, 0, 0", "not printed: c_0 as the followers' costs; the numbers fit a start at zero"),
    Setting("c_j and capacities", "the middles of the printed ranges", "the draws are not printed"),
    Setting("solved: gamma and eta", f"{CERTIFIED_STEPSIZE:g} and {CERTIFIED_SMOOTHING:g}",
            "ours: 1e-3 is too short to arrive within 2,000 steps"),
]  # fmt: skip


def run(reproduction: Reproduction) -> Record:
    """Compute the table; `data` holds `cells`, the printed table beside ours, and `certified`, the problem solved."""
    followers = reproduction.choose(QUICK, tuple(cournot.PRINTED_TAU))
    reproduction.budget(f"{18 * len(followers)} cells and {2 * len(followers)} certified solutions", MINUTES)
    cells, certified = [], []
    for n in followers:
        for b in SLOPES:
            name, given = f"{n} followers b {b:g}", (n, b, reproduction.seed)
            cells += reproduction.once(f"{name} as printed", functools.partial(as_printed, *given))
            certified.append(reproduction.once(f"{name} solved", functools.partial(solved, *given)))
    found = {"cells": cells, "certified": certified}
    tables = [Table("as printed, ours (paper), and the problem solved", table(found), CAPTION)]
    return reproduction.record(TITLE, SETTINGS, [reproduction.seed], tables=tables, claims=claims(cells, certified), data=found)


def claims(cells: list[dict[str, Any]], certified: list[dict[str, Any]]) -> list[Claim]:
    """Judge what the paper concludes from the table, and whether the table is about the stated problem."""
    deviations = [abs(cell["ours"] / cell["paper"] - 1) for cell in cells]
    by_cell = {(cell["followers"], cell["b"], cell["H"], cell["eta"]): cell["ours"] for cell in cells}
    rows = sorted({key[:2] for key in by_cell})
    gains = [
        by_cell[(*row, less, eta)] - by_cell[(*row, more, eta)]
        for row in rows
        for less, more in itertools.pairwise(LOCAL_STEPS)
        for eta in SMOOTHINGS
    ]
    ends = {(row, H): [by_cell[(*row, H, eta)] for eta in SMOOTHINGS] for row in rows for H in LOCAL_STEPS}
    spread = max((max(values) - min(values)) / abs(values[0]) for values in ends.values())
    gaps = [entry["ours"] / entry["optimum"] - 1 for entry in certified]
    first, last = (by_cell[(*row, LOCAL_STEPS[-1], SMOOTHINGS[0])] for row in (rows[0], rows[-1]))
    ratio = first / next(e["optimum"] for e in certified if (e["followers"], e["b"]) == rows[0])
    rivals = f"{rows[0][0]} followers, b = {rows[0][1]:g}"
    return [
        exact("The printed numbers follow from the printed settings", "median relative deviation of the cells; at most 3 %",
              float(np.median(deviations)), float(np.median(deviations)) <= 0.03,
              f"The largest is {max(deviations):.1%}. One seed; {len(cells)} of 72 cells.", own=True),
        exact("The objective improves as H increases", "least improvement from one H to the next, over all rows", min(gains),
              min(gains) > 0, "At equal rounds, so confounded: H = 20 takes 20 times the steps of a fixed length."),
        exact("The method is robust in eta", "largest spread over eta relative to the value; at most 1 %",
              spread, spread <= 0.01,
              "x has one entry and the loss is nearly quadratic in it, so central differences hardly depend on eta."),
        exact("The table shows the stated problem", f"printed setting's loss over the optimum ({rivals}); 1 if it does",
              ratio, abs(ratio - 1) < 0.05,
              "With the printed alpha and tau followers stay where they start, so the leader has no rivals: its profit "
              f"({-first:.1f}, and {-last:.1f} with {rows[-1][0]} followers) exceeds what any equilibrium allows.", own=True),
        exact("With the lower level solved the method reaches the optimum",
              "largest relative gap of the solved rows; at most 1 %", max(map(abs, gaps)), max(map(abs, gaps)) <= 0.01,
              f"Followers' error is certified to {max(entry['error_bound'] for entry in certified):.1g}.", own=True),
    ]  # fmt: skip


def as_printed(followers: int, b: float, seed: int = 0) -> list[dict[str, Any]]:
    """Run the nine cells of one row with the printed settings."""
    solver = cournot.solver(followers, "paper")
    problem = cournot.cournot(followers, b, "paper", evaluation=1)
    found = []
    for H in LOCAL_STEPS:
        exact = cournot.cournot(followers, b, "paper", clients=1, scenarios=QUADRATURE, iterations=ROUNDS * H)
        for eta in SMOOTHINGS:
            method = FedRZO2s(STEPSIZE, eta, H, solver=solver)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "solver: |lower_error")  # so it was printed
                x = run_method(method, problem, ROUNDS, seed, eval_every=ROUNDS, progress=False).x
            cell = {"followers": followers, "b": b, "H": H, "eta": eta, "paper": printed()[followers, b, H, eta]}
            found.append({**cell, "ours": monitored(exact, x)["loss"]})
    return found


def solved(followers: int, b: float, seed: int = 0) -> dict[str, Any]:
    """Solve the stated problem: followers in equilibrium, to a certified 1e-8, at every step."""
    problem = cournot.cournot(followers, b, evaluation=1)
    method = FedRZO2s(CERTIFIED_STEPSIZE, CERTIFIED_SMOOTHING, 20, solver=cournot.solver(followers))
    x = run_method(method, problem, ROUNDS, seed, eval_every=ROUNDS, progress=False).x_feasible
    found = monitored(cournot.cournot(followers, b, clients=1, scenarios=QUADRATURE), x)
    optimum = cournot.optimum(problem)[1]
    return {
        "followers": followers, "b": b, "optimum": optimum, "ours": found["loss"], "error_bound": found["lower_error"],
    }  # fmt: skip


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print: per followers, b and H the cells as `ours (paper)`; with the first H, the problem solved."""
    rows = [["followers", "b", "H", *(f"eta = {eta:g}" for eta in SMOOTHINGS), "solved", "optimum", "lower error <="]]
    for entry in found["certified"]:
        certificate = [f"{entry['ours']:.4g}", f"{entry['optimum']:.4g}", f"{entry['error_bound']:.1g}"]
        for H in LOCAL_STEPS:
            setting = (entry["followers"], entry["b"], H)
            cells = [cell for cell in found["cells"] if (cell["followers"], cell["b"], cell["H"]) == setting]
            shown = [f"{cell['ours']:.3f} ({cell['paper']:.3f})" for cell in cells]
            last = certificate if LOCAL_STEPS[0] == H else [""] * 3
            rows.append([f"{entry['followers']:,}", f"{entry['b']:g}", str(H), *shown, *last])
    return rows


def monitored(problem: Problem, x: Any) -> dict[str, float]:
    """Return what a problem monitors at x."""
    with problem.precision():
        return {name: float(value) for name, value in _evaluate(problem, jnp.asarray(x, float)).items()}


@jax.jit
def _evaluate(problem: Problem, x: jax.Array) -> dict[str, jax.Array]:
    return problem.evaluate(x)


def printed() -> dict[tuple[int, float, int, float], float]:
    """Return the paper's table, by followers, b, H and eta."""
    text = resources.files("fedrzo.paper").joinpath("table4.json").read_text()
    rows = json.loads(text)["cells"]
    return {
        (row["followers"], row["b"], H, eta): value
        for row in rows
        for H in LOCAL_STEPS
        for eta, value in zip(SMOOTHINGS, row[f"H{H}"], strict=True)
    }
