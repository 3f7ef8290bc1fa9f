"""DeComFL: zeroth-order federated learning in which only seeds and scalars travel.

Z. Li, B. Ying, Z. Liu, C. Dong, H. Yang: "Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order
Optimization", ICLR 2025.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.federation import directions
from fedrzo.federation.catch_up import Missed
from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import at, batch, checked, method, one_of, stepsize_or_auto, within
from fedrzo.methods.private import WithPrivacy, first_clip, record_by_record
from fedrzo.privacy.mechanism import release
from fedrzo.privacy.privacy import Privacy, a_promise
from fedrzo.problems.base import Problem
from fedrzo.support.numbers import Schedule, constant, whole


class Model(NamedTuple):
    """What the server and every client that is up to date agree on: x, and the velocity of its momentum."""

    x: jax.Array
    velocity: jax.Array


class PrivateModel(NamedTuple):
    """What a client remembers where it finds its own clip."""

    model: Model
    clip: jax.Array


class SeedRecord(NamedTuple):
    """One round: H seeds, and the H x P slopes along their directions, averaged over the clients that took part."""

    seeds: jax.Array
    slopes: jax.Array


class DeComFLState(NamedTuple):
    """The server's copy of the model, the latest records, and for each client the first round it has not replayed."""

    x: jax.Array
    velocity: jax.Array
    records: SeedRecord
    first: jax.Array


@method
class DeComFL(WithPrivacy):
    """All clients use the same directions, rebuilt from broadcast seeds, so that slopes along them are all that is sent.

    Clients know x0. A client that was away is sent the records of the rounds it missed and replays them (x and the
    velocity themselves, where that is less, or where the records are gone). The authors' server keeps all that the oldest
    client needs, and draws seeds below 10^6; here seeds have 32 bits. Needs no gradient and knows no constraints.

    Args:
        stepsize: a number, or a function of the round.
        smoothing: mu, how far along a direction the loss is asked for, in units of its length (about sqrt(n)).
        local_steps: H, local steps per round; each has its own seed.
        directions: P, directions per local step, standard normal.
        batch_size: samples per loss value, or `"full"`.
        momentum: the velocity kept from one step to the next: v <- momentum v + g, x <- x - stepsize v.
        forward: take (f(x + mu z) - f(x)) / mu instead of (f(x + mu z) - f(x - mu z)) / (2 mu).
        records: how many rounds the server keeps on record.
        privacy: as for `FedRZOnn`. Directions are about sqrt(n) long here, and so are slopes as many times larger.
    """

    stepsize: Schedule = checked(stepsize_or_auto)
    smoothing: float = checked(constant, default=1e-3)
    local_steps: int = checked(whole, default=1, static=True)
    directions: int = checked(whole, default=1, static=True)
    batch_size: int | str = checked(batch, default=1, static=True)
    momentum: float = checked(within(lambda value: 0 <= value < 1, "a number of at least 0 and below 1"), default=0.0)
    forward: bool = checked(one_of(True, False), default=False, static=True)
    records: int = checked(whole, default=1024, static=True)
    privacy: Privacy | None = checked(a_promise, default=None)

    handles_constraints = False
    serves_below = False  # its records are of the top method's rounds

    def init(self, problem: Problem, key: jax.Array) -> DeComFLState:
        """Start at x0, at rest, with nothing on record."""
        start = self._start(problem)
        shape = (self.records, self.local_steps)
        empty = SeedRecord(jnp.zeros(shape, jnp.uint32), jnp.zeros((*shape, self.directions), start.x.dtype))
        return DeComFLState(*start, empty, jnp.zeros(problem.clients, jnp.int32))

    def init_memory(self, problem: Problem) -> Model | PrivateModel:
        """Return what every client starts from."""
        start, clip = self._start(problem), first_clip(self.privacy, problem)
        return start if clip is None else PrivateModel(start, clip)

    def _start(self, problem: Problem) -> Model:
        x0 = jnp.asarray(problem.x0)
        return Model(x0, jnp.zeros_like(x0))

    def round(self, federation: Federation, state: DeComFLState, r: Any) -> DeComFLState:
        """Send seeds and what was missed, average the slopes, record them, and move as every client will."""
        seeds = jax.random.bits(federation.key(), (self.local_steps,), jnp.uint32)
        model = Model(state.x, state.velocity)
        missed = Missed(state.records, model, state.first, r)
        replies = federation.gather(self.client_steps, seeds, missed)
        record = SeedRecord(seeds, replies.mean())
        records = jax.tree.map(lambda rows, row: rows.at[r % self.records].set(row), state.records, record)
        moved = self.replay(model, record, r)
        return DeComFLState(moved.x, moved.velocity, records, state.first.at[replies.ids].set(r))

    def client_steps(self, client: Client, key: jax.Array, memory: Any, seeds: jax.Array, missed: Missed) -> Reply:
        """Rebuild the server's model, keep it, take H steps from it; only their slopes leave the client."""
        kept, clip = memory if isinstance(memory, PrivateModel) else (memory, None)
        snapshot = missed.catch_up(kept, self.replay)  # (a) reset, replay, take a new snapshot

        def local_step(k: Any, sample: Any, step_key: jax.Array, carry: tuple[Model, jax.Array, Any]) -> tuple:
            model, slopes, clip = carry
            found, clip = self.find(client, model.x, seeds[k], sample, step_key, clip)
            return self.step(model, seeds[k], found, client.round), slopes.at[k].set(found), clip

        slopes = jnp.zeros((self.local_steps, self.directions), snapshot.x.dtype)
        batch_size = self.batch_size if self.privacy is None else None  # private slopes draw their own
        carry = snapshot, slopes, clip
        _, slopes, clip = take_steps(client, key, self.local_steps, batch_size, local_step, carry, also=lambda key: key)  # (b)
        points = self.directions + 1 if self.forward else 2 * self.directions
        evaluations = points * self.local_steps * client.cost(self.batch_size)
        kept = snapshot if clip is None else PrivateModel(snapshot, clip)
        return Reply(slopes, memory=kept, evaluations=evaluations, steps=self.local_steps)  # (c)

    def find(self, client: Client, x: jax.Array, seed: jax.Array, batch: Any, key: jax.Array, clip: Any) -> tuple[Any, Any]:
        """Return the P slopes of one local step, and the clip of the next one where slopes are private."""
        if self.privacy is None:
            return self.slopes(lambda of: of(batch), client, x, seed), None

        def of_records(rows: jax.Array) -> jax.Array:
            return self.slopes(lambda of: record_by_record(client, of, rows), client, x, seed, rows.size).T

        first = self.privacy.first_clip.astype(x.dtype) if clip is None else clip
        found, after = release(client, self.privacy, key, self.batch_size, of_records, self.directions, first)
        return found, None if clip is None else after

    def slopes(self, on: Callable[..., jax.Array], client: Client, x: jax.Array, seed: jax.Array, *records: int) -> jax.Array:
        """Return the P slopes of one local step; `on(of)` evaluates a function of a batch, on one or on many records' own."""
        mu = self.smoothing
        base: Any = on(lambda batch: client.loss(x, batch)) if self.forward else None

        def add(p: Any, slopes: jax.Array) -> jax.Array:
            v = mu * direction(seed, p, x)
            if self.forward:
                found = (on(lambda batch: client.loss(x + v, batch)) - base) / mu
            else:
                found = on(lambda batch: client.difference(x, v, batch)) / (2 * mu)
            return slopes.at[p].set(found.astype(x.dtype))  # a loss may be of a wider type than x

        # One direction at a time: P of them would take P times the memory of x.
        return jax.lax.fori_loop(0, self.directions, add, jnp.zeros((self.directions, *records), x.dtype))

    def step(self, model: Model, seed: jax.Array, slopes: jax.Array, r: Any) -> Model:
        """Move by one step of round r, given its seed and slopes."""

        def add(p: Any, total: jax.Array) -> jax.Array:
            return total + slopes[p] * direction(seed, p, model.x)

        total = jax.lax.fori_loop(0, self.directions, add, jnp.zeros_like(model.x))
        velocity = self.momentum * model.velocity + total / self.directions
        return Model(model.x - at(self.stepsize, r) * velocity, velocity)

    @jax.jit  # for servers that are not compiled
    def replay(self, model: Model, record: SeedRecord, r: Any) -> Model:
        """Move by the steps of round r, as recorded."""

        def step(k: Any, model: Model) -> Model:
            return self.step(model, record.seeds[k], record.slopes[k], r)

        return jax.lax.fori_loop(0, self.local_steps, step, model)


def direction(seed: jax.Array, p: Any, x: jax.Array) -> jax.Array:
    """Rebuild the direction z_{k,p} from the seed of step k; standard normal, as long as x and of its type."""
    return directions.normal(jax.random.fold_in(jax.random.key(seed), p), x.size, x.dtype)
