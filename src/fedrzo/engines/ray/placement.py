"""Room for actors on the nodes of a cluster: Ray is told how much memory each takes, so that a larger node gets more of them."""

from typing import Any

import numpy as np

from fedrzo.data.loader import Loader
from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.support.pytrees import size_of

PROCESS = 190 << 20  # bytes of an actor that has nothing but JAX
COPIES = 2  # of its clients' samples: as they were sent or loaded, and as JAX has them


def needed(problem: Problem, actors: int) -> int:
    """Return the bytes that each of so many actors takes, as far as they are known beforehand."""
    stored = {id(level.data): _stored(level.data) for level in problem.stated}
    return PROCESS + COPIES * sum(stored.values()) // actors


def _stored(data: Any) -> int:
    """Return the bytes of all clients' samples, whether or not they are here."""
    if not data.stored:
        return 0
    here = size_of((data.flat, data.fixed))
    return here // int(np.asarray(data.sizes)[0]) * data.samples if isinstance(data, Loader) else here


def check_room(ray: Any, actors: int, memory: float) -> None:
    """Refuse more actors than the nodes of a cluster have memory for; Ray would wait for a node that never comes."""
    nodes = [node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["Alive"]]
    room = sum(int(there // memory) for there in nodes) if memory else actors
    if room < actors:
        raise InputError(
            f"actors: found {actors} that take {memory / 2**20:,.0f} MiB each, but room for {room} on {len(nodes)} "
            f"node{'s' * (len(nodes) != 1)}; ask for fewer, add nodes, or say what they take: options={{'memory': bytes}}"
        )
