"""The fast engine: all clients in one compiled program, on all devices there are.

Clients are a vmapped axis, rounds and repeats are compiled loops, data are arguments. `loop.py` does the same thing client by
client and is what this engine is tested against.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Engine, Look, Progress, Session
from fedrzo.engines.simulation.compiled import Tally
from fedrzo.engines.simulation.rounds import AT_ONCE, BLOCK, Span, advance, counts, evaluate, keys_of, start
from fedrzo.engines.simulation.spread import Spread, spread, worth_using
from fedrzo.errors import InputError
from fedrzo.federation.client import FULL
from fedrzo.federation.protocol import Cost, PyTree
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.questions import BY_SERVER
from fedrzo.support.compiling import LITTLE, LONG, QUICK
from fedrzo.support.cores import cores
from fedrzo.support.known import known


class SimulationSession(Session):
    """A run in progress. Everything it knows is in `carry` and `round`, both of which can be stored and restored."""

    looks_at_once = AT_ONCE
    looking = False  # whether it has been looked at: such a session's program can look, others are spared its compilation

    def __init__(self, methods: list[Method], problem: Problem, keys: list[jax.Array], size: int | None, spread: Spread) -> None:
        self.many = len(methods) > 1
        self.size = size
        self.quick, self.little = QUICK.get(), _numbers(methods[0], problem) <= LITTLE
        self.spread = spread
        # A GPU is to know how long loops are; a CPU gains nothing by it, and a sweep over local steps compiles once.
        self.on_gpu = spread.platform == "gpu"
        self.known = counts(methods[0]) if self.on_gpu and not self.many else ()
        self.method = self.spread.place(_stacked(methods, problem.dtype) if self.many else methods[0])
        self.key = self.spread.place(jnp.stack(keys) if self.many else keys[0])
        kept = problem if problem.data.stored else known(problem, "samples kept", problem.keeping_samples)
        self.problem = self.spread.place(kept)
        self.keys = self.spread.place(keys_of(self.key, clients=problem.clients, many=self.many))
        self.carry = self.spread.place(start(self.method, self.problem, self.key, many=self.many))

    def advance(self, rounds: int) -> None:
        """Run some more rounds; where somebody looks now and then, by the program that can."""
        self._advance(rounds, max(1, rounds), seen=False)

    def looks(self, every: int, count: int) -> list[Look]:
        """Run so many rounds so many times, in one program, and return what is seen after each."""
        assert count <= AT_ONCE
        before, seen = self.round, self._seen(every * count, every)
        return [_look(before + (j + 1) * every, seen, j) for j in range(count)]

    def look(self) -> Look:
        """Return what is seen now; by the program that runs rounds, which is needed anyway."""
        return _look(self.round, self._seen(0, 1), 0)

    def _seen(self, rounds: int, every: int) -> Any:
        """Run rounds; return what is seen on the way, on the host, with a place and a run in front."""
        self.looking = True
        seen = jax.tree.map(np.asarray, self._advance(rounds, every, seen=True))
        return jax.tree.map(lambda leaf: np.moveaxis(leaf, 0, 1) if self.many else leaf[:, None], seen)

    def _advance(self, rounds: int, every: int, seen: bool) -> PyTree:
        program, arguments, static = self._call(rounds, every, seen)
        self.carry, found = program(*arguments, **static)
        self.round += rounds
        return found

    def lowered(self) -> Any:
        """Return the program of rounds, traced; once it is compiled, `advance` finds it."""
        program, arguments, static = self._call(0, 1, seen=False)
        return program.lower(*arguments, **static)

    def _call(self, rounds: int, every: int, seen: bool) -> tuple[Any, tuple, dict[str, Any]]:
        """Return the function that runs so many rounds, and its arguments."""
        span = Span(np.int32(self.round), np.int32(self.round + rounds), np.int32(every), np.bool_(seen))
        static = {
            "size": self.size, "spread": self.spread, "many": self.many, "look": self.looking, "known": self.known,
            "block": min(self.every or BLOCK, BLOCK) if self.on_gpu else 0,
        }  # fmt: skip
        program = advance(self.spread.platform, self.problem.dim >= LONG, self.quick, self.little)
        return program, (self.method, self.problem, self.keys, self.carry, span), static

    def evaluate(self) -> dict[str, np.ndarray]:
        """Return what the problem monitors, one entry per run."""
        row = evaluate(self.method, self.problem, self.carry.state, many=self.many)
        return {name: np.atleast_1d(np.asarray(value)) for name, value in row.items()}

    def costs(self) -> list[Cost]:
        """Return the cumulative costs of each run."""
        return _costs(*map(np.atleast_2d, self.carry.tally))

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
        self.carry = self.spread.place(jax.tree.unflatten(jax.tree.structure(self.carry), arrays))
        self.round = round


def _stacked(methods: list[Method], dtype: np.dtype) -> Any:
    """Return one method whose numbers have an entry per run, in the precision of x, as a plain number takes it on."""

    def stack(*leaves: Any) -> np.ndarray:
        return np.stack(leaves).astype(dtype) if all(isinstance(leaf, float) for leaf in leaves) else np.stack(leaves)

    return jax.tree.map(stack, *methods)


def _numbers(method: Method, problem: Problem) -> float:
    """Return the entries of x, or of y if there are more, times the samples in all clients' batches."""
    largest = max(layout.size for layout in problem.layouts.values())
    batch = getattr(method, "batch_size", FULL)
    samples = problem.clients * batch if batch != FULL else problem.data.samples
    below = problem.stated[-1].data
    return float(largest * max(samples, below.samples if below.stored and problem.lower_solved_by == BY_SERVER else 0))


def _look(round: int, seen: tuple[dict[str, np.ndarray], Tally, np.ndarray], j: int) -> Look:
    """Return the look at one place of what was seen."""
    metrics, tally, away = seen
    columns = {name: values[j] for name, values in metrics.items()}
    return Look(round, columns, _costs(tally.low[j], tally.high[j]), float(away[j, 0]), {})


def _costs(lows: Any, highs: Any) -> list[Cost]:
    return [Tally(low, high).cost() for low, high in zip(lows, highs, strict=True)]


class Simulation(Engine):
    """The default engine.

    Args:
        devices: the JAX devices to share the clients among. If not given, all GPUs; on a CPU, which the command line makes a
            device for each core, and `JAX_NUM_CPU_DEVICES` elsewhere, all of them where a round is long enough for it.
        client_chunk: how many clients are at work at a time, so that memory does not grow with their number; all if not
            given. Means are then added up chunk by chunk, which rounds differently.
    """

    name = "simulation"
    side_by_side = True

    def __init__(self, devices: list[jax.Device] | None = None, client_chunk: int | None = None) -> None:
        chunk = client_chunk
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
            raise InputError(f"client_chunk: found {chunk!r}; pass a whole number of at least 1, or None for all at once")
        self.devices = devices
        self.client_chunk = chunk

    def start(
        self, methods: list[Method], problem: Problem, keys: list[jax.Array], clients_per_round: int | None
    ) -> SimulationSession:
        """Prepare a run, or several at once (other seeds, other hyper-parameters) in one compiled program."""
        participants = clients_per_round or problem.clients
        devices = self.devices or worth_using(problem, participants, jax.devices())
        ways = spread(participants, devices, self.client_chunk)
        session = SimulationSession(methods, problem, keys, clients_per_round, ways)
        many, on_cpu = cores(), ways.platform == "cpu"
        if on_cpu and not self.devices and len(worth_using(problem, participants, jax.devices()[:1] * many)) > jax.device_count():
            how = f"JAX_NUM_CPU_DEVICES={many}, set before Python starts, shares clients among them"
            session.hint = f"JAX has {jax.device_count()} device(s) for {many} cores: {how}"
        return session

    def ahead(self, method: Method, problem: Problem) -> Callable[[], Any]:
        """Trace the rounds of a run; return what compiles them, which JAX does without Python's lock."""
        compile_: Callable[[], Any] = self.start([method], problem, [jax.random.key(0)], None).lowered().compile
        return compile_
