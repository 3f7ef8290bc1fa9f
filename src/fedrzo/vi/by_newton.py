"""Newton's method as a solver of lower levels: a few evaluations to many digits, and small programs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.sets.base import Set
from fedrzo.support.fields import checked
from fedrzo.vi import normal_map
from fedrzo.vi.accelerated import Accelerated
from fedrzo.vi.base import Map, Solution, Solver, answer, optional, optional_whole, reached

LARGEST = 50  # entries of y up to which it is the faster solver of accurate lower levels, by its Jacobians
PATIENCE, IMPROVEMENT = 400, 0.999  # a solve ends if so many evaluations did not lower the residual by this factor
# Part of the way to the start by which the map is evaluated off y, about as much as rounding: at a bound itself, a guard such as
# `jnp.maximum(y, 0)` has half of its slope, and a point would look solved that is not.
INWARDS = 1e-14
ROUNDING = 20  # units of rounding: a residual of so much, relative to y and to the map's slope, is none


class State(NamedTuple):
    """Between two steps."""

    zero: normal_map.Zero
    projection: jax.Array  # P'(z) of the least residual
    least: jax.Array  # residual at the last improvement
    improved: jax.Array  # evaluations until then


class Linear(NamedTuple):
    """The normal map at a solution y = P(z), linearised."""

    z: jax.Array
    a: jax.Array  # the length in the map
    slope: jax.Array  # G'(y)
    projection: jax.Array  # P'(z)

    def adjoint(self, right: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return what multiplies the derivatives of a G and of P by a parameter, in the derivative of a function of y.

        `right` is that function's gradient.
        """
        jacobian = normal_map.jacobian(self.a, self.slope, self.projection)
        s = jnp.linalg.solve(jacobian.T, -self.projection.T @ right)
        return s, right - s + self.a * self.slope.T @ s


@dataclass(frozen=True, repr=False)
class Newton(Solver):
    """Newton's method on the normal map, for strongly monotone maps of few variables, symmetric or not, over any set.

    A step costs one evaluation of the map, one projection, their Jacobians and a dense linear solve. Where Newton steps do not
    lower the residual, extragradient steps follow. See `fedrzo.vi.normal_map`.

    Args:
        tolerance: stop as soon as the error bound is below it, relative to max(1, |y|).
        max_steps: give up after so many evaluations of the map.
    """

    tolerance: float = checked(optional, default=1e-8)
    max_steps: int = checked(optional_whole, default=5000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if None in (self.tolerance, self.max_steps):
            raise InputError("solver: found None; fz.vi.Newton needs tolerance and max_steps")

    def solve(self, map: Map, set: Set, y0: jax.Array, mu: Any, L: Any, k: Any = 1) -> Solution:
        """See `Solver.solve`."""
        return self.solve_and_linearise(map, set, y0, mu)[0]

    def solve_and_linearise(self, map: Map, set: Set, y0: jax.Array, mu: Any) -> tuple[Solution, Linear]:
        """Return the solution, and what its derivatives are made of; mu=None: the tolerance is of the normal map's residual."""

        def twice(y: jax.Array) -> tuple[jax.Array, jax.Array]:
            g = map(y)
            return g, g

        def unsolved(state: State) -> jax.Array:
            zero = state.zero
            going = (zero.steps < self.max_steps) & (zero.steps - state.improved < PATIENCE)
            enough = normal_map.solved(zero, ROUNDING * float(jnp.finfo(y0.dtype).eps) if mu is not None else self.tolerance)
            return going & ~(enough if mu is None else enough | reached(zero.best_y, zero.residual, mu, self.tolerance))

        def step(state: State) -> State:
            y, projection = normal_map.with_jacobian(set.project, state.zero.trial)
            slope, g = jax.jacfwd(twice, has_aux=True)(y + INWARDS * (y0 - y))
            zero = normal_map.after(state.zero, y, g, slope, projection)
            best = jnp.where(zero.residual < state.zero.residual, projection, state.projection)
            better = zero.residual < IMPROVEMENT * state.least
            least, improved = jnp.where(better, zero.residual, state.least), jnp.where(better, zero.steps, state.improved)
            return State(zero, best, least, improved)

        start = normal_map.begin(y0)
        state = State(start, start.best_slope, start.residual, start.steps)
        zero, projection, *_ = jax.lax.while_loop(unsolved, step, state)
        found = answer(zero.best_y, zero.residual, 0.0 if mu is None else mu, zero.steps)
        return found, Linear(zero.best_z, zero.best_a, zero.best_slope, projection)


def lacks_jacobians(map: Map, set: Set, y: jax.Array) -> bool:
    """Return whether JAX traces a map and a projection, but not their Jacobians: functions with a `custom_vjp` have none."""
    own = type(set).__module__.startswith("fedrzo.")  # of these, all projections have Jacobians
    parts = [map] if own else [map, set.project]
    try:
        jax.eval_shape(lambda y: [part(y) for part in parts], y)
    except Exception:  # another question says what is wrong
        return False
    try:
        jax.eval_shape(lambda y: [jax.jacfwd(part)(y) for part in parts], y)
    except TypeError:
        return True
    return False


def accurate(size: int, tolerance: float) -> Solver:
    """Return the solver for accurate lower levels of so many variables."""
    return Newton(tolerance) if size <= LARGEST else Accelerated(tolerance)
