"""Scalars instead of vectors: a zeroth-order step is a number times a direction that both sides can draw.

With `communication="scalars"` a client sends the slopes along its directions, H numbers for a round of H local steps. The server
replays its steps from the keys, and averages: the iterates are those of vectors, but for rounding. Where a client's set is
private, only the client can take its steps: it sends its x.

Downwards, what all clients sent in a round is a record. A client that kept an old average is sent the records that it missed, or
the average itself where that is less (`federation.catch_up.Missed`), and replays everybody's steps. Every `CHECK` rounds it
compares a checksum: if what it rebuilt is not what the server has to the last bit, it sends its x, and all are sent the average
anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.federation.catch_up import Either, Missed
from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.estimators import from_slopes
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import State
from fedrzo.methods.fedrzo import FedRZO
from fedrzo.methods.scalarplan import KEPT, Record, Scalars, planned
from fedrzo.support.compiling import unsplit

CHECK = 50  # rounds between two comparisons of checksums


class ScalarState(NamedTuple):
    """The server's average, the latest records, and for each client the first round whose average it has not rebuilt."""

    x: jax.Array
    records: Record
    first: jax.Array


class SendsScalars(FedRZO):
    """Rounds by scalars, beside a method's own listing, which is the round by vectors.

    FedRZO_nn and FedRZO_2s define `local_step` and `counts`. FedRZO_bl, whose steps share one direction, replays and sends in its
    own way (`replay_steps`, `client_points`, `client_scalars`).
    """

    batch_size: Any
    communication: str
    scalars: Any

    def local_step(
        self, client: Client, k: Any, sample: Any, keys: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Take step k of a client's round from x; returns x, the slopes, and the lower-level steps per scenario.

        Args:
            client: whose step.
            k: the step.
            sample: its batch.
            keys: of its directions.
            x: where it begins.
        """
        raise TypeError(f"{type(self).__name__} does not define local_step")

    def counts(self, client: Client, steps: Any, solved: Any) -> dict[str, Any]:
        """Return what a reply counts after so many local steps."""
        raise TypeError(f"{type(self).__name__} does not define counts")

    def for_cohort(self, problem: Any, size: int) -> Any:
        """Decide how rounds travel, given how many clients take part in one."""
        return planned(self, problem, size, self.local_steps, self.slopes_per_step, rebuilt=True)

    def init(self, problem: Any, key: jax.Array) -> Any:
        """Return the first state: x0, and with scalars an empty record."""
        del key
        x, plan = jnp.asarray(problem.x0, self.precision_of(problem)), self.scalars
        return State(x) if plan is None else initial_state(plan, x, self.slopes_per_step, problem.clients)

    def init_memory(self, problem: Any) -> Any:
        """Return the average that a client starts from, where it rebuilds the next ones by itself."""
        plan = self.scalars
        return None if plan is None or plan.kept == 0 else jnp.asarray(problem.x0, self.precision_of(problem))

    def draw(self, step_key: jax.Array) -> jax.Array:
        """Return the keys of a local step's directions."""
        return jax.vmap(lambda j: jax.random.fold_in(step_key, j))(jnp.arange(self.slopes_per_step))

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
        return take(self, state, *arrays, jax.random.key_data(replies.key), jnp.int32(r))

    def client_scalars(self, client: Client, key: jax.Array, memory: Any, shared: Any) -> Reply:
        """Rebuild the average, take all local steps from it, and send their slopes; or x, where slopes do not tell it."""
        plan, x, lost = self.scalars, shared, jnp.bool_(False)
        if plan.kept:
            x = shared.catch_up(memory, self.replay)
            lost = lost_track(shared, x)
        start = x

        def step(k: Any, sample: Any, keys: jax.Array, carry: tuple) -> tuple:
            x, slopes, solved = carry
            x, found, taken = self.local_step(client, k, sample, keys, x)
            return x, slopes.at[k].set(found), solved + taken

        nothing = jnp.zeros((plan.steps, self.slopes_per_step), x.dtype)
        begin = (x, nothing, jnp.zeros((), x.dtype))
        x, slopes, solved = take_steps(client, key, plan.steps, self.batch_size, step, begin, self.draw)
        value = Either(slopes, x, lost | jnp.logical_not(plan.tell(client)))
        return Reply(value, memory=start if plan.kept else None, **self.counts(client, plan.steps, solved))

    def replay(self, x: jax.Array, record: Record, r: Any, sent: Any = None, vectors: Any = None) -> jax.Array:
        """Return the average after round r from that before: every client's steps, one client after the other.

        Args:
            x: the average before.
            record: what the clients sent.
            r: the round.
            sent: which of them sent vectors.
            vectors: what those sent; None where nobody did.
        """
        plan = self.scalars

        def add(i: Any, total: jax.Array) -> jax.Array:
            end = self.replay_steps(x, record, i, r)
            return total + record.weights[i] * (end if vectors is None else jnp.where(sent[i], vectors[i], end))

        return jax.lax.fori_loop(0, plan.participants, add, jnp.zeros_like(x))

    def replay_steps(self, x: jax.Array, record: Record, i: Any, r: Any) -> jax.Array:
        """Return where the local steps of the record's i-th client led from the average x."""
        key = jax.random.fold_in(jax.random.wrap_key_data(record.key), record.ids[i])

        def step(k: Any, y: jax.Array) -> jax.Array:
            g = from_slopes(record.slopes[i, k], self.draw(jax.random.fold_in(key, k)), y, self.smoothing)
            return self.descend(y, g, self.scalars.project(record.ids[i], y), r)

        return jax.lax.fori_loop(0, self.scalars.steps, step, x)


def lost_track(missed: Missed, x: jax.Array) -> jax.Array:
    """Tell, once in CHECK rounds, whether what a client rebuilt is not what the server has.

    A client that was away in the round that begins such a stretch looks when it is back.
    """
    last = jax.tree.map(lambda rows: rows[(missed.stop - 1) % missed.kept], missed.rows)
    due = (missed.stop // CHECK > missed.first // CHECK) & ~missed.renewed
    return due & (checksum(x) != last.checksum)


@jax.jit
def take(
    method: Any, state: Any, sent: Either, weights: jax.Array, ids: jax.Array, key: jax.Array, r: jax.Array
) -> Any:
    """Return the state after a round, from what the clients sent. Compiled by itself, for servers that are not compiled."""
    plan = method.scalars
    record = Record(key, ids.astype(jnp.int32), weights.astype(state.x.dtype), sent.small, jnp.uint32(0))
    with unsplit(False):  # what is compiled by itself is the same wherever it is called from
        x = method.replay(state.x, record, r, sent.sends_large, sent.large)
    if not plan.kept:
        return state._replace(x=x)
    rows = jax.tree.map(
        lambda rows, row: rows.at[r % plan.kept].set(row), state.records, record._replace(checksum=checksum(x))
    )
    there = weights > 0
    first = state.first.at[jnp.where(there, ids, state.first.size)].set(r, mode="drop")
    # Where somebody sent x, no record tells what the round led to: all are sent the average itself.
    first = jnp.where(jnp.any(sent.sends_large & there), jnp.int32(-2 * KEPT), first)
    return state._replace(x=x, records=rows, first=first)


def initial_state(plan: Scalars, x: jax.Array, slopes: int, clients: int) -> ScalarState:
    """Return the state before the first round: nothing on record, everybody at x0."""
    empty = Record.empty(plan, slopes, x.dtype)
    rows = jax.tree.map(lambda leaf: jnp.zeros((max(1, plan.kept), *leaf.shape), leaf.dtype), empty)
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
