"""Client-steps of FedRZO_nn on a GPU, against its memory and against plain JAX: `fedrzo bench gpu`.

The network and the plain round are those of `fedrzo bench zo`. The floor is what memory allows if each step reads its batch, and
reads and writes x: (batch + 2n) floats over the bandwidth of a large copy, measured in the same process. Several rounds are one
call, for both. `error` is how far a round by the kernel is from one without it, over x, in units of float32's precision.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedrzo.bench import timing
from fedrzo.bench.options import Options
from fedrzo.bench.timing import save
from fedrzo.bench.zo import ours
from fedrzo.engines.ahead import ROUNDS
from fedrzo.errors import InputError
from fedrzo.zoo.relu import ReluPair

PROBLEM = "a ReLU network of MNIST's and of CIFAR-10's shape"
SEEDS = 1
REPETITIONS, QUICK_REPETITIONS = 9, 3
COPIED = 1 << 28  # floats of the copy that measures the bandwidth
COPIES = 20


class Case(NamedTuple):
    """A size: clients, batch, neurons, pixels, and the rounds of one call."""

    clients: int
    batch_size: int
    neurons: int = 4
    pixels: int = 784
    rounds: int = 20

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"m = {self.clients:,}, B = {self.batch_size}, n = {self.neurons * (self.pixels + 1):,}"


CASES = (Case(5, 1, rounds=200), Case(5000, 1), Case(5000, 32), Case(100, 32, 100, 3072))


def run(options: Options) -> dict[str, Any]:
    """Measure millions of client-steps per second; the seed is the directions'."""
    options.check_fixed("gpu", PROBLEM)
    if jax.default_backend() != "gpu":
        raise InputError(f"bench gpu: found a {jax.default_backend()} alone; run it where JAX sees a GPU")
    repetitions = QUICK_REPETITIONS if options.quick else REPETITIONS
    bandwidth = measure_bandwidth(repetitions)
    device = jax.devices()[0].device_kind
    found: dict[str, Any] = {
        "problem": PROBLEM,
        "device": device,
        "terabytes_per_second": bandwidth / 1e12,
        "cases": {},
    }
    for case in CASES:
        found["cases"][case.name] = measure(case, bandwidth, options.seed, repetitions)
    save(found, options.out, "gpu")
    return found


def measure_bandwidth(repetitions: int) -> float:
    """Return bytes per second, read and written, of a copy far larger than any cache."""

    @jax.jit
    def copies(a: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, COPIES, lambda _, a: a + 1, a)

    a = jax.numpy.zeros(COPIED, np.float32)
    return 8 * COPIED * COPIES / timed(lambda: copies(a), repetitions)[0]


def timed(go: Callable[[], Any], repetitions: int) -> tuple[float, float]:
    """Return the median of the seconds that a call takes, and how much longer the first one took, which compiles."""
    seconds = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        jax.block_until_ready(go())
        seconds.append(time.perf_counter() - start)
    median = float(np.median(seconds[1:]))
    return median, seconds[0] - median


def measure(case: Case, bandwidth: float, seed: int, repetitions: int) -> dict[str, float]:
    """Return what one size gives."""
    plain = timing.plain("plain_zo")
    setting = plain.Setting(case.pixels, case.neurons, case.clients, 50, batch_size=case.batch_size)
    images, labels, x0 = plain.draw_data(setting)
    key, pair = jax.random.key(seed), ReluPair(setting.regularisation)
    data = jax.device_put((x0, images, labels))
    steps = case.clients * setting.local_steps * case.rounds
    fused, compiling = timed(ours(setting, images, labels, x0, key, pair, case.rounds), repetitions)
    usual, _ = timed(functools.partial(plain_rounds, *data, key, setting, case.rounds), repetitions)
    floor = bandwidth / (4 * (case.batch_size * case.pixels + 2 * setting.dim))
    # A function without the kernel computes the same by the plain path, whose products are else rounded to TF32.
    with jax.default_matmul_precision("highest"):
        ways = (pair, lambda *a: pair(*a))
        ends = [np.asarray(ours(setting, images, labels, x0, key, way, rounds=1)().state.x) for way in ways]
    if case.rounds > ROUNDS:  # several at a time; one by one they must give the same bits
        together, single = (ours(setting, images, labels, x0, key, pair, rounds) for rounds in (ROUNDS + 1, 1))
        alone = [single() for _ in range(ROUNDS + 1)][-1]
        assert np.array_equal(together().state.x, alone.state.x), "rounds drawn ahead differ from single ones"
    return {
        "millions": steps / fused / 1e6,
        "plain_jax_millions": steps / usual / 1e6,
        "percent_of_floor": 100 * steps / fused / floor,
        "plain_jax_percent": 100 * steps / usual / floor,
        "vs_plain_jax": usual / fused,
        "compile_seconds": compiling,
        "error": float(np.linalg.norm(ends[0] - ends[1]) / np.linalg.norm(ends[1]) / np.finfo(np.float32).eps),
    }


@functools.partial(jax.jit, static_argnames=("setting", "rounds"))
def plain_rounds(x: Any, images: Any, labels: Any, key: jax.Array, setting: Any, rounds: int) -> jax.Array:
    """Run some rounds of plain JAX in one call."""
    go = timing.plain("plain_zo").jax_round
    return jax.lax.fori_loop(0, rounds, lambda r, x: go(x, images, labels, jax.random.fold_in(key, r), setting), x)


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    rows = [["", "million client-steps/s", "plain JAX", "ratio", "% of the floor", "plain JAX", "compilation"]]
    for name, case in found["cases"].items():
        rows.append([
            name, f"{case['millions']:.3g}", f"{case['plain_jax_millions']:.3g}", f"{case['vs_plain_jax']:.1f} x",
            f"{case['percent_of_floor']:.0f}", f"{case['plain_jax_percent']:.0f}", f"{case['compile_seconds']:.1f} s",
        ])  # fmt: skip
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    worst = max(case["error"] for case in found["cases"].values())
    return [
        f"Medians on {found['device']}; the floor is of {found['terabytes_per_second']:.2f} TB/s, measured by a copy.",
        f"A round by the kernel and one without it differ by at most {worst:.2g} times float32's precision, relative to x.",
    ]
