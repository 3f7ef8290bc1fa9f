"""The search behind `stepsize="auto"`: candidates on a geometric grid, run for more and more rounds; see `tuning`."""

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Engine
from fedrzo.engines.simulation.compiled import Tally
from fedrzo.federation import directions
from fedrzo.federation.protocol import Cost, path_key
from fedrzo.methods.base import at
from fedrzo.problems.base import Problem
from fedrzo.results.result import Trial
from fedrzo.running.probe import LossProbe, ask, begin_below
from fedrzo.theory.problem import TINY
from fedrzo.theory.single import nonsmooth

LANES = 6  # runs at once: six candidates in the first stage, later three with two keys each
KEYS = 2  # a step may do well by chance, above all one that is nearly too long
FINE = 10**0.25  # between neighbours of the grid; the first stage takes every second one
NEAR = (0, -1, -2)  # what is tried beside the last stage's best: more rounds want shorter steps
ALIKE = 0.001  # of the gain over x0: losses that differ by less count as equal
BATCHES = 8  # of candidates in the first stage, at most; each spans three decades
PROBES = 8  # directions whose slopes tell the Lipschitz constant at x0
JUDGED, PROBED, TRIED = range(3)  # streams of the search's key


Enough = Callable[[Cost, dict[str, float]], bool]  # whether a cost, and what is seen at the best x so far, end a search


class StoppedError(Exception):
    """The user's `stop` wants no more than what was found."""


class Search:
    """The state of a search: what was tried so far, and what it cost. Stepsizes are numbered along the grid."""

    def __init__(
        self, method: Any, problem: Problem, key: jax.Array, size: int | None, engine: Engine, progress: bool = False,
        enough: Enough | None = None,
    ) -> None:  # fmt: skip
        self.method, self.problem, self.key, self.size = method, jax.device_put(problem), key, size
        self.progress = progress
        self.engine = engine
        self.enough = enough
        self.seen: dict[str, float] = {}  # what is monitored at the best x so far, where `enough` asks for it
        self.probe = LossProbe.of(method, problem)
        self.trials: list[Trial] = []
        self.cost = Cost()
        self.unit = self.loss = math.nan
        self.x: np.ndarray | None = None  # the lowest end of all, where one is below x0
        self.lowest = math.nan  # the loss there
        # At the limit itself nothing contracts: the longest candidate stays a notch of the grid below it.
        self.longest = method.longest_step(not problem.sets.free) / FINE

    def stepsize(self, i: int) -> float:
        """Return the i-th stepsize of the grid; the theory's is number 0."""
        return self.unit * FINE**i

    @property
    def top(self) -> float:
        """The number of the longest stepsize that may be tried; infinite where there is no such limit."""
        if math.isinf(self.longest):
            return math.inf
        # A unit at the limit is not to be lost by rounding.
        return math.floor(math.log(self.longest / self.unit, FINE) + 1e-9)

    def start(self, rounds: int) -> float:
        """Judge x0 and return the theory's stepsize, for the steepest client's slope along some directions."""
        problem, eta = self.problem, self.method.smoothing
        x = problem.start
        keys = [path_key(self.key, (PROBED, j)) for j in range(PROBES)]
        v = jnp.stack([directions.sphere(key, x.size, eta, x.dtype) for key in keys])
        points = jnp.concatenate([x[None], x + v, x - v])
        y = begin_below(problem, None, len(points))
        found, tally = ask(self.probe, problem, path_key(self.key, (JUDGED,)), points, y, jnp.int32(0), many=False)
        values = np.asarray(found, float)
        self._charge([tally.cost()])
        self.loss = self.lowest = float(problem.client_weights @ values[:, 0])
        plus, minus = np.split(values[:, 1:], 2, axis=1)
        # Of a linear function with gradient g, the mean square of (f(x+v) - f(x-v)) / (2 eta) is |g|^2 / n.
        squares = x.size * np.mean(((plus - minus) / (2 * eta)) ** 2, axis=1)
        steps = int(at(self.method.local_steps, np.int32(0)))
        lipschitz = max(TINY, math.sqrt(float(np.max(np.nan_to_num(squares)))))
        # All three theorems prescribe the same, within limits; those of the hierarchical ones are stricter, but for constants
        # that no loss value shows. Sets are taken to be alike. `estimates` knows more, from gradients and uncharged.
        sets = (0.0, 0.0 if problem.sets.free else 1.0)
        plan = nonsmooth(problem.clients, x.size, float(eta), lipschitz, dissimilarity=sets, budget=rounds * steps,
                         local_steps=steps)  # fmt: skip
        self.unit = min(plan.stepsize, self.longest)
        return self.unit

    def first_stage(self, rounds: int) -> tuple[int, float]:
        """Walk along the grid, from the theory's stepsize on, until the best lies between others; return it and its loss.

        While nothing is better than x0 there is no telling whether steps are too long or lose by chance, being too short: both
        ways are gone in turn.
        """
        found = self._try(self._walk(0, 0, 2, LANES), rounds)
        for turn in range(BATCHES - 1):
            best, low, high = self._best(found), min(found), max(found)
            lost = found[best] >= self.loss
            up = high + 2 <= self.top and math.isfinite(found[high])
            if up and (best == high or (lost and turn % 2 == 0)):
                found |= self._try(self._walk(high + 2, low, 2, LANES), rounds)
            elif best == low or lost:
                found |= self._try(range(low - 2 * LANES, low, 2), rounds)
            else:
                break
        return self._best(found), min(found.values())

    def stage(self, rounds: int, best: int, walk: bool) -> tuple[int, float]:
        """Try the neighbours of the last stage's best for so many rounds; return the best of them and its loss.

        Where that lies at an end, `walk` says to go on, once.
        """
        found = self._try([best + i for i in NEAR], rounds, KEYS)
        low, high = min(found), max(found)
        if walk and self._best(found) == low:
            found |= self._try(range(low - len(NEAR), low), rounds, KEYS)
        elif walk and self._best(found) == high < self.top:
            found |= self._try(self._walk(high + 1, low, 1, len(NEAR)), rounds, KEYS)
        return self._best(found), min(found.values())

    def _walk(self, first: int, low: int, stride: int, count: int) -> list[int]:
        """Return so many numbers from `first` upwards; what would be too long is made up for below `low`."""
        numbers = [i for i in range(first, first + stride * count, stride) if i <= self.top]
        return [low - stride * i for i in range(count - len(numbers), 0, -1)] + numbers

    def _best(self, found: dict[int, float]) -> int:
        """Return the shortest step of those that gained as much as any: what it leaves behind at the end is the least."""
        least = min(found.values())
        enough = least + ALIKE * max(0.0, self.loss - least)
        return min(i for i, loss in found.items() if loss <= enough)

    def _try(self, numbers: Iterable[int], rounds: int, keys: int = 1) -> dict[int, float]:
        """Run some candidates, each with so many keys, and judge where they end."""
        numbers = list(numbers)
        methods = [self.method.with_stepsize(self.stepsize(i)) for i in numbers for _ in range(keys)]
        streams = [path_key(self.key, (TRIED, j)) for _ in numbers for j in range(keys)]
        session = self.engine.start(methods, self.problem, streams, self.size)
        if self.enough is not None and not self.seen:
            self.seen = {name: float(column[0]) for name, column in session.evaluate().items()}  # at x0
        session.advance(rounds)
        lost = np.array([int(record.first_failed_round) >= 0 for record in session.progress()])
        ends = session.states()
        values = np.where(lost, np.inf, np.nan_to_num(self._judge(ends, rounds), nan=np.inf))
        losses = [float(value) for value in values.reshape(len(numbers), keys).mean(axis=1)]
        self._charge(session.costs())
        self.trials += [Trial(self.stepsize(i), rounds, loss) for i, loss in zip(numbers, losses, strict=True)]
        if values[lane := int(np.argmin(values))] < self.lowest:
            self.x, self.lowest = np.asarray(ends[lane].x), float(values[lane])
            if self.enough is not None:
                self.seen = {name: float(column[lane]) for name, column in session.evaluate().items()}
        if self.progress:
            shortest, longest = (self.stepsize(edge(numbers)) for edge in (min, max))
            tried = f"{len(numbers)} from {shortest:.3g} to {longest:.3g} for {rounds} rounds"
            print(f"stepsize: tried {tried}, loss {self.loss:.5g} to {min(losses):.5g}", file=sys.stderr, flush=True)
        if self.enough is not None and self.enough(self.cost, self.seen):
            raise StoppedError
        return dict(zip(numbers, losses, strict=True))

    def _judge(self, ends: list[Any], rounds: int) -> np.ndarray:
        """Return each run's loss; all stages, and x0, are judged on the same samples."""
        state: Any = jax.tree.map(lambda *leaves: np.stack(leaves), *ends)
        y = begin_below(self.problem, getattr(state, "y", None), len(ends))
        key, r = path_key(self.key, (JUDGED,)), jnp.int32(rounds)
        found, tally = ask(self.probe, self.problem, key, state.x[:, None], y, r, many=True)
        self._charge(Tally(low, high).cost() for low, high in zip(*map(np.asarray, tally), strict=True))
        return np.asarray(found, float)[..., 0] @ np.asarray(self.problem.client_weights, float)

    def _charge(self, costs: Iterable[Cost]) -> None:
        self.cost = Cost(*map(sum, zip(self.cost, *costs, strict=True)))
