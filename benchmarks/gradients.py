"""What gradients of the same smoothed problem gain over loss values: `python benchmarks/gradients.py`.

Each row runs one method with both oracles, over a grid of step sizes and five seeds. The target is the mean loss that values end
at with their best step; what counts is what either oracle spends until a run first has it, with the step that takes the least. A
gradient counts as three loss evaluations.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo import zoo
from fedrzo.compare.options import Options
from fedrzo.results.text import mean_and_half
from helpers.command import main
from helpers.results import save

PROBLEM = "values and gradients"
SEEDS = 5
LEADERS, SCENARIOS, CLIENTS = 100, 64, 5
ORACLES = ("values", "gradients")


@dataclasses.dataclass(frozen=True)
class Row:
    """A problem, the method, step sizes and rounds by oracle, and what is counted."""

    name: str
    make: Callable[[], Any]
    method: Callable[[float, str], Any]
    steps: dict[str, tuple[float, ...]]
    rounds: dict[str, int]
    counted: str


def evaluations(history: Any) -> np.ndarray:
    """Return loss evaluations, a gradient as three."""
    return history["evaluations"] + 3 * history["gradients"]


def solves(history: Any) -> np.ndarray:
    """Return lower-level solves: one for each loss value, and one for each gradient but those that measured constants."""
    return history["evaluations"] + history["gradients"] - history["gradients"][0]


def communications(history: Any) -> np.ndarray:
    """Return rounds of either level."""
    return history["round"] + history["lower_rounds"]


COUNTED = {"evaluations": evaluations, "lower solves": solves, "communications": communications}


def follower(x: Any, y: Any, xi: Any) -> Any:
    """A boxed follower's map: strongly monotone, not symmetric."""
    return xi["Q"] @ y - xi["B"] @ x - xi["c"]


def regret(x: Any, y: Any, xi: Any) -> Any:
    """How far the follower is from what a leader wants, with kinks, and what the leader pays."""
    return jnp.sum(jnp.abs(y - xi["t"])) + 0.05 * jnp.sum(x**2)


def leaders() -> Any:
    """Return a two-stage problem with a hundred leader variables and a boxed follower of ten."""
    rng = np.random.default_rng(0)
    below = 10
    parts = []
    for _ in range(CLIENTS):
        root = rng.normal(size=(SCENARIOS, below, below)) / np.sqrt(below)
        bent = root @ root.transpose(0, 2, 1) + np.eye(below) + 0.3 * (root - root.transpose(0, 2, 1))
        parts.append(
            {
                "Q": bent,
                "B": rng.normal(size=(SCENARIOS, below, LEADERS)) / np.sqrt(LEADERS),
                "c": rng.normal(size=(SCENARIOS, below)),
                "t": rng.uniform(-0.5, 1.0, size=(SCENARIOS, below)),
            }
        )
    data = fz.ClientData(parts)
    return fz.TwoStage(regret, follower, data, np.zeros(LEADERS), np.zeros(below), lower_constraint=fz.sets.Box(-0.5, 1.0))


def rows() -> list[Row]:
    """Return the rows of the table."""

    def single(gamma: float, oracle: str) -> Any:
        return fz.FedRZOnn(gamma, 0.01, 10, 8, oracle=oracle)

    def two_stage(gamma: float, oracle: str) -> Any:
        return fz.FedRZO2s(gamma, 0.1, 5, 4, oracle=oracle)

    def bilevel(gamma: float, oracle: str) -> Any:
        return fz.FedRZObl(gamma, 0.1, 5, "full", oracle=oracle)

    wide = {"values": 1600, "gradients": 200}
    return [
        Row("relu-digits", lambda: zoo.make("relu-digits"), single,
            {"values": (0.003, 0.01, 0.02), "gradients": (0.03, 0.1, 0.2)}, wide, "evaluations"),
        Row("relu-mnist", lambda: zoo.make("relu-mnist"), single,
            {"values": (2e-4, 3e-4, 6e-4), "gradients": (0.03, 0.1, 0.2)}, wide, "evaluations"),
        Row("100 leader variables", leaders, two_stage,
            {"values": (3e-4, 1e-3, 3e-3), "gradients": (0.03, 0.1, 0.3)}, {"values": 800, "gradients": 100}, "lower solves"),
        Row("hyper-digits", lambda: zoo.make("hyper-digits"), bilevel,
            {"values": (0.003, 0.006, 0.01), "gradients": (0.03, 0.06, 0.1)}, {"values": 200, "gradients": 60}, "communications"),
    ]  # fmt: skip


def run(options: Options) -> dict[str, Any]:
    """Measure every row; `--quick` takes shorter runs and fewer seeds."""
    found = {"problem": PROBLEM, "seeds": options.seeds, "quick": options.quick, "rows": []}
    for row in rows():
        if options.progress:
            print(row.name, file=sys.stderr, flush=True)
        found["rows"].append(measure(row, 2 if options.quick else options.seeds, options.quick))
    save(found, options.out, "gradients")
    if options.out is not None:
        draw(found, Path(options.out) / "gradients.svg")
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the mean loss of both oracles against what they spend."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found["rows"]), figsize=(3.2 * len(found["rows"]), 2.9), layout="constrained")
    for panel, row in zip(axes, found["rows"], strict=True):
        for oracle in ORACLES:
            panel.plot(*row[oracle]["curve"], label=oracle)
        panel.set_xscale("log")
        panel.set(title=f"{row['name']}, n = {row['n']:,}", xlabel=row["counted"])
    axes[0].set_ylabel("mean loss")
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def measure(row: Row, seeds: int, quick: bool = False) -> dict[str, Any]:
    """Find the best step of each oracle, the loss that values reach, and what both spend to get there."""
    problem, tried = row.make(), {}
    for oracle in ORACLES:
        rounds = row.rounds[oracle] // (10 if quick else 1)
        tried[oracle] = {step: runs(row.method(step, oracle), problem, rounds, seeds) for step in row.steps[oracle]}
    target = min(mean_end(histories) for histories in tried["values"].values())
    start = float(tried["values"][row.steps["values"][0]][0]["loss"][0])
    facts = {"name": row.name, "n": problem.dim, "counted": row.counted, "start": start, "target": target}
    for oracle, by_step in tried.items():
        spent = {step: [reached(h, row.counted, target) for h in histories] for step, histories in by_step.items()}
        step = min(spent, key=lambda step: (np.mean(spent[step]), mean_end(by_step[step])))
        histories = by_step[step]
        curve = [COUNTED[row.counted](histories[0]).tolist(), np.mean([h["loss"] for h in histories], axis=0).tolist()]
        ends = [float(h["loss"][-1]) for h in histories]
        facts[oracle] = {"step": step, "spent": spent[step], "final": ends, "curve": curve}
    return facts | {"ratio": np.mean(facts["values"]["spent"]) / np.mean(facts["gradients"]["spent"])}


def mean_end(histories: list[Any]) -> float:
    """Return the mean loss that runs end at."""
    return float(np.mean([history["loss"][-1] for history in histories]))


def runs(method: Any, problem: Any, rounds: int, seeds: int) -> list[Any]:
    """Return the histories of several seeds."""
    found = fz.sweep(method, problem, rounds, seeds, eval_every=max(1, rounds // 200), progress=False)
    return [result.history for result in found.results[0]]


def reached(history: Any, counted: str, target: float) -> float:
    """Return what was spent when the loss was first at the target; all of it where it never was, as happens to values alone."""
    spent, there = COUNTED[counted](history), history["loss"] <= target
    return float(spent[np.argmax(there)] if there.any() else spent[-1])


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    shown = [["problem", "n", "loss: start, target", "counted", *ORACLES, "fewer", "loss at the end"]]
    for row in found["rows"]:
        spent = [f"{np.mean(row[o]['spent']):,.0f}" for o in ORACLES]
        ends = ", ".join(mean_and_half(np.array(row[o]["final"]), 3) for o in ORACLES)
        losses = f"{row['start']:.4g}, {row['target']:.4g}"
        shown.append([row["name"], f"{row['n']:,}", losses, row["counted"], *spent, f"{row['ratio']:.1f} x", ends])
    return shown


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what the table does not say."""
    return [f"means over {found['seeds']} seeds, with 95 % intervals; both oracles with the best of three step sizes"]


def verdict(found: dict[str, Any]) -> str:
    """Say which oracle wins."""
    ratios = [row["ratio"] for row in found["rows"]]
    ahead = sum(ratio > 1 for ratio in ratios)
    return f"Gradients win {ahead} of {len(ratios)} rows, by {min(ratios):.3g} to {max(ratios):.3g} times less."


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
