"""The fast engine: all clients in one compiled program, on all devices there are.

Clients are a vmapped axis, rounds and repeats are compiled loops, data are arguments. `loop.py` does the same thing client by
client and is what this engine is tested against.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Engine, Progress, Session
from fedrzo.engines.simulation.compiled import Clock, Ledger, SimulatedFederation, Tally, everyone, initial_memory
from fedrzo.engines.simulation.spread import Spread, check_chunk, spread
from fedrzo.federation.protocol import Cost, PyTree, Roots
from fedrzo.methods.base import Method
from fedrzo.methods.guards import with_metrics
from fedrzo.problems.base import Problem
from fedrzo.support.compiling import LONG, compiler_options
from fedrzo.support.keys import written_out

COHORT = 3  # the stream of the run's key that cohorts are drawn from
BLOCK = 25  # short rounds on a GPU run so many at a time: a loop of unknown length waits for the host in every pass
SHORT = 1 << 20  # numbers of all clients' x, up to which rounds are short
TRACES = [0]  # how often a run was traced: tests check that new hyper-parameters do not retrace


class Carry(NamedTuple):
    """Everything that passes from one chunk of rounds to the next; arrays only, so it can be stored."""

    state: PyTree
    memory: PyTree
    tally: Tally
    progress: Progress


def cohort(problem: Problem, key: jax.Array, r: Any, size: int | None) -> tuple[jax.Array, jax.Array]:
    """Draw who takes part in round r, without replacement; everyone if no size is given."""
    weights = jnp.asarray(problem.client_weights)
    if size is None or size == problem.clients:
        return everyone(problem), weights
    draw = jax.random.fold_in(jax.random.fold_in(key, COHORT), r)
    ids = jnp.sort(jax.random.permutation(draw, everyone(problem))[:size])
    return ids, weights[ids]


def in_blocks(one: Callable[[Any, Carry], Carry], span: tuple, carry: Carry) -> Carry:
    """Run rounds span[0] .. span[1] - 1, most of them in blocks of a length that is known when compiled."""

    def block(b: Any, carry: Carry) -> Carry:
        first = span[0] + BLOCK * b
        return jax.lax.fori_loop(0, BLOCK, lambda j, carry: one(first + j, carry), carry)

    blocks = (span[1] - span[0]) // BLOCK
    carry = jax.lax.fori_loop(0, blocks, block, carry)
    return jax.lax.fori_loop(span[0] + BLOCK * blocks, span[1], one, carry)


def _advance(
    method: Method, problem: Problem, key: jax.Array, carry: Carry, span: tuple, *,
    size: int | None, spread: Spread, many: bool, blocks: bool = False,
) -> Carry:  # fmt: skip
    """Run rounds span[0] .. span[1] - 1 of a method; both ends are traced, so that no chunk length recompiles."""
    TRACES[0] += 1  # runs only while JAX traces

    def run(method: Method, key: jax.Array, carry: Carry) -> Carry:
        key = written_out(key)
        roots = Roots.of(key)

        def one(r: jax.Array, carry: Carry) -> Carry:
            ids, weights = cohort(problem, key, r, size)
            clock = Clock(problem, roots, jax.random.fold_in(roots.directions, r), r)
            ledger = Ledger(carry.tally, {"": carry.memory})
            federation = SimulatedFederation(problem, ids, weights, clock, ledger, spread)
            state = method.round(federation, carry.state, r)
            # Once a run has failed nothing moves: the first bad state is kept, to be told about.
            good = carry.progress.first_failed_round < 0
            state = jax.tree.map(lambda new, old: jnp.where(good, new, old), state, carry.state)
            progress = carry.progress.after(key, r, state.x, method.healthy(state))
            return Carry(state, ledger.memory[""], ledger.tally, progress)

        return in_blocks(one, span, carry) if blocks else jax.lax.fori_loop(span[0], span[1], one, carry)

    return (jax.vmap(run) if many else run)(method, key, carry)


@functools.cache
def advance(platform: str, long: bool) -> Any:
    """Return what runs rounds, as compiled code for a platform, and for a long x or a short one."""
    static, options = ("size", "spread", "many", "blocks"), compiler_options(platform, long)
    return jax.jit(_advance, static_argnames=static, donate_argnames=("carry",), compiler_options=options)


@functools.partial(jax.jit, static_argnames=("many",))
def evaluate(method: Method, problem: Problem, state: PyTree, *, many: bool) -> dict[str, jax.Array]:
    """Return what the problem and the method monitor, as compiled code."""

    def one(method: Method, state: PyTree) -> dict[str, jax.Array]:
        row = problem.evaluate(state.x)
        if problem.follows_projection:
            row["loss_feasible"] = problem.projected_loss(state.x, row["loss"])
        return with_metrics(row, method, state)

    return (jax.vmap(one) if many else one)(method, state)


@functools.partial(jax.jit, static_argnames=("many",))
def _start(method: Method, problem: Problem, key: jax.Array, *, many: bool) -> Carry:
    def one(method: Method, key: jax.Array) -> Carry:
        state = method.init(problem, key)
        return Carry(state, initial_memory(method, problem), Tally.zero(), Progress.start(state.x))

    return (jax.vmap(one) if many else one)(method, key)


class SimulationSession(Session):
    """A run in progress. Everything it knows is in `carry` and `round`, both of which can be stored and restored."""

    def __init__(self, methods: list[Method], problem: Problem, keys: list[jax.Array], size: int | None, spread: Spread) -> None:
        self.many = len(methods) > 1
        self.size = size
        self.spread = spread
        clients = len(methods) * (size or problem.clients)
        self.blocks = spread.platform == "gpu" and clients * problem.dim <= SHORT
        self.method = self._place(jax.tree.map(lambda *leaves: np.stack(leaves), *methods) if self.many else methods[0])
        self.key = self._place(jnp.stack(keys) if self.many else keys[0])
        self.problem = self._place(problem)
        carry = self._place(_start(self.method, self.problem, self.key, many=self.many))
        # Copies: compiled code takes over the buffers of its carry, so no two may share one.
        self.carry = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), carry)

    def _place(self, tree: PyTree) -> PyTree:
        """Put arrays on the device, or a copy on each of several."""
        if self.spread.mesh is None:
            return jax.device_put(tree, self.spread.device)
        return jax.device_put(tree, jax.sharding.NamedSharding(self.spread.mesh, jax.sharding.PartitionSpec()))

    def advance(self, rounds: int) -> None:
        """Run some more rounds."""
        span = (np.int32(self.round), np.int32(self.round + rounds))
        self.carry = advance(self.spread.platform, self.problem.dim >= LONG)(
            self.method, self.problem, self.key, self.carry, span,
            size=self.size, spread=self.spread, many=self.many, blocks=self.blocks,
        )  # fmt: skip
        self.round += rounds

    def evaluate(self) -> dict[str, np.ndarray]:
        """Return what the problem monitors, one entry per run."""
        row = evaluate(self.method, self.problem, self.carry.state, many=self.many)
        return {name: np.atleast_1d(np.asarray(value)) for name, value in row.items()}

    def costs(self) -> list[Cost]:
        """Return the cumulative costs of each run."""
        return [Tally(low, high).cost() for low, high in zip(*map(np.atleast_2d, self.carry.tally), strict=True)]

    def states(self) -> list[PyTree]:
        """Return each run's state, on the host."""
        return self._each(self.carry.state)

    def progress(self) -> list[Progress]:
        """Return each run's record, on the host."""
        return self._each(self.carry.progress)

    def _each(self, tree: PyTree) -> list[PyTree]:
        tree = jax.tree.map(np.asarray, tree)
        if not self.many:
            return [tree]
        return [jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(self.key.shape[0])]

    def store(self) -> list[np.ndarray]:
        """Return everything that a later session needs to go on, as arrays."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.carry)]

    def restore(self, arrays: list[np.ndarray], round: int) -> None:
        """Go on from stored arrays."""
        self.carry = self._place(jax.tree.unflatten(jax.tree.structure(self.carry), arrays))
        self.round = round


class Simulation(Engine):
    """The default engine.

    Args:
        devices: the JAX devices to share the clients among; all of the default platform if not given.
        client_chunk: how many clients are at work at a time, so that memory does not grow with their number; all if not
            given. Means are then added up chunk by chunk, which rounds differently.
    """

    name = "simulation"
    side_by_side = True

    def __init__(self, devices: list[jax.Device] | None = None, client_chunk: int | None = None) -> None:
        self.devices = devices
        self.client_chunk = check_chunk(client_chunk)

    def start(
        self, methods: list[Method], problem: Problem, keys: list[jax.Array], clients_per_round: int | None
    ) -> SimulationSession:
        """Prepare a run, or several at once (other seeds, other hyper-parameters) in one compiled program."""
        devices = self.devices or jax.devices()
        ways = spread(clients_per_round or problem.clients, devices, self.client_chunk)
        return SimulationSession(methods, problem, keys, clients_per_round, ways)
