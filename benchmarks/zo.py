"""One client-step of FedRZO_nn against what one would first write: `python benchmarks/zo.py`.

A two-layer ReLU network of MNIST's shape (n = 3,140), five clients, twenty local steps. The rulers are in benchmarks/plain_zo.py:
a NumPy loop, and JAX with vmap, scan and jax.random.normal. All take turns in one process; ratios are of median times. Once the
library sees the loss alone, once the problem also gives `pair`, which shares the products with x and v between both points. On a
CPU the library has a JAX device for each core and shares the clients among them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plain_zo as plain
from fedrzo.compare.options import Options
from fedrzo.data.client_data import ClientData
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.methods import FedRZOnn
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.zoo.relu import Parameters, ReluLoss
from helpers.command import check_fixed, main
from helpers.results import save, standing
from helpers.timing import medians, use_cores

PROBLEM = "a ReLU network of MNIST's shape"
SEEDS = 1
BATCHES = (1, 32)
REPETITIONS, QUICK_REPETITIONS = 15, 3
ROUNDS = 20  # at a time
RULERS = ("numpy", "plain_jax")


@dataclass(frozen=True)
class ReluPair:
    """loss(x+v) - loss(x-v) of the ReLU network, with the products of the images computed once for both points."""

    regularisation: float

    def __call__(self, x: Parameters, v: Parameters, batch: Any) -> jax.Array:
        """Return the difference of both losses."""
        (images, labels), size = batch
        at, along = images @ x["Z"].T, images @ v["Z"].T
        plus = jnp.maximum(at + along, 0) @ (x["w"] + v["w"])
        minus = jnp.maximum(at - along, 0) @ (x["w"] - v["w"])
        errors = jnp.mean((minus - plus) * (2 * labels - plus - minus))  # a difference of squares
        rows = (x["Z"] * v["Z"]) @ jnp.ones(images.shape[1], images.dtype)  # sums, which XLA is slower at on a CPU
        penalty = jnp.sum(rows) + jnp.sum(x["w"] * v["w"])
        return size / 2 * errors + 2 * self.regularisation * penalty


def run(options: Options) -> dict[str, Any]:
    """Measure microseconds per client-step; the seed is that of the data and directions."""
    check_fixed(options, PROBLEM)
    devices = use_cores()
    device = f"{len(devices)} x {devices[0].device_kind}"
    found: dict[str, Any] = {"problem": PROBLEM, "device": device, "microseconds": {}}
    for batch in BATCHES:
        times = measure(batch, options.seed, QUICK_REPETITIONS if options.quick else REPETITIONS)
        found["microseconds"][str(batch)] = times
        for ruler in RULERS:
            found.setdefault(f"vs_{ruler}", {})[str(batch)] = times[ruler] / times["fedrzo, pair"]
            found.setdefault(f"vs_{ruler}_without_pair", {})[str(batch)] = times[ruler] / times["fedrzo"]
    save(found, options.out, "zo")
    return found


def measure(batch: int, seed: int, repetitions: int) -> dict[str, float]:
    """Return microseconds per client-step, compiled, of each contestant."""
    setting = plain.Setting(batch_size=batch)
    images, labels, x0 = plain.draw_data(setting)
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    on_device = jax.device_put((images, labels))

    def rounds(one: Callable[[Any], Any]) -> Any:
        x = x0
        for _ in range(ROUNDS):
            x = one(x)
        return x

    contestants: dict[str, Callable[[], Any]] = {
        "numpy": lambda: rounds(lambda x: plain.numpy_round(x, images, labels, rng, setting)),
        "plain_jax": lambda: rounds(lambda x: plain.jax_round(x, *on_device, key, setting)),
        "fedrzo": ours(setting, images, labels, x0, key, pair=None),
        "fedrzo, pair": ours(setting, images, labels, x0, key, pair=ReluPair(setting.regularisation)),
    }
    per = ROUNDS * setting.clients * setting.local_steps
    return {name: 1e6 * seconds / per for name, seconds in medians(contestants, repetitions).items()}


def ours(setting: Any, images: Any, labels: Any, x0: Any, key: jax.Array, pair: Any, rounds: int = ROUNDS) -> Callable[[], Any]:
    """Return some rounds of the library's own, on the default engine."""
    cut = setting.neurons * setting.pixels
    start = {"Z": x0[:cut].reshape(setting.neurons, setting.pixels), "w": x0[cut:]}
    data = ClientData(list(zip(images, labels, strict=True)), fixed=[np.float32(1)] * setting.clients)
    problem = Nonsmooth(ReluLoss(setting.regularisation), data, start, pair=pair)
    method = FedRZOnn(setting.stepsize, setting.smoothing, setting.local_steps, setting.batch_size)
    session = Simulation().start([method], problem, [key], None)

    def go() -> Any:
        session.advance(rounds)
        return session.carry

    return go


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    rows = [["", *(f"B = {batch}" for batch in BATCHES)]]
    names = found["microseconds"][str(BATCHES[0])]
    rows += [[f"{name}, microseconds", *(f"{found['microseconds'][str(b)][name]:.1f}" for b in BATCHES)] for name in names]
    ratios = [name for name in found if name.startswith("vs_")]
    rows += [[name.replace("_", " "), *(f"{found[name][str(b)]:.1f} x" for b in BATCHES)] for name in sorted(ratios)]
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    return [f"Medians per client-step on {found['device']}, after compilation."]


def verdict(found: dict[str, Any]) -> str:
    """Say who wins where the library sees the loss alone."""
    names = {"numpy": "NumPy", "plain_jax": "plain JAX"}
    ratios = {f"{names[r]}, B = {b}": found[f"vs_{r}_without_pair"][str(b)] for r in RULERS for b in BATCHES}
    return standing(ratios, "both rulers")


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
