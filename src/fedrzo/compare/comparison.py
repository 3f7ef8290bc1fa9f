"""All methods that apply to one problem, at equal loss evaluations and at equal bytes: the table, the figure, the files.

How they compete is in `contest.py`, how each is set up in `candidates.py`.
"""

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedrzo.compare.candidates import LOCAL_STEPS, SAME, Setting, applicable
from fedrzo.compare.contest import BUDGETS, FEASIBLE, TUNING, Contest, budgets_for, distance, enter, judged_by, rank
from fedrzo.compare.options import Options
from fedrzo.errors import InputError, MissingExtraError
from fedrzo.results import plots
from fedrzo.results.figure import NAMES, prepare
from fedrzo.results.history import History
from fedrzo.results.text import BYTE_UNITS, bytes_unit, spread
from fedrzo.running.spec import slug
from fedrzo.support.files import refuse_existing, write_file

PROBLEM = "relu-digits"
SEEDS = 5
GAPS = {"loss": "loss above the least one found", FEASIBLE: "feasible loss above the least found"}
HIDES = 0.3  # of the first loss: a least loss above this hides what methods still gain
WRITTEN = ("table.json", "table.csv", "figure.png", "figure.svg")  # beside a folder for each method
FLOOR = 1e-6  # of what the best method gains
PANEL = (4.4, 3.2)  # inches
PROJECTED = (
    "Losses are those at x_feasible, the projection of x onto all clients' sets; feasibility is how far x itself lies outside "
    "the set furthest off."
)
NOTE = (
    "Gradient methods are given the gradient that automatic differentiation returns: where a loss has kinks, "
    "that of almost every point."
)


def run(options: Options) -> dict[str, Any]:
    """Compare all applicable methods.

    By default the budget is as many loss evaluations as 300 rounds of ten gradient steps take (40 if quick), ten times that where
    there is a lower level, and there at least 30 rounds (10 if quick) of the costliest method. The byte budget is what the
    methods' median sends meanwhile.

    Returns:
        Budgets, one entry per method, and the methods that refused the problem, with the reason.
    """
    options.check()
    if options.out is not None:
        refuse_existing(options.out, WRITTEN, "--out")
    problem, seed, quick = options.problem, options.seed, options.quick
    made = options.make()
    if made.coupled:
        raise InputError(
            "problem: it keeps coupling constraints by a penalty, so that losses alone do not rank; compare runs yourself"
        )
    candidates, refused = applicable(made)
    contests, late = enter(candidates, made, quick, seed)
    refused |= late
    if not contests:
        raise InputError(f"problem: no method solves {problem!r}: {'; '.join(refused.values()) or 'none is known'}")
    budgets = budgets_for(contests, options.budget, quick)
    for i, contest in enumerate(contests):
        counts = " and ".join(f"{contest.rounds(budgets, b)}" for b in BUDGETS)
        options.say(f"{contest.candidate.name} ({i + 1} of {len(contests)}): {counts} rounds")
        contest.tune(budgets, seed + TUNING)
        contest.compete(budgets, options.all_seeds)
    entries = sorted((c.entry(budgets) for c in contests), key=lambda e: rank(e["at_equal_evaluations"]["loss"]))
    first = contests[0].histories["bytes"][0]
    column = judged_by(first)
    found = {
        "problem": problem, "column": column, "start": float(first[column][0]), "budget": budgets,
        "seeds": options.all_seeds, "tuning_seed": seed + TUNING, "rounds_cap": contests[0].cap,
        "local_steps": LOCAL_STEPS, "batch_size": Setting.of(made).batch_size,
        "methods": entries, "refused": [{"name": name, "reason": reason} for name, reason in refused.items()],
        "same": [{"name": name, "as": other} for name, other in SAME.items() if other in {e["name"] for e in entries}],
        "note": NOTE,
    }  # fmt: skip
    found["remarks"] = remarks(found)
    if options.out is not None:
        save(found, contests, options.out)
    return found


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print: a heading, then one per method, best first."""
    factor, unit = bytes_unit(found["budget"]["bytes"])
    budgets = (f"{found['budget']['evaluations']:,.0f} evaluations", f"{found['budget']['bytes'] / factor:.3g} {unit}")
    loss, outside = NAMES.get(found["column"], "loss"), ["feasibility"] if _constrained(found) else []
    heads = [head for budget in budgets for head in (f"{loss}\nafter {budget}", *outside, "rounds")]
    rows = [["", "stepsize", *heads, ""]]
    for entry in found["methods"]:
        cells = []
        for end in (entry[f"at_equal_{budget}"] for budget in BUDGETS):
            cells += [_interval(end), *(distance(end) for _ in outside), f"{end['rounds']:,}"]
        rows.append([entry["name"], f"{entry['stepsize']:.3g}", *cells, ", ".join(_remarks(entry))])
    return rows


def _constrained(found: dict[str, Any]) -> bool:
    return found["column"] == FEASIBLE


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table, one line each."""
    lines = [f"{entry['name']} takes the steps of {entry['as']}" for entry in found["same"]]
    lines += [f"{entry['name']} is left out: {entry['reason']}" for entry in found["refused"]]
    cap = f"capped: the budget pays for more than {found['rounds_cap']:,} rounds, which is where every method stops"
    marks = [mark for entry in found["methods"] for mark in _remarks(entry)]
    lines += [cap] if any("capped" in mark for mark in marks) else []
    lines += [PROJECTED] if _constrained(found) else []
    return [*lines, found["note"]]


def _interval(end: dict[str, Any]) -> str:
    if end["loss"] is None:
        return "not finite"
    return f"{end['loss']:.5g}{spread(end['loss'], (end['high'] - end['low']) / 2, 1)}"


def _remarks(entry: dict[str, Any]) -> list[str]:
    capped = [budget for budget in BUDGETS if entry[f"at_equal_{budget}"]["capped"]]
    marks = ["diverged"] if entry["diverged"] else []
    marks += ["stepsize at the edge of its grid"] if entry["edge_of_grid"] else []
    dear = [budget for budget in BUDGETS if entry[f"at_equal_{budget}"]["share_of_budget"] > 1]
    marks += [f"one round exceeds the budget in {' and '.join(dear)}"] if dear else []
    return [*marks, f"capped in {' and '.join(capped)}"] if capped else marks


def save(found: dict[str, Any], contests: list[Contest], out: Path) -> None:
    """Write the table, the histories and the figure."""
    write_file(out / "table.json", json.dumps(found, allow_nan=False, indent=1).encode())
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([[cell.replace("\n", " ") for cell in row] for row in table(found)])
    write_file(out / "table.csv", buffer.getvalue().encode())
    for contest in contests:
        for seed, history in zip(found["seeds"], contest.merged(), strict=True):
            folder = out / slug(contest.candidate.name)
            folder.mkdir(parents=True, exist_ok=True)
            history.write(folder / f"seed-{seed}.csv")
    try:
        plots.save(figure(found, contests), out / "figure")
    except MissingExtraError as error:
        print(f"no figure: {error}", file=sys.stderr)


def figure(found: dict[str, Any], contests: list[Contest]) -> Any:
    """Draw the loss against evaluations and bytes, each up to its budget; best methods first."""
    runs = {contest.candidate.name: contest.merged() for contest in contests}
    best = min(float(np.nanmin(history[found["column"]])) for group in runs.values() for history in group)
    groups = {}
    for entry in found["methods"]:
        # Where there are sets, the label says how far outside of them x itself ended.
        outside = f" ({distance(entry['at_equal_evaluations'])} outside)" if _constrained(found) else ""
        groups[entry["name"] + outside] = [_gap(history, best, found) for history in runs[entry["name"]]]
    hidden = best <= 0 or best > HIDES * found["start"]
    picture = prepare(groups, GAPS[found["column"]] if hidden else found["column"], BUDGETS)
    drawn = plots.draw(picture, PANEL)
    evaluations, traffic = drawn.axes
    evaluations.set_xlim(0, found["budget"]["evaluations"])
    # A method's longer run may have sent far more than the byte budget: read the axis in the budget's own unit.
    scale = 1000.0 ** BYTE_UNITS.index(picture.axes[1].unit)
    factor, unit = bytes_unit(found["budget"]["bytes"])
    traffic.set_xlim(0, found["budget"]["bytes"] / scale)
    traffic.xaxis.set_major_formatter(lambda x, _: f"{x * scale / factor:g}")
    traffic.set_xlabel(f"upload + download [{unit}]")
    return drawn


def _gap(history: History, best: float, found: dict[str, Any]) -> History:
    """Return a history with the loss above the best one; gaps too small to be told from it are drawn at the floor."""
    column, floor = found["column"], FLOOR * (found["start"] - best)
    gaps = [max(value - best, floor) for value in history.to_dict()[column]]
    return History({**history.to_dict(), GAPS[column]: gaps})
