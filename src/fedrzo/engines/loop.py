"""The plain engine: client by client, in Python, by messages.

It is the reference that the simulation must agree with, and the base of the engines that leave the machine: those replace
`Loop.deliver` and keep the rest. A message names a step and carries arrays; it holds no code, so that a node needs only the
method, its own part of the problem, and its own memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.catchup import Missed, common_bytes, own_bytes
from fedrzo.client import Client
from fedrzo.engines.progress import Progress
from fedrzo.engines.simulation import Carry, _evaluate, cohort
from fedrzo.engines.tally import Tally, halves
from fedrzo.errors import InputError
from fedrzo.federation import Cost, Gathered, Reply, Roots, path_key, private_key, step_name
from fedrzo.methods.base import Method
from fedrzo.pytrees import nbytes, on_host

PyTree = Any


class Message(NamedTuple):
    """What the server sends for one call; integers, names and arrays.

    Attributes:
        step: where the step is found in the method, such as `client_steps` or `lower.client_steps`; `keep` stores the points.
        view: `""`, or `"lower"`.
        path: round, call[, iteration, call ...]: where in the run this is, and the path of its randomness.
        iteration: the index within the innermost repeat.
        arrays: what is shared.
    """

    step: str
    view: str
    path: tuple[int, ...]
    iteration: int
    arrays: PyTree

    def to(self, client: int) -> Message:
        """Return the message as one client receives it."""
        if not isinstance(self.arrays, tuple):
            return self
        arrays = (value.of(client).received() if isinstance(value, Missed) else value for value in self.arrays)
        return self._replace(arrays=tuple(arrays))

    def sent(self, client: int) -> PyTree:
        """Return the arrays that travel to one client."""
        if not isinstance(self.arrays, tuple):
            return self.arrays
        return tuple(value.of(client).sent() if isinstance(value, Missed) else value for value in self.arrays)


class Node:
    """A client at work: the method, its part of the problem, its private key and its memory. It sees messages only."""

    def __init__(
        self, method: Method, problem: Any, index: int, client_id: int, root: jax.Array, private: jax.Array
    ) -> None:
        self.method = method
        self.problem = problem
        self.index = index
        self.id = client_id
        self.root = root
        self.private = private
        self.memory: dict[str, PyTree] = {"": on_host(method.init_memory(problem))}
        self.points: Any = None

    def handle(self, message: Message) -> Reply | None:
        """Do what a message asks."""
        if message.step.endswith("keep"):
            self._keep(message)
            return None
        key = path_key(self.root, message.path)
        place = tuple(map(np.int32, (self.index, self.id, message.path[0], message.iteration)))
        reply = _execute(
            self.method, self.problem, self.private, key, place, self.points, self.memory[message.view], message.arrays,
            step=message.step, view=message.view,
        )  # fmt: skip
        reply = on_host(reply)
        if reply.memory is not None:
            self.memory[message.view] = reply.memory
        return reply._replace(memory=None)

    def _keep(self, message: Message) -> None:
        self.points = message.arrays
        owner, _ = find_step(self.method, message.step)
        self.memory["lower"] = on_host(owner.init_memory(self.problem.lower_level(self.points)))


@functools.partial(jax.jit, static_argnames=("step", "view"))
def _execute(
    method: Method, problem: Any, private: Any, key: Any, place: tuple, points: Any, memory: Any, arrays: Any, *,
    step: str, view: str,
) -> Reply:  # fmt: skip
    """Run one named step of one client. Compiled once for all clients."""
    level = problem.lower_level(points) if view == "lower" else problem
    index, client_id, r, iteration = place
    client = Client(level, index, client_id, private, r, iteration, points, key)
    owner, name = find_step(method, step)
    return getattr(owner, name)(client, jax.random.fold_in(key, client_id), memory, *arrays)


def find_step(method: Method, step: str) -> tuple[Method, str]:
    """Resolve a step's name, such as `lower.client_steps`, in a method."""
    *path, name = step.split(".")
    for field in path:
        method = getattr(method, field)
    return method, name


def name_of(method: Method, owner: Any) -> str | None:
    """Return the path of fields that leads from a method to one of its parts, such as `lower.`."""
    if owner is method:
        return ""
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        part = getattr(method, field.name)
        if isinstance(part, Method) and (path := name_of(part, owner)) is not None:
            return f"{field.name}.{path}"
    return None


def _whole(count: Any) -> int:
    """Read a client's count as the simulation does: 32 bits without a sign."""
    return int(np.asarray(count).astype(np.uint32))


class MessageFederation:
    """The federation's calls as messages; see `fedrzo.federation`."""

    def __init__(
        self, session: LoopSession, ids: Any, path: tuple[int, ...], view: str = "", iteration: int = 0
    ) -> None:
        self.session = session
        self.ids = ids
        self.path = path
        self.view = view
        self.iteration = iteration
        self.calls = 0

    def average(self, step: Callable[..., Reply], *shared: PyTree) -> PyTree:
        """Run one communication and return the weighted mean of the replies."""
        return self.gather(step, *shared).mean()

    def gather(self, step: Callable[..., Reply], *shared: PyTree) -> Gathered:
        """Run one communication and return the replies one by one."""
        arrays = on_host(shared)
        message = Message(self._name(step), self.view, self._next(), self.iteration, arrays)
        answered = self.session.deliver(message, self.ids)
        ids = np.array([i for i, _ in answered])
        self._count(arrays, answered)
        weights = jnp.asarray(self.session.problem.client_weights)[ids]
        values = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[reply.value for _, reply in answered])
        share = jnp.sum(weights)
        return Gathered(values, ids, weights / share, share)

    def repeat(self, n: Any, body: Callable[[Any, PyTree], PyTree], carry: PyTree) -> PyTree:
        """Apply `body` n times."""
        path = self._next()
        for i in range(int(n)):
            carry = body(MessageFederation(self.session, self.ids, (*path, i), self.view, i), carry)
        return carry

    def lower(self, x: PyTree, method: Method) -> MessageFederation:
        """Send x to all clients, once, and return their view of the lower level there."""
        everyone = np.arange(self.session.problem.clients)
        points = np.asarray(x)
        path = (*self._next(), self.iteration)
        owner = name_of(self.session.method, method)
        if owner is None:
            raise InputError(
                f"lower: found {method!r}, which is not a part of the running method; make it a field of it"
            )
        self.session.deliver(Message(f"{owner}keep", "lower", path, self.iteration, points), everyone)
        self.session.charge(download_bytes=nbytes(points) * len(everyone))
        return MessageFederation(self.session, everyone, path, "lower", self.iteration)

    def key(self) -> jax.Array:
        """Return a fresh key for the server's own draws."""
        return path_key(self.session.roots.directions, self._next())

    def _next(self) -> tuple[int, ...]:
        self.calls += 1
        return (*self.path, self.calls - 1)

    def _name(self, step: Callable[..., Reply]) -> str:
        name = step_name(step)
        owner = name_of(self.session.method, step.__self__)  # type: ignore[attr-defined]
        if owner is None:
            raise InputError(f"step: {name!r} belongs to no part of the running method; a message could not name it")
        return owner + name

    def _count(self, arrays: tuple, answered: list[tuple[int, Reply]]) -> None:
        replies = [reply for _, reply in answered]
        lower = {"lower_rounds": 1} if self.view else {}
        if self.session.problem.hierarchical:
            lower["lower_steps"] = sum(_whole(reply.steps) for reply in replies)
        self.session.charge(
            upload_bytes=sum(nbytes(reply.value) for reply in replies),
            download_bytes=sum(common_bytes(arrays) + int(own_bytes(arrays, i)) for i, _ in answered),
            evaluations=sum(_whole(reply.evaluations) for reply in replies),
            gradients=sum(_whole(reply.gradients) for reply in replies),
            **lower,
        )


class Loop:
    """The reference engine."""

    name = "loop"

    def start(self, methods: list, problem: Any, keys: list, clients_per_round: int | None) -> LoopSession:
        """Prepare a run."""
        if len(methods) != 1:
            raise InputError("engine: the loop engine runs one seed and one setting at a time; use engine='simulation'")
        return LoopSession(methods[0], jax.device_put(problem), keys[0], clients_per_round)


class LoopSession:
    """A run in progress; the same calls as `SimulationSession`."""

    def __init__(self, method: Method, problem: Any, key: jax.Array, size: int | None) -> None:
        self.method = method
        self.problem = problem
        self.key = key
        self.size = size
        self.round = 0
        self.roots = Roots.of(key)
        self.cost = Cost()
        self.state = jax.tree.map(jnp.asarray, method.init(problem, key))
        self.record = Progress.start(self.state.x)
        self.nodes = self._make_nodes()

    def _make_nodes(self) -> list[Node]:
        return [
            Node(self.method, self.problem, i, i, self.roots.directions, private_key(self.roots, i))
            for i in range(self.problem.clients)
        ]

    def deliver(self, message: Message, ids: Any) -> list[tuple[int, Reply]]:
        """Bring a message to some clients and return who answered what."""
        replies = [(int(i), self.nodes[int(i)].handle(message.to(int(i)))) for i in ids]
        return [(i, reply) for i, reply in replies if reply is not None]

    def charge(self, **more: int) -> None:
        """Add to the run's costs."""
        self.cost = self.cost.plus(**more)

    def advance(self, rounds: int) -> None:
        """Run some more rounds."""
        for r in range(self.round, self.round + rounds):
            ids, _ = cohort(self.problem, self.key, r, self.size)
            federation = MessageFederation(self, np.asarray(ids), (r,))
            if int(self.record.trouble) < 0:
                self.state = self.method.round(federation, self.state, r)
            good = self.method.healthy(self.state)
            self.record = self.record.after(self.key, jnp.int32(r), self.state.x, good)
        self.round += rounds

    def evaluate(self) -> dict[str, np.ndarray]:
        """Return what the problem monitors."""
        row = _evaluate(self.method, self.problem, self.state, many=False)
        return {name: np.atleast_1d(np.asarray(value)) for name, value in row.items()}

    def costs(self) -> list[Cost]:
        """Return the cumulative costs."""
        return [self.cost]

    def states(self) -> list[PyTree]:
        """Return the state, on the host."""
        return [on_host(self.state)]

    def progress(self) -> list[Progress]:
        """Return the record, on the host."""
        return [on_host(self.record)]

    def _carry(self) -> Carry:
        """Return this session in the simulation's form, so that either engine can go on from the other's checkpoint."""
        memory = jax.tree.map(lambda *leaves: np.stack(leaves), *[node.memory[""] for node in self.nodes])
        low, high = zip(*map(halves, self.cost), strict=True)
        tally = Tally(jnp.array(low, jnp.uint32), jnp.array(high, jnp.uint32))
        return Carry(self.state, memory, tally, self.record)

    def store(self) -> list[np.ndarray]:
        """Return everything that a later session needs to go on, as arrays."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self._carry())]

    def restore(self, arrays: list[np.ndarray], round: int) -> None:
        """Go on from stored arrays."""
        carry = jax.tree.unflatten(jax.tree.structure(self._carry()), arrays)
        self.state = jax.tree.map(jnp.asarray, carry.state)
        self.record = jax.tree.map(jnp.asarray, carry.progress)
        self.cost = carry.tally.cost()
        for i, node in enumerate(self.nodes):
            node.memory[""] = jax.tree.map(lambda leaf, i=i: leaf[i], carry.memory)
        self.round = round
