"""Loss against bytes: FedRZO_nn by vectors and by scalars, beside others, at equal loss evaluations.

Stepsizes are chosen as `fedrzo compare` does; scalars take that of vectors, since they take the same steps. What a round
costs where vectors are long is in `helpers/replay.py`.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedrzo.compare.candidates import LOCAL_STEPS, Candidate, applicable
from fedrzo.compare.contest import (
    FEASIBLE,
    TUNING,
    Contest,
    budgets_for,
    distance,
    enter,
    judged_by,
    plain,
)
from fedrzo.compare.options import Options
from fedrzo.errors import InputError, MissingExtraError
from fedrzo.results import plots
from fedrzo.results.figure import NAMES, prepare, spent
from fedrzo.results.history import History
from fedrzo.results.result import Result
from fedrzo.results.text import confidence_band, size
from fedrzo.running.spec import slug
from fedrzo.support.files import write_file
from helpers import replay
from helpers.command import main
from helpers.results import save

PROBLEM = "relu-digits"
SEEDS = 5
FAMILY = "FedRZOnn"
VECTORS, SCALARS = f"{FAMILY}, vectors", f"{FAMILY}, scalars"
OTHERS = ("FedZO", "DeComFL", "FedAvg")
PANEL = (5.2, 3.4)  # inches


def run(options: Options) -> dict[str, Any]:
    """Compare ways of communication, on a problem of a single level; the budget is that of `fedrzo compare`."""
    options.check()
    problem, seed, quick = options.problem, options.seed, options.quick
    made = options.make()
    entrants, refused = _entrants(problem, made)
    contests, late = enter(entrants, made, quick, seed)
    budgets = budgets_for(contests, options.budget, quick)
    results: dict[str, list[Result]] = {}
    for contest in contests:
        name = contest.candidate.name
        options.say(f"{name}: {contest.rounds(budgets, 'evaluations')} rounds")
        results[name] = _compete(contest, contests[0], budgets, seed, options.all_seeds)
    found = {
        "problem": problem, "dimension": made.dim, "clients": made.clients, "local_steps": LOCAL_STEPS,
        "evaluations": budgets["evaluations"], "seeds": options.all_seeds, "tuning_seed": seed + TUNING,
        **_compared(contests, results),
        "same": _same(results, made), "refused": [{"name": n, "reason": r} for n, r in (refused | late).items()],
    }  # fmt: skip
    options.say("a network of CIFAR-10's shape")
    found["cifar"] = replay.cost(replay.made_up(), replay.QUICK_REPETITIONS if quick else replay.REPETITIONS)
    save(found, options.out, "communication")
    if options.out is not None:
        write(found, {name: [result.history for result in runs] for name, runs in results.items()}, options.out)
    return found


def _entrants(name: str, problem: Any) -> tuple[list[Candidate], dict[str, str]]:
    """Return who takes part, vectors first, and why others do not."""
    found, refused = applicable(problem)
    known = {candidate.name: candidate for candidate in found}
    if FAMILY not in known:
        raise InputError(f"problem: {name!r} has two levels; this benchmark compares methods for one")
    base: Any = known[FAMILY].method
    entrants = [Candidate(VECTORS, base), Candidate(SCALARS, dataclasses.replace(base, communication="scalars"))]
    entrants += [known[other] for other in OTHERS if other in known]
    return entrants, {other: refused[other] for other in OTHERS if other in refused}


def _compete(contest: Contest, vectors: Contest, budgets: dict[str, float], seed: int, seeds: list[int]) -> list[Result]:
    """Choose a stepsize, or take that of vectors, and run to the evaluation budget."""
    if contest.candidate.name == SCALARS:
        contest.stepsize, contest.tried = vectors.stepsize, vectors.tried
    else:
        contest.tune(budgets, seed + TUNING)
    return contest.sweep(contest.rounds(budgets, "evaluations"), seeds, [contest.stepsize]).results[0]


def _compared(contests: list[Contest], results: dict[str, list[Result]]) -> dict[str, Any]:
    """Return one entry per method, and the loss that all of them reach: the largest mean at the end."""
    curves = {name: [result.history for result in runs] for name, runs in results.items()}
    column = judged_by(curves[VECTORS][0])
    start = float(curves[VECTORS][0][column][0])
    ends = {name: float(np.mean([history[column][-1] for history in runs])) for name, runs in curves.items()}
    finished = [loss for loss in ends.values() if np.isfinite(loss) and loss < start]
    target = max(finished) if finished else None
    return {
        "column": column,
        "start": start,
        "target": target,
        "methods": [_entry(contest, curves[contest.candidate.name], target) for contest in contests],
    }


def _entry(contest: Contest, histories: list[History], target: float | None) -> dict[str, Any]:
    losses = np.array([history[judged_by(history)][-1] for history in histories])
    with np.errstate(over="ignore", invalid="ignore"):
        mean, low, high = (float(edge) if np.isfinite(edge) else None for edge in confidence_band(losses))
    last = {
        name: float(np.mean([h[name][-1] for h in histories]))
        for name in ("round", "upload_bytes", "download_bytes", "feasibility")
    }
    return {
        "name": contest.candidate.name, "stepsize": contest.stepsize, "edge_of_grid": contest.at_edge,
        "loss": mean, "low": low, "high": high, "feasibility": plain(last["feasibility"]),
        "rounds": int(last["round"]), "upload_bytes": round(last["upload_bytes"]),
        "download_bytes": round(last["download_bytes"]), "bytes_to_target": None if target is None else until(histories, target),
    }  # fmt: skip


def until(histories: list[History], target: float) -> int | None:
    """Return the bytes, both ways, after which the mean loss over the seeds is down to the target, by interpolation."""
    losses = np.mean([history[judged_by(history)] for history in histories], axis=0)
    sent = np.mean([spent(history, "bytes") for history in histories], axis=0)
    below = np.flatnonzero(losses <= target)
    if not len(below):
        return None
    j = int(below[0])
    if j == 0:
        return 0
    part = (losses[j - 1] - target) / (losses[j - 1] - losses[j])
    return round(float(sent[j - 1] + part * (sent[j] - sent[j - 1])))


def _same(results: dict[str, list[Result]], problem: Any) -> dict[str, Any] | None:
    """Compare the runs by scalars with those by vectors: where each ended, and what each showed on the way."""
    if SCALARS not in results:
        return None
    pairs = list(zip(results[VECTORS], results[SCALARS], strict=True))
    flat = [[np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.x)]) for run in pair] for pair in pairs]
    losses = [[run.history["loss"] for run in pair] for pair in pairs]
    return {
        "largest_difference_of_x": max(float(np.max(np.abs(a - b))) for a, b in flat),
        "largest_entry_of_x": max(float(np.max(np.abs(a))) for a, _ in flat),
        "largest_relative_difference_of_loss": max(float(np.max(np.abs(a - b) / np.abs(a))) for a, b in losses),
        "precision": str(problem.layout.dtype),
        "rounds": int(pairs[0][0].history["round"][-1]),
    }


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print: a heading, then one per method."""
    target = "" if found["target"] is None else f" {found['target']:.4g}"
    constrained = found["column"] == FEASIBLE
    loss, outside = NAMES.get(found["column"], "loss"), ["feasibility"] if constrained else []
    heads = [
        f"{loss}\nafter {found['evaluations']:,.0f} evaluations",
        *outside,
        "rounds",
        "up",
        "down",
        f"bytes to{target}",
    ]
    rows = [["", "stepsize", *heads]]
    for entry in found["methods"]:
        half = "" if entry["loss"] is None else f"{entry['loss']:.5g} ± {(entry['high'] - entry['low']) / 2:.1g}"
        rows.append([
            entry["name"], f"{entry['stepsize']:.3g}", half or "not finite", *(distance(entry) for _ in outside),
            f"{entry['rounds']:,}", _size(entry["upload_bytes"]), _size(entry["download_bytes"]), _size(entry["bytes_to_target"]),
        ])  # fmt: skip
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table, one line each."""
    lines = [f"{entry['name']} is left out: {entry['reason']}" for entry in found["refused"]]
    lines += [f"{e['name']}: stepsize at the edge of its grid" for e in found["methods"] if e["edge_of_grid"]]
    if same := found["same"]:
        lines.append(
            f"scalars against vectors after {same['rounds']} rounds in {same['precision']}: x differs by at most "
            f"{same['largest_difference_of_x']:.2g} (its largest entry is {same['largest_entry_of_x']:.2g}), the loss by "
            f"{same['largest_relative_difference_of_loss']:.2g} of itself"
        )
    return [*lines, *replay.remarks(found["cifar"])]


def write(found: dict[str, Any], histories: dict[str, list[History]], out: Path) -> None:
    """Write the table, the histories and the figure."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([[cell.replace("\n", " ") for cell in row] for row in table(found)])
    write_file(out / "table.csv", buffer.getvalue().encode())
    for name, runs in histories.items():
        folder = out / slug(name)
        folder.mkdir(parents=True, exist_ok=True)
        for seed, history in zip(found["seeds"], runs, strict=True):
            history.write(folder / f"seed-{seed}.csv")
    try:
        plots.save(figure(histories), out / "figure")
    except MissingExtraError as error:
        print(f"no figure: {error}", file=sys.stderr)


def figure(histories: dict[str, list[History]]) -> Any:
    """Draw the loss against bytes, on a logarithmic axis, which has no place for the start: no bytes have been sent there."""
    later = {name: [_later(history) for history in runs] for name, runs in histories.items()}
    picture = prepare(later, judged_by(later[VECTORS][0]), ("bytes",))
    drawn = plots.draw(picture, PANEL)
    first = min(float(curve.costs["bytes"][0]) for curve in picture.curves)
    last = max(float(curve.costs["bytes"][-1]) for curve in picture.curves)
    [axes] = drawn.axes
    axes.set_xlim(first / 1.1, 1.1 * last)
    axes.set_xscale("log")
    return drawn


def _later(history: History) -> History:
    return History({name: values[1:] for name, values in history.to_dict().items()})


def _size(count: int | None) -> str:
    return "not reached" if count is None else size(count)


def verdict(found: dict[str, Any]) -> str:
    """Say who ends lowest, and who reaches the common loss with the fewest bytes."""
    losses = {one["name"]: one["loss"] for one in found["methods"] if one["loss"] is not None}
    sent = {one["name"]: one["bytes_to_target"] for one in found["methods"] if one["bytes_to_target"] is not None}
    lowest, fewest = min(losses, key=lambda name: losses[name]), min(sent, key=lambda name: sent[name])
    without = [name for name in sent if name != "FedAvg"]
    least = min(without, key=lambda name: sent[name])
    return f"{lowest} ends lowest, {fewest} sends the least until the common loss; of those without gradients {least} does."


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
