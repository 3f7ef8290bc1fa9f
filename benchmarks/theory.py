"""The theorems against runs: `python benchmarks/theory.py`.

All on losses whose constants and smoothed gradients are known in closed form:

* bound: E||grad f_eta||^2 over the iterates of a run against the right-hand side of Proposition 1;
* consensus: the clients' mean squared distance to their average within a round against Lemma 9;
* clients: iterations to a target for m = 1 .. 16, the slope against -1;
* dimension: the same in n, against 1.5; and the rounds that those runs took against (m K)^(3/4);
* smoothing: an estimate's second moment in n, with directions on a sphere and normal ones;
* directions: the variance of the averaged estimate in m, where clients draw their own directions and where they share one.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path
from typing import Any

from fedrzo import theory
from fedrzo.compare.options import Options
from fedrzo.errors import InputError, MissingExtraError
from fedrzo.results import plots
from fedrzo.results.text import confidence_band
from fedrzo.support.files import write_file
from helpers import scaling, traces
from helpers.averaging import QUICK_RUNS, directions
from helpers.command import main
from helpers.moments import second_moments
from helpers.results import save
from helpers.theory_figure import figure, interval

PROBLEM = "closed forms"
SEEDS = 16
CLIENTS = [1, 2, 4, 8, 16]
DIMENSIONS, QUICK_DIMENSIONS = [2, 4, 8, 16, 32], [2, 4, 16]
DIM, SMOOTHING, DISTANCE = 4, 0.5, 2.0  # of the l1 problem
EPSILON, QUICK_EPSILON = 0.06, 0.1  # for clients; low enough that no step size is cut off by its limit, also for m = 16
DIMENSION_EPSILON, DIMENSION_CLIENTS = 0.12, 4
BUDGETS, QUICK_BUDGETS = (1_000, 10_000, 100_000), (300, 3_000)
CONSENSUS_STEPS = 10  # local steps where consensus is looked at


def run(options: Options) -> dict[str, Any]:
    """Measure all of the above."""
    _check(options)
    chosen, quick = options.all_seeds, options.quick
    found: dict[str, Any] = {"problem": PROBLEM, "seeds": chosen, "quick": quick}
    known = [traces.l1(4, DIM, SMOOTHING, DISTANCE), traces.boxes(3, SMOOTHING)]
    options.say("bound and consensus")
    budgets = QUICK_BUDGETS if quick else BUDGETS
    found["bound"] = [bound(one, K, chosen) for one in known for K in budgets]
    found["consensus"] = [consensus(one, budgets[-1], chosen) for one in known]
    options.say(f"clients: {CLIENTS}")
    found["clients"] = clients(QUICK_EPSILON if quick else EPSILON, chosen)
    dims = QUICK_DIMENSIONS if quick else DIMENSIONS
    options.say(f"dimension: {dims}")
    found["dimension"] = dimension(dims, chosen)
    found["rounds"] = rounds(found)
    found["smoothing"] = second_moments()
    options.say("directions")
    found["directions"] = directions([1, 16], QUICK_RUNS) if quick else directions(CLIENTS)
    found["claims"] = claims(found)
    found = _plain(found)
    save(found, options.out, "theory")
    if options.out is not None:
        write(found, options.out)
    return found


def bound(known: traces.Known, K: int, seeds: list[int]) -> dict[str, Any]:
    """Compare E||grad f_eta||^2 over iterates 0 .. K with the bound, at the prescribed step size and local steps."""
    plan = _plan(known, K)
    squared = traces.trace(known, plan.stepsize, plan.local_steps, K, seeds).squared
    mean, low, high = (float(edge) for edge in confidence_band(squared))
    return {
        "problem": known.problem.name, "iterations": K, "stepsize": plan.stepsize, "local_steps": plan.local_steps,
        "measured": mean, "low": low, "high": high, "bound": plan.bound, "terms": dict(plan.terms),
        "slack": plan.bound / mean, "holds": high <= plan.bound, "lipschitz_squared": known.lipschitz**2,
        "informative_from": _plan(known, None, known.lipschitz**2).iterations,
    }  # fmt: skip


def consensus(known: traces.Known, K: int, seeds: list[int]) -> dict[str, Any]:
    """Compare the consensus error at each local step of a round with Lemma 9, at the largest step size that it allows."""
    n, H = known.problem.dim, CONSENSUS_STEPS
    limit = theory.nonsmooth(
        known.problem.clients, n, known.smoothing, known.lipschitz, dissimilarity=known.dissimilarity, budget=K, local_steps=H
    ).limit  # fmt: skip
    found = traces.trace(known, limit, H, K, seeds)
    bounds, rows = [], []
    for k in range(1, H):
        earlier = float(found.gradients[:, :k].mean(axis=0).sum())
        allowed = theory.consensus_bound(n, known.smoothing, known.lipschitz, limit, H, earlier, known.dissimilarity)
        bounds.append(float(allowed))
        rows.append([float(edge) for edge in confidence_band(found.consensus[:, k])])
    slack = [allowed / row[0] for allowed, row in zip(bounds, rows, strict=True)]
    return {
        "problem": known.problem.name, "stepsize": limit, "local_steps": H, "measured": [row[0] for row in rows],
        "high": [row[2] for row in rows], "bound": bounds, "least_slack": min(slack),
        "holds": all(row[2] <= allowed for row, allowed in zip(rows, bounds, strict=True)),
    }  # fmt: skip


def clients(epsilon: float, seeds: list[int]) -> dict[str, Any]:
    """Find iterations to a target for each number of clients, all of which draw from the same samples."""
    known = traces.l1(max(CLIENTS), DIM, SMOOTHING, DISTANCE)
    found = scaling.slope(CLIENTS, [scaling.curve(known, m, epsilon, seeds) for m in CLIENTS], epsilon)
    return found | {"cut_off": [m for m, K in zip(CLIENTS, found["iterations"], strict=True) if _cut_off(m, K)]}


def dimension(dims: list[int], seeds: list[int]) -> dict[str, Any]:
    """Find iterations to a target for each dimension, with L0, eta and what there is to gain the same."""
    epsilon, m = DIMENSION_EPSILON, DIMENSION_CLIENTS
    curves = [scaling.curve(traces.l1(m, n, SMOOTHING, DISTANCE), m, epsilon, seeds) for n in dims]
    return scaling.slope(dims, curves, epsilon) | {"clients": m}


def rounds(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rounds that reaching the target took, at the prescribed H, against (m K)^(3/4)."""
    rows = []
    for m, K in zip(found["clients"]["at"], found["clients"]["iterations"], strict=True):
        if math.isfinite(K):
            R = theory.nonsmooth(m, DIM, SMOOTHING, 1.0, budget=math.ceil(K)).rounds
            rows.append({"clients": m, "iterations": K, "rounds": R, "bound": (m * math.ceil(K)) ** 0.75})
    return rows


def claims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the paper says, what was found, and whether that agrees."""
    m, n, d = found["clients"], found["dimension"], found["directions"]
    own, common, s = d["own"], d["shared"], found["smoothing"]
    sphere, normal, one = (s[name] for name in ("sphere, two sides", "normal, two sides", "sphere, one side"))
    worst = max((row["rounds"] / row["bound"] for row in found["rounds"]), default=math.nan)
    least = min(row["slack"] for row in found["bound"])
    return [
        {"claim": "E||grad||^2 is within Proposition 1's bound", "found": f"bound / measured >= {least:.3g}",
         "holds": all(row["holds"] for row in found["bound"])},
        {"claim": "consensus error is within Lemma 9's bound",
         "found": f"bound / measured >= {min(row['least_slack'] for row in found['consensus']):.3g}",
         "holds": all(row["holds"] for row in found["consensus"])},
        {"claim": "iterations fall as 1/m", "found": interval(m), "holds": m["low"] <= -1 <= m["high"] or m["high"] < -1},
        {"claim": "iterations grow at most as n^1.5", "found": interval(n), "holds": n["low"] <= 1.5},
        {"claim": "rounds are at most (m K)^(3/4)", "found": f"largest ratio {worst:.3g}", "holds": worst <= 1},
        {"claim": "an estimate's second moment grows as n on a sphere", "found": interval(sphere),
         "holds": sphere["low"] <= 1 <= sphere["high"]},
        {"claim": "and as n^2 with normal directions", "found": f"{interval(normal)}; one-sided, {interval(one)} on a sphere",
         "holds": normal["high"] >= 2},
        {"claim": "FedRZO_nn: averaging m estimates divides their variance by m", "found": interval(own),
         "holds": own["low"] <= -1 <= own["high"]},
        {"claim": "FedRZO_bl: the same, with its shared direction", "found": interval(common),
         "holds": common["low"] <= -1 <= common["high"]},
    ]  # fmt: skip


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print: a heading, then one per claim."""
    rows = [["claim", "found", "holds"]]
    return rows + [[one["claim"], one["found"], "yes" if one["holds"] else "no"] for one in found["claims"]]


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table, one line each."""
    lines = []
    for row in found["bound"]:
        lines.append(
            f"{row['problem']}, K = {row['iterations']:,}: measured {row['measured']:.3g}, bound {row['bound']:.3g}; "
            f"the bound falls below L0^2 = {row['lipschitz_squared']:.3g} only from K = {row['informative_from']:.3g} on"
        )
    for name in ("clients", "dimension"):
        pairs = zip(found[name]["at"], found[name]["iterations"], strict=True)
        lines.append(f"iterations to {found[name]['epsilon']:g} by {name}: " + ", ".join(f"{a}: {_count(K)}" for a, K in pairs))
    return [
        *lines,
        "The prescribed step size grows as sqrt(m) and falls as n^(-3/4): slopes are those of prescribed runs.",
    ]


def verdict(found: dict[str, Any]) -> str:
    """Say which claims hold."""
    not_held = [one["claim"] for one in found["claims"] if not one["holds"]]
    said = f"{len(found['claims']) - len(not_held)} of {len(found['claims'])} of the paper's claims hold."
    return said + (f" Not: {'; '.join(not_held)}." if not_held else "")


def write(found: dict[str, Any], out: Path) -> None:
    """Write the table and the figure."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(table(found))
    write_file(out / "table.csv", buffer.getvalue().encode())
    try:
        plots.save(figure(found), out / "figure")
    except MissingExtraError as error:
        print(f"no figure: {error}", file=sys.stderr)


def _plan(known: traces.Known, budget: int | None, epsilon: float | None = None) -> theory.LowerPlan:
    return theory.nonsmooth(
        known.problem.clients, known.problem.dim, known.smoothing, known.lipschitz, dissimilarity=known.dissimilarity,
        gap=known.gap, budget=budget, epsilon=epsilon,
    )  # fmt: skip


def _count(iterations: float | None) -> str:
    return "not reached" if iterations is None else f"{iterations:,.0f}"


def _cut_off(m: int, K: float) -> bool:
    """Tell whether the prescribed step size is above its limit at so many iterations."""
    plan = None if math.isinf(K) else theory.nonsmooth(m, DIM, SMOOTHING, 1.0, budget=math.ceil(K))
    return plan is not None and plan.prescribed > plan.limit


def _plain(content: Any) -> Any:
    """Return the numbers with null for what JSON cannot hold."""
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _check(options: Options) -> None:
    if options.problem != PROBLEM:
        raise InputError(
            f"problem: found {options.problem!r}; this benchmark runs on its own problems with closed forms: leave it out"
        )
    if options.budget is not None:
        raise InputError(f"--budget: found {options.budget}; this benchmark has its own, smaller with --quick: leave it out")
    if options.seeds < 2:
        raise InputError(f"--seeds: found {options.seeds}; pass at least 2, since intervals come from differences between seeds")
    options.check_out()


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
