"""The federation's calls as messages; see `fedrzo.federation.protocol`."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.messages.codec import COUNTS, Keep, Message, Path, name_of
from fedrzo.errors import InputError
from fedrzo.federation.catch_up import common_bytes, own_bytes, reply_bytes, stacked
from fedrzo.federation.protocol import Gathered, PyTree, Reply, Roots, path_key, step_name
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.support.pytrees import on_host


class Server(Protocol):
    """What the calls need of the run that they belong to: what it is about, and that it delivers messages and counts."""

    method: Method
    problem: Problem
    roots: Roots

    def deliver(self, message: Message, ids: Iterable[int]) -> list[tuple[int, Reply]]:
        """Bring a message to some clients and return who answered what."""

    def later(self, message: Message, ids: Iterable[int]) -> Callable[[], list[tuple[int, Reply]]]:
        """Bring a message to some clients, at the latest when the returned function is called: it tells who answered what."""

    def keep(self, points: Keep) -> None:
        """Have points sent with the next message."""

    def charge(self, **more: int) -> None:
        """Add to the run's costs."""


@dataclasses.dataclass(eq=False)
class MessageFederation:
    """What a method sees of clients that are reached by messages."""

    session: Server
    ids: np.ndarray  # who takes part
    path: Path  # where in the run this is
    view: str = ""  # or "lower"
    iteration: int = 0  # the index within the innermost repeat
    calls: int = 0

    def average(self, step: Callable[..., Reply], *shared: PyTree) -> PyTree:
        """Run one communication and return the weighted mean of the replies."""
        return self.gather(step, *shared).mean()

    def gather(self, step: Callable[..., Reply], *shared: PyTree) -> Gathered:
        """Run one communication and return the replies one by one."""
        message = self._message(step, shared)
        return self._gathered(message, self.session.deliver(message, self.ids))

    def later(self, step: Callable[..., Reply], *shared: PyTree) -> Callable[[], PyTree]:
        """Have one communication travel with the next one, where the session can; return what gives the mean."""
        message = self._message(step, shared)
        answered = self.session.later(message, self.ids)
        return functools.cache(lambda: self._gathered(message, answered()).mean())  # charged for once

    def _message(self, step: Callable[..., Reply], shared: tuple) -> Message:
        return Message(self._name(step), self.view, self._next(), self.iteration, on_host(shared))

    def _gathered(self, message: Message, answered: list[tuple[int, Reply]]) -> Gathered:
        """Return what was answered, and charge for it."""
        ids = np.array([i for i, _ in answered])
        replies = [reply for _, reply in answered]
        self._charge(*uploaded(replies), sum(_sent(message.arrays, i) for i, _ in answered))
        weights = jnp.asarray(self.session.problem.weights_in(self.view))[ids]
        values = stacked([reply.value for reply in replies])
        share = jnp.sum(weights)
        key = path_key(self.session.roots.directions, message.path)
        return Gathered(values, ids, weights / share, share, key)

    def _charge(self, counts: dict[str, int], upload_bytes: int, download_bytes: int) -> None:
        """Charge for one communication: what clients counted, and what travelled."""
        lower = {"lower_rounds": 1} if self.view else {}
        if self.session.problem.hierarchical:
            lower["lower_steps"] = counts["steps"]
        spent = {name: counts[name] for name in ("evaluations", "gradients")}
        self.session.charge(upload_bytes=upload_bytes, download_bytes=download_bytes, **spent, **lower)

    def repeat(
        self, n: Any, body: Callable[[Any, PyTree], PyTree], carry: PyTree, until: Callable[[PyTree], Any] | None = None
    ) -> PyTree:  # fmt: skip
        """Apply `body` n times, or until a function of the carry holds."""
        path = self._next()
        for i in range(int(n)):
            if until is not None and bool(until(carry)):
                break
            carry = body(dataclasses.replace(self, path=(*path, i), iteration=i, calls=0), carry)
        return carry

    def lower(self, x: PyTree, method: Method, rebuild: Callable[..., Reply] | None = None, *shared: PyTree) -> Self:
        """Have x, or what it is rebuilt from, sent to all clients, once, with the next message; return their view there."""
        clients = self.session.problem.clients
        points, arrays = np.asarray(x), on_host(shared)
        path = (*self._next(), self.iteration)
        owner = name_of(self.session.method, method)
        if owner is None:
            raise InputError(f"lower: found {method!r}, which is not a part of the running method; make it a field of it")
        keep = Keep(owner, path, points, "" if rebuild is None else self._name(rebuild), arrays)
        self.session.keep(keep)
        self.session.charge(download_bytes=sum(_sent(keep.travels, i) for i in range(clients)))
        return dataclasses.replace(self, ids=np.arange(clients), path=path, view="lower", calls=0)

    def key(self) -> jax.Array:
        """Return a fresh key for the server's own draws."""
        return path_key(self.session.roots.directions, self._next())

    def _next(self) -> Path:
        self.calls += 1
        return (*self.path, self.calls - 1)

    def _name(self, step: Callable[..., Reply]) -> str:
        name = step_name(step)
        owner = name_of(self.session.method, step.__self__)  # type: ignore[attr-defined]
        if owner is None:
            raise InputError(f"step: {name!r} belongs to no part of the running method; a message could not name it")
        return owner + name


def uploaded(replies: list[Reply]) -> tuple[dict[str, int], int]:
    """Return what some replies count, and their bytes."""
    counts = {name: sum(int(getattr(reply, name)) for reply in replies) for name in COUNTS}
    return counts, sum(int(sum(reply_bytes(reply.value))) for reply in replies)


def _sent(arrays: tuple, client: int) -> int:
    """Return how many bytes a client is sent."""
    return common_bytes(arrays) + int(own_bytes(arrays, client))
