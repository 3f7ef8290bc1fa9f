"""`certify`: from a problem and a point to a certificate."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import numpy as np

from fedrzo import engines
from fedrzo.certificates.bench import Bench
from fedrzo.certificates.certificate import DIFFERENT, FREE, IDENTICAL, Certificate, LowerQuality
from fedrzo.certificates.inspection import Facts
from fedrzo.certificates.interval import BLOCKS, LEAST, Outcome, SquaredNorm, adaptive, drive, fixed, least_for
from fedrzo.certificates.sampling import check_numbers, check_oracle, sampling_program
from fedrzo.federation.client import FULL
from fedrzo.federation.protocol import Cost
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import counting
from fedrzo.problems.questions import BY_SERVER
from fedrzo.problems.start import check_point, check_start
from fedrzo.running.run import run_key
from fedrzo.support.arguments import checked_signature
from fedrzo.support.interrupt import saying
from fedrzo.support.known import known
from fedrzo.support.numbers import constant
from fedrzo.support.progress import is_wanted

ROUNDED = 100  # units in the last place that a gradient may be off by


@checked_signature(seed="key")
def certify(
    problem: Problem,
    x: Any,
    smoothing: float,
    key: int | jax.Array = 0,
    *,
    directions: int | None = None,
    width: float | None = None,
    max_directions: int = 65_536,
    confidence: float = 0.95,
    batch_size: int | str | None = None,
    lower: Any = None,
    engine: Any = "simulation",
    threshold: float | None = None,
    oracle: str = "values",
    moreau: float | None = None,
    progress: bool | None = None,
) -> Certificate:
    """Say how good a point is, from loss values: no gradient of the upper loss is needed, and no data leave a client.

    Args:
        problem: any of the four classes.
        x: the point, such as `result.x`.
        smoothing: eta, of the smoothed problem whose stationarity is measured.
        key: a seed, or a JAX key.
        directions: how many to sample, rounded up to full blocks. If not given, and at least: what gives an interval of the same
            relative width for every n, 256 where n = 2, 1,024 where n is large. Each costs two losses, or one gradient, of every
            sample. Where n = 1 there is one direction, and nothing is left to chance unless losses are noisy or sampled.
        width: of the interval of the squared norm. If given, as many directions are drawn as that takes, in pilots that
            only plan and one fresh sample, which alone is reported; `directions` is then not used.
        max_directions: of the reported sample, but no fewer than above; if it does not suffice, the certificate says so.
        confidence: of the intervals.
        batch_size: samples per loss value; all, where they are stored.
        lower: what solves the lower level: a single-level method for `Bilevel` and `Minimax` (by default Newton steps, or full
            gradient steps if there are no second derivatives or y is long), a solver of `fz.vi` for `TwoStage` (by default the
            problem's `monitor`).
        engine: as for `fz.run`.
        threshold: with `width`: end with a pilot that shows the squared norm to lie above it.
        oracle: `"values"`; or `"gradients"`, at points drawn in the ball: the same norm, from far fewer of them where n is large.
            Vectors leave a client then. Only where there is no lower level.
        moreau: the parameter of the sets' Moreau term; the smoothing if not given.
        progress: as for `fz.run`.
    """
    point = check_point(problem, x, "x")
    problem.refuse_hidden("fz.certify")
    check_numbers(directions, width, max_directions, confidence, threshold)
    check_oracle(problem, smoothing, oracle)
    moreau = None if moreau is None else constant(moreau, "moreau")
    bench = None
    with saying(lambda: _stopped(bench)), problem.precision():
        with warnings.catch_warnings():  # y0 is a start for y at another x; that it lies outside Y here is no news
            warnings.filterwarnings("ignore", "y0: found")
            moved = problem.moved_to(point).inside_lower()
        with counting() as spent:
            program = sampling_program(moved, smoothing, batch_size, lower, oracle)
        check_start(moved, program)
        bench = Bench(moved, engines.get(engine), run_key(key), program, moreau, is_wanted(progress))
        bench.charge(Cost(gradients=sum(spent) + moved.measured_gradients))
        # Once for a problem: the next certificate finds the programs, and starting a session for each would only take time.
        known(problem, ("compiled together", type(bench.engine), oracle, batch_size, type(lower)), bench.compile_together)
        facts = bench.inspect()
        # Estimates from few samples each may be anything but normal, however few dimensions there are.
        least = least_for(moved.dim) if program.batch_size == FULL else LEAST
        if width is None:
            rule = fixed(max(math.ceil((directions or 0) / BLOCKS), least), confidence)
        else:
            rule = adaptive(width, max_directions, confidence, threshold, least)
        sample = lambda size, stage: bench.sample(size, stage) + facts.pull  # noqa: E731
        outcome = bench.along_the_line(facts) or drive(rule, sample)
        distance, notes = bench.nearest(facts)
    return _write(bench, facts, outcome, confidence, width, distance, notes)


def _stopped(bench: Bench | None) -> str:
    return f"stopped after {0 if bench is None else bench.done:,} directions of a certificate; nothing was kept: call it again"


def _write(
    bench: Bench, facts: Facts, outcome: Outcome, confidence: float, width: float | None, distance: float | None,
    notes: list[str],
) -> Certificate:  # fmt: skip
    problem, eta = bench.problem, float(bench.program.smoothing)
    found = _with_rounding(outcome.estimate, bench, facts)
    norm_interval = found.norm_interval()
    lower = _lower_quality(bench, facts, norm_interval) if problem.hierarchical else None
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
    if outcome.decided == "exact":
        return ["n = 1: there is one direction and its opposite, and nothing random is left; the interval holds rounding alone"]
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


def _with_rounding(found: SquaredNorm, bench: Bench, facts: Facts) -> SquaredNorm:
    """Widen an interval by what rounding of two loss values, or of gradients, can do to the mean of so many estimates."""
    error = bench.rounding(facts) / math.sqrt(found.directions)
    if bench.program.oracle == "gradients":
        error = ROUNDED * float(np.finfo(bench.problem.dtype).eps) * bench.size
    reach = 2 * math.sqrt(max(found.value, 0.0)) * error + error**2
    return found._replace(lower=found.lower - reach, upper=found.upper + reach, resolution=found.resolution + error**2)


def _lower_quality(bench: Bench, facts: Facts, norm: tuple[float, float]) -> LowerQuality:
    """Apply the bound behind the paper's Lemma on inexactness, (n/eta) L ||y - y(x)||, to the worst solve that was used."""
    slope, error = float(facts.slope), max(float(facts.error), bench.lower_error)
    residual = error * float(bench.program.constants.modulus) if bench.program.federated else float(facts.residual)
    if not math.isfinite(slope):
        return LowerQuality(residual, error, None, None, None)
    effect = bench.lower_effect(facts)
    return LowerQuality(residual, error, slope, effect, min(1.0, effect / max(norm[1] - norm[0], 1e-300)))
