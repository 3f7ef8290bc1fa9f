"""Short rounds on a GPU, where launches, and waiting for the host, are what they cost: several rounds at a time.

What clients draw does not depend on x, so it is drawn for all of these rounds at once. A round is traced twice: first to record
what its clients would draw, for all rounds side by side; nothing else that this computes is used, so it is not compiled. Then as
a step of the loop over rounds, which takes what was recorded: what a client hands to `Client.ahead`. The random numbers are the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.client import AHEAD_TOGETHER
from fedrzo.engines.spread import Spread
from fedrzo.federation import Reply
from fedrzo.methods.base import parts
from fedrzo.pytrees import index

PyTree = Any
Step = Callable[[jax.Array, PyTree, Callable], Reply]
ROUNDS = 25  # at a time: a loop whose length is not known in advance waits for the host in every round
SHORT = 1 << 20  # numbers of all clients' x, up to which this matters; it takes compilation
# What may be drawn ahead: 25 rounds of 32 directions (`AHEAD_TOGETHER`) of four bytes a number, 420 MB.
DRAWN = 1 << 17
FEW = 64  # clients, each of which has a multiprocessor to itself
UNROLL = 5  # of these are launched at once; more take long to compile


class Pace(NamedTuple):
    """What is known, when compiled, of rounds on a GPU; elsewhere nothing is gained by it.

    Attributes:
        at_most: local steps that no round has more of; None where one block of them may not be all.
        short: whether rounds are so short that they are run several at a time.
        ahead: whether these draw ahead.
    """

    at_most: int | None = None
    short: bool = False
    ahead: bool = False


def pace_of(methods: list, problem: Any, clients: int, spread: Spread) -> Pace:
    """Return what is known of the rounds, on a GPU."""
    if spread.platform != "gpu":
        return Pace()
    clients = clients * len(methods)
    batch = max(size if isinstance(size := getattr(method, "batch_size", 1), int) else 1 for method in methods)
    whole = spread.mesh is None and spread.chunk is None and clients <= FEW
    ahead = whole and clients * max(problem.dim, batch) <= DRAWN
    return Pace(_steps_at_most(methods), clients * problem.dim <= SHORT, ahead)


def _steps_at_most(methods: list) -> int | None:
    """Return how many local steps a round has at most, in fours, since each number is compiled for; None if more than a block."""
    found = [getattr(part, "local_steps", 0) for method in methods for part in parts(method)]
    steps = [number for number in found if isinstance(number, int)]
    most = max(steps, default=0)
    return -(-most // 4) * 4 if len(steps) == len(found) and 0 < most <= AHEAD_TOGETHER else None


class Recording:
    """Keeps what the clients of a round draw, call by call."""

    def __init__(self) -> None:
        self.calls: list[list[PyTree]] = []

    def each(self, step: Step, ids: jax.Array, memories: PyTree) -> Reply:
        """Have clients step side by side, without what they would do with what they draw."""

        def one(i: jax.Array, memory: PyTree) -> tuple[Reply, list[PyTree]]:
            drawn: list[PyTree] = []
            return step(i, memory, lambda draw: drawn.append(draw())), drawn

        replies, drawn = jax.vmap(one)(ids, memories)
        self.calls.append(drawn)
        return replies


class Replaying:
    """Gives the clients of a round what was recorded for them."""

    def __init__(self, calls: list[list[PyTree]]) -> None:
        self.calls = iter(calls)

    def each(self, step: Step, ids: jax.Array, memories: PyTree) -> Reply:
        """Have clients step side by side."""

        def one(i: jax.Array, memory: PyTree, drawn: list[PyTree]) -> Reply:
            rest = iter(drawn)
            return step(i, memory, lambda draw: next(rest))

        return jax.vmap(one)(ids, memories, next(self.calls))


def short_rounds(one: Callable[..., PyTree], span: tuple, carry: PyTree, ahead: bool) -> PyTree:
    """Run rounds span[0] .. span[1] - 1, most of them several at a time.

    Args:
        one: a round, `carry = one(r, carry, tape)`; without a tape clients draw for themselves.
        span: both ends, which may be traced.
        carry: where to start.
        ahead: whether to draw ahead, where clients have something to draw.
    """

    def drawn(r: Any, carry: PyTree) -> list:
        tape = Recording()
        one(r, carry, tape)
        return tape.calls

    recorded = ahead and bool(jax.tree.leaves(jax.eval_shape(drawn, span[0], carry)))

    def alone(r: Any, carry: PyTree) -> PyTree:
        # By the same kernels as several: x must not depend, not even by rounding, on where evaluations fall.
        return one(r, carry, Replaying(drawn(r, carry)))

    def several(block: Any, carry: PyTree) -> PyTree:
        first = span[0] + ROUNDS * block
        if not recorded:
            return jax.lax.fori_loop(0, ROUNDS, lambda j, carry: one(first + j, carry), carry)
        calls = jax.vmap(lambda r: drawn(r, carry))(first + jnp.arange(ROUNDS))

        def next_round(j: Any, carry: PyTree) -> PyTree:
            return one(first + j, carry, Replaying(index(calls, j)))

        return jax.lax.fori_loop(0, ROUNDS, next_round, carry, unroll=UNROLL)

    blocks = (span[1] - span[0]) // ROUNDS
    carry = jax.lax.fori_loop(0, blocks, several, carry)
    return jax.lax.fori_loop(span[0] + ROUNDS * blocks, span[1], alone if recorded else one, carry)
