"""The job on fedrzo: `fz.run` with `fz.FedAvg` on the default engine.

    python on_fedrzo.py JOB.npz

Samples are drawn with replacement. Rounds are timed by the thousand, as one would run them, with the loss evaluated at both ends.
"""

from job import BEGAN, answer, given  # isort: skip  # first: it starts the clock

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz

TIMED_ROUNDS, REPETITIONS = 2000, 3
LOSSES = 10  # runs whose losses show how much draws matter


def loss(x, batch):
    features, targets = batch
    return jnp.mean((features @ x - targets) ** 2) / 2


def main():
    job = given()
    data = fz.ClientData(list(zip(job.features, job.targets, strict=True)))
    problem = fz.Nonsmooth(loss, data, x0=np.zeros(job.dimension, np.float32))
    method = fz.FedAvg(job.stepsize, job.local_steps, job.batch_size)

    def run(rounds, key=job.seed):
        return fz.run(method, problem, rounds, key=key, eval_every=rounds, progress=False)

    def seconds():
        start = time.perf_counter()
        run(TIMED_ROUNDS)
        return time.perf_counter() - start

    run(1)
    setup = time.perf_counter() - BEGAN
    ends = [run(job.rounds, key=job.seed * LOSSES + i).x for i in range(LOSSES)]  # no two repetitions share a key
    per_round = statistics.median(seconds() for _ in range(REPETITIONS)) / TIMED_ROUNDS
    more = {"losses": [job.loss(x) for x in ends], "device": jax.devices()[0].device_kind}
    answer(job, ends[0], setup, per_round, ["fedrzo", "jax", "numpy"], **more)


if __name__ == "__main__":
    main()
