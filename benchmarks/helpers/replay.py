"""What scalars cost where vectors are long: a network of CIFAR-10's shape with 100 neurons, on made-up images.

Bytes are those that a run counts. Times are of the compiled functions that a server and a client run, each by itself.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.federation.catch_up import Either
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Roots, weighted_mean
from fedrzo.methods import FedRZOnn
from fedrzo.methods.by_scalars import take
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.running.run import run
from fedrzo.zoo.relu import ReluLoss, initial_network

PIXELS, NEURONS = 3 * 32 * 32, 100  # n = 307,300
CLIENTS, LOCAL_STEPS, BATCH = 5, 20, 8
MORE_CLIENTS = 20  # to see what the server's memory grows with
SAMPLES = 16  # of each client
ROUNDS = 2  # in the first one nothing travels down, since all know x0
REPETITIONS, QUICK_REPETITIONS = 15, 5


def made_up(clients: int = CLIENTS, pixels: int = PIXELS, neurons: int = NEURONS) -> Nonsmooth:
    """Return the paper's network on images that are noise, in float32."""
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(clients, SAMPLES, pixels)).astype(np.float32)
    labels = rng.choice([-1.0, 1.0], (clients, SAMPLES)).astype(np.float32)
    data = ClientData(list(zip(images, labels, strict=True)), fixed=[np.float32(1.0)] * clients)
    return Nonsmooth(ReluLoss(0.01), data, initial_network(pixels, neurons, 0))


def cost(problem: Nonsmooth, repetitions: int) -> dict[str, Any]:
    """Measure bytes, times and the server's memory for one round of FedRZO_nn by vectors and by scalars."""
    vectors = FedRZOnn(1 / problem.dim, 0.01, LOCAL_STEPS, BATCH)
    scalars = dataclasses.replace(vectors, communication="scalars")
    ways = {"vectors": vectors, "scalars": scalars}
    results = {name: run(way, problem, ROUNDS, progress=False) for name, way in ways.items()}
    bytes_ = {
        column: {name: _last_round(result.history[column], problem.clients) for name, result in results.items()}
        for column in ("upload_bytes", "download_bytes")
    }
    ends = [problem.layout.ravel(result.x) for result in results.values()]
    return {
        "dimension": problem.dim, "clients": problem.clients, "local_steps": LOCAL_STEPS, **bytes_,
        "ratio": bytes_["upload_bytes"]["vectors"] / bytes_["upload_bytes"]["scalars"],
        "largest_difference": float(np.max(np.abs(ends[0] - ends[1]))),
        "largest_step": float(np.max(np.abs(ends[0] - problem.x0))),
        **_times(vectors, scalars, problem, repetitions),
        "memory": [_memory(scalars, problem, clients) for clients in (problem.clients, MORE_CLIENTS)],
    }  # fmt: skip


def _last_round(total: np.ndarray, clients: int) -> int:
    """Return the bytes of one client in the last round."""
    return int(total[-1] - total[-2]) // clients


def _times(vectors: FedRZOnn, scalars: FedRZOnn, problem: Nonsmooth, repetitions: int) -> dict[str, Any]:
    """Return medians of seconds: the server's replay, the mean of vectors, and one client's local steps."""
    method = scalars.for_cohort(problem, problem.clients)
    arguments = _round(method, problem, problem.clients)
    sent = jnp.asarray(np.random.default_rng(1).normal(size=(problem.clients, problem.dim)), jnp.float32)
    shared = jnp.full(problem.clients, 1 / problem.clients, jnp.float32)
    placed = jax.device_put(problem)

    @jax.jit
    def steps(method: FedRZOnn, problem: Nonsmooth, x: jax.Array) -> jax.Array:
        client = Client.of(problem, 0, round=jnp.int32(0))
        return method.client_steps(client, Roots.of(jax.random.key(0)).directions, None, x).value

    return {
        "replay_seconds": seconds(lambda: take(*arguments), repetitions),
        "average_seconds": seconds(lambda: _mean(sent, shared), repetitions),
        "client_seconds": seconds(lambda: steps(vectors, placed, jnp.asarray(problem.x0)), repetitions),
        "repetitions": repetitions,
    }


_mean = jax.jit(weighted_mean)


def seconds(call: Any, repetitions: int) -> float:
    """Return the median time of a call, compilation left out."""
    jax.block_until_ready(call())
    taken = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def _round(method: Any, problem: Nonsmooth, clients: int) -> tuple:
    """Return what a server is called with when so many clients have sent their scalars, and nobody a vector."""
    state = method.init(problem, jax.random.key(0))
    slopes = np.random.default_rng(0).normal(size=(clients, LOCAL_STEPS, 1))
    sent = Either(jnp.asarray(slopes, state.x.dtype), None, jnp.zeros(clients, bool))
    ids, weights = jnp.arange(clients), jnp.full(clients, 1 / clients)
    return method, state, sent, weights, ids, jax.random.key_data(jax.random.key(0)), jnp.int32(0)


def _memory(scalars: FedRZOnn, problem: Nonsmooth, clients: int) -> dict[str, Any]:
    """Return the temporary memory of the server's compiled replay, beside that of all directions at once."""
    method = scalars.for_cohort(problem, clients)
    found: Any = take.lower(*_round(method, problem, clients)).compile().memory_analysis()
    vector = problem.dim * problem.layout.dtype.itemsize
    return {
        "clients": clients, "temporary_bytes": int(found.temp_size_in_bytes),
        "vectors": found.temp_size_in_bytes / vector, "all_directions_bytes": clients * LOCAL_STEPS * vector,
    }  # fmt: skip


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what was measured, one line each."""
    up, down, H, m = (found[name] for name in ("upload_bytes", "download_bytes", "local_steps", "clients"))
    memory = ", ".join(
        f"{row['temporary_bytes'] / 1e6:.1f} MB for m = {row['clients']} ({row['vectors']:.1f} vectors; all directions at once "
        f"would take {row['all_directions_bytes'] / 1e6:.0f} MB)"
        for row in found["memory"]
    )
    return [
        f"n = {found['dimension']:,}, H = {H}, m = {m}, float32, per client and round: up {up['vectors']:,} B as a vector, "
        f"{up['scalars']:,} B as scalars ({found['ratio']:,.0f} times less); "
        f"down {down['vectors']:,} B and {down['scalars']:,} B; after {ROUNDS} rounds, in which x moved by up to "
        f"{found['largest_step']:.2g}, both ways differ by at most {found['largest_difference']:.2g}",
        f"there, the server's replay takes {found['replay_seconds']:.3g} s a round, the mean of {m} vectors "
        f"{found['average_seconds']:.3g} s, a client's own {H} steps {found['client_seconds']:.3g} s (medians of "
        f"{found['repetitions']}); rebuilding the average takes a client as long as it takes the server",
        f"temporary memory of the server's replay: {memory}",
    ]
