"""`certify`: from a problem and a point to a certificate."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np

from fedrzo import engines
from fedrzo.certify.certificate import DIFFERENT, FREE, IDENTICAL, Certificate, LowerQuality
from fedrzo.certify.interval import BLOCKS, LEAST, Estimate, Outcome, adaptive, drive, estimate
from fedrzo.certify.nearest import distance_to_all
from fedrzo.certify.programs import Facts, Inspection, Sampling
from fedrzo.client import FULL, check_batch_size
from fedrzo.errors import InputError
from fedrzo.federation import Cost
from fedrzo.hierarchical import Bilevel
from fedrzo.methods.base import Method, batch, constant, count
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.problems import Nonsmooth, Problem
from fedrzo.pytrees import as_float
from fedrzo.startup import check_start
from fedrzo.twostage import TwoStage, check_solver

DRAWN = 64  # samples per loss value where they are drawn on demand
ACCURATE = 1e-10  # by what factor the lower level's first error is brought down
INSPECTION, NEAREST, SAMPLING = 0, 1, 2  # streams of a certificate's key


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
) -> Certificate:
    """Say how good a point is, from loss values: no gradient of the upper loss is needed, and no data leave a client.

    Args:
        problem: any of the four classes.
        x: the point, such as `result.x`.
        smoothing: eta, of the smoothed problem whose stationarity is measured.
        key: a seed, or a JAX key.
        directions: how many to sample, 512 at least; rounded up to full blocks. Each costs two evaluations of every sample.
        width: of the interval of the squared norm. If given, as many directions are drawn as that takes, in pilots that
            only plan and one fresh sample, which alone is reported; `directions` is then not used.
        max_directions: of the reported sample; if it does not suffice, the certificate says so.
        confidence: of the intervals.
        batch_size: samples per loss value; all, where they are stored.
        lower: what solves the lower level: a single-level method for `Bilevel` and `Minimax` (by default full gradient steps
            that bring a first error down by 1e-10), a solver of `fz.vi` for `TwoStage` (by default the problem's `monitor`).
        engine: as for `fz.run`.
        threshold: stop after a pilot that shows the squared norm to lie above it.
    """
    from fedrzo.run import _key

    point = _check_point(problem, x)
    smoothing = constant(smoothing, "smoothing")
    _check_numbers(directions, width, max_directions, confidence)
    chosen = batch(_default_batch(problem) if batch_size is None else batch_size)
    check_batch_size(chosen, problem.data)
    with problem.precision():
        moved = copy.copy(problem)
        moved.x0 = point
        if problem.hierarchical:
            moved.y0 = moved.feasible_lower()  # type: ignore[attr-defined]
        program = Sampling(smoothing, 1, chosen, *_lower(moved, lower))
        check_start(moved, program)
        bench = _Bench(moved, engines.get(engine), _key(key), program)
        facts = bench.inspect()
        if width is None:
            size = max(math.ceil(directions / BLOCKS), LEAST)
            found = estimate(bench.sample(size, 0) + facts.pull, size, confidence)
            outcome = Outcome(found, "fixed", found.directions)
        else:
            rule = adaptive(width, max_directions, confidence, threshold)
            outcome = drive(rule, lambda size, stage: bench.sample(size, stage) + facts.pull)
        distance, notes = bench.nearest(facts)
    return _write(bench, facts, outcome, confidence, width, distance, notes)


class _Bench:
    """The federation at one point, and what has been spent on it."""

    def __init__(self, problem: Any, engine: Any, key: jax.Array, program: Sampling) -> None:
        self.problem, self.engine, self.key, self.program = problem, engine, key, program
        self.cost = Cost()
        self.lower_error = 0.0

    def run(self, program: Any, *path: int) -> Any:
        """Run one round of a program on a stream of its own."""
        key = functools.reduce(jax.random.fold_in, path, self.key)
        session = self.engine.start([program], self.problem, [key], None)
        session.advance(1)
        self.charge(session.costs()[0])
        return session.states()[0]

    def charge(self, cost: Cost) -> None:
        """Add to what has been spent."""
        self.cost = self.cost.plus(**cost._asdict())

    def inspect(self) -> Facts:
        """Look at distances, the pull of the sets, and the lower level."""
        p = self.program
        plain = not getattr(self.problem.loss_fn, "is_blackbox", False)
        return self.run(Inspection(p.smoothing, p.batch_size, p.lower, p.constants, plain), INSPECTION)

    def sample(self, size: int, stage: int) -> np.ndarray:
        """Return fresh blocks' means of the smoothed loss's gradient."""
        state = self.run(dataclasses.replace(self.program, repeats=size), SAMPLING, stage)
        if not np.all(np.isfinite(state.means)):
            raise InputError(
                f"x: the loss, or the lower level, is not finite within {float(self.program.smoothing):g} of it; use a smaller "
                "smoothing, or give a lower_domain"
            )
        self.lower_error = max(self.lower_error, float(state.lower_error))
        return np.asarray(state.means, np.float64)

    def nearest(self, facts: Facts) -> tuple[float | None, list[str]]:
        """Return the distance to the intersection of the sets, and what to say of it."""
        distances = np.asarray(facts.distances)
        if self.problem.sets.identical or not np.any(distances > 0):
            return float(distances.max()), []
        found = distance_to_all(self.problem, self.engine, jax.random.fold_in(self.key, NEAREST))
        self.charge(found.cost)
        if found.settled:
            return max(found.distance, float(distances.max())), []
        return None, [
            "the nearest point of all sets was not found: they have no common point, or meet at too sharp an angle"
        ]


def _write(
    bench: _Bench, facts: Facts, outcome: Outcome, confidence: float, width: float | None, distance: float | None,
    notes: list[str],
) -> Certificate:  # fmt: skip
    problem, eta = bench.problem, float(bench.program.smoothing)
    found = _with_rounding(outcome.estimate, problem, eta, float(facts.loss))
    norm_interval = found.norm_interval()
    lower = _lower_quality(bench, facts, eta, norm_interval) if problem.hierarchical else None
    if width is not None and outcome.decided == "capped":
        notes.append(
            f"max_directions was reached: the interval is {found.width:.3g} wide, not {width:.3g}; raise it, or ask for less"
        )
    if outcome.decided == "pilot":
        notes.append("a pilot showed the squared norm to lie above the threshold; nothing more was spent")
    if lower is not None and lower.effect is None:
        notes.append(
            "the upper loss is a black box, so its slope in y is unknown: the lower level's effect has no bound"
        )
    identical = problem.sets.identical
    return Certificate(
        smoothing=eta, confidence=confidence, squared_norm=found.value, interval=(found.lower, found.upper),
        norm=math.sqrt(max(found.value, 0.0)), norm_interval=norm_interval, directions=found.directions,
        drawn=outcome.directions, width=width, narrow=None if width is None else outcome.decided == "narrow",
        distances=tuple(float(d) for d in facts.distances), distance=distance,
        delta=max(eta, distance) if identical and distance is not None else None,
        epsilon=norm_interval[1] if identical else None,
        meaning=FREE if problem.sets.free else IDENTICAL if identical else DIFFERENT,
        lower=lower, notes=tuple(notes), cost=bench.cost,
    )  # fmt: skip


def _with_rounding(found: Estimate, problem: Any, eta: float, loss: float) -> Estimate:
    """Widen an interval by what rounding of two loss values can do to the mean of so many estimates."""
    dtype = np.float64 if problem.hierarchical else problem.layout.dtype
    error = problem.dim / eta * float(np.finfo(dtype).eps) * loss / math.sqrt(found.directions)
    reach = 2 * math.sqrt(max(found.value, 0.0)) * error + error**2
    return found._replace(lower=found.lower - reach, upper=found.upper + reach, resolution=found.resolution + error**2)


def _lower_quality(bench: _Bench, facts: Facts, eta: float, norm: tuple[float, float]) -> LowerQuality:
    """Apply the bound behind the paper's Lemma on inexactness, (n/eta) L ||y - y(x)||, to the worst solve that was used."""
    slope = float(facts.slope)
    error = max(float(facts.error), bench.lower_error)
    known = math.isfinite(slope)
    moved = slope * error if bench.program.federated else float(facts.shift)
    effect = bench.problem.dim / eta * moved if known else None
    share = None if effect is None else min(1.0, effect / max(norm[1] - norm[0], 1e-300))
    return LowerQuality(float(facts.residual), error, slope if known else None, effect, share)


def _lower(problem: Any, lower: Any) -> tuple[Any, Any]:
    """Return what solves the lower level, and the constants that bound its error."""
    if isinstance(problem, Nonsmooth):
        if lower is not None:
            raise InputError("lower: found one, but the problem has no lower level; leave it out")
        return None, None
    if isinstance(problem, TwoStage):
        return problem.monitor if lower is None else check_solver(lower, "lower"), None
    assert isinstance(problem, Bilevel)
    if getattr(problem.lower_fn, "is_blackbox", False):
        raise InputError(
            "lower: the lower loss is a black box; its error is bounded by gradients, so it must be JAX code"
        )
    if lower is None and not hasattr(problem.lower_data, "sizes"):
        raise InputError(
            "lower: lower data drawn on demand allow no exact solve; pass a method, such as fz.LocalSGD(), or store samples"
        )
    chosen = LocalSGD(batch_size=FULL, tolerance=ACCURATE) if lower is None else lower
    if not isinstance(chosen, Method) or not hasattr(chosen, "plan"):
        raise InputError(f"lower: found {type(chosen).__name__}; pass a method such as fz.LocalSGD() or fz.FedAC()")
    check_batch_size(getattr(chosen, "batch_size", 1), problem.lower_data)
    from fedrzo.constants import lower_level

    constants = lower_level(problem)
    if getattr(chosen, "constants", constants) is None:
        chosen = dataclasses.replace(chosen, constants=constants)  # type: ignore[type-var]
    return chosen, constants


def _default_batch(problem: Problem) -> int | str:
    return FULL if hasattr(problem.data, "sizes") else DRAWN


def _check_point(problem: Any, x: Any) -> np.ndarray:
    if not isinstance(problem, Problem):
        raise InputError(f"problem: found {type(problem).__name__}; pass fz.Nonsmooth(...) or another problem")
    leaves, structure = jax.tree.flatten(x)
    shapes = tuple(np.shape(leaf) for leaf in leaves)
    if structure != problem.layout.treedef or shapes != problem.layout.shapes:
        raise InputError(
            f"x: found shapes {shapes}, the problem's x0 has {problem.layout.shapes}; pass a point like x0"
        )
    return problem.layout.ravel(jax.tree.map(lambda leaf: as_float(leaf, "x").astype(problem.layout.dtype), x))


def _check_numbers(directions: Any, width: Any, max_directions: Any, confidence: Any) -> None:
    count(directions, "directions")
    count(max_directions, "max_directions")
    if width is not None:
        constant(width, "width")
    if constant(confidence, "confidence") >= 1:
        raise InputError(f"confidence: found {confidence!r}; pass a number between 0 and 1, such as 0.95")
