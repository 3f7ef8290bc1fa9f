"""Accuracy against epsilon on MNIST, with two methods of the library and with DP-SGD: `python benchmarks/privacy.py`.

Ten silos of 6,000 records each, dealt out at random; a network of 6,634 parameters; accuracy on the 10,000 test images. Every
method takes 1,000 steps on Poisson samples of 256 records on average, hence makes 1,000 releases, with delta = 1e-5, and all use
the library's accounting: the noise is the same for all, in units of the clip.

* FedRZO_nn and DeComFL with 20 directions a step (DeComFL's are the same for all silos), loss values alone, scalars travel.
* DP-SGD: clipped gradients of records, noise at the silo, averaged after every step, or after every 100 (`helpers/private_sgd`).

Step sizes and clips are chosen by `--search`, by training accuracy, with another key than those that are measured: once without
noise, once at epsilon = 2, and kept for all other epsilons. What "none" is has a step size of its own, the best without a clip.

Settings that are best without noise are too bold with it, since the noise grows with the step and with the clip. A GPU takes 4
minutes for all of it, two cores of a CPU half an hour for one run of everything.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedrzo.support.cores import cores
from helpers.private_contestants import (
    CLIPPED,
    COSTS,
    DECOMFL,
    DELTA,
    NN,
    NOISY,
    PLAIN,
    SGD,
    SILENT,
    Case,
    Contestant,
    Size,
    Tuning,
)
from helpers.private_digits import Digits, digits
from helpers.private_figure import figure
from helpers.private_search import search
from helpers.results import save

SILOS, RECORDS = 10, 6_000
EPSILONS = (0.5, 2.0, 8.0)
GOAL, AT = 0.96, 2.0  # of the accuracy without noise, at this epsilon
CONTESTANTS = {
    "FedRZO_nn": Contestant(NN, Tuning(0.125), Tuning(1.0, 0.3), Tuning(0.25, 0.3)),
    "DeComFL": Contestant(DECOMFL, Tuning(8e-3), Tuning(32e-3, 25.0), Tuning(16e-3, 25.0)),
    "DP-SGD": Contestant(SGD, Tuning(0.5), Tuning(1.0, 10.0), Tuning(2.0, 1.0)),
    "DP-SGD, 100 local steps": Contestant(SGD, Tuning(0.5), None, Tuning(2.0, 1.0), local_steps=100),
}
WAYS = (SILENT, NOISY)


def options_of(args: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", help="the folder with the MNIST files, if they are not in the usual places")
    parser.add_argument("--dataset", choices=["mnist", "digits"], default="mnist", help="digits: small, and needs no file")
    parser.add_argument("--records", type=int, default=RECORDS, help="of each of the 10 silos")
    parser.add_argument("--steps", type=int, default=Size().steps, help="local steps, that is releases, of each silo")
    parser.add_argument("--batch-size", type=int, default=Size().batch_size)
    parser.add_argument("--directions", type=int, default=Size().directions)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--methods", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--runs", type=int, default=1, help="of each setting, with different keys")
    parser.add_argument("--seed", type=int, default=0, help="of the split, of the first weights and of --search; keys follow it")
    parser.add_argument("--search", action="store_true", help="choose step sizes and clips anew, instead; best on an accelerator")
    parser.add_argument("--out", type=Path, help="a folder for privacy.json and privacy.png")
    parser.add_argument("--quick", action="store_true", help="epsilon = 2 alone, 1,000 records at each silo, 60 steps")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(args)
    if options.quick:
        options.records, options.steps = min(options.records, 1_000), min(options.steps, 60)
        options.batch_size, options.epsilons = min(options.batch_size, 128), [AT]
        options.methods = [name for name in options.methods if CONTESTANTS[name].local_steps == 1]
    if options.dataset == "digits":
        options.records, options.batch_size = min(options.records, 140), min(options.batch_size, 32)
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all that is asked for."""
    data = digits(SILOS, options.records, options.seed, options.data, options.dataset)
    problem, size = data.problem(), Size(options.steps, options.batch_size, options.directions)
    found: dict[str, Any] = {
        "device": f"{jax.devices()[0].device_kind}, {cores()} cores", "parameters": data.dim, "silos": SILOS,
        "records": data.records, "delta": DELTA, **size._asdict(), "epsilons": options.epsilons, "rows": [],
    }  # fmt: skip
    if options.search:
        found["search"] = search(data, problem, size, [PLAIN, CLIPPED, AT], options.seed)
        save(found, options.out, "privacy_search")
        return found
    for name in options.methods:
        contestant = CONTESTANTS[name]
        for case in contestant.cases(options.epsilons, options.quick):
            for key in range(options.seed + 1, options.seed + 1 + options.runs):
                found["rows"].append({"method": name} | measured(name, contestant, data, problem, size, case, key))
                save(found, options.out, "privacy")
    found["goal"] = goals(found)
    save(found, options.out, "privacy")
    if options.out is not None:
        figure(found).savefig(options.out / "privacy.png", dpi=150)
    return found


def measured(name: str, contestant: Contestant, data: Digits, problem: Any, size: Size, case: Case, key: int) -> dict[str, Any]:
    """Run a contestant once, and say so."""
    begun = time.perf_counter()
    row = contestant.run(data, problem, size, case, key)
    seconds = time.perf_counter() - begun
    print(f"privacy: {name}, {' '.join(map(str, case))}: {row['accuracy']:.4f} in {seconds:.0f} s", file=sys.stderr, flush=True)
    return case._asdict() | {"key": key} | row | {"seconds": seconds}


def grouped(found: dict[str, Any]) -> dict[tuple[str, Case], list[dict[str, Any]]]:
    """Return the runs of each method and case."""
    groups: dict[tuple[str, Case], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        groups.setdefault((row["method"], Case(row["level"], row["tuned"])), []).append(row)
    return groups


def mean(rows: list[dict[str, Any]], column: str = "accuracy") -> float:
    """Return the mean over the runs of a case."""
    return float(np.mean([row[column] for row in rows]))


def goals(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each method's accuracy at epsilon = 2 as a share of its best one without noise, clipped or not."""
    groups, shares = grouped(found), []
    for method, tuned in itertools.product(dict.fromkeys(row["method"] for row in found["rows"]), WAYS):
        noisy = groups.get((method, Case(AT, tuned)))
        silent = [mean(rows) for (name, case), rows in groups.items() if name == method and case.level in (PLAIN, CLIPPED)]
        if noisy and silent:
            shares.append({"method": method, "tuned": tuned, "share": mean(noisy) / max(silent)})
    return shares


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print, means over the runs of a case."""
    heads = "method,epsilon,chosen,step,clip,noise,accuracy,lowest,MB up,MB down,evaluations,gradients"
    rows = [heads.split(",")]
    for (method, case), own in grouped(found).items():
        up, down, evaluations, gradients = (mean(own, name) for name in COSTS)
        rows.append([
            method, {PLAIN: "none", CLIPPED: "none, clipped"}.get(str(case.level), str(case.level)), case.tuned,
            f"{own[0]['stepsize']:g}", str(own[0]["clip"] or ""), f"{own[0]['noise']:.3g}", f"{mean(own):.4f}",
            f"{min(row['accuracy'] for row in own):.4f}", f"{up / 1e6:.2f}", f"{down / 1e6:.2f}", f"{evaluations:.3g}",
            f"{gradients:.3g}",
        ])  # fmt: skip
    return rows


def searched(found: dict[str, Any]) -> list[list[str]]:
    """Return the rows of a search to print."""
    rows = [["method", "level", "step", "clip", "training accuracy", "test accuracy", ""]]
    return rows + [
        [row["kind"], str(row["level"]), f"{row['stepsize']:g}", str(row["clip"] or ""), f"{row['train_accuracy']:.4f}",
         f"{row['accuracy']:.4f}", "best" if row["best"] else ""]
        for row in found["search"]
    ]  # fmt: skip


def verdict(found: dict[str, Any]) -> str:
    """Say who is the most accurate at each epsilon, with settings chosen at epsilon = 2, and without noise."""
    said, groups = [], grouped(found)
    for level in [*found["epsilons"], PLAIN]:
        case = Case(level, SILENT if level == PLAIN else NOISY)
        own = {method: mean(rows) for (method, other), rows in groups.items() if other == case}
        best = max(own, key=lambda method: own[method])
        said.append(f"{best} {'without privacy' if level == PLAIN else f'at epsilon = {level:g}'} ({own[best]:.1%})")
    return f"The most accurate: {', '.join(said)}."


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    return [
        f"{row['method']}, settings chosen {row['tuned']}: {row['share']:.1%} of its best accuracy without noise at "
        f"epsilon = {AT:g}; the goal of {GOAL:.0%} is {'met' if row['share'] >= GOAL else 'MISSED'}"
        for row in found.get("goal", [])
    ]


def main(args: list[str] | None = None) -> int:
    """Measure, print and store."""
    options = options_of(args)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    found = run(options)
    if options.json:
        print(json.dumps(found))
        return 0
    rows = searched(found) if options.search else table(found)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print("\n".join(remarks(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
