"""FedRZO_bl beside methods made for smooth bilevel problems without constraints: `python benchmarks/hypergradients.py`.

On two such problems each method takes full batches, five local steps and the best of nine step sizes. What counts are bytes
both ways until the loss is within a hundredth of the way from the start to the optimum, over five seeds; half of the runs at
least must get there. FedRZO_bl differs from seed to seed, by its directions; the others have no noise here.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo.compare.candidates import applicable
from fedrzo.compare.options import Options
from fedrzo.errors import DivergedError
from fedrzo.results.text import mean_and_half
from fedrzo.zoo import bilevel
from helpers.command import main
from helpers.results import save

PROBLEM = "smooth bilevel problems without constraints"
SEEDS = 5
ROUNDS, QUICK_ROUNDS = 600, 30
ROWS = 200
SHARE = 0.01  # of the way from the start to the optimum that may be left
GRID = [10.0 ** (i / 2) for i in range(-3, 6)]
METHODS = ("FedRZObl", "FedRZObl, gradients", "FedNest", "SimFBO", "FedBiOAcc", "MemFBO")


def ridge(x: Any, y: Any, batch: Any) -> Any:
    """The mean squared error of a linear model."""
    return 0.5 * jnp.mean((batch["A"] @ y - batch["b"]) ** 2)


def validation(x: Any, y: Any, batch: Any) -> Any:
    """The same, and a little for extreme weights, without which the best ones are infinite."""
    return ridge(x, y, batch) + 0.01 * jnp.mean(x**2)


def ridge_with_weights(x: Any, y: Any, batch: Any) -> Any:
    """The same with a penalty for each feature, whose weights are what is searched for."""
    return ridge(x, y, batch) + 0.5 * jnp.mean(jnp.exp(x) * y**2)


def weights(features: int = 20, clients: int = 5) -> Any:
    """Return a search for one weight per feature: half of the features mean nothing, and clients measure on different scales."""
    rng = np.random.default_rng(0)
    truth = np.where(np.arange(features) < features // 2, rng.normal(size=features), 0.0)

    def draw(count: int) -> Any:
        parts = []
        for i in range(clients):
            A = rng.normal(size=(count, features)) * (0.7 + 0.15 * i)
            parts.append({"A": A, "b": A @ truth + rng.normal(size=count)})
        return fz.ClientData(parts)

    return fz.Bilevel(validation, ridge_with_weights, draw(60), np.zeros(features), np.zeros(features), lower_data=draw(8))


def coupled() -> Any:
    """Return the zoo's quadratics, whose Hessians differ from client to client in both levels."""
    return bilevel.coupled(clients=5, dim=20, lower_dim=15)


def run(options: Options) -> dict[str, Any]:
    """Measure every method on every problem; `--quick` takes shorter runs and two seeds."""
    options.check_out()
    seeds, rounds = (2, QUICK_ROUNDS) if options.quick else (options.seeds, ROUNDS)
    found: dict[str, Any] = {"problem": PROBLEM, "seeds": seeds, "rounds": rounds, "rows": []}
    for name, make in {"coupled quadratics": coupled, "weights of features": weights}.items():
        problem = make()
        candidates = {one.name: one for one in applicable(problem)[0]}
        tried = {}
        for method in METHODS:
            options.say(f"{name}, {method}")
            tried[method] = histories(candidates[method], problem, rounds, seeds)
        found["rows"] += judge(name, problem.dim, tried)
    save(found, options.out, "hypergradients")
    return found


def histories(candidate: Any, problem: Any, rounds: int, seeds: int) -> dict[float, list[Any]]:
    """Return the histories of all seeds for each step size; a run that fails has none."""
    method = dataclasses.replace(candidate.method, batch_size="full", local_steps=5)
    found: dict[float, list[Any]] = {}
    for step in (candidate.method.stepsize * factor for factor in GRID):
        found[step] = []
        for seed in range(seeds):
            try:
                one = fz.run(dataclasses.replace(method, stepsize=step), problem, rounds, key=seed, progress=False,
                             eval_every=max(1, rounds // ROWS))  # fmt: skip
            except DivergedError:
                continue
            found[step].append(one.history)
    return found


def judge(name: str, n: int, tried: dict[str, dict[float, list[Any]]]) -> list[dict[str, Any]]:
    """Return what each method sent until it was there; the optimum is the least that any run has seen."""
    every = [history["loss"] for by_step in tried.values() for runs in by_step.values() for history in runs]
    start, least = float(every[0][0]), float(np.nanmin(np.concatenate(every)))
    target = least + SHARE * (start - least)
    rows = []
    for method, by_step in tried.items():
        seeds = max(map(len, by_step.values()))  # one that was lost counts as one that never got there
        spent = {
            step: [sent(history, target) for history in runs] + [float("inf")] * (seeds - len(runs))
            for step, runs in by_step.items()
        }
        step = min(spent, key=lambda step: np.median(spent[step]), default=None)
        got = [] if step is None else spent[step]
        rows.append({"problem": name, "n": n, "method": method, "step": step, "bytes": got, "start": start, "target": target})
    return rows


def sent(history: Any, target: float) -> float:
    """Return the bytes both ways when the loss was first at the target; infinite where it never was."""
    bytes_, there = history["upload_bytes"] + history["download_bytes"], history["loss"] <= target
    return float(bytes_[np.argmax(there)]) if there.any() else float("inf")


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    shown = [["problem", "n", "method", "step", "kB until 1 % is left", "beside the best"]]
    best = {row["problem"]: min(np.median(r["bytes"]) for r in found["rows"] if r["problem"] == row["problem"] and r["bytes"])
            for row in found["rows"]}  # fmt: skip
    for row in found["rows"]:
        there = [value for value in row["bytes"] if np.isfinite(value)]
        if len(there) * 2 < max(len(row["bytes"]), 1):
            shown.append([row["problem"], str(row["n"]), row["method"], "", f"not in {found['rounds']} rounds", ""])
            continue
        amount = mean_and_half(np.array(there) / 1e3, 3) + ("" if len(there) == len(row["bytes"]) else f" ({len(there)} runs)")
        ratio = f"{np.median(row['bytes']) / best[row['problem']]:.1f} x"
        shown.append([row["problem"], str(row["n"]), row["method"], f"{row['step']:.2g}", amount, ratio])
    return shown


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what the table does not say."""
    return [
        f"means over {found['seeds']} seeds, with 95 % intervals; full batches, five local steps, the best of nine step sizes"
    ]


def verdict(found: dict[str, Any]) -> str:
    """Say who needs the fewest bytes on each problem, and how far behind the library's own method is."""
    said = []
    for name in dict.fromkeys(row["problem"] for row in found["rows"]):
        spent = {
            row["method"]: float(np.median(row["bytes"])) for row in found["rows"] if row["problem"] == name and row["bytes"]
        }
        best, ours = min(spent, key=lambda method: spent[method]), spent.get("FedRZObl, gradients", float("inf"))
        behind = f"needs {ours / spent[best]:.1f} x its bytes" if np.isfinite(ours) else "does not get there"
        said.append(f"On {name}, {best} wins" + (";" if best.startswith("FedRZObl") else f"; FedRZObl by gradients {behind};"))
    return " ".join(said).rstrip(";") + "."


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
