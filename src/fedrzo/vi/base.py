"""What every solver of a lower-level variational inequality shares: its call, its answer, and how good the answer is."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.sets.base import Pytree, Set
from fedrzo.support.fields import check_fields

Map = Callable[[jax.Array], jax.Array]
SIGN = "check the sign of the map first: it must grow with y, as the gradient of a loss to be minimised does"
LEAST = 100  # units of rounding: no solve is asked to be closer


class Solution(NamedTuple):
    """What a solve returns.

    Attributes:
        y: the point.
        residual: the norm of an element of G(y) + N_Y(y), which is zero at the solution only.
        error_bound: residual / mu, at least ||y - y*|| since G + N_Y is strongly monotone too; inf where mu is not positive.
        steps: evaluations of G, each followed by a projection, and products with its derivative.
    """

    y: jax.Array
    residual: jax.Array
    error_bound: jax.Array
    steps: jax.Array


class Solver(Pytree):
    """A solver's settings: a frozen dataclass whose numbers are traced, so that new ones compile nothing.

    A solver defines `solve`, and `check` where its settings can be wrong for a problem.
    """

    def __post_init__(self) -> None:
        check_fields(self, "solver: ")

    def solve(self, map: Map, set: Set, y0: jax.Array, mu: Any, L: Any, k: Any = 1) -> Solution:
        """Solve VI(set, map).

        Args:
            map: G, a function of the flat y; strongly monotone.
            set: Y, a convex set of flat vectors.
            y0: where to start.
            mu: G's modulus of strong monotonicity.
            L: G's Lipschitz constant.
            k: the upper-level iteration, from 1 on; only `Projection` makes use of it.
        """
        raise TypeError(f"{type(self).__name__} does not define solve")

    def advance(self, map: Map, set: Set, y: jax.Array, mu: Any, L: Any) -> jax.Array:
        """Take one step of a method that has a fixed stepsize."""
        raise TypeError(f"{type(self).__name__} does not define advance")

    def plan(self, mu: float, L: float, k: int) -> tuple[float, int]:
        """Return the stepsize, and how many steps are taken at upper iteration k, where no tolerance ends a solve."""
        raise TypeError(f"{type(self).__name__} does not define plan")

    def longest(self, mu: float, L: float) -> tuple[str, float]:
        """Return, in words and as a number, the stepsize below which the theory vouches for the method."""
        raise TypeError(f"{type(self).__name__} does not define longest")

    def check(self, mu: float, L: float) -> None:
        """Refuse, or warn of, settings that do not fit these constants."""

    def __repr__(self) -> str:
        fields = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        shown = [f"{name}={value:g}" for name, value, default in fields if value is not None and value != default]
        return f"{type(self).__name__}({', '.join(shown)})"


def foresee(map: Map, set: Set, y: jax.Array, alpha: Any, g: Any = None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return P(y - alpha G(y)), the map there, and how far that point is from solving; g is G(y), where it is known.

    The last is the norm of an element of G + N_Y there: by the projection's own optimality, (y - ahead)/alpha - g is normal to
    Y at `ahead`; adding G(ahead) gives the element. The bound that follows, residual / mu, is sharper than (1 + L)/mu times the
    natural residual, and needs no L.
    """
    g = map(y) if g is None else g
    ahead = set.project(y - alpha * g, near=y)
    g_ahead = map(ahead)
    return ahead, g_ahead, jnp.linalg.norm((y - ahead) / alpha - g + g_ahead)


def answer(y: jax.Array, residual: jax.Array, mu: Any, steps: Any) -> Solution:
    """Return a solution with the error bound that its residual gives."""
    mu = jnp.asarray(mu, y.dtype)
    bound = jnp.where(mu > 0, residual / jnp.where(mu > 0, mu, 1), jnp.inf)
    return Solution(y, residual, bound, jnp.asarray(steps, jnp.int32))


def reached(y: jax.Array, residual: jax.Array, mu: Any, tolerance: Any) -> jax.Array:
    """Tell whether the error bound (the residual, where mu is not positive) is below the tolerance, relative to max(1, |y|).

    A tolerance that the precision of y does not allow counts as the least that it does. A residual that is not a number counts
    too: there is no point in going on.
    """
    mu, tolerance = jnp.asarray(mu, y.dtype), jnp.maximum(tolerance, LEAST * jnp.finfo(y.dtype).eps)
    return ~(residual > tolerance * jnp.where(mu > 0, mu, 1) * jnp.maximum(1, jnp.linalg.norm(y)))


def _positive(wanted: str, kind: Callable[[Any], Any], value: Any, argument: str) -> Any:
    if value is None or isinstance(value, jax.Array | jax.core.Tracer):
        return value
    if isinstance(value, bool | str) or np.ndim(value) != 0 or not 0 < value < np.inf or kind(value) != value:
        raise InputError(f"{argument}: found {value!r}; pass {wanted}, or None")
    return kind(value)


# Checks of fields: each returns a positive number, or None; traced values are left alone.
optional = functools.partial(_positive, "a positive number", float)
optional_whole = functools.partial(_positive, "a positive whole number", int)


def check_solver(solver: Any, argument: str) -> Solver:
    """Return a solver, or say what was found in its place."""
    if not isinstance(solver, Solver):
        raise InputError(f"{argument}: found {type(solver).__name__}; pass a solver such as fz.vi.Projection()")
    return solver


def needed_tau(mu: Any, L: Any) -> Any:
    """Return -1/ln(1 - 1/kappa^2), the least tau of the paper's Theorem 3 (iii); constants may be traced."""
    share = jnp.minimum((jnp.asarray(mu, float) / L) ** 2, 1)  # at 1 the logarithm is -inf and tau is 0
    return -1 / jnp.log1p(-share)
