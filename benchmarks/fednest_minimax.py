"""FedNest's synthetic minimax problem (Fig. 4 of its paper): who converges linearly, and what that rests on.

    python benchmarks/fednest_minimax.py [--rounds 200]

f_i = -|y|^2/2 - b_i'y + t_i y'x + lambda/2 |x|^2, n = 10, 1000 clients, 50 of them in a round, t_i ~ U(0, 0.1), s in {1, 10},
lambda in {0.1, 10}, five local steps; the b_i as drawn, and centred so that the saddle point is zero. Printed is |x - x*|^2 every
quarter of the run.

The library's lower-level calls go to all clients. In NumPy: FedNest as its listing is printed, where the 50 clients of a round
do the inner loop too, and the same with b dropped, as in the branch of the authors' notebook that draws the curve.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import numpy as np

import fedrzo as fz
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.zoo import minimax

STEPS, BETA, COHORT = 5, 0.1, 50


def curve(method: Any, problem: Any, cohort: int | None, rounds: int) -> list[float]:
    """Return |x - x*|^2 after each quarter of a run."""
    answer = minimax.answer(problem)[0]
    found = []
    with problem.precision():
        session = Simulation().start([method.prepare(problem)], problem, [jax.random.key(0)], cohort)
        for _ in range(4):
            session.advance(rounds // 4)
            found.append(float(np.sum((session.states()[0].x - answer) ** 2)))
    return found


def listing(problem: Any, alpha: float, rounds: int, drop_b: bool) -> list[float]:
    """FedNest in NumPy with one cohort for both levels. Clients' curvatures are alike, so a corrected step is a mean one."""
    t, b = (np.asarray(part) for part in problem.data.fixed)
    b = 0 * b if drop_b else b
    lam, rng = problem.loss_fn.regularisation, np.random.default_rng(0)
    x, y = np.asarray(problem.x0), np.asarray(problem.y0)
    answer = 0 * x if drop_b else minimax.answer(problem)[0]
    found = []
    for r in range(rounds):
        cohort = rng.choice(len(t), COHORT, replace=False)
        t_mean, b_mean = t[cohort].mean(), b[cohort].mean(axis=0)
        for _ in range(STEPS):
            y = y - BETA * (y + b_mean - t_mean * x)
        start, h = x, t_mean * y + lam * x
        for _ in range(STEPS):
            x = x - alpha * (lam * (x - start) + h)
        if (r + 1) % (rounds // 4) == 0:
            found.append(float(np.sum((x - answer) ** 2)))
    return found


def show(label: str, values: list[float]) -> None:
    """Print one line of the table."""
    print(f"{label:<58}", *(f"{value:8.1e}" for value in values), flush=True)


def main() -> None:
    """Run all settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    for lam in (0.1, 10.0):
        alpha = 0.2 if lam < 1 else 0.01
        methods = {
            "FedNest": fz.FedNest(alpha, BETA, STEPS, STEPS, 1, batch_size="full"),
            "LFedNest": fz.LFedNest(alpha, BETA, STEPS, STEPS, 1, batch_size="full"),
            "LocalSGDA": fz.LocalSGDA(alpha, BETA, STEPS, batch_size="full"),
        }
        for s in (1.0, 10.0):
            for centred in (True, False):
                problem = minimax.fednest_minimax(s=s, regularisation=lam, centred=centred)
                setting = f"lambda {lam:g}, s {s:g}, {'centred' if centred else 'as drawn'}"
                for name, method in methods.items():
                    for cohort in (None, COHORT):
                        who = "all" if cohort is None else f"{cohort} of 1000"
                        show(f"{setting}: {name}, {who}", curve(method, problem, cohort, rounds))
                show(f"{setting}: NumPy, 50 for y too", listing(problem, alpha, rounds, drop_b=False))
                show(f"{setting}: NumPy, 50 for y too, b dropped", listing(problem, alpha, rounds, drop_b=True))


if __name__ == "__main__":
    main()
