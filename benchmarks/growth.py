"""How time and memory of a round grow with clients, local steps, dimension and data: `python benchmarks/growth.py`.

FedRZO_nn on a two-layer ReLU network of made-up images, a chunk of clients at a time (`client_chunk`). Each setting has a process
of its own, so that its peak memory is its own. Slopes are of log-log lines: 1 is linear, 0 is flat.
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
from helpers import growth_setting
from helpers.command import check_fixed, main
from helpers.growth_setting import CHUNK
from helpers.results import save

PROBLEM = "a ReLU network, a chunk of clients at a time"
SEEDS = 1
BASE = {"clients": 500, "local_steps": 4, "neurons": 4, "samples": 20, "pixels": 784}  # n = 3,140
AXES: dict[str, list[int]] = {
    "clients": [50, 500, 5_000, 100_000],
    "local_steps": [1, 4, 16, 64],
    "neurons": [1, 4, 16, 64],
    "samples": [5, 20, 80, 320],
}
QUICK_AXES = {"clients": [10, 40], "local_steps": [1, 4], "neurons": [1, 4], "samples": [5, 20]}
WANTED = {"clients": 1, "local_steps": 1, "neurons": 1, "samples": 0}  # slopes of time
HUGE = 10_000  # clients beyond which each has one sample and one local step
LIMIT = 1200  # seconds for one setting
SCRIPT = Path(growth_setting.__file__)


def run(options: Options) -> dict[str, Any]:
    """Measure seconds per round and peak memory along each axis."""
    check_fixed(options, PROBLEM)
    found: dict[str, Any] = {"problem": PROBLEM, "chunk": CHUNK, "axes": {}}
    for axis, values in (QUICK_AXES if options.quick else AXES).items():
        rows = []
        for value in values:
            options.say(f"{axis} = {value:,}")
            rows.append(apart(setting(axis, value)))
        found["axes"][axis] = {"rows": rows, **slopes(axis, rows)}
    save(found, options.out, "growth")
    return found


def setting(axis: str, value: int) -> dict[str, int]:
    """Return one setting of an axis; where clients are very many, each does little."""
    chosen = {**BASE, axis: value}
    return {**chosen, "samples": 1, "local_steps": 1} if chosen["clients"] > HUGE else chosen


def apart(chosen: dict[str, int]) -> dict[str, Any]:
    """Measure one setting in a process of its own."""
    command = [sys.executable, str(SCRIPT), json.dumps(chosen)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    if done.returncode:
        raise FedrzoError(f"{chosen} failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
    return json.loads(done.stdout)


def slopes(axis: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how time grows along an axis: per round, and per client and local step."""
    work = [row["clients"] * row["local_steps"] for row in rows]
    seconds = [row["seconds"] for row in rows]
    each = [all_ / steps for all_, steps in zip(seconds, work, strict=True)]
    at = work if axis == "clients" else [row[axis] for row in rows]  # very many clients take fewer local steps
    return {"slope": _slope(at, seconds), "slope_per_step": _slope(at, each), "wanted": WANTED[axis]}


def _slope(at: list, values: list) -> float:
    return float(np.polyfit(np.log(at), np.log(values), 1)[0])


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    head = ["", "n", "seconds a round", "microseconds a client-step", "data", "peak memory", "slope of time"]
    rows = [head]
    for axis, part in found["axes"].items():
        for i, row in enumerate(part["rows"]):
            each = 1e6 * row["seconds"] / row["clients"] / row["local_steps"]
            last = f"{part['slope']:.2f} (linear is 1)" if part["wanted"] else f"{part['slope']:.2f} (flat is 0)"
            rows.append([
                f"{axis} = {row[axis]:,}", f"{row['dimension']:,}", f"{row['seconds']:.3g}", f"{each:.1f}",
                f"{row['data_bytes'] / 2**20:,.0f} MiB", f"{row['peak_bytes'] / 2**20:,.0f} MiB", last if i == 0 else "",
            ])  # fmt: skip
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    return [f"{found['chunk']} clients at a time. Peak memory includes the data, and Python with JAX (some 300 MiB)."]


def verdict(found: dict[str, Any]) -> str:
    """Say how time grows; there is nobody to compare with."""
    slopes = ", ".join(f"{part['slope']:.2f} in {axis.replace('_', ' ')}" for axis, part in found["axes"].items())
    return f"No contest. Slopes of time, where 1 is linear and 0 is flat: {slopes}."


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
