"""The speed of `fz.run` on losses that users write, against the JAX that one would first write: `python benchmarks/losses.py`.

Each row of benchmarks/user_losses.py is run through `fz.run` with default arguments, and by a plain version: vmap over clients,
scan over rounds and steps, `jax.random.normal`, the same local steps, rounds, precision and history rows. Both run once to
compile, then take turns in one process; a ratio above 1 says how much faster the library is, by medians of whole runs. The bound
is the ratio if everything but the user's own loss, at the points and in the rows that both ask for, took no time.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import fedrzo as fz
from fedrzo.compare.options import Options
from helpers.command import main
from helpers.results import save, standing
from helpers.timing import measured, medians
from plain_losses import SMOOTHING, STEPS, Plain, stepsize
from user_losses import Row, rows

PROBLEM = "losses that users write"
SEEDS = 1
SECONDS, QUICK_SECONDS = 1.0, 0.05  # that a plain run takes, roughly
REPETITIONS, QUICK_REPETITIONS = 5, 3


def run(options: Options) -> dict[str, Any]:
    """Measure every row; `--quick` takes shorter runs."""
    found = measured(options, PROBLEM, rows(), measure, lambda row: f"n = {row.dim:,}")
    ratios = [row["ratio"] for row in found["rows"]]
    found |= {"median": float(np.median(ratios)), "least": min(ratios)}
    save(found, options.out, "losses")
    return found


def measure(row: Row, quick: bool = False) -> dict[str, Any]:
    """Compare whole runs of one row."""
    problem = row.problem()
    method = fz.FedRZOnn(stepsize(row), SMOOTHING, STEPS, row.batch_size)
    with problem.precision():
        plain = Plain(row)
        rounds = long_enough(plain, QUICK_SECONDS if quick else SECONDS)
        every = max(1, int(np.diff(fz.run(method, problem, rounds, progress=False).history["round"])[0]))
        contestants = {
            "plain": lambda: plain.run(rounds, every),
            "fedrzo": lambda: fz.run(method, problem, rounds, progress=False).x,
            "loss": lambda: plain.loss_alone(rounds, every),
        }
        seconds = medians(contestants, QUICK_REPETITIONS if quick else REPETITIONS)
    facts = {
        "name": row.name,
        "n": row.dim,
        "clients": row.clients,
        "batch": row.batch_size,
        "rounds": rounds,
        "every": every,
    }
    ratios = {"ratio": seconds["plain"] / seconds["fedrzo"], "bound": seconds["plain"] / seconds["loss"]}
    return facts | {"seconds": seconds} | ratios


def long_enough(plain: Plain, seconds: float) -> int:
    """Return how many rounds take about so long: a power of two, so that rows divide them."""
    rounds = 1
    while True:
        plain.run(rounds, rounds)
        begin = time.perf_counter()
        plain.run(rounds, rounds)
        if time.perf_counter() - begin > seconds / 4 or rounds == 1 << 14:
            return 2 * rounds
        rounds *= 4


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    shown = [["loss", "n", "clients, batch", "plain [ms a round]", "fedrzo", "ratio", "bound"]]
    for row in found["rows"]:
        plain, ours = (1e3 * row["seconds"][name] / row["rounds"] for name in ("plain", "fedrzo"))
        shown.append([row["name"], f"{row['n']:,}", f"{row['clients']}, {row['batch']}", f"{plain:.3g}", f"{ours:.3g}",
                      f"{row['ratio']:.2f} x", f"{row['bound']:.1f} x"])  # fmt: skip
    return shown


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    above = [f"{row['name']}, n = {row['n']:,}" for row in found["rows"] if row["ratio"] > row["bound"]]
    slower = [f"The loss by itself, which the bound is made of, took longer than a whole run: {'; '.join(above)}."]
    return [
        f"Whole runs on {found['device']}, after compilation: the median ratio is {found['median']:.2f} x, the least "
        f"{found['least']:.2f} x.",
        *(slower if above else []),
    ]


def verdict(found: dict[str, Any]) -> str:
    """Say who wins."""
    ratios = {
        f"{row['name']}, n = {row['n']:,}, {row['clients']} clients, batch {row['batch']}": row["ratio"] for row in found["rows"]
    }
    return standing(ratios, "plain JAX")


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
