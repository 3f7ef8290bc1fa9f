"""A long run on Ray: `python benchmarks/soak_ray.py [ROUNDS]`, 20,000 by default.

Every actor is killed once, at a random time of a fixed seed, and started anew. At the end x is that of a simulation, no process
has grown beyond noise, nor have its open files or the checkpoint. Prints one table, and ends with status 1 where something is
not so.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo.running.checkpoint import NAME, Checkpoint
from helpers.watching import Watch, descendants

ROUNDS, CLIENTS, ACTORS, ROWS = 20_000, 6, 2, 100
ACTOR = "ray::Worker"
SAME = 1e-9  # relative difference of x


def logistic(x: Any, batch: Any) -> Any:
    """A loss."""
    return jnp.mean(jnp.log1p(jnp.exp(-batch @ x))) + 0.1 * jnp.sum(x**2)


def problem() -> fz.Nonsmooth:
    """Return a small problem, so that rounds are short."""
    rng = np.random.default_rng(0)
    return fz.Nonsmooth(logistic, fz.ClientData([rng.normal(size=(5, 3)) + i / 10 for i in range(CLIENTS)]), np.zeros(3))


class Trouble:
    """Watches a run from its log, and kills each of its first actors once."""

    def __init__(self, rounds: int, folder: Path, seed: int) -> None:
        self.folder, self.watch, self.checkpoints = folder, Watch(), list[int]()
        self.random = random.Random(seed)
        # In the first half, so that a process which came later is watched for long enough.
        self.due = sorted(self.random.randint(rounds // 10, rounds // 2) for _ in range(ACTORS))
        self.victims: list[int] = []
        self.killed = 0

    def __call__(self, row: Any) -> None:
        """Look at the processes, and at the checkpoint without the history, which has a row more each time."""
        self.watch.look(int(row["round"]))
        if not self.victims:
            self.victims = [pid for pid, name in descendants().items() if name.startswith(ACTOR)]
        if (self.folder / NAME).exists() and (stored := Checkpoint.read(self.folder)) is not None:
            told = json.dumps([stored.histories, stored.notes.get("events")])
            self.checkpoints.append((self.folder / NAME).stat().st_size - len(told))
        while self.due and self.victims and row["round"] >= self.due[0]:
            self.due.pop(0)
            threading.Timer(self.random.uniform(0, 0.1), self._kill, [self.victims.pop()]).start()  # in the midst of a round

    def _kill(self, pid: int) -> None:
        self.killed += 1
        os.kill(pid, signal.SIGKILL)


def soak(rounds: int, seed: int = 0) -> dict[str, Any]:
    """Run; return what was done to it, and what came of it."""
    method, options = fz.FedRZOnn(0.01, 0.01, 2), {"key": seed, "eval_every": max(1, rounds // ROWS), "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        trouble, began = Trouble(rounds, Path(folder), seed), time.perf_counter()
        engine = fz.engines.Ray(actors=ACTORS, on_failure="restart")
        ours = fz.run(method, problem(), rounds, engine=engine, checkpoint=folder, log=[trouble], **options)
        seconds = time.perf_counter() - began
    theirs = fz.run(method, problem(), rounds, **options)
    sizes = trouble.checkpoints
    return {
        "rounds": rounds, "seconds": seconds, "killed": trouble.killed, "events": len(ours.events),
        "difference": float(np.max(np.abs(ours.x - theirs.x) / np.abs(theirs.x))),
        "same_costs": all(ours.history.last[name] == theirs.history.last[name] for name in fz.Cost._fields),
        "growth": trouble.watch.growth(), "checkpoint": (sizes[0], sizes[-1]),
    }  # fmt: skip


def failures(found: dict[str, Any]) -> list[str]:
    """Return what is not as it should be."""
    first, last = found["checkpoint"]
    wrong = {
        "x differs from the simulation's": found["difference"] > SAME,
        "costs differ from the simulation's": not found["same_costs"],
        "not every actor was killed once": found["killed"] != ACTORS,
        "nobody noticed": found["events"] == 0,
        "the checkpoint grew": last > 1.02 * first,
        **{f"{each.name} grew": not each.flat for each in found["growth"]},
    }
    return [text for text, so in wrong.items() if so]


def table(found: dict[str, Any]) -> list[str]:
    """Return the lines of two tables: what was done to the run, and how its processes grew."""
    first, last = found["checkpoint"]
    pace = 1e3 * found["seconds"] / found["rounds"]
    lines = [
        "| what was done | how often | what was lost | how long it took |",
        "|---|---|---|---|",
        f"| rounds on Ray, {CLIENTS} clients in {ACTORS} actors | {found['rounds']:,} | nothing: x differs from the simulation's "
        f"by {found['difference']:.1g}, costs are equal | {found['seconds']:.0f} s, {pace:.1f} ms each |",
        f"| an actor killed (SIGKILL) | {found['killed']} | nothing: {found['events']} replies were asked for again | in there |",
        f"| a checkpoint stored, once a second | | {first:,} bytes at first, {last:,} at the end, its history apart | in there |",
        "",
        "| process | rounds watched | MiB at the end | MiB grown | noise, MiB | more files | flat |",
        "|---|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {each.name} | {each.rounds:,} | {each.megabytes:.0f} | {each.grown:+.2f} | {each.noise:.2f} | {each.files:+d} | "
        f"{'yes' if each.flat else 'NO'} |"
        for each in found["growth"]
    ]


def main() -> int:
    """Run it, print the tables, and say what is wrong."""
    found = soak(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
    print("\n".join(table(found)))
    wrong = failures(found)
    print("\nWrong: " + "; ".join(wrong) if wrong else "\nNothing is wrong.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
