"""The plain engine: client by client, in Python, by messages.

It is the reference that the simulation must agree with. Messages are turned into bytes and back, so that what runs here runs
on the engines that leave the machine; but nothing is refused, and an error in a client's code is raised where it happens.
"""

from __future__ import annotations

from typing import Any

import jax

from fedrzo.engines.messages.messages import Message, decode, decode_reply, encode_reply
from fedrzo.engines.messages.node import Memory, Node
from fedrzo.engines.messages.session import MessageSession
from fedrzo.errors import InputError
from fedrzo.federation.catch_up import as_received
from fedrzo.federation.protocol import Reply, private_key
from fedrzo.methods.base import Method
from fedrzo.support.pytrees import on_host

PyTree = Any


class Loop:
    """The reference engine."""

    name = "loop"

    def start(self, methods: list, problem: Any, keys: list, clients_per_round: int | None) -> LoopSession:
        """Prepare a run."""
        return LoopSession(only(methods, self.name), jax.device_put(problem), keys[0], clients_per_round)


def only(methods: list, engine: str) -> Method:
    """Return the one method that an engine of messages can run."""
    if len(methods) != 1:
        raise InputError(
            f"engine: the {engine} engine runs one seed and one setting at a time; use engine='simulation'"
        )
    return methods[0]


class LoopSession(MessageSession):
    """A run in progress; every client is an object in this process."""

    def __init__(self, method: Method, problem: Any, key: jax.Array, size: int | None) -> None:
        super().__init__(method, problem, key, size)
        directions = self.roots.directions
        self.nodes = [
            Node(method, problem, i, i, directions, private_key(self.roots, i)) for i in range(problem.clients)
        ]

    def deliver(self, message: Message, ids: Any) -> list[tuple[int, Reply]]:
        """Bring a message to some clients and return who answered what."""
        ids = [int(i) for i in ids]
        message = self.addressed(message, ids)
        common, own = self.payloads(message, ids)
        answered = []
        for i in ids:
            reply = self.nodes[i].handle(decode(common, own[i], self.types))
            answer = decode_reply(encode_reply(message.path, reply), self.types).reply
            assert answer is not None
            answered.append((i, answer._replace(value=as_received(answer.value, self.expected(message)))))
        self.took(message, ids)
        return answered

    def columns(self) -> dict[str, int]:
        """Return nothing: no bytes travel, and nothing is refused."""
        return {}

    def memories(self) -> list[PyTree]:
        """Return what each client remembers."""
        return [node.memory[""].newest.value for node in self.nodes]

    def set_memories(self, memories: list[PyTree]) -> None:
        """Have clients remember what they did when a checkpoint was stored."""
        for node, memory in zip(self.nodes, memories, strict=True):
            node.memory[""] = Memory(on_host(memory))
