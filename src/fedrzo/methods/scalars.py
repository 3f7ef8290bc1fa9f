"""Scalars instead of vectors: a zeroth-order step is a number times a direction that both sides can draw.

With `communication="scalars"` a client sends the slopes along its directions, H numbers for a round of H local steps. The server
replays its steps from the keys, and averages: the iterates are those of vectors, but for rounding. Where a client's set is
private, only the client can take its steps: it sends its x.

Downwards, what all clients sent in a round is a record. A client that kept an old average is sent the records that it missed, or
the average itself where that is less (`fedrzo.catchup.Missed`), and replays everybody's steps. Every `CHECK` rounds it compares
a checksum: if what it rebuilt is not what the server has to the last bit, it sends its x, and all are sent the average anew.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.catchup import Either, Missed
from fedrzo.client import Client
from fedrzo.errors import InputError
from fedrzo.federation import Federation, Reply
from fedrzo.methods.base import Method, State, at
from fedrzo.pytrees import nbytes
from fedrzo.sets.base import Pytree
from fedrzo.smoothing import from_slopes

CHECK = 50  # rounds between two comparisons of checksums
KEPT = 64  # rounds on record, at most
WAYS = ("vectors", "scalars", "auto")


@dataclasses.dataclass(frozen=True, eq=False)
class Scalars(Pytree):
    """How the rounds of a method travel as scalars.

    Attributes:
        sets: the clients' sets, where the server knows some that are not the whole space; else None.
        steps: H.
        participants: clients per round.
        kept: rounds on record; 0 where records would be no smaller than x: clients are then sent x.
    """

    sets: Any
    steps: int = dataclasses.field(metadata={"static": True})
    participants: int = dataclasses.field(metadata={"static": True})
    kept: int = dataclasses.field(metadata={"static": True})

    def project(self, client: Any, x: jax.Array) -> jax.Array:
        """Project onto a client's set, as far as everybody knows it."""
        return x if self.sets is None else self.sets.project(client, x)


class Record(NamedTuple):
    """What all clients sent in one round, and what else it takes to replay it.

    Attributes:
        key: the words of the call's key.
        ids: who took part.
        weights: in the average; zero for those whose reply is missing.
        slopes: one row per client: steps by directions.
        checksum: of the average that all this leads to.
    """

    key: Any
    ids: Any
    weights: Any
    slopes: Any
    checksum: Any


class ScalarState(NamedTuple):
    """The server's average, the latest records, and for each client the first round whose average it has not rebuilt."""

    x: jax.Array
    records: Record
    first: jax.Array


class SendsScalars(Method):
    """What FedRZO_nn and FedRZO_2s share: rounds by vectors, or by scalars.

    A method defines `local_step` and `counts`; its own listing is the round by vectors.
    """

    stepsize: Any
    smoothing: Any
    local_steps: Any
    communication: str
    scalars: Any

    def local_step(self, client: Client, key: jax.Array, k: Any, x: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
        """Take step k of a client's round from x; returns x, the slopes, and the lower-level steps per scenario."""
        raise TypeError(f"{type(self).__name__} does not define local_step")

    def counts(self, client: Client, steps: Any, solved: Any) -> dict[str, Any]:
        """Return what a reply counts after so many local steps."""
        raise TypeError(f"{type(self).__name__} does not define counts")

    def descend(self, x: jax.Array, g: jax.Array, nearest: jax.Array, r: Any) -> jax.Array:
        """Move by an estimate and towards the nearest point of a client's set: the last line of a local step."""
        return x - at(self.stepsize, r) * (g + (x - nearest) / self.smoothing)

    def for_cohort(self, problem: Any, size: int) -> Any:
        """Decide how rounds travel, given how many clients take part in one."""
        return planned(self, problem, size, self.slopes_per_step, rebuilt=True)

    def init(self, problem: Any, key: jax.Array) -> Any:
        """Return the first state: x0, and with scalars an empty record."""
        del key
        x, plan = jnp.asarray(problem.x0, self.precision_of(problem)), self.scalars
        return State(x) if plan is None else initial_state(plan, x, self.slopes_per_step, problem.clients)

    def init_memory(self, problem: Any) -> Any:
        """Return the average that a client starts from, where it rebuilds the next ones by itself."""
        plan = self.scalars
        return None if plan is None or plan.kept == 0 else jnp.asarray(problem.x0, self.precision_of(problem))

    def precision_of(self, problem: Any) -> Any:
        """Return the type of x."""
        return jnp.result_type(float) if getattr(problem, "hierarchical", False) else jnp.asarray(problem.x0).dtype

    @property
    def slopes_per_step(self) -> int:
        """How many slopes an estimate takes."""
        return getattr(self, "directions", 1)

    def round_of_scalars(self, federation: Federation, state: ScalarState, r: Any) -> ScalarState:
        """Run a round in which slopes travel up, and records, where they are smaller than x, down."""
        plan = self.scalars
        shared = Missed(state.records, state.x, state.first, r) if plan.kept else state.x
        replies = federation.gather(self.client_scalars, shared)
        arrays = padded((replies.values, replies.weights, replies.ids), plan.participants)
        return _take(self, state, *arrays, jax.random.key_data(replies.key), jnp.int32(r))

    def client_scalars(self, client: Client, key: jax.Array, memory: Any, shared: Any) -> Reply:
        """Rebuild the average, take all local steps from it, and send their slopes; or x, where slopes do not tell it."""
        plan, x, lost = self.scalars, shared, jnp.bool_(False)
        if plan.kept:
            x = shared.catch_up(memory, self.replay)
            lost = self._lost(shared, x)
        start = x

        def step(k: Any, carry: tuple) -> tuple:
            x, slopes, solved = carry
            x, found, taken = self.local_step(client, key, k, x)
            return x, slopes.at[k].set(found), solved + taken

        nothing = jnp.zeros((plan.steps, self.slopes_per_step), x.dtype)
        x, slopes, solved = jax.lax.fori_loop(0, plan.steps, step, (x, nothing, jnp.zeros((), x.dtype)))
        value = Either(slopes, x, lost | ~client.level.sets.known(client.index))
        return Reply(value, memory=start if plan.kept else None, **self.counts(client, plan.steps, solved))

    def _lost(self, missed: Missed, x: jax.Array) -> jax.Array:
        """Tell, in some rounds, whether what a client rebuilt is not what the server has."""
        last = jax.tree.map(lambda rows: rows[(missed.stop - 1) % missed.kept], missed.rows)
        due = (missed.stop % CHECK == 0) & (missed.gap > 0) & ~missed.renewed
        return due & (checksum(x) != last.checksum)

    def replay(self, x: jax.Array, record: Record, r: Any, sent: Any = None, vectors: Any = None) -> jax.Array:
        """Return the average after round r from that before: every client's steps, one client after the other.

        Args:
            x: the average before.
            record: what the clients sent.
            r: the round.
            sent: which of them sent vectors; None for nobody.
            vectors: what those sent.
        """
        plan = self.scalars
        call = jax.random.wrap_key_data(record.key)

        def steps_of(i: Any) -> jax.Array:
            key = jax.random.fold_in(call, record.ids[i])

            def step(k: Any, y: jax.Array) -> jax.Array:
                g = from_slopes(record.slopes[i, k], jax.random.fold_in(key, k), y, self.smoothing)
                return self.descend(y, g, plan.project(record.ids[i], y), r)

            return jax.lax.fori_loop(0, plan.steps, step, x)

        def add(i: Any, total: jax.Array) -> jax.Array:
            end = steps_of(i) if sent is None else jnp.where(sent[i], vectors[i], steps_of(i))
            return total + record.weights[i] * end

        return jax.lax.fori_loop(0, plan.participants, add, jnp.zeros_like(x))


@jax.jit
def _take(
    method: Any, state: ScalarState, sent: Either, weights: jax.Array, ids: jax.Array, key: jax.Array, r: jax.Array
) -> ScalarState:
    """Return the state after a round, from what the clients sent. Compiled by itself, for servers that are not compiled."""
    plan = method.scalars
    record = Record(key, ids.astype(jnp.int32), weights.astype(state.x.dtype), sent.small, jnp.uint32(0))
    x = method.replay(state.x, record, r, sent.sends_large, sent.large)
    if not plan.kept:
        return state._replace(x=x)
    rows = jax.tree.map(
        lambda rows, row: rows.at[r % plan.kept].set(row), state.records, record._replace(checksum=checksum(x))
    )
    there = weights > 0
    first = state.first.at[jnp.where(there, ids, state.first.size)].set(r, mode="drop")
    # Where somebody sent x, no record tells what the round led to: all are sent the average itself.
    return ScalarState(x, rows, jnp.where(jnp.any(sent.sends_large & there), jnp.int32(-2 * KEPT), first))


def check_communication(method: Any) -> None:
    """Refuse a way of communication that there is not."""
    if method.communication not in WAYS:
        raise InputError(f'communication: found {method.communication!r}; pass "vectors", "scalars" or "auto"')


def planned(method: Any, problem: Any, participants: int, slopes: int, rebuilt: bool) -> Any:
    """Return a method that knows how its rounds travel; refuse scalars where they cannot.

    Args:
        method: with fields `communication`, `local_steps` and `scalars`.
        problem: what it is to solve.
        participants: clients per round.
        slopes: per local step.
        rebuilt: whether clients rebuild averages from records.
    """
    if method.communication == "vectors":
        return method
    if callable(method.local_steps):
        if method.communication == "auto":
            return method
        raise InputError(
            'local_steps: found a function; scalars need a whole number, the same in all rounds, or use "vectors"'
        )
    known = np.array([bool(problem.sets.known(i)) for i in range(problem.clients)])
    private = np.flatnonzero(~known)
    if len(private):
        _explain(private, method.communication)
    steps, dtype = int(method.local_steps), np.dtype(float if problem.hierarchical else problem.layout.dtype)
    if method.communication == "auto" and (not known.any() or steps * slopes >= problem.dim):
        return method
    plan = Scalars(None if problem.sets.free else problem.sets, steps, participants, 0)
    if rebuilt and not len(private):
        row = nbytes(one_record(plan, slopes, dtype))
        plan = dataclasses.replace(plan, kept=min(KEPT, (problem.dim * dtype.itemsize - 1) // row))
    return dataclasses.replace(method, scalars=plan)


def _explain(private: np.ndarray, communication: str) -> None:
    who = ", ".join(map(str, private[:8])) + (", ..." if len(private) > 8 else "")
    if communication == "scalars":
        raise InputError(
            f'communication: found "scalars", but the sets of clients {who} are private, so that only they can take their steps; '
            'use "auto", or declare the sets public: fz.sets.Public(...)'
        )
    warnings.warn(f"communication: the sets of clients {who} are private; these clients send vectors", stacklevel=6)


def one_record(plan: Scalars, slopes: int, dtype: Any) -> Record:
    """Return an empty record."""
    c: int = plan.participants
    return Record(
        np.zeros(2, np.uint32), np.zeros(c, np.int32), np.zeros(c, dtype), np.zeros((c, plan.steps, slopes), dtype),
        np.zeros((), np.uint32),
    )  # fmt: skip


def initial_state(plan: Scalars, x: jax.Array, slopes: int, clients: int) -> ScalarState:
    """Return the state before the first round: nothing on record, everybody at x0."""
    rows = jax.tree.map(
        lambda leaf: jnp.zeros((max(1, plan.kept), *leaf.shape), leaf.dtype), one_record(plan, slopes, x.dtype)
    )
    return ScalarState(x, rows, jnp.zeros(clients, jnp.int32))


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
