"""One setting of `benchmarks/growth.py`, measured in a process of its own, so that its peak memory is its own.

python growth_setting.py '{"clients": 500, ...}'
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import jax
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.methods import FedRZOnn
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.zoo.relu import ReluLoss, initial_network

CHUNK = 50
REPETITIONS = 3


def measure(chosen: dict[str, int]) -> dict[str, Any]:
    """Run rounds of one setting, and tell what they took."""
    rng = np.random.default_rng(0)
    total = chosen["clients"] * chosen["samples"]
    images = rng.random((total, chosen["pixels"]), np.float32).reshape(chosen["clients"], chosen["samples"], -1)
    labels = rng.choice(np.array([-1, 1], np.float32), images.shape[:2])
    data = ClientData(list(zip(images, labels, strict=True)), fixed=[np.float32(1)] * chosen["clients"])
    problem = Nonsmooth(ReluLoss(0.01), data, initial_network(chosen["pixels"], chosen["neurons"], 0))
    method = FedRZOnn(1e-4, 0.01, chosen["local_steps"])
    session = Simulation(client_chunk=CHUNK).start([method], problem, [jax.random.key(0)], None)
    seconds = []
    for _ in range(REPETITIONS + 1):
        start = time.perf_counter()
        session.advance(1)
        jax.block_until_ready(session.carry)
        seconds.append(time.perf_counter() - start)
    return {
        **chosen, "dimension": problem.dim, "seconds": float(np.median(seconds[1:])), "first": seconds[0],
        "data_bytes": images.nbytes, "peak_bytes": peak_memory(),
    }  # fmt: skip


def peak_memory() -> int:
    """Return the most memory that this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
