"""The job on Flower's simulation: its `FedAvg`, clients on Ray actors (one actor per core), local steps in NumPy.

    python on_flower.py JOB.npz

Samples are shuffled anew in every round. The data stay in the memory of each actor, which reads them once.
"""

from job import Job, Stopwatch, given  # isort: skip  # first: it starts the clock

import functools
import logging
import sys

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()
read = functools.cache(Job.read)


@client_app.train()
def train(message, context):
    """Take one client's local steps."""
    settings = message.content["config"]
    job, i = read(settings["job"]), context.node_config["partition-id"]
    order = np.random.default_rng([job.seed, settings["server-round"], i]).permutation(len(job.targets[i]))
    batches = order[: job.local_steps * job.batch_size].reshape(job.local_steps, job.batch_size)
    (x,) = message.content["arrays"].to_numpy_ndarrays()
    x = job.local_sgd(x, ((job.features[i][rows], job.targets[i][rows]) for rows in batches))
    found = {"arrays": ArrayRecord([x]), "metrics": MetricRecord({"num-examples": len(order)})}
    return Message(content=RecordDict(found), reply_to=message)


@server_app.main()
def serve(grid, context):
    """Run all rounds."""
    del context
    job, watch = given(), Stopwatch()

    def lap(server_round, arrays):
        del arrays
        if server_round:  # it is called once before the first round
            watch.lap()

    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=job.clients)
    start, settings = ArrayRecord([np.zeros(job.dimension, np.float32)]), ConfigRecord({"job": sys.argv[1]})
    result = strategy.start(grid, start, num_rounds=job.rounds, train_config=settings, evaluate_fn=lap)
    (x,) = result.arrays.to_numpy_ndarrays()
    watch.report(job, x, ["flwr", "ray", "numpy"])


if __name__ == "__main__":
    import on_flower  # as a module, so that messages carry the client's name, not its code

    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(on_flower.server_app, on_flower.client_app, given().clients, backend_config=resources)
