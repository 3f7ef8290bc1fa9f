"""The far side of the ray engine: some clients in a process of their own. Nothing here imports Ray."""

import os
import pickle
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.messages.monitoring import Question, Row, monitor
from fedrzo.engines.messages.node import Memory
from fedrzo.engines.messages.wire import unpack
from fedrzo.engines.ray.share import Asked, Share
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import telling
from fedrzo.problems.loading import loaded
from fedrzo.support.pytrees import on_host, replaced

# What JAX computes depends on these settings, so actors take them over from the driver.
SETTINGS = ("jax_platforms", "jax_threefry_partitionable", "jax_default_matmul_precision")


class WorkerInit(NamedTuple):
    """All that an actor needs to know: its own clients' part of a run."""

    method: Method  # prepared
    problem: Problem  # the data and sets of these clients alone
    clients: tuple[int, ...]  # their names in the whole federation, in the order of `problem`
    root: np.ndarray  # the key of the run's directions, as numbers
    private: np.ndarray  # the key of each client's own sampling, as numbers
    # The named tuples that messages may hold; sent, since those of a script are in no module here
    types: dict[str, type]
    kind: str  # of what kind the keys are
    wide: bool  # whether numbers have 64 bits


class Worker:
    """An actor: answers messages to its clients, one message after the other.

    JAX's settings are made before any array is. A user's own functions are often in a folder where the driver looks for modules.
    """

    def __init__(self, settings: dict[str, Any], folders: list[str]) -> None:
        # JAX would take most of a GPU's memory for each process, and the next one on the same GPU would find none.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        for name, value in settings.items():
            jax.config.update(name, value)
        sys.path += [folder for folder in folders if folder not in sys.path]
        self.wide = False
        self.share: Any = None

    def open(self, pickled: bytes, kept: dict[int, bytes]) -> int:
        """Take up a part of a run, with what clients remembered before, as `Node.dump` wrote it; return this process's number."""
        self.share = None  # an actor that was used before has nothing to answer with, should this fail
        own: WorkerInit = pickle.loads(pickled)  # here: its arrays would otherwise come before the settings
        self.wide = own.wide
        with jax.enable_x64(self.wide):
            problem = jax.device_put(loaded(own.problem))
            root = jax.random.wrap_key_data(jnp.asarray(own.root), impl=own.kind)
            private = jax.random.wrap_key_data(jnp.asarray(own.private), impl=own.kind)
            self.share = Share(own.method, problem, own.clients, root, private, own.types)
            for i, stored in kept.items():
                self.share.node(i).load(stored)
        return os.getpid()

    def answer(self, common: bytes, asked: Asked, tells: bool) -> tuple[tuple[bytes | None, dict[int, bytes]], dict[int, bytes]]:
        """Return what clients answer to a message and, where they remember anything, all that they remember then."""
        with jax.enable_x64(self.wide):
            answers = self.share.answer(common, asked)
        return answers, {i: self.share.node(i).dump() for i in asked.clients or self.share.clients if tells}

    def look(self, question: Question) -> Row:
        """Return what these clients see at a point, all together."""
        with jax.enable_x64(self.wide), telling():
            problem = self.share.problem
            weights = jax.tree.map(lambda each: each / np.sum(each), (problem.client_weights, problem.lower_weights))
            return on_host(monitor(replaced(problem, client_weights=weights[0], lower_weights=weights[1]), *question))

    def remember(self, memories: dict[int, bytes]) -> dict[int, bytes]:
        """Have clients remember what a checkpoint holds; return it in the form in which `answer` does."""
        for i, stored in memories.items():
            node = self.share.node(i)
            node.memory = {"": Memory(unpack(stored, node.types)[1])}
            node.points = node.kept = None
        return {i: self.share.node(i).dump() for i in memories}
