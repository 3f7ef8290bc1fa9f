"""fz.solve beside the solvers that people use for equilibrium constraints: `python benchmarks/mpec.py`.

* fedrzo: `fz.solve(problem, seconds=60)`, nothing else.
* ipopt: CasADi and IPOPT (MUMPS), lower levels as complementary pairs whose products are at most t, t from 1 to 1e-8 (Scholtes).
* mpecss: the package of that name, with its defaults; the same pairs.

The problems are published ones, and Cournot games of one leader, N followers and S scenarios. Each solver has a process of its
own for each problem, an empty cache, at most so many seconds and so much memory. Its x is judged with exact lower solutions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedrzo.support.cores import cores
from helpers import mpec_answers, mpec_game
from helpers.environments import Environment, PeerError
from helpers.mpec_figure import NEAR, figure
from helpers.results import save

GAMES = ("1x1", "10x100", "1000x1", "100x100", "1000x100", "100x1000", "1000x1000", "100x10000")
PROBLEMS = (*mpec_answers.BEST, *GAMES)
QUICK = ("stackelberg1", "desilva", "1x1", "10x10")
REQUIREMENTS = ("casadi==3.8.2", "mpecss==1.0.3")
SCRIPT = Path(__file__).parent / "mpec_contestants.py"
SOLVERS = ("fedrzo", "ipopt", "mpecss")
SPARE = 60.0  # what a process of fz.solve may take beside its own limit: imports, the problem, a last look


def options_of(args: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "problems", nargs="*", metavar="PROBLEM", help=f"of {', '.join(PROBLEMS)}, or any game NxS; all by default"
    )
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=list(SOLVERS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for fz.solve")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which the others are stopped")
    parser.add_argument("--gibibytes", type=float, default=10.0, help="of memory for each process")
    parser.add_argument("--seed", type=int, default=0, help="of the games")
    parser.add_argument("--out", type=Path, help="a folder for mpec.json, mpec.png and the peers' environment")
    parser.add_argument("--quick", action="store_true", help="four small problems, 20 seconds each")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(args)
    options.problems = options.problems or list(QUICK if options.quick else PROBLEMS)
    wrong = [name for name in options.problems if name not in mpec_answers.BEST and not is_game(name)]
    if wrong:
        parser.error(f"PROBLEM: found {wrong[0]!r}; pass names of {', '.join(PROBLEMS)}, or a game such as 20x50")
    if options.quick:
        options.seconds, options.limit = min(options.seconds, 20.0), min(options.limit, 60.0)
    return options


def is_game(name: str) -> bool:
    """Tell whether a name is the size of a game."""
    followers, _, scenarios = name.partition("x")
    return followers.isdigit() and scenarios.isdigit()


def pairs_of(name: str) -> int:
    """Return how many followers times scenarios a game has."""
    followers, _, scenarios = name.partition("x")
    return int(followers) * int(scenarios)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all that is asked for."""
    found: dict[str, Any] = {
        "cores": cores(), "seconds": options.seconds, "limit": options.limit, "gibibytes": options.gibibytes,
        "seed": options.seed, "versions": list(REQUIREMENTS), "missing": "", "rows": [],
    }  # fmt: skip
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedrzo-mpec-") as elsewhere:
        home = Environment((options.out or Path(elsewhere)) / "environments" / "mpec", REQUIREMENTS)
        if not home.ready and set(options.solvers) - {"fedrzo"}:
            print(f"mpec: pip downloads {', '.join(REQUIREMENTS)} and what they need into {home.folder}", file=sys.stderr)
            try:
                home.install()
            except PeerError as error:
                found["missing"] = str(error)
        for name in options.problems:
            reference = reference_of(name, options.seed)
            for solver in options.solvers:
                if solver != "fedrzo" and found["missing"]:
                    continue
                if hopeless(found["rows"], solver, name):
                    row = {"seconds": None, "why": "not tried: a smaller game took too long"}
                else:
                    print(f"mpec: {solver} on {name}", file=sys.stderr, flush=True)
                    row = judge(name, contest(solver, name, home.python, options), reference, options)
                found["rows"].append({"problem": name, "solver": solver, "optimum": reference[0]} | row)
                save(found, options.out, "mpec")
    if options.out is not None:
        figure(found).savefig(options.out / "mpec.png", dpi=150)
    return found


def hopeless(rows: list[dict[str, Any]], solver: str, name: str) -> bool:
    """Tell whether mpecss was stopped at a smaller game before; the other two are tried on all sizes."""
    smaller = [row for row in rows if row["solver"] == solver and is_game(row["problem"])]
    return solver == "mpecss" and is_game(name) and any(not row.get("done") for row in smaller)


def reference_of(name: str, seed: int) -> tuple[float, Any]:
    """Return the best value, and the loss of an x."""
    if not is_game(name):
        return mpec_answers.BEST[name]
    followers, _, scenarios = name.partition("x")
    game = mpec_game.draw(int(followers), int(scenarios), seed)
    begun = time.perf_counter()
    best = mpec_game.optimum(game)[1]
    print(f"mpec: the reference of {name} took {time.perf_counter() - begun:.1f} s", file=sys.stderr)
    return best, lambda x: mpec_game.loss(game, float(np.clip(x[0], 0.0, mpec_game.HIGHEST)))


def contest(solver: str, name: str, python: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a solver in a process of its own; return all that it printed, and how it ended."""
    ours = solver == "fedrzo"
    job = {"solver": solver, "problem": name, "seed": options.seed, "seconds": options.seconds, "gibibytes": options.gibibytes}
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"} | {
        "FEDRZO_CACHE": "off"
    }
    if not ours:
        environment = {key: value for key, value in environment.items() if not key.startswith("PYTHON")}
    limit = options.seconds + SPARE if ours else options.limit
    command = [sys.executable if ours else python, str(SCRIPT), json.dumps(job)]
    begun = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=limit)
        ended = ""
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        ended = f"stopped after {limit:.0f} s"
    took = time.perf_counter() - begun
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    if not ended and not (answers and answers[-1].get("done")):
        ended = explain(process.returncode, out + err, options.gibibytes)
    return {"answers": answers, "ended": ended, "took": took}


def explain(status: int, said: str, gibibytes: float) -> str:
    """Say why a process ended without an answer."""
    if status == -9 or any(
        word in said for word in ("MemoryError", "bad_alloc", "Cannot allocate", "Insufficient_Mem", "Memory allocation")
    ):
        return f"out of memory at {gibibytes:g} GiB"
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else f"status {status}"


def judge(name: str, done: dict[str, Any], reference: tuple[float, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return what a solver reached, by the reference, and when it was first near it."""
    best, loss_at = reference
    row: dict[str, Any] = {"seconds": done["took"], "done": not done["ended"], "why": done["ended"], "gap": None, "near": None}
    if not done["answers"]:
        return row
    losses = [loss_at(np.array(answer["x"])) for answer in done["answers"]]
    gaps = [(loss - best) / max(1.0, abs(best)) for loss in losses]
    times = [answer["seconds"] for answer in done["answers"]]
    last, x = done["answers"][-1], np.array(done["answers"][-1]["x"])
    if "history" in last and is_game(name):  # a row for each stage; before it, the process was started and the problem stated
        times = [last["before"] + seconds for seconds in last["history"][0]]
        gaps = [*((loss - best) / max(1.0, abs(best)) for loss in last["history"][1][:-1]), gaps[-1]]
    outside = (
        float(np.max(np.maximum(np.maximum(-x, x - mpec_game.HIGHEST), 0))) if is_game(name) else mpec_answers.outside(name, x)
    )
    return row | {
        "near": next((seconds for seconds, gap in zip(times, gaps, strict=True) if gap <= NEAR), None),
        "seconds": last["seconds"] if row["done"] else done["took"],
        "gap": gaps[-1], "loss": losses[-1], "outside": outside, "complementarity": last.get("complementarity"),
        "says": last.get("says"), "stages": last.get("stages"), "x": last["x"][:5],
    }  # fmt: skip


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    rows = [["problem", "solver", "seconds", "within 1e-3 after", "gap", "outside X", "complementarity", "says"]]
    for row in found["rows"]:
        took = "" if row["seconds"] is None else f"{row['seconds']:.1f}" if row["done"] else f"at least {row['seconds']:.0f}"
        numbers = [f"{row[key]:.1e}" if row.get(key) is not None else "" for key in ("gap", "outside", "complementarity")]
        near = f"{row['near']:.1f}" if row.get("near") is not None else ""
        says = "; ".join(
            text for text in (row["why"], row.get("says") or ("no certificate" if row["solver"] == "fedrzo" else "")) if text
        )
        rows.append([row["problem"], row["solver"], took, near, *numbers, says])
    return rows


def verdict(found: dict[str, Any]) -> str:
    """Say who comes near the optimum first, problem by problem; who was alone there is said to be."""
    wins: dict[str, list[str]] = {}
    for name in dict.fromkeys(row["problem"] for row in found["rows"]):
        near = {row["solver"]: row["near"] for row in found["rows"] if row["problem"] == name and row.get("near") is not None}
        if near:
            alone = " (alone)" if sum(row["problem"] == name for row in found["rows"]) == 1 else ""
            wins.setdefault(min(near, key=lambda solver: near[solver]), []).append(name + alone)
    said = "; ".join(f"{solver} on {', '.join(names)}" for solver, names in wins.items())
    return f"First within {NEAR:g} of the optimum: {said}."


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    limits = found["limit"] if isinstance(found["limit"], dict) else {"all": found["limit"]}
    others = ", ".join(f"{name}: {seconds:g} s" for name, seconds in limits.items())
    absent = [solver for solver in SOLVERS if all(row["solver"] != solver for row in found["rows"])]
    return [
        *(f"{solver} is not in these results." for solver in absent),
        f"One run each with {found['gibibytes']:g} GiB; fz.solve has {found['seconds']:g} s, the others are stopped ({others}). "
        f"{', '.join(found['versions'])}.",
    ]


def main(args: list[str] | None = None) -> int:
    """Measure, print and store."""
    options = options_of(args)
    found = run(options)
    if options.json:
        print(json.dumps(found))
        return 0
    rows = table(found)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if found["missing"]:
        print(f"ipopt and mpecss are missing: {found['missing']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
