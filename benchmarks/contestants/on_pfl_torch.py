"""The job on pfl with a PyTorch model: its `FederatedAveraging` and its local training.

    python on_pfl_torch.py JOB.npz

A client's batches are the same in every round, as pfl cuts them.
"""

from job import Stopwatch, given  # isort: skip  # first: it starts the clock

import torch
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.model.pytorch import PyTorchModel
from pfl_training import train


class Linear(torch.nn.Module):
    """x, and the loss that pfl asks a module for."""

    def __init__(self, dimension):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(dimension))

    def loss(self, features, targets, eval=False):
        del eval
        return torch.mean((features @ self.x - targets) ** 2) / 2

    def metrics(self, features, targets):
        del features, targets
        return {}


def user_data(features, targets, user_id):
    return PyTorchTensorDataset([torch.as_tensor(features), torch.as_tensor(targets)], user_id=user_id)


job, watch = given(), Stopwatch()
module = Linear(job.dimension)
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
train(job, watch, FederatedAveraging(), model, user_data)
watch.report(job, module.x.detach().numpy(), ["pfl", "torch", "numpy"])
