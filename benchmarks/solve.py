"""`fz.solve` and `fz.minimize` on applied problems, beside other solvers: `python benchmarks/solve.py`.

More than 40 problems of 2 to 200 variables, in the classes of the library and as black boxes, as a user states them; clients
differ in data and size. Each has a loss in plain NumPy, with accurate lower solutions, by which all are judged, and an optimum
that was found by other means. Solved: within 1 % of the optimum and with 99 % of the possible gain, feasible to 1e-3. Half of the
problems, drawn by a stored seed, are held out: they are not for tuning the library.

* fedrzo: `fz.solve(problem, seconds=60)`, or `fz.minimize`, and nothing else.
* ipopt: CasADi and IPOPT, lower levels as complementary pairs whose products are at most t, t from 1 to 1e-8 (Scholtes).
* slsqp, lbfgsb: SciPy's, on the loss in x alone, with differences; from x0, then from up to nine drawn points.
* cma: CMA-ES with restarts, if `cma` can be imported.

Each solver has a process of its own for each problem, nothing compiled before, and as many seconds as fz.solve.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedrzo.compare.options import Options
from fedrzo.errors import InputError
from helpers import solve_cases
from helpers.command import main
from helpers.results import save
from helpers.solve_figure import LOOKS, figure
from helpers.solve_rivals import applies

PROBLEM = "all"
SEEDS = 1
SECONDS, QUICK_SECONDS = 60.0, 20.0
QUICK = ("robust_pca", "elastic_box", "price_war", "cournot_plants", "pid")
SPARE = 120.0  # seconds that a process may take beside its limit: imports, the statement, a compilation that is under way


def run(options: Options) -> dict[str, Any]:
    """Run each solver on each problem, those of one class, or a single one."""
    if options.budget is not None or options.seeds != SEEDS:
        raise InputError("it takes no --budget or --seeds; pass a problem, a class, or --quick for five small problems")
    options.check_out()
    seconds = QUICK_SECONDS if options.quick else SECONDS
    absent = [solver for solver, module in (("ipopt", "casadi"), ("cma", "cma")) if importlib.util.find_spec(module) is None]
    found: dict[str, Any] = {"problem": options.problem, "seconds": seconds, "absent": absent, "rows": []}
    for name in chosen(options):
        for solver in (solver for solver in LOOKS if solver not in absent):
            options.say(f"solve: {solver} on {name}")
            found["rows"].append(measure(solver, name, seconds))
            save(found, options.out, "solve")
    if options.out is not None:
        figure(found).savefig(options.out / "solve.png", dpi=150)
    return found


def chosen(options: Options) -> list[str]:
    """Return the names of the problems that are asked for."""
    known = solve_cases.names()
    if options.problem == PROBLEM:
        return list(QUICK) if options.quick else known
    if options.problem in solve_cases.KINDS:
        return solve_cases.names(options.problem)
    if options.problem not in known:
        raise InputError(f"PROBLEM: found {options.problem!r}; pass one of {', '.join((*solve_cases.KINDS, *known))}")
    return [options.problem]


def measure(solver: str, name: str, seconds: float) -> dict[str, Any]:
    """Run one solver on one problem in a process of its own."""
    case = solve_cases.make(name)
    if not applies(solver, case):
        return judge(solver, case, None)
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    job = json.dumps({"solver": solver, "problem": name, "seconds": seconds})
    command = [sys.executable, "-m", "helpers.solve_rivals", job]
    process = subprocess.Popen(
        command, env=environment | {"FEDRZO_CACHE": "off"}, cwd=Path(__file__).parent, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds + SPARE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return judge(solver, case, {"total": seconds + SPARE, "rows": [], "x": None, "error": "stopped: it did not end"})
    lines = [line for line in out.splitlines() if line.startswith("{")]
    said = [line for line in err.splitlines() if line.strip()] or [f"status {process.returncode}"]
    return judge(solver, case, json.loads(lines[-1]) if lines else {"total": seconds, "rows": [], "x": None, "error": said[-1]})


def judge(solver: str, case: solve_cases.Case, done: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a solver reached, by the plain loss, and the seconds after which its best point first counted as solved."""
    row: dict[str, Any] = {
        "problem": case.name, "kind": case.kind, "n": case.n, "held_out": case.held_out, "solver": solver,
        "applies": done is not None, "total": None, "solved_after": None, "gain": None, "loss": None, "violation": None,
        "says": "",
    }  # fmt: skip
    if done is None:
        return row
    row |= {"total": done["total"], "says": done.get("error") or done.get("says", "")}
    if done["x"] is None:
        return row
    loss, violation = case.truth(np.array(done["x"]))
    row |= {"loss": loss, "violation": violation, "gain": case.gain(loss)}
    if case.solved(loss, violation):
        times = [seconds for seconds, reached, outside in done["rows"] if case.solved(reached, outside)]
        row["solved_after"] = min([*times, done["total"]])
    return row


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print: for each solver the seconds until the problem was solved, or the share of the gain."""
    solvers = [solver for solver in LOOKS if any(row["solver"] == solver for row in found["rows"])]
    shown = [["problem", "class", "n", *solvers]]
    for name in dict.fromkeys(row["problem"] for row in found["rows"]):
        rows = {row["solver"]: row for row in found["rows"] if row["problem"] == name}
        first = next(iter(rows.values()))
        held = " (held out)" if first["held_out"] else ""
        shown.append([name + held, first["kind"], str(first["n"]), *(celled(rows.get(solver)) for solver in solvers)])
    return shown


def celled(row: dict[str, Any] | None) -> str:
    """Return a cell of the table."""
    if row is None or not row["applies"]:
        return ""
    if row["solved_after"] is not None:
        return f"{row['solved_after']:.1f} s"
    if row["gain"] is None:
        return "no answer"
    if row["violation"] > solve_cases.FEASIBLE:
        return f"infeasible by {row['violation']:.1g}"
    return f"{np.floor(1e3 * max(row['gain'], 0.0)) / 10:.1f} % of the gain"


def solved(found: dict[str, Any], solver: str, held_out: bool | None = None) -> tuple[int, int]:
    """Return how many problems a solver solved, of how many that it applies to."""
    rows = [row for row in found["rows"] if row["solver"] == solver and row["applies"]]
    rows = [row for row in rows if held_out is None or row["held_out"] is held_out]
    return sum(row["solved_after"] is not None for row in rows), len(rows)


def verdict(found: dict[str, Any]) -> str:
    """Say how many problems each solver solved, and how often it was the first."""
    firsts: dict[str, int] = {}
    for name in dict.fromkeys(row["problem"] for row in found["rows"]):
        times = {row["solver"]: row["solved_after"] for row in found["rows"] if row["problem"] == name}
        known = {solver: seconds for solver, seconds in times.items() if seconds is not None}
        if known:
            first = min(known, key=lambda solver: known[solver])
            firsts[first] = firsts.get(first, 0) + 1
    said = []
    for solver in (solver for solver in LOOKS if any(row["solver"] == solver for row in found["rows"])):
        (all_solved, asked), (kept, of) = solved(found, solver), solved(found, solver, held_out=True)
        said.append(f"{solver} {all_solved} of {asked} ({kept} of {of} held out), first on {firsts.get(solver, 0)}")
    return f"Solved: {'; '.join(said)}."


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    return [
        f"Seconds from the statement of the problem to the first point that counts as solved, compilation included; each has "
        f"{found['seconds']:g} s. An empty cell: the solver does not apply. The others are given the loss in plain NumPy, "
        f"with exact lower solutions and all data in one place.",
        *(f"{solver} is not in these results: its package cannot be imported." for solver in found["absent"]),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
