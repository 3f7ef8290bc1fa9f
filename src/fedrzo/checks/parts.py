"""The parts of a problem: the starting point, the clients' data, the sets, and constants estimated near x0."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.checks.report import NOTE, OK, Finding
from fedrzo.data.sampler import Sampler
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.mistakes import IGNORED, ignores_key
from fedrzo.sets.sublevel import Sublevel
from fedrzo.theory.estimates import Interval, ball, estimate

UNEQUAL = 10  # sizes that differ by a larger factor are worth a note
POINTS = 8  # around x0, at which Y is looked at
RADIUS = 1.0  # of the ball of those points
SLOPE_POINTS = 4  # near x0, at which slopes are estimated;
LOWER_POINTS = 2  # fewer where each takes dozens of lower solves
PAIRS, ROUGHLY = 512, 1e-3  # of points, halfway between which a convex set is looked at; relative to the distance between them
TOLERANCE = 0.01  # relative: what a given constant may be off by before it is worth a note


def start(problem: Problem) -> list[Finding]:
    """Say what x and y are."""
    found = []
    for name, layout in problem.layouts.items():
        shapes, size, dtype = [list(shape) for shape in layout.shapes], layout.size, str(layout.dtype)
        arrays = f" in {len(shapes)} arrays" if len(shapes) > 1 else ""
        text = f"{size} number{'s' * (size > 1)}{arrays}, {dtype}"
        found.append(Finding(OK, name, text, {"size": size, "shapes": shapes, "dtype": dtype}))
    return found


def data(problem: Problem, method: Method) -> list[Finding]:
    """Say what clients have, and whether they or a batch are out of proportion."""
    facts = {"clients": problem.clients}
    if isinstance(problem.data, Sampler):
        if ignores_key(problem.data):
            return [Finding(NOTE, "Sampler", IGNORED, facts)]
        return [Finding(OK, "data", f"{problem.clients} clients, whose samples are drawn when needed", facts)]
    sizes = np.asarray(problem.data.sizes)
    low, high = int(sizes.min()), int(sizes.max())
    facts |= {"smallest": low, "largest": high}
    each = f"{low}" if low == high else f"{low} to {high}"
    found = [Finding(OK, "data", f"{problem.clients} clients with {each} samples each", facts)]
    if high > UNEQUAL * low and problem.weights == "uniform":
        text = (
            f"the largest client has {high / low:.3g} times the samples of the smallest, and both count alike; pass "
            'weights="samples" if each sample should'
        )
        found.append(Finding(NOTE, "weights", text, {"ratio": high / low}))
    batch = getattr(method, "batch_size", 1)
    if isinstance(batch, int) and batch > low:
        text = f'{batch} samples are drawn, with replacement, from as few as {low}; "full" takes each of them once'
        found.append(Finding(NOTE, "batch_size", text, {"batch_size": batch, "smallest": low}))
    return found


def sets(problem: Problem, method: Method) -> list[Finding]:
    """Say which sets there are, and whether Y is empty near x0; that x0 is inside has been seen to before."""
    found = []
    if not problem.sets.free:
        shared = "one set for all clients" if problem.sets.identical else f"{problem.clients} private sets"
        found.append(Finding(OK, "constraint", f"{shared}; they have a point in common", {"kinds": len(problem.sets.groups)}))
        found += _not_convex(problem)
    if problem.lower_constrained:
        found.append(_lower_set(problem, float(getattr(method, "smoothing", None) or 0.01)))
    return found


def _not_convex(problem: Problem) -> list[Finding]:
    """Look halfway between points of sets that are given by a function, of which only the user knows that it is convex."""
    x0, rng = np.asarray(problem.x0, float), np.random.default_rng(0)
    lengths = (1 + np.abs(x0)) * 10.0 ** np.linspace(-1, 1, PAIRS)[:, None]
    ends = jnp.asarray(x0 + lengths * rng.normal(size=(2, PAIRS, x0.size)))
    for part in itertools.chain.from_iterable(member._parts() for member in problem.sets.members()):
        if not isinstance(part, Sublevel):
            continue
        inside = jax.vmap(jax.vmap(part.project))(ends)
        apart = jnp.linalg.norm(inside[0] - inside[1], axis=1)
        kept = jnp.max(jax.vmap(jax.vmap(part.violation))(inside), axis=0) <= ROUGHLY * apart
        broken = jax.vmap(part.violation)(inside.mean(axis=0))
        excess = jnp.where(kept, broken - ROUGHLY * apart, -jnp.inf)  # where no point of the set was found, nothing is known
        if excess[worst := int(jnp.argmax(excess))] > 0:
            text = (
                f"halfway between two points of a Sublevel, {apart[worst]:.3g} apart, one lies {broken[worst]:.3g} outside: "
                "the set is not convex, so that projections onto it may be wrong; state it by a convex function"
            )
            return [Finding(NOTE, "constraint", text, {"apart": float(apart[worst]), "outside": float(broken[worst])})]
    return []


def _lower_set(problem: Problem, radius: float) -> Finding:
    """Look at Y where a method will: as far from x0 as its smoothing."""
    points = jnp.asarray(ball(np.asarray(problem.x0), radius, POINTS, 0), float)
    empty = sum(problem.lower_empty(x) for x in points)
    facts = {"points": POINTS, "empty": empty, "radius": radius}
    if not empty:
        return Finding(OK, "lower_constraint", f"Y(x) is not empty at x0 and {POINTS - 1} points up to {radius:g} away", facts)
    text = (
        f"Y(x) is empty at {empty} of {POINTS} points up to {radius:g} from x0, and a run that gets there stops; give a "
        "lower_domain on which it is not, or start elsewhere"
    )
    return Finding(NOTE, "lower_constraint", text, facts)


def slope_points(problem: Problem) -> int:
    """Return the number of points near x0 at which slopes are estimated."""
    return LOWER_POINTS if problem.hierarchical else SLOPE_POINTS


def steepness(problem: Problem, key: int) -> list[Finding]:
    """Estimate the slope of the loss and, of the lower level, its modulus and smoothness."""
    if problem.lower_blackbox:
        text = "a black box has no Hessian to measure; give modulus and smoothness if you know them"
        return [Finding(OK, "lower", text)]
    with warnings.catch_warnings(record=True, action="always") as warned:
        found = estimate(problem.without_constants(), radius=RADIUS, points=slope_points(problem), key=key, warn=False)
    low, high = found.lipschitz
    of = "the loss with its lower solutions" if problem.hierarchical else "the loss"
    text = f"slopes of {of} reach {low:.3g} to {high:.3g} within {RADIUS:g} of x0 (an estimate from samples)"
    findings = [Finding(OK, "lipschitz", text, {"low": low, "high": high})]
    if warned:  # said once for each point that was looked at; once is enough
        return [*findings, Finding.of_message(NOTE, str(warned[0].message), "lower")]
    if found.modulus is None or found.smoothness is None or found.modulus.high <= 0:
        return findings  # that a map is not strongly monotone has been said by the look at the lower level
    return findings + _lower(problem, found.modulus, found.smoothness)


def _lower(problem: Problem, modulus: Interval, smoothness: Interval) -> list[Finding]:
    facts = {"modulus": list(modulus), "smoothness": list(smoothness)}
    condition = smoothness.low / modulus.high
    text = f"modulus about {modulus.high:.3g}, smoothness about {smoothness.low:.3g} in y: condition number {condition:.3g}" + (
        "" if condition < 1e4 else ", so that lower solves are slow"
    )
    found = [Finding(OK, "lower", text, facts)]
    given, largest = problem.given
    if given is not None and given > modulus.high * (1 + TOLERANCE):
        words = f"{given:.4g} was given, {modulus.high:.4g} measured on samples; lower solves trust it: give a smaller one"
        found.append(Finding(NOTE, "modulus", words, {"given": given, "measured": modulus.high}))
    if largest is not None and largest < smoothness.low * (1 - TOLERANCE):
        words = f"{largest:.4g} was given, {smoothness.low:.4g} measured on samples; steps may be too long: give a larger one"
        found.append(Finding(NOTE, "smoothness", words, {"given": largest, "measured": smoothness.low}))
    return found
