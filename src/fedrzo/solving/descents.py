"""The descents of `solve` by `QuasiNewton`: where losses have gradients, and all of the data are at hand at once.

A stage is a few rounds of one run. A descent is over where scattered points lead nowhere. Where there are sets, x is then brought
to where the Moreau term alone holds it, with a small parameter: that is the point which a certificate is about.
"""

import dataclasses
import math
import time
from typing import Any

import jax
import numpy as np

from fedrzo.engines.base import Session
from fedrzo.federation.protocol import Cost
from fedrzo.methods.descent import BALLS, SHRINK
from fedrzo.results.text import short
from fedrzo.solving.judging import FIRST, Point
from fedrzo.solving.setup import seed_of, work_of
from fedrzo.solving.stages import ALIKE, Search

FEWEST, MOST = 8, 512  # rounds of a stage
CLOSE = 1e-4  # the last parameter of the Moreau term, in units of the first
CLOSING = 200  # rounds for the way there
ROUNDS = 20_000  # of one descent, at most
# Descents from elsewhere in a row, up to so many rounds of the longest, and numbers that it works on: no clock may decide.
QUICK = ((9, 500, 1e7), (3, 1000, 1e8))
HEAVIER = 8.0  # than the first stage: a first certificate through a lower level, nearly all of it compilation


class LostError(Exception):
    """The descent cannot begin: the lower level at x0 is not solved to enough digits."""


@dataclasses.dataclass
class Descents(Search):
    """Where the search is; one run at a time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rounds, self.smoothing = FEWEST, 0.0  # the loss itself is minimised
        self.session: Session | None = None
        self.began = self.best.feasible  # where the session did
        self.seen = Cost()  # of the session, until the last look at it
        self.rested = False  # whether this descent is over
        self.descents, self.runs, self.seed = 0, 0, 0
        self.compiling = 0.0  # seconds of the first stage
        self.since = self.longest = 0  # rounds before the present descent; of the longest one

    @property
    def can_certify(self) -> bool:
        """Return whether there is time for certificates."""
        heavy = 0.0 if self.certified or not self.setup.problem.hierarchical else HEAVIER * self.compiling
        return super().can_certify and self.deadline - time.perf_counter() > heavy

    @property
    def exhausted(self) -> bool:
        """Whether scattered points led nowhere."""
        return self.rested

    @property
    def how(self) -> str:
        """What was done, in a few words."""
        descents = f"{self.descents} descent{'s' * (self.descents != 1)}"
        return f"{type(self.setup.method).__name__}, {descents} in {self.taken:,} rounds"

    @property
    def settled(self) -> str:
        """What is known of the best point beside its certificate."""
        radius = self.setup.scales.smoothing
        return f"points scattered within {short(radius / SHRINK ** (BALLS - 1))} to {short(radius)} of x led no lower"

    def firmer(self) -> bool:
        """Make the penalty larger and begin another descent at the best point; or return False if it is as large as can be."""
        if not super().firmer():
            return False
        self.close()
        self.rested, self.rounds, self.smoothing = False, FEWEST, 0.0
        return True

    def tries(self, certified: bool) -> int:
        """Return how many descents from elsewhere have to gain nothing: several while they are quick."""
        self.longest = max(self.longest, self.taken - self.since)
        work = self.longest * work_of(self.setup.problem)
        for tries, rounds, numbers in QUICK:
            if self.longest <= rounds and work <= numbers:
                return tries
        return 0 if certified else 1

    def descend_again(self) -> None:
        """Begin another descent, from a point some way off."""
        self.close()
        self.since = self.taken
        self.here = self._elsewhere(self.best)
        self.top, self.before = self.here.loss, self.best.loss
        self.rested, self.rounds = False, FEWEST

    def stage(self) -> None:
        """Run some rounds, and see where they led."""
        if self.session is None:
            self._begin(self.setup.method, self.here.feasible)
            self.descents += 1
        session: Any = self.session
        begun = time.perf_counter()
        state = self._on(session, self.setup.method, self.rounds)
        self.compiling = self.compiling or time.perf_counter() - begun
        self.stages += 1
        self.rounds = min(2 * self.rounds, MOST)
        if state is None and self.best.method is None:
            raise LostError
        if self.session is None:  # the penalty became larger
            return
        if state is None or self._over(state.descent) or session.round >= ROUNDS:
            self.rested = True
            self.close()
            if not self.setup.problem.sets.free:
                self._close_in()

    def _over(self, descent: Any) -> bool:
        """Return whether scattered points led nowhere, or a descent from elsewhere ended no lower than the best one."""
        scatters = bool(descent.scattered) or int(descent.misses) > 0
        return int(descent.rests) > 0 or (self.before < self.top and not self.gained and scatters)

    def close(self) -> None:
        """End the session, if there is one."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def _begin(self, method: Any, start: np.ndarray) -> None:
        self.runs += 1
        self.began, self.seen, self.seed = start, Cost(), seed_of(self.key, 1, self.runs)
        problem = self.setup.problem.moved_to(start)
        self.ahead.wait(method, problem)
        self.session = self.engine.start([method], problem, [jax.random.key(self.seed)], None)

    def _on(self, session: Session, method: Any, rounds: int) -> Any:
        """Run so many more rounds; return the state, None where the run was lost; keep what is better than the best."""
        before = session.round
        self._advance(session, before + rounds)
        self.taken += session.round - before
        [cost] = session.costs()
        self.cost = Cost(*(a + b - c for a, b, c in zip(self.cost, cost, self.seen, strict=True)))
        self.seen = cost
        [record], [state] = session.progress(), session.states()
        if int(record.first_failed_round) >= 0:
            return None
        x = np.asarray(state.x)
        [loss], [broken], stands = self._judge([x])
        how = (FIRST, method, self.began, session.round, self.seed, float(self.setup.problem.penalty), stands.row(0))
        found = Point(x, stands.nearest[0], float(loss), float(broken), *how)
        self.worst = max(self.worst, found.violation)
        if self.runs_away(found, self.best):
            return state
        if math.isfinite(found.loss):
            self.recent = [*self.recent, found][-4:]
            alike = ALIKE * (self.reference - self.best.loss) if method is not self.setup.method else 0.0
            if found.loss < self.best.loss + alike:
                self.best = self.here = found
        return state

    def _close_in(self) -> None:
        """Bring the best point to where sets hold it without multipliers."""
        best = self.best
        if self.late or best.method is None or float(best.method.multipliers) == 0:
            return
        moreau = CLOSE * float(self.setup.method.moreau)
        method = dataclasses.replace(self.setup.method, moreau=moreau, multipliers=0.0, stepsize=moreau * float(self.slope))
        self._begin(method, best.feasible)
        session: Any = self.session
        self._on(session, method, CLOSING)
        self.close()
