"""Where a method averages, an actor answers for its clients with one sum: how it travels, and how the driver takes it."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.messages.calls import MessageFederation, uploaded
from fedrzo.engines.messages.codec import COUNTS, Path, decode_reply, encode_reply
from fedrzo.engines.messages.receive import Intake
from fedrzo.federation.catch_up import Missed, common_bytes, stacked
from fedrzo.federation.protocol import PyTree, Reply, weighted_mean
from fedrzo.support.pytrees import size_of


class Sum(NamedTuple):
    """The replies of some clients, added up: values by the clients' weights, counts as they are."""

    clients: tuple[int, ...]  # whose they are
    values: PyTree
    counts: dict[str, int]
    upload_bytes: int  # what all of them would have sent, one by one


def encode_sum(path: Path, values: PyTree, like: PyTree, counts: dict[str, int]) -> bytes:
    """Return a sum as bytes; `like` has no numbers, but the shapes and types of a single reply behind a leading axis."""
    # Counts of many clients may be larger than those of one: they travel as arrays.
    wide = {name: np.uint64(count) for name, count in counts.items()}
    return encode_reply(path, Reply((values, like, wide)))


def take_sum(intake: Intake, clients: tuple[int, ...], payload: bytes) -> Sum | None:
    """Look at an actor's sum as at its clients' replies: take it, or note for each of them why not."""
    intake.bytes += len(payload)
    path, reply, _ = decode_reply(payload, intake.types)
    assert reply is not None
    if path != intake.message.path:
        for client in clients:
            intake.note(client, "late", f"answers the message at {list(path)}")
        return None
    values, like, counts = reply.value
    single = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape[1:]), like)
    if mistake := intake.mistake(single):
        for client in clients:
            intake.fail(client, *mistake)
        return None
    for client in clients:
        intake.take(client, Reply(None))  # its value is in the sum
    return Sum(clients, values, {name: int(counts[name]) for name in COUNTS}, len(clients) * size_of(single))


@dataclasses.dataclass(eq=False)
class SummedFederation(MessageFederation):
    """What a method sees of clients in actors: where it averages, no reply travels by itself unless it has to."""

    session: Any

    def average(self, step: Callable[..., Reply], *shared: PyTree) -> PyTree:
        """Run one communication and return the weighted mean of the replies."""
        if self.session.rules.max_reply_ratio is not None or any(isinstance(value, Missed) for value in shared):
            return super().average(step, *shared)
        message = self._message(step, shared)._replace(together=True)
        answered = self.session.deliver(message, self.ids)
        sums: list[Sum] = self.session.sums
        summed = {client for each in sums for client in each.clients}
        alone = {client: reply for client, reply in answered if client not in summed}
        counts, upload = uploaded(list(alone.values()))  # and the sums', as if every client had sent its own reply
        counts = {name: count + sum(each.counts[name] for each in sums) for name, count in counts.items()}
        upload += sum(each.upload_bytes for each in sums)
        self._charge(counts, upload, len(answered) * common_bytes(message.arrays))
        weights = np.asarray(self.session.problem.weights_in(self.view))
        share = weights[[client for client, _ in answered]].sum()
        parts = [each.values for each in sums]
        if alone:
            parts.append(weighted_mean(stacked([reply.value for reply in alone.values()]), jnp.asarray(weights[list(alone)])))
        return jax.tree.map(lambda *leaves: jnp.asarray(sum(leaves) / leaves[0].dtype.type(share)), *parts)

    def later(self, step: Callable[..., Reply], *shared: PyTree) -> Callable[[], PyTree]:
        """Do the same at once: messages to actors are quick."""
        mean = self.average(step, *shared)
        return lambda: mean
