"""An actor's clients at work side by side: one compiled program for all of them, in batches that fit into memory.

Where that cannot be (black boxes, arguments that differ between clients, a step that cannot be batched, lower levels whose
clients remember), each client works by itself, as a `Node` does anywhere else. The numbers are the same up to rounding.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.messages.codec import (
    COUNTS,
    Keep,
    Message,
    Path,
    decode,
    encode_error,
    encode_own,
    encode_reply,
    find_step,
)  # fmt: skip
from fedrzo.engines.messages.node import Node, execute
from fedrzo.engines.messages.wire import unpack
from fedrzo.engines.ray.sums import encode_sum
from fedrzo.engines.simulation.spread import Spread
from fedrzo.federation.protocol import PyTree, Reply, path_key
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.support.pytrees import on_host, size_of

BATCH_BYTES = {"cpu": 1 << 27, "gpu": 1 << 31}  # what clients at work side by side may take, as far as it is known beforehand
VECTORS = 16  # of the length of x and y that a client at work is reckoned to take
NOTHING_OWN = encode_own(Message("", "", (), 0, ()), 0, None)  # the part of a message that is one client's own, where it is empty
Versions = tuple[Path | None, Path | None]  # the last reply of a client that was taken, in a message's view and in the view ""


class Asked(NamedTuple):
    """What an actor is asked beside a message that is the same for all."""

    clients: tuple[int, ...] | None  # who is to answer; None for all
    apart: bool  # whether every reply is wanted rather than their sum
    versions: list[Versions] | None = None  # of each of them, where clients remember anything
    own: dict[int, bytes] | None = None  # what each is sent beside, where that differs


@dataclasses.dataclass(eq=False)
class Share:
    """Some clients of a run, in one process."""

    method: Method
    problem: Problem  # with these clients' data and sets alone
    clients: tuple[int, ...]  # their names in the whole federation, in the order of `problem`
    root: jax.Array  # the key of the run's directions
    private: jax.Array  # the keys of their own sampling
    types: dict[str, type]  # the named tuples that messages may hold

    def __post_init__(self) -> None:
        self.place = {client: place for place, client in enumerate(self.clients)}
        self.nodes: dict[int, Node] = {}
        self.blank = on_host(self.method.init_memory(self.problem))
        self.remembers = bool(jax.tree.leaves(self.blank))
        self.boxed = any(map(is_blackbox, self.problem.functions.values()))
        self.alone: set[tuple[str, str]] = set()  # steps that raised in a batch
        self.keep: Keep | None = None  # where the lower level is looked at, as it was sent last,
        self.points: Any = None  # and as it is,
        self.alike = True  # if all clients see it so,
        self.below: PyTree = None  # with nothing to remember there

    def node(self, client: int) -> Node:
        """Return a client that works by itself."""
        if client not in self.nodes:
            place = self.place[client]
            self.nodes[client] = Node(self.method, self.problem, place, client, self.root, self.private[place])
            self.nodes[client].types = self.types
        return self.nodes[client]

    def answer(self, common: bytes, asked: Asked) -> tuple[bytes | None, dict[int, bytes]]:
        """Return what clients answer to a message: a sum of their replies, if that will do, and replies that are not in it."""
        if asked.own is not None:
            self.alike = self.alike and unpack(common, self.types)[0]["keep"] is None
            return None, {client: self.node(client).answer(common, own) for client, own in asked.own.items()}
        clients = self.clients if asked.clients is None else asked.clients
        versions: dict[int, Versions] = dict(zip(clients, asked.versions, strict=True)) if asked.versions else {}
        try:
            message = decode(common, NOTHING_OWN, self.types)
        except Exception as error:
            return None, {client: encode_error((), error) for client in clients}
        try:
            if message.keep is not None:
                self._keep(message.keep)
            if self._goes_together(message):
                return self._together(message, clients, versions, asked.apart)
        except Exception:  # whose error it is will be seen one by one
            self.alone.add((message.step, message.view))
        return None, {client: self._one(message, client, versions) for client in clients}

    def _keep(self, keep: Keep) -> None:
        """Keep points for all clients, rebuilt once: without a memory, all rebuild the same."""
        self.alike, self.keep, self.points = False, keep, keep.points
        if keep.step and self.remembers:
            return
        if keep.step:
            *call, iteration = keep.path
            key, place = path_key(self.root, call), tuple(map(np.int32, (0, self.clients[0], call[0], iteration)))
            self.points = execute(
                self.method, self.problem, self.private[0], key, place, None, self.blank, keep.arrays, step=keep.step, view=""
            ).value  # fmt: skip
        part, _ = find_step(self.method, keep.owner)
        self.below = on_host(part.init_memory(self.problem.lower_level(self.points)))
        self.alike = not jax.tree.leaves(self.below)

    def _goes_together(self, message: Message) -> bool:
        there = self.keep is not None or message.view == ""
        return not self.boxed and self.alike and there and (message.step, message.view) not in self.alone

    def _one(self, message: Message, client: int, versions: dict[int, Versions]) -> bytes:
        """Have one client answer by itself; an error in its own code becomes a reply that says so."""
        keep = self.keep if self.alike else message.keep
        accepted, above = versions.get(client, (None, None))
        keep = None if keep is None else keep._replace(accepted=above)
        try:
            return encode_reply(message.path, self.node(client).handle(message._replace(accepted=accepted, keep=keep)))
        except Exception as error:
            return encode_error(message.path, error)

    def _together(
        self, message: Message, clients: tuple[int, ...], versions: dict[int, Versions], apart: bool
    ) -> tuple[bytes | None, dict[int, bytes]]:  # fmt: skip
        """Have clients answer side by side."""
        own = self._rows(clients, message.view)
        clock = np.int32(message.path[0]), np.int32(message.iteration), np.array(message.path, np.uint32)
        replies, like = side_by_side(
            self.method, self.problem, self.root, self.private, own, clock, self.points,
            self._recall(message, clients, versions, len(own[0])), message.arrays,
            step=message.step, view=message.view, chunk=self._chunk(len(own[0])), apart=apart,
        )  # fmt: skip
        replies = on_host(replies)
        finite = replies.code[: len(clients)]
        good = [k for k in range(len(clients)) if apart or finite[k]]
        if self.remembers and message.view == "":
            for k in good:
                new = None if replies.memory is None else jax.tree.map(lambda leaf, k=k: np.array(leaf[k]), replies.memory)
                self.node(clients[k]).memory[""].add(message.path, new)
        if apart:
            rows = {clients[k]: jax.tree.map(lambda leaf, k=k: leaf[k], replies._replace(memory=None, code=None)) for k in good}
            return None, {client: encode_reply(message.path, row) for client, row in rows.items()}
        counts = {name: int(getattr(replies, name)[good].astype(np.uint32).sum(dtype=np.uint64)) for name in COUNTS}
        refused = {client: self._one(message, client, versions) for client, ok in zip(clients, finite, strict=True) if not ok}
        return encode_sum(message.path, replies.value, on_host(like), counts), refused

    def _rows(self, clients: tuple[int, ...], view: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return clients' places, names and weights; some again, without weight, so that few numbers of clients are compiled."""
        room = min(1 << (len(clients) - 1).bit_length(), len(self.clients))
        places = np.resize([self.place[client] for client in clients], room).astype(np.int32)
        weights = np.asarray(self.problem.weights_in(view))[places]
        weights[len(clients) :] = 0
        return places, np.asarray(self.clients, np.int32)[places], weights

    def _recall(self, message: Message, clients: tuple[int, ...], versions: dict[int, Versions], room: int) -> PyTree:
        """Return what clients remember, one above the other, in the versions that the driver names."""
        if message.view or not self.remembers:
            return self.below if message.view else self.blank
        nodes = {client: self.node(client).memory[""] for client in clients}
        rows = [memory.at(versions[client][0], message.path[0]) for client, memory in nodes.items()]
        rows += rows[:1] * (room - len(rows))
        return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)

    def _chunk(self, clients: int) -> int | None:
        """Return how many clients are at work at a time; None for all."""
        data = self.problem.data
        stored = size_of(data.flat) // data.clients if data.stored and not data.identical else 0
        lengths = sum(layout.size for layout in self.problem.layouts.values())
        most = max(1, BATCH_BYTES.get(jax.default_backend(), 1 << 27) // (stored + VECTORS * 8 * lengths))
        return None if most >= clients else most


@functools.partial(jax.jit, static_argnames=("step", "view", "chunk", "apart"))
def side_by_side(
    method: Method, problem: Problem, root: jax.Array, private: jax.Array, own: tuple, clock: tuple, points: Any,
    memories: PyTree, arrays: tuple, *, step: str, view: str, chunk: int | None, apart: bool,
) -> tuple[Reply, PyTree]:  # fmt: skip
    """Run one named step of many clients; return their replies, or, unless `apart`, the weighted sum of those that are finite.

    In place of a code there is whether each reply is finite. Beside them are arrays without numbers that are like one reply.
    """
    (places, names, weights), (r, iteration, path) = own, clock
    key = path_key(root, [path[k] for k in range(path.shape[0])])
    like: list[PyTree] = []  # known when traced

    def one(j: jax.Array, memory: PyTree) -> Reply:
        place = jnp.asarray(places)[j]
        clocked = place, jnp.asarray(names)[j], r, iteration
        reply = execute(method, problem, private[place], key, clocked, points, memory, arrays, step=step, view=view)
        inexact = [leaf for leaf in jax.tree.leaves(reply.value) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        finite = jnp.array([jnp.isfinite(leaf).all() for leaf in inexact] or [True]).all()
        like[:] = [jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((0, *leaf.shape), leaf.dtype), reply.value)]
        if not apart:
            reply = reply._replace(value=jax.tree.map(lambda leaf: jnp.where(finite, leaf, jnp.zeros_like(leaf)), reply.value))
        return reply._replace(code=finite)

    spread, rows = Spread(chunk=chunk), jnp.arange(len(places))
    replies = spread.each(one, rows, memories) if apart else spread.mean(one, rows, jnp.asarray(weights), memories)
    return replies, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like[0])
