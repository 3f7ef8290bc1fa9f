"""The plain engine: client by client, in Python, by messages.

It is the reference that the simulation must agree with. Messages are turned into bytes and back, so that what runs here runs
on the engines that leave the machine; but nothing is refused, and an error in a client's code is raised where it happens.
"""

import jax

from fedrzo.engines.base import Engine
from fedrzo.engines.messages.codec import Message, decode, decode_reply, encode_reply
from fedrzo.engines.messages.node import Memory, Node
from fedrzo.engines.messages.receive import Intake
from fedrzo.engines.messages.session import MessageSession
from fedrzo.federation.catch_up import as_received
from fedrzo.federation.protocol import PyTree, private_key
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.support.pytrees import on_host


class LoopSession(MessageSession):
    """A run in progress; every client is an object in this process."""

    def __init__(self, method: Method, problem: Problem, key: jax.Array, size: int | None) -> None:
        super().__init__(method, problem, key, size)
        directions = self.roots.directions
        self.nodes = [Node(method, problem, i, i, directions, private_key(self.roots, i)) for i in range(problem.clients)]

    def exchange(self, message: Message, ids: list[int], intake: Intake) -> None:
        """Have clients answer one after the other, and take what they answer as it is."""
        common, own = self.payloads(message, ids)
        for i in ids:
            reply = self.nodes[i].handle(decode(common, own[i], self.types))
            answer = decode_reply(encode_reply(message.path, reply), self.types).reply
            assert answer is not None
            intake.take(i, answer._replace(value=as_received(answer.value, intake.expected)))

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


class Loop(Engine):
    """The reference engine."""

    name = "loop"

    def start(self, methods: list[Method], problem: Problem, keys: list[jax.Array], clients_per_round: int | None) -> LoopSession:
        """Prepare a run."""
        return LoopSession(self.only(methods), jax.device_put(problem), keys[0], clients_per_round)
