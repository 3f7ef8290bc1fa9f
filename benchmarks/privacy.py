"""Accuracy against epsilon on MNIST, with two methods of the library and with DP-SGD: `python benchmarks/privacy.py`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedrzo.support.cores import cores
from helpers.private_contestants import CLIPPED, COSTS, DELTA, NN, PLAIN, Contestant, Level, Size

from helpers.private_contestants import DECOMFL, SGD  # isort: skip
from helpers.private_digits import Digits, digits
from helpers.private_figure import figure
from helpers.private_search import search
from helpers.timing import save

SILOS, RECORDS = 10, 6_000
EPSILONS = (0.5, 2.0, 8.0)
GOAL, AT = 0.96, 2.0  # of the accuracy without noise, at this epsilon
CONTESTANTS = {
    "FedRZO_nn": Contestant(NN, 0.125, 1.0, 0.3),
    "DeComFL": Contestant(DECOMFL, 8e-3, 8e-3, 80.0),
    "DP-SGD": Contestant(SGD, 0.5, 2.0, 3.0),
}


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
    parser.add_argument("--seeds", type=int, default=1, help="runs of each setting")
    parser.add_argument("--seed", type=int, default=0, help="the first one; also that of the split and of the first weights")
    parser.add_argument("--search", action="store_true", help="choose step sizes and clips anew, instead; best on an accelerator")
    parser.add_argument("--out", type=Path, help="a folder for privacy.json and privacy.png")
    parser.add_argument("--quick", action="store_true", help="epsilon = 2 alone, 1,000 records at each silo, 100 steps")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(args)
    if options.quick:
        options.records, options.steps = min(options.records, 1_000), min(options.steps, 100)
        options.batch_size, options.epsilons = min(options.batch_size, 128), [AT]
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
        for level in (*contestant.levels, *sorted(options.epsilons, reverse=True)):
            for seed in range(options.seed, options.seed + options.seeds):
                found["rows"].append({"method": name} | measured(contestant, data, problem, size, level, seed))
                save(found, options.out, "privacy")
    found["goal"] = goals(found)
    save(found, options.out, "privacy")
    if options.out is not None:
        figure(found).savefig(options.out / "privacy.png", dpi=150)
    return found


def measured(contestant: Contestant, data: Digits, problem: Any, size: Size, level: Level, seed: int) -> dict[str, Any]:
    """Run a contestant once, and say so."""
    begun = time.perf_counter()
    row = contestant.run(data, problem, size, level, seed)
    seconds = time.perf_counter() - begun
    print(f"privacy: {contestant.kind} {level} {row['accuracy']:.4f} in {seconds:.0f} s", file=sys.stderr, flush=True)
    return {"level": level, "seed": seed} | row | {"seconds": seconds}


def mean(found: dict[str, Any], method: str, level: Level, column: str) -> float | None:
    """Return the mean over the seeds; None where nothing was run."""
    values = [row[column] for row in found["rows"] if (row["method"], row["level"]) == (method, level)]
    return float(np.mean(values)) if values and None not in values else None


def goals(found: dict[str, Any]) -> dict[str, float]:
    """Return each method's accuracy at epsilon = 2 as a share of its better one without noise, clipped or not."""
    shares = {}
    for method in dict.fromkeys(row["method"] for row in found["rows"]):
        noisy = mean(found, method, AT, "accuracy")
        silent = [value for level in (PLAIN, CLIPPED) if (value := mean(found, method, level, "accuracy"))]
        if noisy is not None and silent:
            shares[method] = noisy / max(silent)
    return shares


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print, means over the seeds."""
    rows = [["method", "epsilon", "accuracy", "lowest", "noise", "step", "clip", "MB up", "MB down", "evaluations", "gradients"]]
    for method, level in dict.fromkeys((row["method"], row["level"]) for row in found["rows"]):
        own = [row for row in found["rows"] if (row["method"], row["level"]) == (method, level)]
        up, down, evaluations, gradients = (np.mean([row[name] for row in own]) for name in COSTS)
        rows.append([
            method, {PLAIN: "none", CLIPPED: "none, clipped"}.get(level, str(level)),
            f"{np.mean([row['accuracy'] for row in own]):.4f}", f"{min(row['accuracy'] for row in own):.4f}",
            f"{own[0]['noise']:.3g}", f"{own[0]['stepsize']:g}", str(own[0]["clip"] or ""), f"{up / 1e6:.2f}",
            f"{down / 1e6:.2f}", f"{evaluations:.3g}", f"{gradients:.3g}",
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
    for method, share in found.get("goal", {}).items():
        met = "met" if share >= GOAL else "MISSED"
        print(f"{method}: {share:.1%} of its accuracy without noise at epsilon = {AT:g}; the goal of {GOAL:.0%} is {met}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
