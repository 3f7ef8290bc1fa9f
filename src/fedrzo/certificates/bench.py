"""The federation at the point of a certificate: programs that are run there, and what they cost."""

import contextlib
import dataclasses
import math
import time
from typing import Any

import jax
import numpy as np

from fedrzo.certificates.inspection import Facts, Inspection, distance_to_all
from fedrzo.certificates.interval import BLOCKS, Outcome, exact
from fedrzo.certificates.sampling import AGAIN, Sampling
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Cost, path_key
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.support.compiling import in_thread
from fedrzo.support.progress import Bar, at_once

INSPECTION, NEAREST, SAMPLING, ALONE = 0, 1, 2, 3  # streams of a certificate's key


class Bench:
    """The federation at one point, and what has been spent on it."""

    def __init__(
        self, problem: Problem, engine: Any, key: jax.Array, program: Sampling, moreau: float | None, shown: bool
    ) -> None:
        self.problem, self.engine, self.key, self.program, self.moreau = problem, engine, key, program, moreau
        self.shown = shown
        self.cost = Cost()
        self.lower_error = self.size = 0.0
        self.done = 0  # directions of all samples

    def run(self, program: Any, rounds: int, *path: int) -> Any:
        """Run a program on a stream of its own; as many rounds at a time as nobody minds waiting for."""
        key, each, most = path_key(self.key, path), getattr(program, "blocks", 0), 1
        with (
            contextlib.closing(self.engine.start([program], self.problem, [key], None)) as session,
            Bar(rounds * each, 0, self.shown and rounds > 1, "direction") as bar,
        ):
            while session.round < rounds:
                begun, some = time.perf_counter(), min(most, rounds - session.round)
                session.advance(some)
                cost = session.costs()[0]  # which waits for the rounds to end
                most = at_once(some, time.perf_counter() - begun)
                self.done += each * some
                bar.note(session.round * each)
            self.charge(cost)
            return session.states()[0]

    def compile_together(self) -> None:
        """Have the programs of `inspect` and `sample` compiled side by side, if the engine compiles any."""
        line = self.problem.dim == 1 and self.program.certain
        sampling = dataclasses.replace(self.program, blocks=AGAIN if line else BLOCKS)
        programs = [self.engine.ahead(program, self.problem) for program in (self.inspection, sampling)]
        for thread in [in_thread(compile_) for compile_ in programs if compile_ is not None]:
            thread.join()

    def charge(self, cost: Cost) -> None:
        """Add to what has been spent."""
        self.cost = self.cost.plus(**cost._asdict())

    @property
    def inspection(self) -> Inspection:
        """The program that looks at distances, the pull of the sets, and the lower level."""
        p = self.program
        plain = not is_blackbox(self.problem.loss_fn)
        return Inspection(p.smoothing, p.batch_size, p.lower, p.constants, plain, self.moreau, p.newton)

    def inspect(self) -> Facts:
        """Look at the point by that program."""
        return self.run(self.inspection, 1, INSPECTION)

    def along_the_line(self, facts: Facts) -> Outcome | None:
        """Return the squared norm where n = 1, where there are x + eta and x - eta only; None where that leaves something random.

        A black box may be noisy. So it is asked several times, and what it says must not differ by more than rounding.
        """
        if self.problem.dim > 1 or not self.program.certain:
            return None
        found = self.sample(1, 0, ALONE, AGAIN)
        accuracy = self.rounding(facts) + np.nan_to_num(self.lower_effect(facts))
        if np.ptp(found) > 4 * accuracy:
            return None
        return Outcome(exact(found + facts.pull), "exact", AGAIN)

    def sample(self, size: int, stage: int, stream: int = SAMPLING, blocks: int = BLOCKS) -> np.ndarray:
        """Return fresh blocks' means of the smoothed loss's gradient."""
        state = self.run(dataclasses.replace(self.program, blocks=blocks), size, stream, stage)
        if not np.all(np.isfinite(state.means)):
            raise InputError(
                f"x: the loss, or the lower level, is not finite within {float(self.program.smoothing):g} of it; use a smaller "
                "smoothing, or give a lower_domain"
            )
        self.lower_error = max(self.lower_error, float(state.lower_error))
        means = np.asarray(state.means, np.float64)
        self.size = max(self.size, math.sqrt(size * np.mean(np.sum(means**2, axis=1))))  # about the length of one estimate
        return means

    def nearest(self, facts: Facts) -> tuple[float | None, list[str]]:
        """Return the distance to the intersection of the sets, and what to say of it."""
        distances = np.asarray(facts.distances)
        if self.problem.sets.identical or not np.any(distances > 0):
            return float(distances.max()), []
        distance, found, cost = distance_to_all(self.problem, self.engine, jax.random.fold_in(self.key, NEAREST))
        self.charge(cost)
        if found:
            return max(distance, float(distances.max())), []
        return None, ["the nearest point of all sets was not found: they have no common point, or meet at too sharp an angle"]

    def rounding(self, facts: Facts) -> float:
        """Return by how much rounding of two loss values can move one estimate."""
        return self.problem.dim / float(self.program.smoothing) * float(np.finfo(self.problem.dtype).eps) * float(facts.loss)

    def lower_effect(self, facts: Facts) -> float:
        """Return by how much errors of y can move an estimate; not a number for a black box, whose slope in y is unknown."""
        moved = float(facts.shift)
        if self.program.federated:  # one y for all clients
            moved = float(facts.slope) * max(float(facts.error), self.lower_error)
        return self.problem.dim / float(self.program.smoothing) * moved
