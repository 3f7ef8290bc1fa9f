"""The paper's table of Section 5.4 (Stackelberg-Nash-Cournot games): as printed, and with the lower level solved.

The printed lower-level settings leave the followers where they start, near zero, so the printed values are those of a leader
without rivals. `cells` repeats them with the printed settings; `certified` solves the stated problem.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.methods import FedRZO2s
from fedrzo.run import run as run_method
from fedrzo.zoo import cournot

ROUNDS = cournot.ROUNDS
LOCAL_STEPS = (1, 10, 20)
SMOOTHINGS = (1.0, 0.1, 0.01)
SLOPES = (0.5, 1.0)
STEPSIZE = 1e-3
CERTIFIED_STEPSIZE = 1.0  # the loss has curvature c_0 + 2 b s, between 0.1 and 0.3: stable, and fast in 2,000 steps
CERTIFIED_SMOOTHING = 0.1
QUADRATURE = 64  # evenly spread demands that stand for the mean over a; losses are nearly linear in a
QUICK = (10, 20, 100)  # the followers of a quick run


def run(quick: bool = False, seed: int = 0, progress: bool = True) -> dict[str, Any]:
    """Compute the table.

    Args:
        quick: leave out 1,000 followers.
        seed: of all runs.
        progress: say on standard error what is going on.

    Returns:
        `cells`, the printed table beside ours, and `certified`, one entry for each number of followers and slope.
    """
    followers = QUICK if quick else tuple(cournot.PRINTED_TAU)
    cells, certified = [], []
    for n in followers:
        for b in SLOPES:
            cells += as_printed(n, b, seed, progress)
            certified.append(solved(n, b, seed))
            if progress:
                print(f"certified: {certified[-1]}", file=sys.stderr)
    return {"cells": cells, "certified": certified}


def as_printed(followers: int, b: float, seed: int = 0, progress: bool = False) -> list[dict[str, Any]]:
    """Run the nine cells of one row with the printed settings."""
    solver = cournot.solver(followers, "paper")
    problem = cournot.cournot(followers, b, "paper", evaluation=1)
    found = []
    for H in LOCAL_STEPS:
        exact = cournot.cournot(followers, b, "paper", clients=1, scenarios=QUADRATURE, iterations=ROUNDS * H)
        for eta in SMOOTHINGS:
            method = FedRZO2s(STEPSIZE, eta, H, solver=solver)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "solver: tau is")  # so it was printed
                x = run_method(method, problem, ROUNDS, seed, eval_every=ROUNDS, progress=False).x
            cell = {"followers": followers, "b": b, "H": H, "eta": eta, "paper": printed()[followers, b, H, eta]}
            found.append({**cell, "ours": monitored(exact, x)["loss"]})
            if progress:
                print(found[-1], file=sys.stderr)
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


def monitored(problem: Any, x: Any) -> dict[str, float]:
    """Return what a problem monitors at x."""
    with problem.precision():
        return {name: float(value) for name, value in _evaluate(problem, jnp.asarray(x, float)).items()}


@jax.jit
def _evaluate(problem: Any, x: jax.Array) -> dict[str, jax.Array]:
    return problem.evaluate(x)


def printed() -> dict[tuple[int, float, int, float], float]:
    """Return the paper's table, by followers, b, H and eta."""
    text = resources.files("fedrzo.experiments").joinpath("table4.json").read_text()
    rows = json.loads(text)["cells"]
    return {
        (row["followers"], row["b"], H, eta): value
        for row in rows
        for H in LOCAL_STEPS
        for eta, value in zip(SMOOTHINGS, row[f"H{H}"], strict=True)
    }
