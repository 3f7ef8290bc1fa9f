"""A client at work. It sees messages only, and keeps what it remembers in versions that a server can go back to."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from fedrzo.engines.messages.codec import Keep, Message, Path, decode, encode_error, encode_reply, find_step
from fedrzo.engines.messages.wire import WireError, named_tuples, pack, unpack
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import PyTree, Reply, path_key, run_step
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.support.pytrees import fingerprint, on_host


class Version(NamedTuple):
    """What a client remembered after answering the message at `path`; None is where it began."""

    path: Path | None
    value: PyTree


class Memory:
    """What a client remembers in one view, in four versions.

    They are the first one, that before the present round, that which the server took last, and the newest. A reply may be lost,
    so that the newest was never taken; a server may be started again from the end of its last round. Either way the next
    message names the version to go on from, and it is one of these.
    """

    def __init__(self, value: PyTree) -> None:
        self.versions = [Version(None, value)] * 4

    @property
    def newest(self) -> Version:
        """The version after the last message, whether or not the server took the reply."""
        return self.versions[-1]

    def at(self, path: Path | None, round: int) -> PyTree:
        """Return the version that the server names, and forget those that it cannot name any more."""
        if not jax.tree.leaves(self.newest.value):  # nothing to remember
            return self.newest.value
        known = {version.path: version for version in self.versions}
        if path not in known:
            raise WireError(f"memory: the server goes on from {path}, this client remembers {sorted(map(str, known))}")
        first, start, *_ = self.versions
        version = known[path]
        if version.path is None or version.path[0] < round:
            start = version  # a new round begins here
        self.versions = [first, start, version, version]
        return version.value

    def add(self, path: Path, value: PyTree) -> None:
        """Remember what followed from the message at a path; None leaves it as it was."""
        self.versions[-1] = Version(path, self.newest.value if value is None else value)


@dataclasses.dataclass(eq=False)
class Node:
    """A client: the method, its part of the problem, its private key and its memory."""

    method: Method  # prepared, as the server has it
    problem: Problem  # with this client's data and set, and perhaps others'
    index: int  # the client's place in that problem
    id: int  # its name in the whole federation
    root: jax.Array  # the key of the run's directions
    private: jax.Array  # the key of its own sampling
    points: Any = None  # where the lower level is looked at,
    kept: Path | None = None  # where in the run they were sent,
    digest: str = ""  # and what tells them from others
    aside: PyTree = None  # what is remembered once the server has taken an answer from these points

    def __post_init__(self) -> None:
        self.types = named_tuples(self.method)
        self.memory = {"": Memory(on_host(self.method.init_memory(self.problem)))}

    def answer(self, common: bytes, own: bytes) -> bytes:
        """Do what a message asks; an error in the client's own code becomes a reply that says so."""
        path: Path = ()
        try:
            message = decode(common, own, self.types)
            path = message.path
            return encode_reply(path, self.handle(message))
        except Exception as error:
            return encode_error(path, error)

    def handle(self, message: Message) -> Reply:
        """Do what a message asks."""
        keep = message.keep  # points of an earlier run may have come at the same place, but not the same points
        if keep is not None and (keep.path != self.kept or fingerprint(keep.travels) != self.digest):
            self._keep(keep)
        if message.view not in self.memory:
            raise WireError("points: this client was not sent where its lower level is looked at")
        memory = self.memory[message.view]
        value = memory.at(message.accepted, message.path[0])
        if message.view == "" and self.aside is not None and self.kept is not None and self.kept[0] == message.path[0]:
            value = self.aside  # what was found out when the points of this round were rebuilt
        reply = self._execute(message.step, message.view, message.path, message.iteration, value, message.arrays)
        memory.add(message.path, value if reply.memory is None else reply.memory)
        return reply._replace(memory=None)

    def _execute(self, step: str, view: str, path: Path, iteration: int, memory: PyTree, arrays: tuple) -> Reply:
        key = path_key(self.root, path)
        place = tuple(map(np.int32, (self.index, self.id, path[0], iteration)))
        return on_host(execute(
            self.method, self.problem, self.private, key, place, self.points, memory, arrays, step=step, view=view
        ))  # fmt: skip

    def _keep(self, keep: Keep) -> None:
        """Keep points, or rebuild them first. What was remembered on the way waits until the server takes a reply to it."""
        part, _ = find_step(self.method, keep.owner)
        self.aside = None
        points = keep.points
        if keep.step:
            *call, iteration = keep.path
            memory = self.memory[""].at(keep.accepted, keep.path[0])
            reply = self._execute(keep.step, "", tuple(call), iteration, memory, keep.arrays)
            points, self.aside = reply.value, reply.memory
        self.memory["lower"] = Memory(on_host(part.init_memory(self.problem.lower_level(points))))
        self.points, self.kept, self.digest = points, keep.path, fingerprint(keep.travels)

    def dump(self) -> bytes:
        """Return all that this client remembers, so that another process can go on."""
        paths, places, values = {}, {}, {}
        for view, memory in self.memory.items():
            different = {version.path: version for version in memory.versions}  # often one is all four
            paths[view], values[view] = list(different), [version.value for version in different.values()]
            places[view] = [paths[view].index(version.path) for version in memory.versions]
        header = {"paths": paths, "places": places, "kept": self.kept, "digest": self.digest}
        return pack(header, (values, self.points, self.aside))

    def load(self, stored: bytes) -> None:
        """Go on from what `dump` returned."""
        header, (values, self.points, self.aside) = unpack(stored, self.types)
        self.digest = header["digest"]
        self.kept = None if header["kept"] is None else tuple(header["kept"])
        for view, paths in header["paths"].items():
            named = [None if path is None else tuple(path) for path in paths]
            different = list(map(Version, named, values[view]))
            self.memory.setdefault(view, Memory(None)).versions = [different[i] for i in header["places"][view]]


@functools.partial(jax.jit, static_argnames=("step", "view"))
def execute(
    method: Method, problem: Problem, private: jax.Array, key: jax.Array, place: tuple, points: Any, memory: PyTree,
    arrays: tuple, *, step: str, view: str,
) -> Reply:  # fmt: skip
    """Run one named step of one client. Compiled once for all clients."""
    level = problem.lower_level(points) if view == "lower" else problem
    index, client_id, r, iteration = place
    client = Client(level, index, client_id, private, r, iteration, points, key)
    owner, name = find_step(method, step)
    return run_step(getattr(owner, name), client, jax.random.fold_in(key, client_id), memory, *arrays)
