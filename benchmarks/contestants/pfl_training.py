"""What both pfl contestants share: the users' data, the simulated backend and the training loop."""

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics


class Lap(TrainingProcessCallback):
    """Stops the time after each round."""

    def __init__(self, watch):
        self.watch = watch

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        del aggregate_metrics, model, central_iteration
        self.watch.lap()
        return False, Metrics()


def train(job, watch, algorithm, model, user_data):
    """Run all rounds; `user_data(features, targets, user_id)` makes a user's dataset, kept in memory."""
    np.random.seed(job.seed)  # noqa: NPY002  # pfl draws from the global generator
    stored = [user_data(*arrays, str(i)) for i, arrays in enumerate(zip(job.features, job.targets, strict=True))]
    users = FederatedDataset(lambda i: stored[i], MinimizeReuseUserSampler(list(range(job.clients))))
    never = job.rounds + 1
    return algorithm.run(
        NNAlgorithmParams(job.rounds, evaluation_frequency=never, train_cohort_size=job.clients, val_cohort_size=0),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(
            local_batch_size=job.batch_size,
            local_num_epochs=None,
            local_learning_rate=job.stepsize,
            local_num_steps=job.local_steps,
        ),
        callbacks=[Lap(watch)],
        send_metrics_to_platform=False,
    )
