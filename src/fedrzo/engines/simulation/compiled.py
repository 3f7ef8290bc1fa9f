"""The federation's calls as compiled code: clients are a vmapped axis, repeats are compiled loops, counters stay exact."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import RANDOM_ROUND
from fedrzo.engines.simulation.spread import Spread
from fedrzo.errors import InputError
from fedrzo.federation.catch_up import common_bytes, for_client, own_bytes, reply_bytes
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Cost, Gathered, PyTree, Reply, Roots, private_key, run_step, step_name
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.lower_level import LowerLevel
from fedrzo.support.arguments import call_part, mismatch
from fedrzo.support.keys import written_out

COHORT = 3  # the stream of the run's key that cohorts are drawn from


class Keys(NamedTuple):
    """The keys that no round changes, derived once: hashes take most of a small program's compilation."""

    streams: jax.Array  # three that each round takes a key from: of directions, of the random index, of cohorts
    private: jax.Array  # each client's sampling key

    @classmethod
    def of(cls, key: jax.Array, clients: int) -> Self:
        """Derive them from the key of a run."""
        streams = jax.vmap(jax.random.fold_in, (None, 0))(key, np.array([0, 1, RANDOM_ROUND, COHORT]))
        roots = Roots(streams[0], streams[1])  # as `Roots.of` derives them, by one hash with the others
        private = jax.vmap(private_key, (None, 0))(roots, jnp.arange(clients, dtype=jnp.int32))
        return cls(streams[np.array([0, 2, 3])], private)

    @property
    def directions(self) -> jax.Array:
        """The key that directions are drawn from."""
        return self.streams[0]

    def of_round(self, r: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the keys of round r, by one hash: of its directions, of the random index, of its cohort."""
        directions, index, cohort = jax.vmap(jax.random.fold_in, (0, None))(self.streams, r)
        return directions, index, cohort

    def written_out(self) -> Self:
        """Return the same keys for compiled rounds."""
        return self.__class__(*map(written_out, self))


class Tally(NamedTuple):
    """One counter per field of `Cost`, of 64 bits in two halves: exact, though JAX has no wide integers by default."""

    low: jax.Array
    high: jax.Array

    @classmethod
    def zero(cls) -> Self:
        """Return counters at zero."""
        return cls(jnp.zeros(len(Cost._fields), jnp.uint32), jnp.zeros(len(Cost._fields), jnp.uint32))

    def plus(self, **more: tuple[Any, Any]) -> Self:
        """Add to named fields of `Cost`; every amount is a pair of halves."""
        none = (jnp.uint32(0), jnp.uint32(0))
        amounts = [more.get(name, none) for name in Cost._fields]
        low = jnp.stack([jnp.asarray(a[0], jnp.uint32) for a in amounts])
        high = jnp.stack([jnp.asarray(a[1], jnp.uint32) for a in amounts])
        low, high = _add((self.low, self.high), (low, high))
        return self._replace(low=low, high=high)

    def cost(self) -> Cost:
        """Return the counts as Python integers."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        return Cost(*(int(h) << 32 | int(lo) for lo, h in zip(low, high, strict=True)))


def halves(amount: int) -> tuple[int, int]:
    """Split a Python integer."""
    return amount & 0xFFFFFFFF, amount >> 32


def total(amount: Any, clients: int) -> tuple[Any, Any]:
    """Sum one amount per client exactly: a Python integer that all share, or an array with one entry per client."""
    if isinstance(amount, int):
        return halves(amount * clients)
    low = jnp.broadcast_to(jnp.asarray(amount).astype(jnp.uint32), (clients,))
    # Sums of 16 bits cannot overflow then; and where amounts do not change, XLA adds them up once for all rounds.
    if clients < 1 << 16:
        low, high = (jnp.sum(part, dtype=jnp.uint32) for part in (low & np.uint32(0xFFFF), low >> 16))
        return _add((low, high >> 16), (high << 16, jnp.uint32(0)))
    zero = jnp.uint32(0)
    return jax.lax.reduce((low, jnp.zeros_like(low)), (zero, zero), _add, (0,))


def _add(a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
    low = a[0] + b[0]
    return low, a[1] + b[1] + (low < b[0]).astype(jnp.uint32)


@dataclasses.dataclass(eq=False)
class Ledger:
    """What changes while a round is traced, shared by all views of one federation: counters and clients' memories."""

    tally: Tally
    memory: dict[str, PyTree]


@dataclasses.dataclass(eq=False)
class Clock:
    """Where in a run a call is made: the keys' path, the round, and the points last sent to the lower level."""

    problem: Problem
    private: jax.Array  # each client's sampling key
    base: jax.Array
    round: Any
    iteration: Any = 0
    points: Any = None
    calls: int = 0

    def next_key(self) -> jax.Array:
        """Return the key of the next call."""
        self.calls += 1
        return jax.random.fold_in(self.base, self.calls - 1)

    def inside(self, base: jax.Array, iteration: Any) -> Self:
        """Return the clock of one iteration of a repeat."""
        key = jax.random.fold_in(base, iteration)
        return dataclasses.replace(self, base=key, iteration=iteration, calls=0)


@dataclasses.dataclass(eq=False)
class SimulatedFederation:
    """The federation's calls as compiled code; see `fedrzo.federation.protocol`."""

    level: Problem | LowerLevel
    ids: jax.Array
    weights: jax.Array
    clock: Clock
    ledger: Ledger
    spread: Spread
    view: str = ""

    def average(self, step: Callable[..., Reply], *shared: PyTree) -> PyTree:
        """Run one communication and return the weighted mean of the replies."""
        weights = self.weights / jnp.sum(self.weights)
        return self._call(step, shared, self.clock.next_key(), weights)

    def gather(self, step: Callable[..., Reply], *shared: PyTree) -> Gathered:
        """Run one communication and return the replies one by one."""
        share, key = jnp.sum(self.weights), self.clock.next_key()
        return Gathered(self._call(step, shared, key), self.ids, self.weights / share, share, key)

    def later(self, step: Callable[..., Reply], *shared: PyTree) -> Callable[[], PyTree]:
        """Run one communication at once: here none has to wait for another. The returned function gives the mean."""
        before = self.ledger.memory[self.view]
        mean = self.average(step, *shared)
        if self.ledger.memory[self.view] is not before:
            raise InputError(f"later: {step_name(step)} returned a Reply with a memory; ask for it by average, which keeps order")
        return lambda: mean

    def repeat(
        self, n: Any, body: Callable[[Any, PyTree], PyTree], carry: PyTree, until: Callable[[PyTree], Any] | None = None
    ) -> PyTree:  # fmt: skip
        """Apply `body` n times, or until a function of the carry holds; n may be traced."""
        if not jnp.issubdtype(jnp.result_type(n), jnp.integer):
            raise InputError(f"repeat: found n of type {jnp.result_type(n)}; pass a whole number")
        base = self.clock.next_key()
        kept = tuple(self.ledger.memory)

        def once(i: Any, packed: Any) -> Any:
            carry, (self.ledger.tally, self.ledger.memory) = packed
            inner = dataclasses.replace(self, clock=self.clock.inside(base, i))
            found = call_part(body, "repeat: its body", "federation, carry", inner, carry)
            if wrong := mismatch(found, carry):
                raise InputError(f"repeat: its body returned {wrong}; keep the structure, shapes and types of what it is given")
            # Memories of lower views opened inside the body end with it.
            self.ledger.memory = {name: self.ledger.memory[name] for name in kept}
            return found, (self.ledger.tally, self.ledger.memory)

        carried = carry, (self.ledger.tally, self.ledger.memory)
        if until is None:
            carry, (self.ledger.tally, self.ledger.memory) = jax.lax.fori_loop(0, n, once, carried)
            return carry
        going = lambda state: (state[0] < n) & ~until(state[1][0])  # noqa: E731
        found = jax.lax.while_loop(going, lambda state: (state[0] + 1, once(*state)), (jnp.int32(0), carried))
        carry, (self.ledger.tally, self.ledger.memory) = found[1]
        return carry

    def lower(self, x: PyTree, method: Method, rebuild: Callable[..., Reply] | None = None, *shared: PyTree) -> Self:
        """Send x, or what it is rebuilt from, to all clients, once, and return their view of the lower level there."""
        problem, key = self.clock.problem, self.clock.next_key()
        ids, level = everyone(problem), problem.lower_level(x)
        sent = (x,) if rebuild is None else shared
        if rebuild is not None:
            self._run(rebuild, shared, key)  # for what the clients remember of it: what they see is x either way
        self.clock.points = x
        bytes_ = total(common_bytes(sent) + own_bytes(sent, ids), problem.clients)
        self.ledger.tally = self.ledger.tally.plus(download_bytes=bytes_)
        self.ledger.memory["lower"] = initial_memory(method, level)
        clock = self.clock.inside(key, self.clock.iteration)
        weights = jnp.asarray(problem.weights_in("lower"))
        return dataclasses.replace(self, level=level, ids=ids, weights=weights, clock=clock, view="lower")

    def key(self) -> jax.Array:
        """Return a fresh key for the server's own draws."""
        return self.clock.next_key()

    def _call(self, step: Callable[..., Reply], shared: tuple, key: jax.Array, weights: Any = None) -> PyTree:
        """Run one communication and charge for it; with weights, the value is the mean of all."""
        replies, fixed = self._run(step, shared, key, weights)
        clients = self.ids.shape[0]
        lower = {"lower_rounds": halves(1)} if self.view else {}
        if self.clock.problem.hierarchical:
            lower["lower_steps"] = total(replies.steps, clients)
        _, own = reply_bytes(replies.value)
        if not isinstance(own, int):
            self.ledger.tally = self.ledger.tally.plus(upload_bytes=total(own, clients))
        self.ledger.tally = self.ledger.tally.plus(
            upload_bytes=halves(fixed * clients),
            download_bytes=total(common_bytes(shared) + own_bytes(shared, self.ids), clients),
            evaluations=total(replies.evaluations, clients),
            gradients=total(replies.gradients, clients),
            **lower,
        )
        return replies.value

    def _run(self, step: Callable[..., Reply], shared: tuple, key: jax.Array, weights: Any = None) -> tuple[Reply, int]:
        """Have each client run a step; what it remembers is kept. Also returns the size of what each sends in any case."""
        step_name(step)
        memories = self.ledger.memory[self.view]
        fixed = [0]

        def one(i: jax.Array, memory: PyTree) -> Reply:
            clock = self.clock
            client = Client(self.level, i, i, clock.private[i], clock.round, jnp.int32(clock.iteration), clock.points, key)
            reply = run_step(step, client, jax.random.fold_in(key, i), memory, *for_client(shared, i))
            fixed[0] = reply_bytes(reply.value)[0]  # known when traced; a mean may be of another type
            return reply

        if weights is None:
            replies = self.spread.each(one, self.ids, memories)
        else:
            replies = self.spread.mean(one, self.ids, weights, memories)
        if replies.memory is not None:
            self.ledger.memory[self.view] = jax.tree.map(lambda old, new: old.at[self.ids].set(new), memories, replies.memory)
        return replies, fixed[0]


def everyone(problem: Problem) -> jax.Array:
    """Return all clients' ids."""
    return jnp.arange(problem.clients, dtype=jnp.int32)


def initial_memory(method: Method, level: Problem | LowerLevel) -> PyTree:
    """Return the clients' memories at the start, one row each."""
    one = method.init_memory(level)
    return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], level.clients, axis=0), one)
