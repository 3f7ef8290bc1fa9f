"""How the simulation spreads its clients: all side by side, over several devices, or chunk by chunk."""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.federation.protocol import PyTree, Reply, weighted_mean
from fedrzo.problems.base import Problem
from fedrzo.problems.questions import BY_SERVER
from fedrzo.support.pytrees import index, size_of

Step = Callable[[jax.Array, PyTree], Reply]
LARGE = 1 << 20  # bytes of an array that devices keep from one run to the next
# On a CPU, where the user names no devices: numbers of all clients' x from which on sharing them pays, and bytes of the samples'
# copies, one for each device, up to which it is done.
WORTH_SHARING, COPIES = 500, 1 << 30
_KEPT: dict[tuple, jax.Array] = {}  # by the id of what was sent; no longer than that lives


@dataclasses.dataclass(frozen=True)
class Spread:
    """How clients are spread. Numbers depend on it only by the order in which means are added up."""

    mesh: jax.sharding.Mesh | None = None  # the devices that share them; None for a single one
    chunk: int | None = None  # how many are at work at a time; None for all
    device: jax.Device | None = None  # the single device, if it is not JAX's first

    @property
    def platform(self) -> str:
        """What the devices are: "cpu" or "gpu", say."""
        if self.mesh is not None:
            return str(self.mesh.devices.flat[0].platform)
        return jax.default_backend() if self.device is None else self.device.platform

    def place(self, tree: PyTree) -> PyTree:
        """Put arrays on the device, or a copy on each of several."""
        where: Any = self.device
        if self.mesh is not None:
            where = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return jax.device_put(jax.tree.map(lambda leaf: sent_once(leaf, where), tree), where)

    def each(self, step: Step, ids: jax.Array, memories: PyTree) -> Reply:
        """Return the clients' replies, one above the other."""
        if self.chunk is None:
            return self._together(step, ids, memories)
        blocks = self._blocks(ids)
        replies = jax.lax.map(lambda block: self._together(step, block, memories), blocks)
        return _joined(replies, ids.shape[0])

    def mean(self, step: Step, ids: jax.Array, weights: jax.Array, memories: PyTree) -> Reply:
        """Return the weighted mean of the replies' values, and all else of the replies; no more values at a time than a chunk."""
        if self.chunk is None:
            replies = self._together(step, ids, memories)
            return replies._replace(value=weighted_mean(replies.value, weights))
        blocks = self._blocks(ids)
        shares = jnp.pad(weights, (0, blocks.size - weights.size)).reshape(blocks.shape)

        def part(block: jax.Array, shares: jax.Array) -> Reply:
            replies = self._together(step, block, memories)
            return replies._replace(value=weighted_mean(replies.value, shares))

        def add(total: PyTree, block: tuple) -> tuple[PyTree, Reply]:
            replies = part(*block)
            return jax.tree.map(jnp.add, total, replies.value), replies._replace(value=None)

        shapes = jax.eval_shape(part, blocks[0], shares[0]).value
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total, replies = jax.lax.scan(add, nothing, (blocks, shares))
        return _joined(replies, ids.shape[0])._replace(value=total)

    def _blocks(self, ids: jax.Array) -> jax.Array:
        """Return ids as rows of a chunk each; the last one is filled up with clients whose replies are dropped."""
        assert self.chunk is not None
        return _filled(ids, self.chunk).reshape(-1, self.chunk)

    def _together(self, step: Step, ids: jax.Array, memories: PyTree) -> Reply:
        """Have clients step side by side. Devices get equally many each, some of them once more where they do not divide."""
        count = ids.shape[0]
        if self.mesh is None:
            return jax.vmap(step)(ids, index(memories, ids))
        over_clients = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec("clients"))
        ids = jax.lax.with_sharding_constraint(_filled(ids, self.mesh.size), over_clients)
        replies = jax.vmap(step)(ids, index(memories, ids))
        return jax.tree.map(lambda leaf: leaf[:count], replies)


def sent_once(leaf: Any, where: Any) -> Any:
    """Send a large array that nobody can change, as clients' samples are, to a device the first time; leave others alone."""
    if not isinstance(leaf, np.ndarray) or leaf.flags.writeable or leaf.base is not None or leaf.nbytes < LARGE:
        return leaf
    key = id(leaf), where, jax.dtypes.canonicalize_dtype(leaf.dtype)
    if key not in _KEPT:
        # Of a copy: where memory happens to be aligned, JAX uses the array itself, which then would never end.
        _KEPT[key] = jax.device_put(leaf.copy(), where)
        weakref.finalize(leaf, _KEPT.pop, key, None)
    return _KEPT[key]


def _filled(ids: jax.Array, multiple: int) -> jax.Array:
    """Return ids, some of them twice, as many as a multiple of a number."""
    return jnp.resize(ids, (-(-ids.shape[0] // multiple) * multiple,))


def _joined(replies: Reply, count: int) -> Reply:
    """Return the replies of all chunks, one above the other."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], replies)


def spread(participants: int, devices: list[jax.Device], chunk: int | None) -> Spread:
    """Return how so many clients are spread over devices: each has one at least."""
    used = min(len(devices), participants if chunk is None else min(chunk, participants))
    mesh = None if used == 1 else jax.sharding.Mesh(np.array(devices[:used]), ("clients",))
    single = devices[0] if mesh is None and devices[0] != jax.devices()[0] else None
    return Spread(mesh, None if chunk is None or chunk >= participants else chunk, single)


def worth_using(problem: Problem, participants: int, devices: list[jax.Device]) -> list[jax.Device]:
    """Return the devices that clients are shared among where the user names none.

    On a CPU they are cores: a single one where a round is over before the others are called, or where clients meet often, as in
    a lower level that all of them share.
    """
    if devices[0].platform != "cpu":
        return devices
    if problem.lower_solved_by == BY_SERVER or participants * problem.dim < WORTH_SHARING:
        return devices[:1]
    stored = size_of(problem.data.flat) if problem.data.stored else 0
    return devices[: max(1, COPIES // max(1, stored))]
