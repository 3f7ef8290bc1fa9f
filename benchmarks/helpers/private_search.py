"""How the step sizes and clips of `benchmarks/privacy.py` were chosen: grids, and the best training accuracy on them.

That is the share of all silos' own records that the last weights classify correctly; test images are not looked at. What such a
search gives away about the records is not accounted for: it is how people compare methods, not how they would protect anybody.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import fedrzo as fz
from helpers import private_contestants as contestants
from helpers.private_contestants import DECOMFL, NN, PLAIN, SGD, SILENT, Case, Contestant, Level, Size, Tuning
from helpers.private_digits import Digits

GRIDS: dict[str, tuple[tuple[float, ...], tuple[float | str, ...]]] = {  # step sizes, clips
    NN: ((0.0625, 0.125, 0.25, 0.5, 1.0, 2.0), (0.1, 0.3, 1.0, "auto")),
    DECOMFL: ((2e-3, 4e-3, 8e-3, 16e-3, 32e-3), (8.0, 25.0, 80.0, 250.0, "auto")),
    SGD: ((0.125, 0.25, 0.5, 1.0, 2.0, 4.0), (0.3, 1.0, 3.0, 10.0)),
}


def search(digits: Digits, problem: fz.Nonsmooth, size: Size, levels: list[Level], seed: int) -> list[dict[str, Any]]:
    """Try all of a grid at each level, for every kind of method; the best of each level and way of clipping is marked."""
    found: list[dict[str, Any]] = []
    for kind, level in itertools.product(GRIDS, levels):
        for auto in (False, True):
            clips = [None] if level == PLAIN else [clip for clip in GRIDS[kind][1] if (clip == "auto") is auto]
            if not clips or (level == PLAIN and auto):
                continue
            rows = (
                by_turns(digits, problem, size, level, clips, seed)
                if kind == SGD
                else at_once(kind, problem, size, level, clips, seed)
            )
            best = max(rows, key=lambda row: row["train_accuracy"])
            found += [row | {"kind": kind, "level": level, "best": row is best} for row in rows]
            print(f"{kind} {level}: {best}", file=sys.stderr, flush=True)
    return found


def at_once(kind: str, problem: fz.Nonsmooth, size: Size, level: Level, clips: list, seed: int) -> list[dict[str, Any]]:
    """Sweep a method of the library; by vectors, which lead to the same x but for rounding, and faster in a simulation."""
    steps, promises = list(GRIDS[kind][0]), [contestants.promise(clip, level) for clip in clips]
    method = contestants.library_method(kind, size, 1, steps[0], promises[0], "vectors")
    grid = {"stepsize": steps} | ({} if level == PLAIN else {"privacy": promises})
    swept = fz.sweep(method, problem, size.steps, [seed], eval_every=size.steps, progress=False, **grid)
    pairs = itertools.product(steps, clips)
    return [row(stepsize, clip, results[0].history.last) for (stepsize, clip), results in zip(pairs, swept.results, strict=True)]


def by_turns(digits: Digits, problem: fz.Nonsmooth, size: Size, level: Level, clips: list, seed: int) -> list[dict[str, Any]]:
    """Run DP-SGD for each pair."""
    found = []
    for stepsize, clip in itertools.product(GRIDS[SGD][0], clips):
        tuning = Tuning(stepsize, clip)
        contestant = Contestant(SGD, tuning, tuning, tuning)
        found.append(row(stepsize, clip, contestant.run(digits, problem, size, Case(level, SILENT), seed)))
    return found


def row(stepsize: float, clip: Any, last: Any) -> dict[str, Any]:
    """Return what is kept of a run."""
    return {"stepsize": stepsize, "clip": clip} | {name: float(last[name]) for name in ("train_accuracy", "accuracy", "loss")}
