"""What an engine is: all that a run asks of the one that reaches its clients, and of the session that it starts.

To add an engine, subclass `Engine` and `Session`, or one of those at hand, and pass an object: `fz.run(..., engine=Mine())`.
Where clients are reached by messages, `fedrzo.engines.messages.session.MessageSession` does everything but carry the bytes. A
place in `fedrzo.engines.ENGINES` lets an engine be asked for by its name.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.protocol import Cost, PyTree
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem

RANDOM_ROUND = 2  # the stream of the run's key that the random synchronisation index is drawn from


class Event(NamedTuple):
    """Something that went wrong with one client.

    Attributes:
        round: in which round.
        client: whose reply is missing or was refused.
        kind: `killed`, `absent`, `timeout`, `raised`, `duplicate`, `late`, `malformed`, `shape`, `dtype`, `not finite`,
            `too large`.
        detail: one line.
    """

    round: int
    client: int
    kind: str
    detail: str


class Progress(NamedTuple):
    """What every engine carries from round to round beside a method's state."""

    # x at a synchronisation drawn uniformly among those so far. It stands in for the theory's random iterate k*, which falls
    # inside a round and never reaches a server.
    x_random: jax.Array
    random_round: jax.Array  # which synchronisation that was
    first_failed_round: jax.Array  # the first round that left a state which cannot be gone on from, or -1
    x_good: jax.Array  # the last x before that

    @classmethod
    def start(cls, x: jax.Array) -> Progress:
        """Return the record before round 0."""
        return cls(x, jnp.int32(0), jnp.int32(-1), x)

    def after(self, key: jax.Array, r: Any, x: jax.Array, good: jax.Array) -> Progress:
        """Return the record after round r has produced x (synchronisation r + 1), healthy or not.

        The index is drawn with `key`, which no other round has.
        """
        draw = jax.random.uniform(key, dtype=x.dtype)
        take = draw < 1.0 / (r + 2)  # reservoir sampling: uniform over synchronisations 0 .. r+1
        good = good & (self.first_failed_round < 0)
        return Progress(
            jnp.where(take & good, x, self.x_random),
            jnp.where(take & good, r + 1, self.random_round).astype(jnp.int32),
            jnp.where((self.first_failed_round < 0) & ~good, r, self.first_failed_round).astype(jnp.int32),
            jnp.where(good, x, self.x_good),
        )


class Look(NamedTuple):
    """What a session shows after a round: all that a row of the history needs."""

    round: int
    metrics: dict[str, np.ndarray]  # what the problem and the method monitor, by column: an entry for each run
    costs: list[Cost]  # of each run, cumulative
    away: float  # how far the first run's x is from x0
    columns: dict[str, int]  # what the history shows beside, such as the bytes that really travelled


class Engine(abc.ABC):
    """Where clients are and how they are reached. Two engines give the same iterates, histories and costs."""

    name: ClassVar[str]  # under which results and error messages speak of it
    # Whether this process has all clients' data, so that a run may compute losses by itself
    data_at_hand: ClassVar[bool] = True
    side_by_side: ClassVar[bool] = False  # whether a session can run several methods at once
    loads_in_place: ClassVar[bool] = False  # whether a `Loader`'s samples are loaded where clients are, rather than here

    @abc.abstractmethod
    def start(self, methods: list[Method], problem: Problem, keys: list[jax.Array], clients_per_round: int | None) -> Session:
        """Prepare a run of each method, all prepared for the problem, with its key; whoever starts a session closes it."""

    def ahead(self, method: Method, problem: Problem) -> Callable[[], Any] | None:
        """Trace the rounds of such a run; return what compiles them, to be called in any thread. None if nothing is compiled."""
        return None

    def only(self, methods: list[Method]) -> Method:
        """Return the one method of a run, on an engine that takes no more."""
        if len(methods) != 1:
            raise InputError(f"engine: the {self.name} engine runs one seed and one setting at a time; use engine='simulation'")
        return methods[0]


class Session(abc.ABC):
    """Runs in progress: one, or several side by side. What is returned as a list has an entry for each."""

    data_at_hand: bool = True  # as of its engine; not where records are to stay private
    # Whether a checkpoint is due after every round, since clients cannot go back further
    stores_every_round: ClassVar[bool] = False
    tells_epsilon: ClassVar[bool] = False  # whether clients say themselves what they have spent of their privacy
    looks_at_once: ClassVar[int] = 1  # how often it can look at a run before it returns
    method: Method  # as prepared; of runs side by side, one whose numbers have an entry for each
    problem: Problem  # what this process knows of it
    round: int = 0  # how many rounds have been run
    every: int = 0  # rounds between two looks, where that is known beforehand
    hint: str | None = None  # what would make long runs shorter
    events: Sequence[Event] = ()  # what went wrong with clients, earlier sittings of a resumed run included

    @abc.abstractmethod
    def advance(self, rounds: int) -> None:
        """Run some more rounds; in how many pieces does not matter. Once a run has failed, its state stays as it is."""

    def looks(self, every: int, count: int) -> list[Look]:
        """Run so many rounds so many times, and return what is seen after each; an engine may do all at once."""
        found = []
        for _ in range(count):
            self.advance(every)
            found.append(self.look())
        return found

    def look(self) -> Look:
        """Return what is seen now."""
        return self.showing(self.evaluate())

    def look_later(self) -> Callable[[], Look]:
        """Look now, at what is only needed later, when the returned function is called; an engine may ask clients until then."""
        look = self.look()
        return lambda: look

    def showing(self, metrics: dict[str, np.ndarray]) -> Look:
        """Return a look at this round, with what is monitored."""
        away = float(np.linalg.norm(self.progress()[0].x_good - np.asarray(self.problem.x0, float)))
        return Look(self.round, metrics, self.costs(), away, self.columns())

    @abc.abstractmethod
    def evaluate(self) -> dict[str, np.ndarray]:
        """Return what the problem and the method monitor, by column: an array with one entry per run."""

    @abc.abstractmethod
    def costs(self) -> list[Cost]:
        """Return the cumulative costs: exact integers, however large."""

    @abc.abstractmethod
    def states(self) -> list[PyTree]:
        """Return the method's states, on the host."""

    @abc.abstractmethod
    def progress(self) -> list[Progress]:
        """Return the records of the random synchronisation and of the first failure, on the host."""

    def lower_solutions(self, points: np.ndarray) -> list[PyTree]:
        """Return an accurate lower-level solution at the x of each run, which are given; None where there is none."""
        return self.problem.lower_solutions(points)

    @abc.abstractmethod
    def store(self) -> list[np.ndarray]:
        """Return the leaves of a `Carry`: with `notes`, all that is needed to go on exactly, on any engine."""

    @abc.abstractmethod
    def restore(self, arrays: list[np.ndarray], round: int) -> None:
        """Go on from stored arrays, at a round."""

    def notes(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside arrays, in values that JSON knows."""
        return {}

    def recall(self, notes: dict[str, Any]) -> None:  # noqa: B027
        """Go on from the notes of a checkpoint, after `restore`; another engine's may be among them, or none."""

    def columns(self) -> dict[str, int]:
        """Return what the history shows beside costs and what is monitored, such as the bytes that really travelled."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Let go of what the run held: processes, connections."""
