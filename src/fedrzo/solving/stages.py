"""The stages of `solve`: a few runs side by side, each with its own step, from where the last stage ended; the best goes on.

A stage has one smoothing. It is made larger while the longest step allowed is the best, and smaller once a stage gains little;
that is a descent. All stages are one compiled program, since steps, smoothings and starts are its arguments.
"""

import dataclasses
import math
import time
from typing import Any

import jax
import numpy as np

from fedrzo.engines.base import Engine, Session
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Cost
from fedrzo.problems.base import Standing
from fedrzo.results.history import History
from fedrzo.results.text import short
from fedrzo.solving.ahead import Ahead
from fedrzo.solving.judging import FIRST, LANES, Point, judged, judged_on, on_all, samples_of
from fedrzo.solving.setup import FACTOR, Setup, first_rounds, seed_of

RATIO = 10**0.5  # between the steps of two runs
UPWARDS = 2  # how many of them may be longer than the last best one
LONGEST = 1.0  # in units of the Moreau parameter, where there are sets: half of what no longer contracts
MORE, MOST = 1.5, 1000  # rounds of a stage: how many more after one that gains little, at most
LITTLE, ALIKE = 0.01, 1e-6  # of all that a descent has gained
BALLS = 3  # of radii `FACTOR` apart, from which descents elsewhere begin in turn
SMALLEST = 1e-5  # smoothing, in units of the largest
CERTIFYING, LOOKS = 10.0, 1024  # a first certificate takes some seconds to compile, and what so many looks at a stage's ends take
TOLERATED, CLEARLY = 1e-4, 0.1  # of the largest violation seen: none; one that shows too small a penalty during a descent
HARDER, RAISES = 10.0, 8  # how much larger a penalty gets, and how often at most
FAR = 1e8  # in units of the first smoothing: a problem whose loss still falls there has no answer
COMPILING = 5.0  # seconds for another program, or so
PIECE = 64  # rounds after which the clock is looked at, at most


@dataclasses.dataclass
class Search:
    """Where the search for the lowest loss is, and what it has cost."""

    setup: Setup
    engine: Engine
    key: int
    deadline: float
    ahead: Ahead

    def __post_init__(self) -> None:
        x0, scales = np.asarray(self.setup.problem.x0), self.setup.scales
        self.start = self.here = self.best = Point(x0, x0, scales.loss, scales.violation)
        # What gains are measured from; where this descent began; the lowest loss before it.
        self.reference = self.top = self.before = self.start.loss
        self.worst = self.start.violation  # that was seen
        self.smoothing = self.largest = scales.smoothing
        self.rounds, self.stages, self.taken = first_rounds(self.setup), 0, 0
        self.cost, self.history, self.recent = self.setup.cost, History(), list[Point]()  # of the last stages, their ends
        self.slope = scales.slope  # of the loss, as the last stage has seen it
        self.raised = 0  # times that the penalty was
        self.misses = 0  # descents from elsewhere, in a row, that gained nothing
        self.ended = ""  # why it is over
        self.refused = ""  # why there is no certificate
        self.judging, self.certified = 0.0, 0.0  # seconds that the last look, and the last certificates, took
        self.share = judged_on(self.setup.problem) / samples_of(self.setup.problem)  # of all scenarios: what points are judged by

    @property
    def late(self) -> bool:
        """Whether time is up, but for a last look at where the runs of a stage end."""
        return self.left <= 0

    @property
    def left(self) -> float:
        """Seconds until then, and until there is time for no more than a look by all scenarios, where that is another one."""
        settling = 0.0 if self.share == 1 else COMPILING + self.judging / self.share
        return self.deadline - self.judging - settling - time.perf_counter()

    def settle(self) -> bool:
        """Judge the last points and the start by all scenarios, where points were judged by some; tell whether they were."""
        if self.share == 1:
            return False
        problem, points = self.setup.problem, [self.start, self.best, *self.recent]
        seen = on_all(problem, np.stack([point.feasible for point in points]))
        self.cost = self.cost.plus(evaluations=len(points) * samples_of(problem))
        found = [p._replace(loss=float(seen.merits[i]), violation=float(seen.broken[i])) for i, p in enumerate(points)]
        self.start, self.best = found[0], min(found, key=lambda point: point.loss)
        return True

    @property
    def exhausted(self) -> bool:
        """Whether smaller smoothings would change nothing more, or drown in rounding."""
        eps = float(np.finfo(self.setup.problem.dtype).eps)
        rounding = 100 * eps if self.setup.method.by_gradients else eps ** (1 / 3)
        return self.smoothing < max(SMALLEST, rounding) * self.largest

    @property
    def how(self) -> str:
        """What was done, in a few words."""
        method, best = self.setup.method, self.best.method
        how = f"{type(method).__name__} by {method.oracle}, {self.stages} stages of {LANES} step sizes"
        ended = "" if best is None else f", {short(float(best.smoothing))} in the stage that found x"
        return f"{how}, smoothing {short(self.setup.scales.smoothing)} in the first stage{ended}"

    @property
    def settled(self) -> str:
        """What is known of the best point beside its certificate."""
        return ""

    def close(self) -> None:
        """Let go of what the search holds."""

    @property
    def gained(self) -> bool:
        """Whether this descent has lowered the loss by more than a little of all that was gained."""
        return self.before - self.best.loss > LITTLE * (self.reference - self.best.loss)

    @property
    def limit(self) -> float:
        """The longest step that may be tried."""
        return math.inf if self.setup.problem.sets.free else LONGEST

    @property
    def can_certify(self) -> bool:
        """Whether there is time for certificates."""
        takes = self.certified or max(CERTIFYING, LOOKS * self.judging)
        return self.best.method is not None and self.deadline - time.perf_counter() > takes

    def tries(self, certified: bool) -> int:
        """Return how many descents from elsewhere have to gain nothing before the search is over."""
        return 0 if certified else 1

    def descend_again(self) -> None:
        """Begin another descent: from the best point where the last descent gained, else from a point some way off."""
        start = self.best._replace(step=FIRST)
        if not self.gained:
            start = self._elsewhere(start)
        self.here, self.top, self.before = start, start.loss, self.best.loss
        self.smoothing = self.largest / FACTOR

    def _elsewhere(self, point: Point) -> Point:
        """Return a point some way off where the loss is finite; the point itself where there is none."""
        noise = np.random.default_rng(seed_of(self.key, 0, self.stages)).standard_normal(point.feasible.shape)
        for i in range(LANES):
            away = point.feasible + self.largest * FACTOR ** (self.misses % BALLS - i) * noise / np.linalg.norm(noise)
            [loss], [broken], stands = self._judge([away.astype(point.feasible.dtype)])
            feasible = stands.nearest[0]
            if math.isfinite(loss):
                return Point(feasible, feasible, float(loss), float(broken))
        return point

    def steps(self) -> list[float]:
        """Return the steps to try, the longest first."""
        highest = UPWARDS
        while self.here.step * RATIO**highest > self.limit * 1.001:
            highest -= 1
        return [self.here.step * RATIO ** (highest - i) for i in range(LANES)]

    def stage(self) -> None:
        """Run one stage, and settle how the next one differs."""
        steps = self.steps()
        found = self._run(steps)
        self.stages += 1
        if math.isfinite(found.loss):
            self.recent = [*self.recent, found][2 - LANES :]
        if self.runs_away(found, self.here):
            return
        self.worst = max(self.worst, found.violation)
        gain, moved = self.here.loss - found.loss, float(np.linalg.norm(found.feasible - self.here.feasible))
        if gain > 0 and moved > 0:  # where the loss has become flatter, sets need less of a pull, which leaves longer steps
            self.slope = min(max(gain / moved, self.slope / FACTOR), self.setup.scales.slope)
        # Of two points that are alike, the one of the smaller smoothing is nearer to what it stands for.
        if gain > -ALIKE * (self.top - self.here.loss):
            self.here = found
            if found.loss <= self.best.loss + ALIKE * (self.reference - self.best.loss):
                self.best = found
        if gain <= max(LITTLE * (self.top - self.here.loss), 0.0):
            if self.best.violation > max(CLEARLY * self.worst, self.unseen) and self.firmer():
                return
            self.smoothing /= FACTOR
            self.rounds = min(int(MORE * self.rounds), MOST)
        elif found.step == steps[0] and steps[0] * RATIO > self.limit:
            self.smoothing *= FACTOR
            self.largest = max(self.largest, self.smoothing)

    def runs_away(self, found: Point, before: Point) -> bool:
        """Return whether x ran far away under a penalty that was too small, and is larger now.

        Raises:
            InputError: The loss falls without end, however large the penalty is.
        """
        away = float(np.linalg.norm(found.feasible - self.start.feasible))
        if away <= FAR * self.setup.scales.smoothing or found.loss >= before.loss:
            return False
        if found.violation > 0 and self.firmer():
            return True
        where = f"to {found.loss:.3g} at a distance of {away:.2g} from x0"
        raise InputError(f"loss: it falls without end, {where}; give a constraint, or check its sign")

    @property
    def objective(self) -> float:
        """The loss at the best point, without the penalty."""
        return self.best.loss - float(self.setup.problem.penalty) * self.best.violation

    @property
    def kept(self) -> bool:
        """Whether coupling constraints hold at the best point, but for what smoothing leaves."""
        return self.best.violation <= max(TOLERATED * self.worst, self.unseen)

    @property
    def unseen(self) -> float:
        """A violation that is none: what a ten-thousandth of the first smoothing explains, or rounding."""
        return 1e-4 * self.setup.scales.breaking * self.setup.scales.smoothing + 1e-9

    def firmer(self) -> bool:
        """Make the penalty larger and begin another descent at the best point by it; or tell that it is as large as can be."""
        problem, self.raised = self.setup.problem, self.raised + 1
        if self.raised > RAISES:
            return False
        more, gap = (HARDER - 1) * float(problem.penalty), self.reference - self.best.loss
        self.setup = self.setup._replace(problem=problem.penalised(HARDER * float(problem.penalty)))
        points = [point._replace(loss=point.loss + more * point.violation) for point in (self.start, self.best, self.here)]
        self.start, self.best = points[0], min(points, key=lambda point: point.loss)
        self.here = self.best._replace(step=FIRST)
        self.top = self.before = self.best.loss
        self.reference = self.best.loss + gap
        self.smoothing = max(self.smoothing, self.largest / FACTOR)
        return True

    def _run(self, steps: list[float]) -> Point:
        """Run the lanes of a stage; return the best of where they end."""
        problem, moreau, start = self.setup.problem, self.smoothing / self.slope, self.here.feasible
        methods = [
            dataclasses.replace(self.setup.method, stepsize=step * moreau, smoothing=self.smoothing, moreau=moreau)
            for step in steps
        ]
        seeds = [seed_of(self.key, 1, self.stages, i) for i in range(LANES)]
        together = [range(LANES)] if self.engine.side_by_side else [[i] for i in range(LANES)]
        ends: list[Any] = []
        rounds: list[int] = []  # of each lane
        for lanes in together:
            chosen, keys = [methods[i] for i in lanes], [jax.random.key(seeds[i]) for i in lanes]
            session = self.engine.start(chosen, problem.moved_to(start), keys, None)
            try:
                rounds += [self._advance(session, self.rounds)] * len(lanes)
                failed = [int(record.first_failed_round) >= 0 for record in session.progress()]
                ends += [None if bad else state.x for state, bad in zip(session.states(), failed, strict=True)]
                self.cost = Cost(*map(sum, zip(self.cost, *session.costs(), strict=True)))
            finally:
                session.close()
        self.taken += sum(rounds)
        values, broken, stands = self._judge(ends)
        j = int(np.argmin(values))
        x = start if ends[j] is None else np.asarray(ends[j])
        how = (steps[j], methods[j], start, rounds[j], seeds[j], float(problem.penalty), stands.row(j))
        return Point(x, stands.nearest[j], float(values[j]), float(broken[j]), *how)

    def _advance(self, session: Session, rounds: int) -> int:
        """Run so many rounds, or those that there is time for, in pieces that grow; return how many there were."""
        piece = 1
        while session.round < rounds and not (self.late and session.round):
            begun = time.perf_counter()
            session.advance(min(piece, rounds - session.round))
            session.progress()  # which waits for the rounds: compiled code is only begun by then
            pace = max(time.perf_counter() - begun, 1e-9) / piece  # of the last rounds
            piece = max(1, min(2 * piece, PIECE, int(self.left / pace)))
        return session.round

    def _judge(self, ends: list[Any]) -> tuple[np.ndarray, np.ndarray, Standing]:
        """Return the loss and what it breaks at the projection of each end, and where it stands; count what that took."""
        problem, begun = self.setup.problem, time.perf_counter()
        found = judged(problem, ends, self.here.feasible)
        self.cost = self.cost.plus(evaluations=len(ends) * judged_on(problem))
        self.judging = time.perf_counter() - begun
        return found

    def row(self, seconds: float) -> None:
        """Write down where the search is."""
        problem = self.setup.problem
        row = {"round": self.taken, **self.cost._asdict(), "seconds": seconds, "loss": self.objective}
        if problem.coupled:
            row |= {"violation": self.best.violation, "penalty": float(problem.penalty)}
        row["feasibility"] = float(self.best.stands.distance)
        self.history.append(row | {"smoothing": self.smoothing})
