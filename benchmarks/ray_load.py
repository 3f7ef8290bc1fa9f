"""Rounds on Ray against the number of clients: `python benchmarks/ray_load.py`.

FedRZO_nn with 5 local steps on a logistic loss of 20 variables, clients of 10 samples that two actors load by themselves, one for
each core. Beside it, rounds in which nobody computes, over four actors, and one actor against a simulation of the same clients,
with 100 local steps. Each setting has a process of its own, so that the driver's peak memory is its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedrzo.compare.options import Options
from fedrzo.errors import FedrzoError, MissingExtraError
from fedrzo.support.extras import require
from helpers import ray_load_setting
from helpers.command import check_fixed, main
from helpers.results import save

PROBLEM = "a logistic loss, clients in two actors"
SEEDS = 1
CLIENTS, QUICK_CLIENTS = (4, 100, 1_000, 10_000), (4, 20)
IDLE = {4: 10.0, 100: 50.0}  # clients, and the milliseconds that a round of theirs may take where nobody computes
SHARES, QUICK_SHARES = (100, 1_000), (20,)
LIMIT = 300  # seconds for one setting
SCRIPT = Path(ray_load_setting.__file__)


def run(options: Options) -> dict[str, Any]:
    """Measure rounds per second and the driver's memory against the number of clients, and what the engine itself takes."""
    check_fixed(options, PROBLEM)
    found: dict[str, Any] = {"problem": PROBLEM, "load": [], "idle": [], "share": []}
    for kind, clients, actors in (
        *(("load", clients, 2) for clients in (QUICK_CLIENTS if options.quick else CLIENTS)),
        *(("idle", clients, 4) for clients in (() if options.quick else IDLE)),
        *(("share", clients, 1) for clients in (QUICK_SHARES if options.quick else SHARES)),
    ):
        options.say(f"{kind}: {clients:,} clients in {actors} actors")
        found[kind].append(apart({"kind": kind, "clients": clients, "actors": actors}))
    save(found, options.out, "ray_load")
    if options.out is not None:
        try:
            figure(found).savefig(options.out / "ray_load.png", dpi=150)
        except MissingExtraError as error:
            print(f"no figure: {error}", file=sys.stderr)
    return found


def apart(chosen: dict[str, Any]) -> dict[str, Any]:
    """Measure one setting in a process of its own."""
    paths = os.pathsep.join([str(SCRIPT.parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), json.dumps(chosen)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment)
    if done.returncode:
        raise FedrzoError(f"{chosen} failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    rows = [["", "clients", "actors", "milliseconds a round (fastest, median)", "rounds a second", "driver's peak memory"]]
    for kind, name in (("load", "FedRZO_nn"), ("idle", "nobody computes")):
        for row in found[kind]:
            rows.append([
                name, f"{row['clients']:,}", str(row["actors"]), f"{1e3 * row['fastest']:.1f}, {1e3 * row['seconds']:.1f}",
                f"{1 / row['seconds']:.3g}", f"{row['peak_bytes'] / 2**20:,.0f} MiB",
            ])  # fmt: skip
    for row in found["share"]:
        name = f"an actor against a simulation ({row['seconds'] / row['simulated']:.2f} x its time)"
        rows.append([name, f"{row['clients']:,}", "1", f"{1e3 * row['seconds']:.1f}", f"{1 / row['seconds']:.3g}", ""])
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    goals = ", ".join(f"{limit:g} ms for {clients} clients" for clients, limit in IDLE.items())
    return [
        f"The goals of rounds in which nobody computes are {goals} in 4 actors.",
        "The driver's peak memory includes Python, JAX and Ray; clients' samples are in the actors alone.",
    ]


def verdict(found: dict[str, Any]) -> str:
    """Say how the load grows; there is nobody to compare with."""
    few, many = found["load"][0], found["load"][-1]
    memory = (many["peak_bytes"] - few["peak_bytes"]) / 2**20
    ratios = ", ".join(f"{row['seconds'] / row['simulated']:.2f} x" for row in found["share"])
    return (
        f"No contest. {many['clients']:,} clients run at {1 / many['seconds']:.3g} rounds a second, and the driver's memory is "
        f"{memory:+.0f} MiB from that with {few['clients']}. A round takes an actor {ratios} the time of a simulation of its "
        "clients."
    )


def figure(found: dict[str, Any]) -> Any:
    """Draw rounds per second, and the driver's memory, against the number of clients."""
    drawn = require("matplotlib.figure", "plots").Figure(figsize=(6.8, 2.8), layout="constrained")
    rate, memory = drawn.subplots(1, 2)
    clients = [row["clients"] for row in found["load"]]
    rate.plot(clients, [1 / row["seconds"] for row in found["load"]], "o-")
    rate.set(ylabel="rounds per second", ylim=(0, None))
    peaks = [row["peak_bytes"] / 2**20 for row in found["load"]]
    memory.plot(clients, peaks, "o-")
    memory.set(ylabel="driver's peak memory, MiB", ylim=(0, 1.2 * max(peaks)))
    for panel in (rate, memory):
        panel.set(xlabel="clients", xscale="log")
        panel.set_xticks(clients, [f"{count:,}" for count in clients], minor=False)
        panel.grid(visible=True, color="0.88", linewidth=0.6)
    return drawn


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
