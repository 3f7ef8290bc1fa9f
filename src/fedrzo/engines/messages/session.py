"""A run by messages: the server's side, whatever carries them. An engine subclasses `MessageSession` and carries the bytes."""

import abc
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import RANDOM_ROUND, Event, Progress, Session
from fedrzo.engines.messages.calls import MessageFederation
from fedrzo.engines.messages.codec import Keep, Message, Path, encode, encode_own, find_step
from fedrzo.engines.messages.node import execute
from fedrzo.engines.messages.receive import Intake, Rules
from fedrzo.engines.messages.wire import named_tuples
from fedrzo.engines.simulation.compiled import Tally, halves, initial_memory
from fedrzo.engines.simulation.rounds import Carry, cohort, evaluate
from fedrzo.federation.protocol import Cost, PyTree, Reply, Roots
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.lower_level import LowerLevel
from fedrzo.support.pytrees import index, on_host


@jax.jit  # its small steps would take milliseconds one by one
def _after(record: Progress, stream: jax.Array, r: Any, x: jax.Array, good: jax.Array) -> Progress:
    return record.after(jax.random.fold_in(stream, r), r, x, good)


class MessageSession(Session):
    """A run in progress of a prepared method, on what the server knows of the problem, with `size` clients per round."""

    federation: ClassVar[type[MessageFederation]] = MessageFederation  # what the method sees of its clients

    def __init__(self, method: Method, problem: Problem, key: jax.Array, size: int | None, rules: Rules | None = None) -> None:
        self.method = method
        self.problem = problem
        self.key = key
        self.size = size
        self.rules = rules or Rules()
        self.roots = Roots.of(key)
        self.synchronisation = jax.random.fold_in(key, RANDOM_ROUND)
        self.cost = Cost()
        self.state = jax.tree.map(jnp.asarray, method.init(problem, key))
        self.record = Progress.start(self.state.x)
        self.types = named_tuples(method)
        self.events: list[Event] = []
        self.wire = {"wire_upload_bytes": 0, "wire_download_bytes": 0}
        self.accepted: dict[str, dict[int, Path]] = {"": {}, "lower": {}}  # the last reply that was taken, by client
        self._keep: Keep | None = None
        self._has: set[int] = set()  # clients that have the points
        self.waiting: list[Intake] = []  # what is to be brought to clients next
        self._shapes: dict[Any, Any] = {}

    @abc.abstractmethod
    def exchange(self, message: Message, ids: list[int], intake: Intake) -> None:
        """Bring a message to some clients and what they answer to `intake`; return when it waits for nobody any more."""

    def bring(self, intakes: list[Intake]) -> None:
        """Bring messages to clients, one after the other; an engine whose messages are slow has them travel together."""
        for intake in intakes:
            self.exchange(intake.message, list(intake.asked), intake)

    def memories(self) -> list[PyTree] | None:
        """Return what each client remembers, by client; None where that stays on the clients."""
        return None

    def set_memories(self, memories: list[PyTree]) -> None:
        """Have clients remember what they did when a checkpoint was stored, unless they go back by themselves."""

    def deliver(self, message: Message, ids: Iterable[int]) -> list[tuple[int, Reply]]:
        """Bring a message to some clients, with all that waits, and return who answered what."""
        intake = self.queue(message, ids)
        self.flush()
        return intake.answered

    def later(self, message: Message, ids: Iterable[int]) -> Callable[[], list[tuple[int, Reply]]]:
        """Do the same where the answer is not needed yet: at once, unless messages of an engine travel together."""
        answered = self.deliver(message, ids)
        return lambda: answered

    def queue(self, message: Message, ids: Iterable[int], passing: bool = False) -> Intake:
        """Have a message wait; what is answered will be in the intake. One that is passing changes no client's memory."""
        ids = [int(i) for i in ids]
        message = self.addressed(message, ids)
        intake = Intake(message, ids, self.expected(message), self.types, self.rules, passing)
        self.waiting.append(intake)
        return intake

    def flush(self) -> None:
        """Bring all that waits to its clients."""
        intakes, self.waiting = self.waiting, []
        try:
            self.bring(intakes)
            for intake in intakes:
                intake.close()
        finally:
            for intake in intakes:
                self.events += intake.events
                self.wire["wire_upload_bytes"] += intake.bytes
        for intake in intakes:
            message, took = intake.message, list(intake.taken)
            if not intake.passing:
                self.accepted[message.view].update(dict.fromkeys(took, message.path))  # the next message tells them
            self._has.update(took)

    def keep(self, points: Keep) -> None:
        """Have points sent with the next message."""
        self._keep, self._has = points, set()
        self.accepted["lower"] = {}

    def addressed(self, message: Message, ids: list[int]) -> Message:
        """Return a message with the points that some of these clients do not have yet."""
        return message if self._keep is None or self._has.issuperset(ids) else message._replace(keep=self._keep)

    def payloads(self, message: Message, ids: list[int]) -> tuple[bytes, dict[int, bytes]]:
        """Return a message as bytes: what all are sent alike, and what each is sent beside; and count them."""
        common = encode(message)
        above = self.accepted[""]
        own = {i: encode_own(message, i, self.accepted[message.view].get(i), above.get(i)) for i in ids}
        self.wire["wire_download_bytes"] += len(common) * len(ids) + sum(map(len, own.values()))
        return common, own

    def expected(self, message: Message) -> PyTree:
        """Return the shapes and types of what a step returns."""
        arrays = (message.arrays, None if self._keep is None else self._keep.points)
        shapes = tuple((np.shape(leaf), np.asarray(leaf).dtype.str) for leaf in jax.tree.leaves(arrays))
        name = (message.step, message.view, jax.tree.structure(arrays), shapes)
        if name not in self._shapes:
            self._shapes[name] = self._trace(message)
        return self._shapes[name]

    def _trace(self, message: Message) -> PyTree:
        level: Problem | LowerLevel = self.problem
        owner, points = self.method, None
        if self._keep is not None:
            points = self._keep.points
            if message.view == "lower":
                level, (owner, _) = self.problem.lower_level(points), find_step(self.method, self._keep.owner)
        place = tuple(map(np.int32, (0, 0, 0, 0)))
        arrays = tuple(v.of(0) if hasattr(v, "of") else v for v in message.arrays)

        def step(memory: PyTree, arrays: tuple) -> PyTree:
            key = self.roots.directions
            return execute(self.method, self.problem, key, key, place, points, memory, arrays,
                           step=message.step, view=message.view).value  # fmt: skip

        return jax.eval_shape(step, on_host(owner.init_memory(level)), arrays)

    def charge(self, **more: int) -> None:
        """Add to the run's costs."""
        self.cost = self.cost.plus(**more)

    def advance(self, rounds: int) -> None:
        """Run some more rounds."""
        for r in range(self.round, self.round + rounds):
            ids, _ = cohort(self.problem, self.key, r, self.size)
            self._keep, self._has = None, set()
            federation = self.federation(self, np.asarray(ids), (r,))
            if int(self.record.first_failed_round) < 0:
                self.state = self.method.round(federation, self.state, r)
            good = self.method.healthy(self.state)
            self.record = _after(self.record, self.synchronisation, np.int32(r), self.state.x, good)
        self.round += rounds

    def evaluate(self) -> dict[str, np.ndarray]:
        """Return what the problem monitors."""
        row = evaluate(self.method, self.problem, self.state)
        return {name: np.atleast_1d(np.asarray(value)) for name, value in row.items()}

    def columns(self) -> dict[str, int]:
        """Return what a history shows beside counted costs: the bytes that really travelled, and what went wrong."""
        return {**self.wire, "failures": len(self.events)}

    def costs(self) -> list[Cost]:
        """Return the cumulative costs."""
        return [self.cost]

    def states(self) -> list[PyTree]:
        """Return the state, on the host."""
        return [on_host(self.state)]

    def progress(self) -> list[Progress]:
        """Return the record, on the host."""
        return [on_host(self.record)]

    def notes(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside arrays, in plain values."""
        accepted = sorted(self.accepted[""].items())
        return {"events": [list(event) for event in self.events], "wire": self.wire, "accepted": accepted}

    def recall(self, notes: dict[str, Any]) -> None:
        """Go on from a checkpoint's plain values."""
        self.events = [Event(*event) for event in notes.get("events", [])]
        self.wire |= notes.get("wire", {})
        if self.memories() is None:  # clients remember by themselves; tell them from where to go on
            self.accepted[""] = {i: tuple(path) for i, path in notes.get("accepted", [])}

    def _carry(self) -> Carry:
        """Return this session in the simulation's form, so that either engine can go on from the other's checkpoint."""
        kept = self.memories()
        stacked = initial_memory(self.method, self.problem)
        if kept is not None:
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *kept)
        low, high = zip(*map(halves, self.cost), strict=True)
        tally = Tally(jnp.array(low, jnp.uint32), jnp.array(high, jnp.uint32))
        return Carry(self.state, stacked, tally, self.record)

    def store(self) -> list[np.ndarray]:
        """Return everything that a later session needs to go on, as arrays."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self._carry())]

    def restore(self, arrays: list[np.ndarray], round: int) -> None:
        """Go on from stored arrays."""
        carry = jax.tree.unflatten(jax.tree.structure(self._carry()), arrays)
        self.state = jax.tree.map(jnp.asarray, carry.state)
        self.record = jax.tree.map(jnp.asarray, carry.progress)
        self.cost = carry.tally.cost()
        self.accepted = {"": {}, "lower": {}}
        if self.memories() is not None:
            self.set_memories([index(carry.memory, i) for i in range(self.problem.clients)])
        self.round = round
