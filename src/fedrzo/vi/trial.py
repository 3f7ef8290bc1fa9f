"""A lower level looked at before a run starts: what are its constants, does a solver converge on it, reach its tolerance?"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.vi.base import Solution, Solver, reached

STEPS = 1000


def try_solver(problem: Any, x: jax.Array, xi: Any, solver: Any) -> None:
    """Raise `InputError` if a solver diverges, or stops short of its tolerance, at one x and for one scenario."""
    if getattr(solver, "steps", None) is None and getattr(solver, "tolerance", None) is not None:
        found = solve_once(problem, x, xi, solver)
        solved = bool(reached(found.y, found.residual, problem.modulus, solver.tolerance))
        if not solved or not np.isfinite(found.residual):
            raise InputError(
                f"solver: {solver!r} stopped after {int(found.steps)} steps at x0 with residual "
                f"{float(found.residual):.3g}, short of its tolerance; {_advice(problem, solver)}"
            )
        return
    lengths, size = map(np.asarray, _lengths(problem, x, xi, solver))
    early, late = lengths[STEPS // 4 : STEPS // 2].mean(), lengths[-STEPS // 4 :].mean()
    # Steps shrink under a contraction, however slow it is, down to rounding; those of a method that diverges do not.
    if not np.isfinite(late) or (late > 1e-13 * (1 + size) and late >= early * (1 - 1e-9)):
        raise InputError(
            f"solver: {solver!r} does not converge at x0: its steps went from length {early:.3g} to {late:.3g}; "
            f"{_advice(problem, solver)}"
        )


@jax.jit
def solve_once(problem: Any, x: jax.Array, xi: Any, solver: Solver) -> Solution:
    """Solve one lower level; compiled once for a problem and a kind of solver."""
    return problem.solve(x, xi, solver)


@jax.jit
def _lengths(problem: Any, x: jax.Array, xi: Any, solver: Solver) -> tuple[jax.Array, jax.Array]:
    """Return the lengths of a method's steps, and the norm of where they lead."""
    lower_set = problem.lower_set_at(x, xi)

    def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        ahead = solver.advance(lambda y: problem.map(x, y, xi), lower_set, y, problem.modulus, problem.smoothness)
        return ahead, jnp.linalg.norm(ahead - y)

    start = lower_set.project(jnp.asarray(problem.y0, float))
    last, lengths = jax.lax.scan(step, start, length=STEPS)
    return lengths, jnp.linalg.norm(last)


def _advice(problem: Any, solver: Any) -> str:
    mu, L = problem.modulus, problem.smoothness
    if getattr(solver, "stepsize", None) is None:
        return f"check modulus (mu = {mu:.3g}) and smoothness (L = {L:.3g}), or raise tolerance or max_steps"
    words, limit = solver.longest(mu, L)
    if solver.stepsize < limit:
        return f"its stepsize is below {words} = {limit:.3g}: check modulus and smoothness, or raise max_steps"
    return f"its stepsize must be below {words} = {limit:.3g}"
