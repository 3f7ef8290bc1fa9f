"""The job on pfl without a deep-learning framework, where it is faster at this size.

    python on_pfl_numpy.py JOB.npz

pfl's own local training needs PyTorch or TensorFlow, but any class can be a model: here x is an array and the local steps are
written out in NumPy, inside pfl's `FederatedAveraging`. A client's batches are the same in every round, as pfl cuts them.
"""

from job import Stopwatch, given  # isort: skip  # first: it starts the clock

import numpy as np
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.metrics import Metrics
from pfl.model.base import StatefulModel
from pfl.stats import MappedVectorStatistics
from pfl_training import train


class Linear(StatefulModel):
    """x, which is replaced, never written into, so that nothing has to be copied."""

    def __init__(self, dimension):
        self.x = np.zeros(dimension, np.float32)

    def get_parameters(self, placeholders=None):
        del placeholders
        return MappedVectorStatistics({"x": self.x})

    def set_parameters(self, w):
        self.x = w["x"]

    def get_model_difference(self, other_parameters, clone=False):
        del clone
        return MappedVectorStatistics({"x": self.x - other_parameters["x"]})

    def apply_model_update(self, statistics):
        self.x = self.x + statistics["x"]
        return self, Metrics()

    def evaluate(self, dataset, name_formatting_fn, eval_params=None):
        del dataset, name_formatting_fn, eval_params
        return Metrics()

    def save(self, dir_path):
        raise NotImplementedError

    def load(self, dir_path):
        raise NotImplementedError


class Averaging(FederatedAveraging):
    """pfl's, with local steps in NumPy."""

    def __init__(self, job):
        super().__init__()
        self.job = job

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        model.x = self.job.local_sgd(model.x, user_dataset.iter(central_context.model_train_params.local_batch_size))
        return model.get_model_difference(initial_model_state), Metrics()


def user_data(features, targets, user_id):
    return Dataset((features, targets), user_id=user_id)


job, watch = given(), Stopwatch()
model = Linear(job.dimension)
train(job, watch, Averaging(job), model, user_data)
watch.report(job, model.x, ["pfl", "numpy"])
