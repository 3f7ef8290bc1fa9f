"""What the server takes from its clients: each reply is looked at before it may be averaged.

A client may be gone, slow, broken or hostile. Its reply is refused if it comes twice or too late, cannot be read, has another
shape or type than the step returns, holds a value that is not finite, or is far larger than the others'.
Every refusal is an `Event`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedrzo.engines.base import Event
from fedrzo.engines.messages.codec import Message, decode_reply
from fedrzo.engines.messages.wire import WireError
from fedrzo.errors import FedrzoError, InputError, first_line
from fedrzo.federation.catch_up import as_received, kinds
from fedrzo.federation.protocol import PyTree, Reply
from fedrzo.support.numbers import check_counts


class FederationError(FedrzoError):
    """Too few clients answered; the message names those that did not, and why."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How many clients may be missing, for how long they are waited for, and what is too large."""

    timeout: float | None = None  # seconds to wait for the replies to one message; None waits while clients live
    min_clients: int = 1  # a call that fewer answer stops the run; one at least
    # Refuse a reply whose norm is more than so many times the median of all replies to the same message; None refuses none.
    # Three replies at least are needed to tell.
    max_reply_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise InputError(f"timeout: found {self.timeout!r}; pass seconds, or None to wait for as long as it takes")
        check_counts(min_clients=self.min_clients)
        if self.max_reply_ratio is not None and not self.max_reply_ratio > 1:
            raise InputError(f"max_reply_ratio: found {self.max_reply_ratio!r}; pass a number above 1, or None")


@dataclasses.dataclass(eq=False)
class Intake:
    """Takes the replies to one message."""

    message: Message  # what was asked
    asked: Sequence[int]  # who was asked
    expected: PyTree  # what a reply's value looks like: a pytree of shapes and types
    types: dict[str, type]  # the named tuples that may be in it
    rules: Rules  # what is refused
    passing: bool = False  # whether its step changes no memory, so that the next message names the version before it

    def __post_init__(self) -> None:
        self.waiting = set(self.asked)  # those who may still answer
        self.taken: dict[int, Reply] = {}
        self.events: list[Event] = []
        self.bytes = 0

    def receive(self, client: int, payload: bytes) -> None:
        """Look at what came from a client, and take it or refuse it."""
        self.bytes += len(payload)
        try:
            answer = decode_reply(payload, self.types)
        except WireError as error:
            self.fail(client, "malformed", str(error))
            return
        if answer.path == self.message.path and client not in self.waiting:
            self.note(client, "duplicate", "answered twice, or was not asked; the first answer stands")
        elif answer.error is not None and answer.path in ((), self.message.path):
            self.fail(client, "raised", answer.error)
        elif answer.path != self.message.path:
            self.note(client, "late", f"answers the message at {list(answer.path)}")
        else:
            assert answer.reply is not None
            self._check(client, answer.reply)

    def _check(self, client: int, reply: Reply) -> None:
        try:
            value = as_received(reply.value, self.expected)
        except ValueError as error:
            self.fail(client, "shape", first_line(error))
            return
        if mistake := self.mistake(value):
            self.fail(client, *mistake)
        else:
            self.take(client, reply._replace(value=value))

    def take(self, client: int, reply: Reply) -> None:
        """Take a reply, whatever it holds."""
        self.waiting.discard(client)
        self.taken[client] = reply

    def fail(self, client: int, kind: str, detail: str) -> None:
        """Give up on a client, for this message."""
        self.waiting.discard(client)
        self.note(client, kind, detail)

    def give_up(self, kind: str, detail: str) -> None:
        """Give up on all who have not answered."""
        for client in sorted(self.waiting):
            self.fail(client, kind, detail)

    @property
    def answered(self) -> list[tuple[int, Reply]]:
        """Who answered what, by client."""
        return sorted(self.taken.items())

    def close(self) -> list[tuple[int, Reply]]:
        """Return who answered what; refuse to go on with too few."""
        self._refuse_outliers()
        least = min(self.rules.min_clients, len(self.asked))
        if len(self.taken) < max(1, least):
            reasons = "; ".join(f"client {e.client}: {e.kind} ({e.detail})" for e in self.events[:3])
            raise FederationError(
                f"round {self.message.path[0]}: {len(self.taken)} of {len(self.asked)} clients answered, min_clients is "
                f"{least}: {reasons}; bring clients back, then go on with resume=True where a checkpoint was kept"
            )
        return self.answered

    def note(self, client: int, kind: str, detail: str) -> None:
        """Note what went wrong with a client."""
        self.events.append(Event(self.message.path[0], client, kind, detail))

    def mistake(self, value: PyTree) -> tuple[str, str] | None:
        """Say what is wrong with the value of a reply: its kind, and one line."""
        found: Any = jax.tree.structure(value)
        wanted: Any = jax.tree.structure(self.expected)
        if found != wanted:
            return "shape", f"found the structure {found}, wanted {wanted}"
        for leaf, want in zip(jax.tree.leaves(value), jax.tree.leaves(self.expected), strict=True):
            if leaf.shape != want.shape:
                return "shape", f"found the shape {leaf.shape}, wanted {want.shape}"
            if leaf.dtype != want.dtype:
                return "dtype", f"found the type {leaf.dtype}, wanted {want.dtype}"
            if np.issubdtype(leaf.dtype, np.inexact) and not np.isfinite(leaf).all():
                bad = leaf[~np.isfinite(leaf)]
                return "not finite", f"found {bad.flat[0]} in {bad.size} of {leaf.size} numbers"
        return None

    def _refuse_outliers(self) -> None:
        ratio = self.rules.max_reply_ratio
        if ratio is None:
            return
        alike: dict[Any, dict[int, float]] = {}  # scalars are compared with scalars, vectors with vectors
        for client, reply in self.taken.items():
            squares = [np.sum(np.square(np.asarray(leaf, float))) for leaf in jax.tree.leaves(reply.value)]
            alike.setdefault(kinds(reply.value), {})[client] = float(np.sqrt(sum(squares)))
        for norms in alike.values():
            median = float(np.median(list(norms.values())))
            for client, norm in norms.items():
                if len(norms) >= 3 and norm > ratio * median:
                    del self.taken[client]
                    detail = f"its norm {norm:.3g} is more than {ratio:g} x the median {median:.3g}"
                    self.note(client, "too large", detail)
