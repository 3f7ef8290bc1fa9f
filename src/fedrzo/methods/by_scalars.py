"""Scalars instead of vectors: a zeroth-order step is a number times a direction that both sides can draw.

With `communication="scalars"` a method is wrapped: `ByScalars(inner, plan)`. A client then sends the code of its local steps (the
slopes along their directions, H numbers for a round of H steps) instead of x. The server decodes it by the keys, and averages:
the iterates are those of vectors, but for rounding. Where a client's set is private, only the client can take its steps: it sends
its x.

Downwards, what all clients sent in a round is a record. A client that kept an old x is sent the records that it missed, or x
itself where that is less (`federation.catch_up.Missed`), and decodes everybody's steps. Every `CHECK` rounds it compares a
checksum: if what it rebuilt is not what the server has to the last bit, it sends its x, and all are sent x anew.

The inner method (a `FedRZO`) knows nothing of this. Its `client_steps` returns `Reply(x, code=...)`, where x may be the first
part of a tuple; `decode` takes the same steps again from the code; `takes_x` names the client step that is sent x.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.federation.catch_up import Either, Missed
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Federation, Gathered, Reply, weighted_mean
from fedrzo.methods.base import Method, method
from fedrzo.methods.scalar_plan import KEPT, RoundRecord, ScalarPlan
from fedrzo.problems.base import Problem
from fedrzo.support.pytrees import index

PyTree = Any
CHECK = 50  # rounds between two comparisons of checksums


class ScalarState(NamedTuple):
    """What the server keeps."""

    inner: Any  # the inner method's state
    records: RoundRecord  # the latest rounds
    first: jax.Array  # for each client the first round whose x it has not rebuilt

    @property
    def x(self) -> jax.Array:
        """The inner method's x."""
        return self.inner.x

    @property
    def y(self) -> jax.Array | None:
        """The inner method's lower solutions, if it has any."""
        return getattr(self.inner, "y", None)


class Copy(NamedTuple):
    """What a client remembers: the last x that it rebuilt, whether that is known to be wrong, and what the inner method keeps."""

    x: jax.Array
    lost: jax.Array
    own: Any = None


@method
class ByScalars(Method):
    """A method of the FedRZO family, and how its rounds travel as scalars."""

    inner: Any  # a `FedRZO`, which is made of this module
    plan: ScalarPlan

    @property
    def bare(self) -> Method:
        """The inner method."""
        return self.inner

    def __getattr__(self, name: str) -> Any:
        """Return what is not about travelling: the inner method's."""
        if name.startswith("_") or name in ("inner", "plan"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def with_stepsize(self, stepsize: float) -> Self:
        """Return this method with another stepsize."""
        return dataclasses.replace(self, inner=self.inner.with_stepsize(stepsize))

    def with_calibrated(self, calibrated: Any) -> Self:
        """Return this method with what its clients' private releases need."""
        return dataclasses.replace(self, inner=self.inner.with_calibrated(calibrated))

    def init(self, problem: Problem, key: jax.Array) -> ScalarState:
        """Return the state before the first round: nothing on record, everybody at x0."""
        inner = self.inner.init(problem, key)
        empty = RoundRecord.empty(self.plan, inner.x.dtype)
        rows = jax.tree.map(lambda leaf: jnp.zeros((max(1, self.plan.kept), *leaf.shape), leaf.dtype), empty)
        return ScalarState(inner, rows, jnp.zeros(problem.clients, jnp.int32))

    def init_memory(self, problem: Problem) -> Any:
        """Return the x that a client starts from, where it rebuilds the next ones by itself; else what the inner method keeps."""
        own = self.inner.init_memory(problem)
        return Copy(problem.start, jnp.bool_(False), own) if self.plan.kept else own

    def metrics(self, state: ScalarState) -> dict[str, Any]:
        """Return what the inner method monitors."""
        return self.inner.metrics(state.inner)

    def healthy(self, state: ScalarState) -> Any:
        """Tell whether the inner method's state may be gone on from."""
        return self.inner.healthy(state.inner)

    def diagnose(self, state: ScalarState, before: np.ndarray) -> str | None:
        """Say what went wrong in the inner method's state."""
        return self.inner.diagnose(state.inner, before)

    def round(self, federation: Federation, state: ScalarState, r: Any) -> ScalarState:
        """Run the inner method's round over a federation that speaks scalars."""
        view = ScalarFederation(federation, self, state, r)
        inner = self.inner.round(view, state.inner, r)
        return ScalarState(inner, view.records, view.first)

    def client_points(self, client: Client, key: jax.Array, memory: Any, shared: Any, *rest: Any) -> Reply:
        """Rebuild x, and from it what the inner method's step of this name returns."""
        copy = self.caught_up(memory, shared)
        reply = self.inner.client_points(client, key, copy.own, copy.x, *rest)
        return reply._replace(memory=copy if self.plan.kept else None)

    def client_steps(self, client: Client, key: jax.Array, memory: Any, *shared: Any) -> Reply:
        """Take the inner method's steps, and send their code; or x, where the code does not tell it."""
        copy = memory if self.plan.kept else Copy(jnp.zeros(0), jnp.bool_(False), memory)
        if self.inner.takes_x == "client_steps":
            copy = self.caught_up(memory, shared[0])
            shared = (copy.x, *shared[1:])
        reply = self.inner.client_steps(dataclasses.replace(client, coded=self.plan.steps), key, copy.own, *shared)
        x, rest = _split(reply.value)
        value = Either(reply.code, x, copy.lost | jnp.logical_not(self.plan.tell(client)))
        own = copy.own if reply.memory is None else reply.memory
        return reply._replace(value=_joined(value, rest), memory=copy._replace(own=own) if self.plan.kept else own, code=None)

    def caught_up(self, memory: Any, shared: Any) -> Copy:
        """Return the x of this round, from what a client was sent, and whether it is known to be wrong."""
        if not self.plan.kept:
            return Copy(shared, jnp.bool_(False), memory)
        x = shared.catch_up(memory.x, self.replay)
        # Once in CHECK rounds; a client that was away in the round that begins such a stretch compares when it is back.
        due = (shared.stop // CHECK > shared.first // CHECK) & ~shared.renewed
        last = index(shared.rows, (shared.stop - 1) % shared.kept)
        return Copy(x, due & (checksum(x) != last.checksum), memory.own)

    def replay(self, x: jax.Array, record: RoundRecord, r: Any, sent: Any = None, vectors: Any = None) -> jax.Array:
        """Return x after round r from x before it: every client's steps, one client after the other.

        `sent` tells which of them sent vectors, and `vectors` what those sent; None where nobody did.
        """
        key = jax.random.wrap_key_data(record.key)

        def add(i: Any, total: jax.Array) -> jax.Array:
            client = record.ids[i]
            end = self.inner.decode(x, record.code[i], key, client, lambda x: self.plan.project(client, x), r)
            return total + record.weights[i] * (end if vectors is None else jnp.where(sent[i], vectors[i], end))

        return jax.lax.fori_loop(0, self.plan.participants, add, jnp.zeros_like(x))


# What others ask of a method, and is not about travelling, the inner method answers; where `Method` has an answer of its own,
# `__getattr__` is not asked.
for _name in (
    "solves",
    "needs_gradients",
    "handles_constraints",
    "knows_lower_error",
    "check",
    "doubt",
    "longest_step",
):
    setattr(ByScalars, _name, property(operator.attrgetter(f"inner.{_name}")))


class ScalarFederation:
    """The federation as the inner method sees it: x travels as records, replies as codes."""

    def __init__(self, federation: Federation, method: ByScalars, state: ScalarState, r: Any) -> None:
        self.federation, self.method, self.state, self.r = federation, method, state, r
        self.records, self.first = state.records, state.first
        self.beside: PyTree = None  # what travelled with x, if anything
        self.gather, self.later, self.repeat, self.key = federation.gather, federation.later, federation.repeat, federation.key

    def average(self, step: Callable[..., Reply], *shared: PyTree) -> PyTree:
        """Run one communication and return the weighted mean of the replies; x is decoded first."""
        if self.method.inner.takes_x == "client_steps":
            shared = self._without_x(*shared)
        return self._take(self.federation.gather(self.method.client_steps, *shared))

    def lower(self, x: PyTree, method: Any, rebuild: Callable[..., Reply] | None = None, *shared: PyTree) -> Federation:
        """Return the federation seen through the lower level; what it is solved at is rebuilt from records."""
        return self.federation.lower(x, method, self.method.client_points, *self._without_x(*shared))

    def _without_x(self, x: jax.Array, *beside: PyTree) -> tuple:
        """Return what is sent in place of x, and what travels beside it."""
        self.beside = beside[0] if beside else None
        kept = self.method.plan.kept
        return (Missed(self.state.records, x, self.state.first, self.r) if kept else x, *beside)

    def _take(self, replies: Gathered) -> PyTree:
        """Decode what every client did, average, and put it on record."""
        participants = self.method.plan.participants
        values, weights, ids = padded((replies.values, replies.weights, replies.ids), participants)
        sent, rest = _split(values)
        words = jax.random.key_data(replies.key) if self.beside is None else self.beside
        x, self.records, self.first = take(self.method, self.state, sent, weights, ids, words, jnp.int32(self.r))
        return _joined(x, None if rest is None else weighted_mean(rest, weights))


def _split(value: PyTree) -> tuple[Any, tuple | None]:
    """Return the x, or its code, of a reply's value, and what is sent with it."""
    plain = isinstance(value, Either) or not isinstance(value, tuple)
    return (value, None) if plain else (value[0], value[1:])


def _joined(x: Any, rest: tuple | None) -> PyTree:
    return x if rest is None else (x, *rest)


@jax.jit
def take(
    method: ByScalars, state: ScalarState, sent: Either, weights: jax.Array, ids: jax.Array, key: jax.Array, r: jax.Array
) -> tuple[jax.Array, RoundRecord, jax.Array]:
    """Return x after a round, the records and who has rebuilt what, from what the clients sent.

    Compiled by itself, for servers that are not compiled.
    """
    plan = method.plan
    record = RoundRecord(key, ids.astype(jnp.int32), weights.astype(state.x.dtype), sent.small, jnp.uint32(0))
    x = method.replay(state.x, record, r, sent.sends_large, sent.large)
    if not plan.kept:
        return x, state.records, state.first
    rows = jax.tree.map(lambda rows, row: rows.at[r % plan.kept].set(row), state.records, record._replace(checksum=checksum(x)))
    there = weights > 0
    first = state.first.at[jnp.where(there, ids, state.first.size)].set(r, mode="drop")
    # Where somebody sent x, no record tells what the round led to: all are sent x itself.
    first = jnp.where(jnp.any(sent.sends_large & there), jnp.int32(-2 * KEPT), first)
    return x, rows, first


def checksum(x: jax.Array) -> jax.Array:
    """Return 32 bits that tell whether two vectors are equal to the last bit."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32).ravel()
    return jnp.sum(words * (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)


def padded(tree: Any, count: int) -> Any:
    """Fill up with zeros where clients are missing."""

    def pad(rows: Any) -> jax.Array:
        rows = jnp.asarray(rows)
        return jnp.pad(rows, [(0, count - rows.shape[0])] + [(0, 0)] * (rows.ndim - 1))

    return jax.tree.map(pad, tree)
