"""Where actors go: how many there are, what each takes of a cluster's memory and GPUs, and whether all find room."""

import math
from typing import Any

import jax
import numpy as np

from fedrzo.data.loader import Loader
from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.support.pytrees import size_of

PROCESS = 190 << 20  # bytes of an actor that has nothing but JAX
COPIES = 2  # of its clients' samples: as they were sent or loaded, and as JAX has them
GPUS = ("gpu", "cuda", "rocm")  # JAX's names of platforms that Ray counts as GPUs


def arranged(
    ray: Any, problem: Problem, actors: int | None, options: dict[str, Any], platforms: str | None
) -> tuple[int, dict[str, Any]]:
    """Return how many actors to start, and Ray's options for each; refuse more than the cluster has room for."""
    there = ray.cluster_resources()
    platform = (platforms or jax.default_backend()).partition(",")[0]
    if platform in GPUS and (gpus := int(there.get("GPU", 0))):
        # A GPU for each actor, or a share of one where there are more actors; Ray counts in ten-thousandths.
        sharing = math.ceil(min(actors or 1, problem.clients) / gpus)
        options = {"num_gpus": math.floor(1e4 / sharing) / 1e4, **options}
    nodes, count = _nodes(ray), min(problem.clients, actors or max(1, int(there.get("CPU", 1))))
    needed = {"memory": _needed(problem, count), **options}
    while actors is None and count > 1 and _room(nodes, needed) < count:
        count -= 1
        needed = {"memory": _needed(problem, count), **options}
    _check_room(nodes, count, needed)
    return count, needed


def _needed(problem: Problem, actors: int) -> int:
    """Return the bytes that each actor takes, as far as they are known beforehand."""
    levels = {id(level.data): level.data for level in problem.stated}.values()
    return PROCESS + COPIES * sum(_stored(data) // (1 if data.identical else actors) for data in levels)


def _stored(data: Any) -> int:
    """Return the bytes of all clients' samples, whether or not they are here."""
    if not data.stored:
        return 0
    here = size_of((data.flat, data.fixed))
    return here // int(np.asarray(data.sizes)[0]) * data.samples if isinstance(data, Loader) else here


def _nodes(ray: Any) -> list[dict[str, float]]:
    """Return the resources of each node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _taken(options: dict[str, Any]) -> dict[str, float]:
    """Return what Ray sets aside for each actor, by the name of the resource."""
    found = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    return {name: amount for name, amount in {**found, **(options.get("resources") or {})}.items() if amount}


def _room(nodes: list[dict[str, float]], options: dict[str, Any]) -> float:
    """Return how many actors nodes have room for; infinity where actors take nothing that is counted."""
    each = _taken(options)
    if not each:
        return math.inf
    # A tenth of a GPU goes ten times into one, whatever the last digit of a quotient says.
    return sum(min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in each.items()) for node in nodes)


def _check_room(nodes: list[dict[str, float]], actors: int, options: dict[str, Any]) -> None:
    """Refuse more actors than nodes have room for: Ray would wait for a node that never comes."""
    room = _room(nodes, options)
    if room >= actors:
        return
    each = _taken(options)
    words = [f"{each.pop('memory') / 2**20:,.0f} MiB"] if "memory" in each else []
    words += [f"{amount:g} {name}" for name, amount in each.items()]
    raise InputError(
        f"actors: found {actors} that take {' and '.join(words)} each, but room for {room} on {len(nodes)} "
        f"node{'s' * (len(nodes) != 1)}; ask for fewer, add nodes, or say what they take: options={{'memory': bytes, "
        "'num_gpus': share}"
    )
