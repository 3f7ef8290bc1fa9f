"""One client-step of FedRZO_nn against what one would first write: `fedrzo bench zo`.

A two-layer ReLU network of MNIST's shape (n = 3,140), five clients, twenty local steps. The rulers are in benchmarks/plain_zo.py:
a NumPy loop, and JAX with vmap, scan and jax.random.normal. All take turns in one process; ratios are of median times. Once the
library sees the loss alone, once the problem also gives `pair`, which shares the products with x and v between both points.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.clientdata import ClientData
from fedrzo.engines.simulation import Simulation
from fedrzo.errors import InputError
from fedrzo.files import check_writable, write_file
from fedrzo.methods import FedRZOnn
from fedrzo.problems import Nonsmooth
from fedrzo.zoo.relu import ReluLoss

PROBLEM = "a ReLU network of MNIST's shape"
SEEDS = 1
BATCHES = (1, 32)
REPETITIONS, QUICK_REPETITIONS = 60, 5
RULERS = ("numpy", "plain_jax")


def run(
    problem: str = PROBLEM,
    budget: int | None = None,
    seeds: int = SEEDS,
    seed: int = 0,
    out: str | Path | None = None,
    quick: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure microseconds per client-step.

    Args:
        problem: fixed.
        budget: fixed too; see `quick`.
        seeds: fixed too: times do not depend on them.
        seed: of the data and directions.
        out: a folder for the numbers.
        quick: few repetitions.
        progress: unused; it takes seconds.
    """
    del progress
    if problem != PROBLEM or budget is not None or seeds != SEEDS:
        raise InputError("bench zo: it takes no problem, --budget or --seeds; pass --quick for fewer repetitions")
    if out is not None:
        check_writable(Path(out), "--out")
    found: dict[str, Any] = {"problem": PROBLEM, "device": jax.devices()[0].device_kind, "microseconds": {}}
    for batch in BATCHES:
        times = measure(batch, seed, QUICK_REPETITIONS if quick else REPETITIONS)
        found["microseconds"][str(batch)] = times
        for ruler in RULERS:
            found.setdefault(f"vs_{ruler}", {})[str(batch)] = times[ruler] / times["fedrzo, pair"]
            found.setdefault(f"vs_{ruler}_without_pair", {})[str(batch)] = times[ruler] / times["fedrzo"]
    if out is not None:
        write_file(Path(out) / "zo.json", json.dumps(found, indent=1).encode())
    return found


def measure(batch: int, seed: int, repetitions: int) -> dict[str, float]:
    """Return microseconds per client-step, compiled, of each contestant."""
    plain = rulers()
    setting = plain.Setting(batch_size=batch)
    images, labels, x0 = plain.draw_data(setting)
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    on_device = jax.device_put((x0, images, labels))
    contestants: dict[str, Callable[[], Any]] = {
        "numpy": lambda: plain.numpy_round(x0, images, labels, rng, setting),
        "plain_jax": lambda: plain.jax_round(*on_device, key, setting),
        "fedrzo": ours(setting, images, labels, x0, key, pair=None),
        "fedrzo, pair": ours(setting, images, labels, x0, key, pair=Pair(setting.regularisation)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(repetitions + 1):
        for name, go in contestants.items():
            start = time.perf_counter()
            jax.block_until_ready(go())
            if i:  # the first round compiles
                seconds[name].append(time.perf_counter() - start)
    per = setting.clients * setting.local_steps
    return {name: 1e6 * float(np.median(values)) / per for name, values in seconds.items()}


class Pair:
    """loss(x+v) - loss(x-v) of the network, with the products of the images computed once for both points."""

    def __init__(self, regularisation: float) -> None:
        self.regularisation = regularisation

    def __call__(self, x: Any, v: Any, batch: Any) -> jax.Array:
        """Return the difference of both losses."""
        (images, labels), size = batch
        at, along = images @ x["Z"].T, images @ v["Z"].T
        plus = jnp.maximum(at + along, 0) @ (x["w"] + v["w"])
        minus = jnp.maximum(at - along, 0) @ (x["w"] - v["w"])
        errors = jnp.mean((minus - plus) * (2 * labels - plus - minus))  # a difference of squares
        penalty = jnp.vdot(x["Z"], v["Z"]) + jnp.vdot(x["w"], v["w"])
        return size / 2 * errors + 2 * self.regularisation * penalty


def ours(setting: Any, images: Any, labels: Any, x0: Any, key: jax.Array, pair: Any) -> Callable[[], Any]:
    """Return one round of the library's own, on the default engine."""
    cut = setting.neurons * setting.pixels
    start = {"Z": x0[:cut].reshape(setting.neurons, setting.pixels), "w": x0[cut:]}
    data = ClientData(list(zip(images, labels, strict=True)), fixed=[np.float32(1)] * setting.clients)
    problem = Nonsmooth(ReluLoss(setting.regularisation), data, start, pair=pair)
    method = FedRZOnn(setting.stepsize, setting.smoothing, setting.local_steps, setting.batch_size)
    session = Simulation().start([method], problem, [key], None)

    def go() -> Any:
        session.advance(1)
        return session.carry

    return go


def rulers() -> ModuleType:
    """Load the plain versions, which lie beside the package in a checkout."""
    path = Path(__file__).parents[3] / "benchmarks" / "plain_zo.py"
    spec = importlib.util.spec_from_file_location("plain_zo", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"bench zo: found no {path}; run it from a checkout, which has what it compares with")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    rows = [["", *(f"B = {batch}" for batch in BATCHES)]]
    names = found["microseconds"][str(BATCHES[0])]
    rows += [
        [f"{name}, microseconds", *(f"{found['microseconds'][str(b)][name]:.1f}" for b in BATCHES)] for name in names
    ]
    ratios = [name for name in found if name.startswith("vs_")]
    rows += [[name.replace("_", " "), *(f"{found[name][str(b)]:.1f} x" for b in BATCHES)] for name in sorted(ratios)]
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    return [f"Medians per client-step on {found['device']}, after compilation."]
