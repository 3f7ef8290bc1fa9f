"""The job on FedJAX: its own `fed_avg`, whose `for_each_client` compiles a client's steps.

    python on_fedjax.py JOB.npz

Samples are shuffled anew in every round, as FedJAX does.
"""

from job import Stopwatch, given  # isort: skip  # first: it starts the clock

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

job = given()
watch = Stopwatch()


def loss(x, batch, key):
    del key
    return jnp.mean((batch["features"] @ x - batch["targets"]) ** 2) / 2


# With a seed, every round of every client would have the same order.
order = fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch_size, num_epochs=None, num_steps=job.local_steps)
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    jax.grad(loss), fedjax.optimizers.sgd(job.stepsize), fedjax.optimizers.sgd(1.0), order
)
keys = jax.random.split(jax.random.PRNGKey(job.seed), job.clients)  # as asked for; nothing is drawn from them
arrays = zip(job.features, job.targets, keys, strict=True)
cohort = [(b"%d" % i, fedjax.ClientDataset({"features": u, "targets": t}), key) for i, (u, t, key) in enumerate(arrays)]
state = algorithm.init(jnp.zeros(job.dimension, np.float32))
for _ in range(job.rounds):
    state, _ = algorithm.apply(state, cohort)
    jax.block_until_ready(state.params)
    watch.lap()
watch.report(job, state.params, ["fedjax", "jax", "numpy"])
