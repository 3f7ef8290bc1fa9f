"""`certify`: from a problem and a point to a certificate."""

import contextlib
import dataclasses
import math
import warnings
from typing import Any

import jax
import numpy as np

from fedrzo import engines
from fedrzo.certificates.certificate import DIFFERENT, FREE, IDENTICAL, Certificate, LowerQuality
from fedrzo.certificates.inspection import Facts, Inspection, distance_to_all
from fedrzo.certificates.interval import BLOCKS, LEAST, Outcome, SquaredNorm, adaptive, drive, estimate_square
from fedrzo.certificates.sampling import Sampling, check_numbers, check_oracle, sampling_program
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Cost, path_key
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.curvature import counting
from fedrzo.problems.questions import BY_SERVER
from fedrzo.problems.start import check_point, check_start
from fedrzo.running.run import run_key
from fedrzo.support.arguments import checked_signature
from fedrzo.support.numbers import constant

INSPECTION, NEAREST, SAMPLING = 0, 1, 2  # streams of a certificate's key
ROUNDED = 100  # units in the last place that a gradient may be off by


@checked_signature(seed="key")
def certify(
    problem: Problem,
    x: Any,
    smoothing: float,
    key: int | jax.Array = 0,
    *,
    directions: int = 1024,
    width: float | None = None,
    max_directions: int = 65_536,
    confidence: float = 0.95,
    batch_size: int | str | None = None,
    lower: Any = None,
    engine: Any = "simulation",
    threshold: float | None = None,
    oracle: str = "values",
    moreau: float | None = None,
) -> Certificate:
    """Say how good a point is, from loss values: no gradient of the upper loss is needed, and no data leave a client.

    Args:
        problem: any of the four classes.
        x: the point, such as `result.x`.
        smoothing: eta, of the smoothed problem whose stationarity is measured.
        key: a seed, or a JAX key.
        directions: how many to sample, 1,024 at least; rounded up to full blocks. Each costs two losses, or one gradient, of
            every sample.
        width: of the interval of the squared norm. If given, as many directions are drawn as that takes, in pilots that
            only plan and one fresh sample, which alone is reported; `directions` is then not used.
        max_directions: of the reported sample, 1,024 at least; if it does not suffice, the certificate says so.
        confidence: of the intervals.
        batch_size: samples per loss value; all, where they are stored.
        lower: what solves the lower level: a single-level method for `Bilevel` and `Minimax` (by default full gradient steps
            that leave rounding alone), a solver of `fz.vi` for `TwoStage` (by default the problem's `monitor`).
        engine: as for `fz.run`.
        threshold: with `width`: end with a pilot that shows the squared norm to lie above it.
        oracle: `"values"`; or `"gradients"`, at points drawn in the ball: the same norm, from far fewer of them where n is large.
            Vectors leave a client then. Only where there is no lower level.
        moreau: the parameter of the sets' Moreau term; the smoothing if not given.
    """
    point = check_point(problem, x, "x")
    problem.refuse_hidden("fz.certify")
    check_numbers(directions, width, max_directions, confidence, threshold)
    check_oracle(problem, smoothing, oracle)
    moreau = None if moreau is None else constant(moreau, "moreau")
    with problem.precision():
        with warnings.catch_warnings():  # y0 is a start for y at another x; that it lies outside Y here is no news
            warnings.filterwarnings("ignore", "y0: found")
            moved = problem.moved_to(point).inside_lower()
        with counting() as spent:
            program = sampling_program(moved, smoothing, batch_size, lower, oracle)
        check_start(moved, program)
        bench = _Bench(moved, engines.get(engine), run_key(key), program, moreau)
        bench.charge(Cost(gradients=sum(spent) + moved.measured_gradients))
        facts = bench.inspect()
        if width is None:
            size = max(math.ceil(directions / BLOCKS), LEAST)
            found = estimate_square(bench.sample(size, 0) + facts.pull, size, confidence)
            outcome = Outcome(found, "fixed", found.directions)
        else:
            rule = adaptive(width, max_directions, confidence, threshold)
            outcome = drive(rule, lambda size, stage: bench.sample(size, stage) + facts.pull)
        distance, notes = bench.nearest(facts)
    return _write(bench, facts, outcome, confidence, width, distance, notes)


class _Bench:
    """The federation at one point, and what has been spent on it."""

    def __init__(self, problem: Problem, engine: Any, key: jax.Array, program: Sampling, moreau: float | None) -> None:
        self.problem, self.engine, self.key, self.program, self.moreau = problem, engine, key, program, moreau
        self.cost = Cost()
        self.lower_error = self.size = 0.0

    def run(self, program: Any, *path: int) -> Any:
        """Run one round of a program on a stream of its own."""
        key = path_key(self.key, path)
        with contextlib.closing(self.engine.start([program], self.problem, [key], None)) as session:
            session.advance(1)
            self.charge(session.costs()[0])
            return session.states()[0]

    def charge(self, cost: Cost) -> None:
        """Add to what has been spent."""
        self.cost = self.cost.plus(**cost._asdict())

    def inspect(self) -> Facts:
        """Look at distances, the pull of the sets, and the lower level."""
        p = self.program
        plain = not is_blackbox(self.problem.loss_fn)
        return self.run(Inspection(p.smoothing, p.batch_size, p.lower, p.constants, plain, self.moreau), INSPECTION)

    def sample(self, size: int, stage: int) -> np.ndarray:
        """Return fresh blocks' means of the smoothed loss's gradient."""
        state = self.run(dataclasses.replace(self.program, repeats=size), SAMPLING, stage)
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


def _write(
    bench: _Bench, facts: Facts, outcome: Outcome, confidence: float, width: float | None, distance: float | None,
    notes: list[str],
) -> Certificate:  # fmt: skip
    problem, eta = bench.problem, float(bench.program.smoothing)
    found = _with_rounding(outcome.estimate, bench, float(facts.loss))
    norm_interval = found.norm_interval()
    lower = _lower_quality(bench, facts, eta, norm_interval) if problem.hierarchical else None
    identical, narrow = problem.sets.identical, None if width is None else found.width <= width
    notes = notes + _sampling_notes(found, outcome, width) + _lower_notes(problem, lower)
    made = Certificate(
        smoothing=eta, confidence=confidence, squared_norm=found.value, interval=(found.lower, found.upper),
        norm=math.sqrt(max(found.value, 0.0)), norm_interval=norm_interval, directions=found.directions,
        drawn=outcome.directions, width=width, narrow=narrow,
        distances=tuple(float(d) for d in facts.distances), distance=distance,
        delta=max(eta, distance) if identical and distance is not None else None,
        epsilon=None, meaning=FREE if problem.sets.free else IDENTICAL if identical else DIFFERENT,
        lower=lower, notes=tuple(notes), cost=bench.cost,
    )  # fmt: skip
    return dataclasses.replace(made, epsilon=made.upper) if identical else made


def _sampling_notes(found: SquaredNorm, outcome: Outcome, width: float | None) -> list[str]:
    if outcome.decided == "pilot":
        return ["a pilot showed the squared norm to lie above the threshold; nothing more was spent"]
    if width is None or found.width <= width:
        return []
    wide = f"the interval is {found.width:.3g} wide, not {width:.3g}"
    if outcome.decided == "capped":
        return [f"max_directions was reached: {wide}; raise it, or ask for less"]
    return [f"rounding of loss values was added: {wide}; use float64, a larger smoothing, or ask for less"]


def _lower_notes(problem: Problem, lower: LowerQuality | None) -> list[str]:
    notes = []
    if lower is not None and lower.effect is None:
        notes.append("the upper loss is a black box, so its slope in y is unknown: the lower level's effect has no bound")
    if problem.hierarchical and problem.given[0] is None:
        notes.append("the lower level's modulus was estimated near x, and its error bound is as good as that is")
    if problem.lower_solved_by == BY_SERVER and not problem.stated[-1].data.stored:
        notes.append("the lower level's residual is itself an estimate: its data are drawn on demand")
    return notes


def _with_rounding(found: SquaredNorm, bench: _Bench, loss: float) -> SquaredNorm:
    """Widen an interval by what rounding of two loss values, or of gradients, can do to the mean of so many estimates."""
    eps, problem = float(np.finfo(bench.problem.dtype).eps), bench.problem
    error = problem.dim / float(bench.program.smoothing) * eps * loss / math.sqrt(found.directions)
    if bench.program.oracle == "gradients":
        error = ROUNDED * eps * bench.size
    reach = 2 * math.sqrt(max(found.value, 0.0)) * error + error**2
    return found._replace(lower=found.lower - reach, upper=found.upper + reach, resolution=found.resolution + error**2)


def _lower_quality(bench: _Bench, facts: Facts, eta: float, norm: tuple[float, float]) -> LowerQuality:
    """Apply the bound behind the paper's Lemma on inexactness, (n/eta) L ||y - y(x)||, to the worst solve that was used."""
    slope, error = float(facts.slope), max(float(facts.error), bench.lower_error)
    residual, moved = float(facts.residual), float(facts.shift)
    if bench.program.federated:  # one y for all clients
        residual, moved = error * float(bench.program.constants.modulus), slope * error
    if not math.isfinite(slope):
        return LowerQuality(residual, error, None, None, None)
    effect = bench.problem.dim / eta * moved
    return LowerQuality(residual, error, slope, effect, min(1.0, effect / max(norm[1] - norm[0], 1e-300)))
