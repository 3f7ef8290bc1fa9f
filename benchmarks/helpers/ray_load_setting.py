"""One setting of `benchmarks/ray_load.py`, measured in a process of its own, so that its driver's peak memory is its own.

python ray_load_setting.py '{"kind": "load", "clients": 1000, "actors": 2}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from helpers.growth_setting import peak_memory

DIMENSION, SAMPLES, LOCAL_STEPS, SHARE_STEPS = 20, 10, 5, 100
SECONDS, ROUNDS = 4.0, 100  # a setting is measured for so long, or for so many rounds


@fz.method
class Idle(fz.Method):
    """A round in which nobody computes."""

    def round(self, federation: Any, state: Any, r: Any) -> Any:
        """Send x there and back."""
        return fz.State(federation.average(self.client_steps, state.x))

    def client_steps(self, client: Any, key: Any, memory: Any, x: Any) -> fz.Reply:
        """Return x."""
        return fz.Reply(x)


def logistic(x: Any, batch: Any) -> Any:
    """A loss."""
    return jnp.mean(jnp.log1p(jnp.exp(-batch @ x)))


def load(client: int) -> np.ndarray:
    """Return a client's samples."""
    return np.random.default_rng(client).normal(size=(SAMPLES, DIMENSION)).astype(np.float32)


def problem(clients: int, here: bool) -> fz.Nonsmooth:
    """Return a problem whose data are here, or are loaded by the actors."""
    data = fz.ClientData([load(i) for i in range(clients)]) if here else fz.Loader(load, clients)
    return fz.Nonsmooth(logistic, data, np.zeros(DIMENSION, np.float32))


def rounds(engine: Any, method: Any, about: fz.Nonsmooth) -> tuple[float, float]:
    """Return the fastest and the median seconds of a round; the first ones compile."""
    with about.precision():
        session = engine.start([method], about, [jax.random.key(0)], None)
        try:
            return timed(lambda: (session.advance(1), jax.block_until_ready(session.states()[0].x)))
        finally:
            session.close()


def timed(step: Callable[[], Any]) -> tuple[float, float]:
    """Do something again and again."""
    for _ in range(3):
        step()
    seconds, until = [], time.perf_counter() + SECONDS
    while len(seconds) < 3 or (len(seconds) < ROUNDS and time.perf_counter() < until):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return min(seconds), float(np.median(seconds))


def measure(kind: str, clients: int, actors: int) -> dict[str, Any]:
    """Measure rounds of one setting."""
    with fz.engines.Ray(actors=actors) as engine:
        if kind == "idle":
            fastest, median = rounds(engine, Idle(), problem(clients, here=False))
        elif kind == "load":
            fastest, median = rounds(engine, fz.FedRZOnn(0.01, 0.01, LOCAL_STEPS), problem(clients, here=False))
        else:
            method, about = fz.FedRZOnn(1e-3, 0.01, SHARE_STEPS), problem(clients, here=True)
            simulated = rounds(fz.engines.Simulation(devices=jax.devices()[:1]), method, about)
            fastest, median = rounds(engine, method, about)
            return {"clients": clients, "actors": actors, "seconds": median, "simulated": simulated[1]}
    return {"clients": clients, "actors": actors, "fastest": fastest, "seconds": median, "peak_bytes": peak_memory()}


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
