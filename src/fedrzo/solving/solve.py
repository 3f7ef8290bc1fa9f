"""`solve`: from a problem to a result that says how it was found, how good it is, and what would improve it."""

import dataclasses
import math
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np

from fedrzo import engines, sets
from fedrzo.certificates import Certificate, certify
from fedrzo.engines.base import Engine
from fedrzo.errors import BlackboxError, FedrzoError, InputError
from fedrzo.federation.protocol import Cost
from fedrzo.methods import QuasiNewton
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import telling
from fedrzo.problems.mistakes import warn_of_mistakes
from fedrzo.problems.questions import BY_SERVER
from fedrzo.problems.start import check_start, feasible_start
from fedrzo.results.result import Result
from fedrzo.results.text import short
from fedrzo.running.run import run_key
from fedrzo.solving.ahead import Ahead
from fedrzo.solving.descents import Descents, LostError
from fedrzo.solving.judging import looks
from fedrzo.solving.setup import Setup, in_boxes, prepare, work_of
from fedrzo.solving.stages import Search
from fedrzo.support.arguments import checked_signature
from fedrzo.support.compiling import quickly
from fedrzo.support.interrupt import saying
from fedrzo.support.numbers import constant
from fedrzo.support.progress import is_wanted

ENOUGH = 1e-3  # of the certificate's bound at the start: what the one at the end should be at most
TIME_UP = "the time limit was reached"
CERTIFIED = "certified: the bound on the gradient has fallen to a thousandth"
ELSEWHERE = "another descent, from elsewhere, gained nothing more"
SHARE = 0.95  # of the time limit; the rest is for the lower level's answer at the end
OUTSIDE = 0.1  # distance of x from its sets that is noted, relative to the first smoothing
SMALL = 1.5e4  # numbers that one evaluation works on: below it, compilation takes most of the time
CLOSE = 1e-3  # the smoothing of a certificate where the method has none, in units of the first
CHOSEN = ("stepsize", "smoothing", "moreau", "multipliers", "batch_size", "oracle")  # fields that `solve` gives a method
Certificates = tuple[Certificate, Certificate]  # of the start, and of the best point


class NoTimeError(InputError):
    """The time limit is over before the first stage."""


class SpentError(BlackboxError):
    """A black box may not be called any more; `result` is the best point until then, None before the first stage."""

    result: Result | None = None


@checked_signature(seed="key")
def solve(
    problem: Problem,
    seconds: float = 60.0,
    key: int | jax.Array = 0,
    engine: str | Engine = "simulation",
    progress: bool | None = None,
) -> Result:
    """Solve a problem without hyper-parameters: the method, its oracle, smoothings, step sizes and rounds are found.

    Args:
        problem: any of the four classes.
        seconds: the time limit; it includes compilation and everything that is tried. Equal keys give equal runs as far
            as they go.
        key: a seed, or a JAX key.
        engine: as for `fz.run`; it must have the clients' data, since points are compared by their loss over all of them.
        progress: as for `fz.run`.

    Returns:
        The best point by its loss at the projection onto all sets, never one that is worse than the start. `result.notes` say
        what was done and how to do it again by `fz.run`; the history has a row for each stage, with the costs of all that was
        tried.
    """
    began = time.perf_counter()
    if not isinstance(problem, Problem):
        raise InputError(f"problem: found {type(problem).__name__}; pass fz.Nonsmooth(...) or another problem")
    problem.refuse_hidden("fz.solve")
    seconds, chosen = constant(seconds, "seconds"), engines.get(engine)
    if not chosen.data_at_hand:
        raise InputError(f"engine: {chosen.name!r} has no data to compare points by; solve in a simulation, or use fz.run")
    checked = run_key(key)
    seed = int(key) if isinstance(key, int | np.integer) else int(jax.random.bits(checked))
    with (
        saying("stopped before the first stage; nothing was kept: call it again"),
        problem.precision(),
        quickly(work_of(problem) <= SMALL),
    ):
        stated = in_boxes(problem)
        ahead = Ahead(chosen, stated)
        moved = feasible_start(stated)
        check_start(moved, None)
        setup = prepare(moved, seed)
        warn_of_mistakes(moved, setup.method)
        if (took := time.perf_counter() - began) >= seconds:
            raise NoTimeError(
                f"seconds: found {seconds:g}, but {took:.2g} had passed before the first stage; pass {math.ceil(4 * took)}"
            )

        def searching(setup: Setup) -> Search:
            kind = Descents if isinstance(setup.method, QuasiNewton) else Search
            search = kind(setup, chosen, seed, began + SHARE * seconds, ahead)
            search.row(took)
            return search

        def pack(certificates: Certificates | None, interrupted: bool = False) -> Result:
            return _result(search, problem, seed, seconds, chosen.name, certificates, interrupted)

        search = searching(setup)
        try:
            with telling():
                try:
                    found = _descend(search, began, is_wanted(progress))
                except LostError:
                    search.close()
                    setup = prepare(moved, seed, lanes=True)
                    spent = Cost(*map(sum, zip(search.cost, setup.cost, strict=True)))
                    search = searching(setup._replace(cost=spent))
                    found = _descend(search, began, is_wanted(progress))
                if search.settle():  # a certificate is of one point
                    found = None
                    search.row(time.perf_counter() - began)
                return pack(found)
        except SpentError as spent:
            search.ended = str(spent)
            spent.result = pack(None, interrupted=True)
            raise
        except KeyboardInterrupt:
            stopped = KeyboardInterrupt(
                f"stopped after stage {search.stages}; the exception's `result` holds the best point so far"
            )
            search.ended = "interrupted by Ctrl-C"
            stopped.result = pack(None, interrupted=True)  # type: ignore[attr-defined]
            raise stopped from None
        finally:
            search.close()


def _descend(search: Search, began: float, shown: bool) -> Certificates | None:
    """Descend until a certificate says that it is enough, descents from elsewhere gain nothing, or time is up."""
    found, of = None, None  # certificates, and of which point
    while True:
        elsewhere = search.before < search.top
        while not (search.late or search.exhausted):
            search.stage()
            search.row(time.perf_counter() - began)
            if shown:
                spent = f"{time.perf_counter() - began:.0f} s"
                print(f"stage {search.stages}, {search.taken:,} rounds: loss {short(search.objective)}, {spent}", file=sys.stderr)
        if not search.kept and not search.late and search.firmer():
            continue
        if of is not search.best:
            found, of = (certified(search, shown) if search.can_certify else None), search.best
            if found is not None:
                search.row(time.perf_counter() - began)
        search.misses = search.misses + 1 if elsewhere and not search.gained else 0
        is_enough = found is not None and enough(*found)
        if search.late or search.misses >= search.tries(is_enough):
            search.ended = CERTIFIED if is_enough else TIME_UP if search.late else ELSEWHERE
            return found
        search.descend_again()


def enough(start: Certificate, end: Certificate) -> bool:
    """Tell whether the bound on the gradient has fallen to a thousandth; one that is infinite tells nothing."""
    return math.isfinite(end.upper) and end.upper <= ENOUGH * start.upper


def certified(search: Search, shown: bool = False) -> Certificates | None:
    """Return certificates of the start and of the best point, at the smoothing that found it; None where none can be had."""
    setup, best = search.setup, search.best
    problem, method, begun = setup.problem, best.method, time.perf_counter()
    oracle = "values" if problem.hierarchical else getattr(method, "oracle", "gradients")
    smoothing = method.smoothing or CLOSE * setup.scales.smoothing
    found = []
    for x in (np.asarray(problem.x0), best.x):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = certify(problem, problem.layout.unravel(x), float(smoothing), search.key, oracle=oracle,
                               moreau=float(method.moreau), engine=search.engine, progress=shown)  # fmt: skip
        except FedrzoError as error:
            search.refused = f"there is no certificate: {error}"
            return None
        search.cost = search.cost.plus(**made.cost._asdict())
        found.append(made)
    search.certified = time.perf_counter() - begun
    return found[0], found[1]


def _result(
    search: Search, problem: Problem, seed: int, seconds: float, engine: str, certificates: Certificates | None,
    interrupted: bool = False,
) -> Result:  # fmt: skip
    setup, best = search.setup, search.best
    unravel, last = setup.problem.layout.unravel, best.method or setup.method
    sets.warn_of_error("constraint", best.stands.error, best.stands.allowed)
    y = None
    if setup.problem.lower_solved_by == BY_SERVER:
        y = setup.problem.layouts["y0"].unravel(looks(setup.problem, best.x[None]).below[0])
    spec: dict[str, Any] = {
        "problem": problem.name, "method": type(last).__name__, "key": seed, "engine": engine, "seconds": seconds,
        "stages": search.stages, "start": [float(v) for v in (setup.problem.x0 if best.start is None else best.start)],
        "call": call(search),
        "stopped": f"{search.ended}, after stage {search.stages}",
    }  # fmt: skip
    if setup.problem.layout.scale is not None:
        spec["scale"] = list(setup.problem.layout.scale)
    if certificates is not None:
        spec["certificate"] = {"at_start": certificates[0].upper, "at_end": certificates[1].upper,
                               "smoothing": certificates[1].smoothing, "confidence": certificates[1].confidence}  # fmt: skip
    remark = () if problem.remark is None else (problem.remark,)
    notes = (
        *_what_was_done(search),
        *remark,
        *_how_good(search, certificates),
        *_far_outside(search),
        *_what_would_help(search, certificates, interrupted),
    )
    return Result(unravel(best.x), unravel(best.feasible), unravel(best.x), search.taken, search.history, spec, 0.0, y,
                  search.objective, problem, notes)  # fmt: skip


def call(search: Search) -> str:
    """Return the call that repeats the stage which found the best point."""
    best = search.best
    if best.method is None:
        return ""
    names = {field.name for field in dataclasses.fields(best.method)}
    shown = {name: getattr(best.method, name) for name in CHOSEN if name in names and getattr(best.method, name) is not None}
    fields = ", ".join(f"{name}={float(v):.6g}" if isinstance(v, float) else f"{name}={v!r}" for name, v in shown.items())
    problem = search.setup.problem
    units = "" if problem.layout.scale is None else ".scaled_by(np.array(result.spec['scale']))"
    units += f".penalised({best.penalty:.6g})" if problem.coupled else ""
    return (
        f"fz.run(fz.{type(best.method).__name__}({fields}), problem{units}.moved_to(np.array(result.spec['start'])), "
        f"{best.rounds}, key={best.key})"
    )


def _what_was_done(search: Search) -> list[str]:
    setup = search.setup
    units = setup.problem.layout.scale
    alike = units is not None and min(units) == max(units)
    between = "" if units is None else f"of {short(units[0])}" if alike else f"from {short(min(units))} to {short(max(units))}"
    scaled = f", x in units {between}" if between else ""
    found = [search.how + scaled]
    found += [setup.remark] if setup.remark else []
    if search.best.method is None:
        return [*found, "nothing that was tried is better than the start, which is returned"]
    return [*found, f"the last gain came from {call(search)}"]


def _how_good(search: Search, certificates: Certificates | None) -> list[str]:
    problem, found = search.setup.problem, []
    if problem.coupled:
        found = [f"coupling constraints are broken by {short(search.best.violation)}, at a penalty of {short(problem.penalty)}"]
    found += [search.settled] if search.settled and search.exhausted else []
    if certificates is None or (lower := certificates[1].lower) is None:
        return found
    return [*found, f"lower solutions are within {short(lower.error)}"]


def _far_outside(search: Search) -> list[str]:
    """Say that x is outside of its sets by much more than rounding or a small smoothing explains."""
    best, layout = search.best, search.setup.problem.layout
    if np.linalg.norm(best.x - best.feasible) <= OUTSIDE * search.setup.scales.smoothing:
        return []
    distance = float(np.linalg.norm(layout.plain(best.x) - layout.plain(best.feasible)))
    return [f"feasibility: result.x is {short(distance)} outside of its sets, so use result.x_feasible, whose loss was compared"]


def _what_would_help(search: Search, certificates: Certificates | None, interrupted: bool) -> list[str]:
    if interrupted:
        return [] if search.share == 1 else ["the loss is over some scenarios, by which points were compared"]
    if not search.kept and search.exhausted:
        return ["the coupling constraints do not hold: no point may keep them, or start where they hold"]
    if search.setup.caveat:
        return [search.setup.caveat]
    if not search.exhausted:
        return ["more seconds would help"]
    if certificates is None:
        late = "no time was left for a certificate: more seconds, or fz.certify"
        return [search.refused or late] if search.best.method is not None else []
    if not enough(*certificates) and not search.settled:
        return ["the bound has not fallen to a thousandth: another key, or another x0, may lead further down"]
    return []
