"""The rounds of a run as one compiled program, with looks at it on the way."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Progress
from fedrzo.engines.simulation.compiled import (
    COHORT,
    Clock,
    Keys,
    Ledger,
    SimulatedFederation,
    Tally,
    everyone,
    initial_memory,
)
from fedrzo.engines.simulation.spread import Spread
from fedrzo.federation.protocol import PyTree
from fedrzo.methods.base import Method
from fedrzo.methods.guards import with_metrics
from fedrzo.problems.base import Problem
from fedrzo.support.compiling import compiler_options, once

BLOCK = 16  # rounds on a GPU run so many at a time at most: a loop of unknown length waits for the host in every pass
AT_ONCE = 64  # looks that one call of compiled code takes at most
Known = tuple[tuple[int, int], ...]
TRACES = [0]  # how often a run was traced: tests check that new hyper-parameters do not retrace


class Carry(NamedTuple):
    """Everything that passes from one chunk of rounds to the next; arrays only, so it can be stored."""

    state: PyTree
    memory: PyTree
    tally: Tally
    progress: Progress


def cohort(problem: Problem, key: jax.Array, r: Any, size: int | None) -> tuple[jax.Array, jax.Array]:
    """Draw who takes part in round r of the run with this key, without replacement; everyone if no size is given."""
    return drawn(problem, jax.random.fold_in(jax.random.fold_in(key, COHORT), r), size)


def drawn(problem: Problem, key: jax.Array, size: int | None) -> tuple[jax.Array, jax.Array]:
    """Draw who takes part in a round with a key of its own."""
    weights = jnp.asarray(problem.client_weights)
    if size is None or size == problem.clients:
        return everyone(problem), weights
    ids = jnp.sort(jax.random.permutation(key, everyone(problem))[:size])
    return ids, weights[ids]


def in_blocks(one: Callable[[Any, Carry], Carry], first: Any, last: Any, size: int, carry: Carry) -> Carry:
    """Run rounds first .. last - 1, most of them in blocks of a size that is known when compiled."""

    def block(b: Any, carry: Carry) -> Carry:
        start = first + size * b
        return jax.lax.fori_loop(0, size, lambda j, carry: one(start + j, carry), carry)

    blocks = (last - first) // size
    carry = jax.lax.fori_loop(0, blocks, block, carry)
    return jax.lax.fori_loop(first + size * blocks, last, one, carry)


def counts(method: Method) -> Known:
    """Return a method's whole numbers by their places among its numbers: the lengths of its loops, as far as they are given."""
    return tuple((i, int(leaf)) for i, leaf in enumerate(jax.tree.leaves(method)) if isinstance(leaf, int | np.integer))


class Span(NamedTuple):
    """Which rounds to run, all traced, so that nothing recompiles."""

    first: Any
    last: Any  # the first round that is not run
    every: Any = 1  # rounds between two looks
    seen: Any = True  # whether anybody looks, in a program that can


def rounds(
    method: Method, problem: Problem, keys: Keys, carry: Carry, span: Span, *,
    size: int | None, spread: Spread, many: bool, block: int = 0, look: bool = False, known: Known = (),
) -> tuple[Carry, PyTree]:  # fmt: skip
    """Run a method's rounds; return where they led, and what was seen on the way: at most `AT_ONCE` looks, or none."""
    TRACES[0] += 1  # runs only while JAX traces
    leaves, structure = jax.tree.flatten(method)
    for place, number in known:  # these are part of the program instead of its arguments
        leaves[place] = number
    method = jax.tree.unflatten(structure, leaves)

    def run(method: Method, keys: Keys, carry: Carry) -> tuple[Carry, PyTree]:
        keys = keys.written_out()

        def one(r: jax.Array, carry: Carry) -> Carry:
            directions, index, draw = keys.of_round(r)
            ids, weights = drawn(problem, draw, size)
            clock = Clock(problem, keys.private, directions, r)
            ledger = Ledger(carry.tally, {"": carry.memory})
            federation = SimulatedFederation(problem, ids, weights, clock, ledger, spread)
            state = method.round(federation, carry.state, r)
            # Once a run has failed nothing moves: the first bad state is kept, to be told about.
            good = carry.progress.first_failed_round < 0
            state = jax.tree.map(lambda new, old: jnp.where(good, new, old), state, carry.state)
            progress = carry.progress.after(index, r, state.x, method.healthy(state))
            return Carry(state, ledger.memory[""], ledger.tally, progress)

        def some(first: Any, last: Any, carry: Carry) -> Carry:
            return in_blocks(one, first, last, block, carry) if block else jax.lax.fori_loop(first, last, one, carry)

        return looking(some, method, problem, span, carry) if look else (some(span.first, span.last, carry), None)

    return (jax.vmap(run) if many else run)(method, keys, carry)


def looking(
    some: Callable[[Any, Any, Carry], Carry], method: Method, problem: Problem, span: Span, carry: Carry
) -> tuple[Carry, PyTree]:  # fmt: skip
    """Run rounds with a look after every so many; at the start, where there are none to run."""

    @jax.jit  # so that it is traced once: for its shapes, and where it is taken
    def look(carry: Carry) -> PyTree:
        away = jnp.linalg.norm(carry.progress.x_good - jnp.asarray(problem.x0))
        return monitor(method, problem, carry.state), carry.tally, away

    def part(j: Any, packed: tuple[Carry, PyTree]) -> tuple[Carry, PyTree]:
        carry, seen = packed
        first = span.first + j * span.every
        carry = some(first, jnp.minimum(first + span.every, span.last), carry)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        row = jax.lax.cond(span.seen, look, lambda _: nothing, carry)
        return carry, jax.tree.map(lambda rows, row: rows.at[j].set(row), seen, row)

    parts = jnp.maximum(1, (span.last - span.first + span.every - 1) // span.every)
    shapes = jax.eval_shape(look, carry)
    seen = jax.tree.map(lambda leaf: jnp.zeros((AT_ONCE, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, parts, part, (carry, seen))


@functools.cache
def advance(platform: str, long: bool, quick: bool = False, little: bool = False) -> Any:
    """Return the function that runs rounds, compiled for a platform; see `compiler_options`."""
    static, options = ("size", "spread", "many", "block", "look", "known"), compiler_options(platform, long, quick, little)
    return jax.jit(rounds, static_argnames=static, donate_argnames=("carry",), compiler_options=options)


def monitor(method: Method, problem: Problem, state: PyTree) -> dict[str, jax.Array]:
    """Return what the problem and the method monitor."""
    row = problem.evaluate(state.x)
    if problem.follows_projection:
        row["loss_feasible"] = problem.projected_loss(state.x, row["loss"])
    return with_metrics(row, method, state)


@functools.partial(jax.jit, static_argnames=("many",))
def evaluate(method: Method, problem: Problem, state: PyTree, *, many: bool = False) -> dict[str, jax.Array]:
    """Return the same without any rounds, of one run or of many."""
    one = functools.partial(monitor, problem=problem)
    return jax.vmap(lambda method, state: one(method, state=state))(method, state) if many else one(method, state=state)


@functools.partial(once, static=("clients", "many"))
def keys_of(key: jax.Array, *, clients: int, many: bool = False) -> Keys:
    """Return the keys that rounds are given, of one run or of many."""
    one = functools.partial(Keys.of, clients=clients)
    return jax.vmap(one)(key) if many else one(key)


@functools.partial(once, static=("many",))
def start(method: Method, problem: Problem, key: jax.Array, *, many: bool) -> Carry:
    """Return what a run starts with."""

    def one(method: Method, key: jax.Array) -> Carry:
        state = method.init(problem, key)
        return Carry(state, initial_memory(method, problem), Tally.zero(), Progress.start(state.x))

    # Copies: compiled rounds take over the buffers of their carry, so that no two may share one, nor one with the problem.
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), (jax.vmap(one) if many else one)(method, key))
