"""A solver tried on the lower levels of a two-stage problem: does it converge, reach its tolerance, what does it leave undone?"""

import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError, warn
from fedrzo.problems.inputs import PyTree
from fedrzo.problems.loading import at_hand
from fedrzo.problems.scenarios import measure
from fedrzo.problems.two_stage import TwoStage
from fedrzo.support.compiling import once
from fedrzo.vi.base import Solver, reached
from fedrzo.vi.spectrum import Constants

STEPS = 1000
NEAR = 1e-3  # a miss of the tolerance that is as small as this is worth a warning, not a refusal


def try_solver(problem: TwoStage, solver: Solver) -> None:
    """Refuse a solver that diverges, or misses its tolerance by far, at x0 on the scenarios with the worst constants."""
    problem = at_hand(problem)
    with problem.precision():
        x = problem.into_domain(problem.project(problem.start))
        measured = measure(problem, x)
        measured.check_nonempty(x)
        if problem.estimated:
            problem = copy.copy(problem)
            problem.take_constants(measured)
        for xi, client in measured.worst:
            _try(problem, x, xi, client, solver)


def _try(problem: TwoStage, x: jax.Array, xi: PyTree, client: int, solver: Any) -> None:
    """Refuse a solver that diverges, or stops far from its tolerance, at one x and for one scenario of a client."""
    if getattr(solver, "steps", None) is None and getattr(solver, "tolerance", None) is not None:
        steps, residual, there, near = map(np.asarray, _ended(problem, x, xi, solver, client))
        finite = np.isfinite(residual)
        if finite and there:
            return
        if finite and near:
            mu = float(problem.constants_of(client).mu)
            close = float(residual) / (mu if mu > 0 else 1.0)
            warn(f"solver: {solver!r} comes within {close:.1g} of y at x0, no closer; tolerance={3 * close:.1g} saves steps")
            return
        raise InputError(
            f"solver: {solver!r} stopped after {int(steps)} steps at x0 with residual "
            f"{float(residual):.3g}, short of its tolerance; {_advice(problem, client, solver)}"
        )
    lengths, size = map(np.asarray, _lengths(problem, x, xi, client, solver))
    early, late = lengths[STEPS // 4 : STEPS // 2].mean(), lengths[-STEPS // 4 :].mean()
    # Steps shrink under a contraction, however slow it is, down to rounding; those of a method that diverges do not.
    if not np.isfinite(late) or (late > 1e-13 * (1 + size) and late >= early * (1 - 1e-9)):
        raise InputError(
            f"solver: {solver!r} does not converge at x0: its steps went from length {early:.3g} to {late:.3g}; "
            f"{_advice(problem, client, solver)}"
        )


@once
def _ended(problem: TwoStage, x: jax.Array, xi: PyTree, solver: Any, client: Any) -> tuple[jax.Array, ...]:
    """Return the steps and the residual at the end of a solve, and whether its tolerance, and a rough one, were reached."""
    found, mu = problem.solve(x, xi, solver, client=client), problem.constants_of(client).mu
    ends = (reached(found.y, found.residual, mu, tolerance) for tolerance in (solver.tolerance, NEAR))
    return found.steps, found.residual, *ends


class Left(NamedTuple):
    """What a solver leaves of the way to the solution: a bound on the distance, and the share of the first step's length."""

    error: float
    share: float


def left_by(problem: TwoStage, solver: Solver, x: np.ndarray, k: int) -> Left:
    """Return what a solver leaves undone at a flat x and upper iteration k, on the scenarios with the worst constants."""
    problem = at_hand(problem)
    with problem.precision():
        point = problem.into_domain(jnp.asarray(x, float))
        found = measure(problem, point)
        left = []
        for xi, client in found.worst:
            here = Constants(float(found.mu[client]), float(found.L[client]))
            left.append(_left_after(problem, point, xi, client, solver, k, here))
        return Left(*map(max, zip(*left, strict=True)))


def _left_after(problem: TwoStage, x: jax.Array, xi: PyTree, client: int, solver: Any, k: int, here: Constants) -> Left:
    """Return what a solver leaves undone at one x and for one scenario of a client.

    Its steps are made of the client's constants, the bound of those `here`, at x.
    """
    if not here.mu > 0:
        return Left(np.inf, 0.0)
    if type(solver).plan is Solver.plan and getattr(solver, "tolerance", None) is None:
        return Left(0.0, 0.0)  # a solver of the user's own, of whose steps nothing is known
    if getattr(solver, "steps", None) is None and getattr(solver, "tolerance", None) is not None:
        return Left(float(_ended(problem, x, xi, solver, client)[1]) / here.mu, 0.0)
    alpha, steps = solver.plan(*map(float, problem.constants_of(client)), k)
    lengths = np.maximum(np.asarray(_lengths(problem, x, xi, client, solver)[0]), np.finfo(float).tiny)
    next_step = lengths[min(steps, STEPS - 1)]
    if steps >= STEPS:  # not walked to the end: steps go on shrinking as they did
        next_step *= min(1.0, (lengths[-1] / lengths[STEPS // 2]) ** (1 / (STEPS // 2))) ** (steps - STEPS)
    # Where the next step is of length r, ||y - y*|| <= (1 + alpha L) / (alpha mu) r.
    return Left((1 + alpha * here.L) / (alpha * here.mu) * next_step, float(next_step / lengths[0]))


@once
def _lengths(problem: TwoStage, x: jax.Array, xi: PyTree, client: Any, solver: Solver) -> tuple[jax.Array, jax.Array]:
    """Return the lengths of a method's steps, and the norm of where they lead."""
    lower_set = problem.lower_set_at(x, xi)

    def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        ahead = solver.advance(lambda y: problem.map(x, y, xi), lower_set, y, *problem.constants_of(client))
        return ahead, jnp.linalg.norm(ahead - y)

    start = lower_set.project(problem.start_below)
    last, lengths = jax.lax.scan(step, start, length=STEPS)
    return lengths, jnp.linalg.norm(last)


def _advice(problem: TwoStage, client: int, solver: Any) -> str:
    mu, L = map(float, problem.constants_of(client))
    if getattr(solver, "stepsize", None) is None:
        return f"check modulus (mu = {mu:.3g}) and smoothness (L = {L:.3g}), or raise tolerance or max_steps"
    words, limit = solver.longest(mu, L)
    if solver.stepsize < limit:
        return f"its stepsize is below {words} = {limit:.3g}: check modulus and smoothness, or raise max_steps"
    return f"its stepsize must be below {words} = {limit:.3g}"
