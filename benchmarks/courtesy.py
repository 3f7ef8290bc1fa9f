"""What the questions before and after a run cost: `python benchmarks/courtesy.py`.

Ten rounds of small problems from a cold start, compilation included, with the questions that look after a user's mistakes and
without them; nothing else differs. Each run has a process of its own; both take turns. Processor seconds, the least of all turns,
since other work on a machine only adds to them. The questions' own share is timed within the runs that ask them: it is a small
part of a number that varies by more than that from run to run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedrzo.compare.options import Options
from fedrzo.errors import FedrzoError
from helpers import courtesy_setting
from helpers.command import check_fixed, main
from helpers.results import save

PROBLEM = "ten rounds of small problems"
SEEDS = 1
NAMES = ("box, float32", "box", "gradients", "private sets", "black box", "bilevel", "two-stage")
REPETITIONS, QUICK_REPETITIONS = 4, 1
LIMIT = 600  # seconds for one run


def run(options: Options) -> dict[str, Any]:
    """Measure all problems; `--quick` runs each once."""
    check_fixed(options, PROBLEM)
    rows = []
    for name in NAMES:
        options.say(name)
        rows.append(row(name, QUICK_REPETITIONS if options.quick else REPETITIONS))
    found = {"problem": PROBLEM, "rows": rows}
    save(found, options.out, "courtesy")
    return found


def row(name: str, repetitions: int) -> dict[str, Any]:
    """Measure one problem."""
    runs = [(apart(name, "asked"), apart(name, "unasked")) for _ in range(repetitions)]
    asked, unasked = ({key: float(min(each[key] for each in part)) for key in part[0]} for part in zip(*runs, strict=True))
    if asked["loss"] != unasked["loss"]:
        raise FedrzoError(f"{name}: the losses are {asked['loss']} and {unasked['loss']}; questions must not change a run")
    return {"name": name, "asked": asked, "unasked": unasked, "share": asked["questions"] / unasked["seconds"]}


def apart(name: str, how: str) -> dict[str, Any]:
    """Measure one run in a process of its own, with nothing compiled before."""
    settings = {key: value for key, value in os.environ.items() if key not in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")}
    settings["FEDRZO_CACHE"] = "off"
    command = [sys.executable, str(Path(courtesy_setting.__file__)), name, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=settings)
    if done.returncode:
        raise FedrzoError(f"{name}, {how}, failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
    return json.loads(done.stdout)


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    head = ["", "seconds without", "seconds with", "in questions", "share", "programs without", "programs with"]
    return [head] + [
        [
            row["name"], f"{row['unasked']['seconds']:.2f}", f"{row['asked']['seconds']:.2f}",
            f"{row['asked']['questions']:.2f}", f"{row['share']:.1%}",
            f"{row['unasked']['programs']:.0f}", f"{row['asked']['programs']:.0f}",
        ]
        for row in found["rows"]
    ]  # fmt: skip


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    return ["The refusals of bad input, which try the loss once, are in both. Losses at the end are equal to the last bit."]


def verdict(found: dict[str, Any]) -> str:
    """Say what questions cost; there is nobody to compare with."""
    shares = [row["share"] for row in found["rows"]]
    return f"No contest. Questions add {np.median(shares):.1%} in the median, {max(shares):.1%} at most."


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
