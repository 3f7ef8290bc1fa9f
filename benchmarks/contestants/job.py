"""The job that `benchmarks/peers.py` gives to every contestant, and the form in which each answers.

Imported by the scripts beside it, each of which runs in its own environment, as `python on_NAME.py JOB.npz`: NumPy only.
"""

import dataclasses
import json
import os
import statistics
import sys
import time
from importlib.metadata import version

import numpy as np

BEGAN = time.perf_counter()  # this module comes first, so that importing a package counts as setting up
for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ.setdefault(name, "0")  # nobody asked to send reports


@dataclasses.dataclass(frozen=True)
class Job:
    """FedAvg for least squares: minimise the mean of (features @ x - targets)^2 / 2 over all samples, from x = 0.

    Attributes:
        features: of shape (clients, samples, dimension), float32.
        targets: of shape (clients, samples), float32.
        stepsize: of the local steps; the server takes the plain mean.
        batch_size: samples per local step.
        local_steps: per client and round.
        rounds: with all clients in each.
        seed: of what a contestant draws.
    """

    features: np.ndarray
    targets: np.ndarray
    stepsize: float
    batch_size: int
    local_steps: int
    rounds: int
    seed: int

    @classmethod
    def read(cls, path):
        """Read a job from an .npz file."""
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return cls(**{name: value if value.ndim else value.item() for name, value in arrays.items()})

    @property
    def clients(self):
        return len(self.features)

    @property
    def dimension(self):
        return self.features.shape[-1]

    def loss(self, x):
        """Return the loss over all samples, in float64."""
        errors = self.features.astype(np.float64) @ np.asarray(x, np.float64) - self.targets
        return float(np.mean(errors**2) / 2)

    def local_sgd(self, x, batches):
        """Take a client's local steps in NumPy, for frameworks that leave them to the user."""
        for features, targets in batches:
            x = x - np.float32(self.stepsize / len(targets)) * ((features @ x - targets) @ features)
        return x


def given():
    """Return the job named on the command line."""
    return Job.read(sys.argv[1])


class Stopwatch:
    """When rounds end. All up to the end of the first one is setting up: imports, start, compilation."""

    def __init__(self):
        self.ends = []

    def lap(self):
        """Say that a round has ended."""
        self.ends.append(time.perf_counter())

    def report(self, job, x, packages):
        """Print what was found: seconds of setting up, median seconds per round after that, the loss, versions."""
        laps = [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]
        answer(job, x, self.ends[0] - BEGAN, statistics.median(laps), packages)


def answer(job, x, setup, seconds_per_round, packages, **more):
    """Print one JSON object, last on standard output."""
    found = {
        "setup_seconds": setup,
        "seconds_per_round": seconds_per_round,
        "loss": job.loss(x),
        "versions": {name: version(name) for name in packages},
        **more,
    }
    print(json.dumps(found))
