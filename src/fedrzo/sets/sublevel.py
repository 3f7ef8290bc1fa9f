"""Sets given by smooth convex inequalities, and the projection onto them by Newton steps."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedrzo.errors import InputError
from fedrzo.sets.base import Set, missed, norm, numbers
from fedrzo.sets.solver import shortest_move, unit_rows
from fedrzo.support.arguments import call_user, check_function, describe

STEPS = 60  # of Newton's method, at most; five to ten are usual
HALVINGS = 20  # of a step


class Iterate(NamedTuple):
    """Where the projection is."""

    steps: Array
    y: Array
    multipliers: Array
    moved: Array  # the length of the last step


@dataclass(frozen=True, eq=False, repr=False)
class Sublevel(Set):
    """The points where `g(x, *parameters) <= 0`: one smooth convex function of the flat vector x, or several in an array.

    Projected onto by Newton steps on the conditions of optimality, each a small quadratic program: within 1e-6 of the distance
    moved, which a bound tells; a call outside compiled code warns where it is not. It takes the matrix of second derivatives,
    so that x should have hundreds of entries at most. A function that is not convex is not noticed: its set need not be either.

    Attributes:
        g: The function, in JAX.
        parameters: Numbers that it takes besides; what depends on an upper variable goes here.
    """

    g: Callable = field(metadata={"static": True})
    parameters: tuple
    units: Any  # of x, one for each entry; None where all are one

    def __init__(self, g: Callable, *parameters: Any, units: Any = None) -> None:
        check_function(g, "Sublevel: g")
        self._store(g=g, parameters=tuple(numbers(p, "Sublevel: parameters") for p in parameters), units=units)

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError` unless the function takes `n` entries and returns real numbers."""
        call = f"g(x{', ...' if self.parameters else ''})"
        flat = jnp.zeros(n) if self.units is None else jnp.zeros(n) * self.units
        found = call_user(functools.partial(jax.eval_shape, self.g), "Sublevel: g", call, flat, *self.parameters, wrap=True)
        if not jax.tree_util.all_leaves([found]) or not jnp.issubdtype(found.dtype, jnp.floating):
            raise InputError(
                f"{argument}: Sublevel has g that returns {describe(found)}; return numbers that are to be at most 0"
            )

    def _values(self, x: Array) -> Array:
        flat = x if self.units is None else x * jnp.asarray(self.units, x.dtype)
        values = self.g(flat, *(jnp.asarray(p, x.dtype) for p in self.parameters))
        return jnp.ravel(values).astype(x.dtype)  # constants of the user's may be of a wider type

    def _violation(self, x: Array) -> Array:
        """Return the largest value above zero over its slope, which is about the distance."""
        values, slopes = self._values(x), jax.vmap(norm)(jax.jacobian(self._values)(x))
        return jnp.max(jnp.maximum(values, 0) / jnp.maximum(slopes, float(jnp.finfo(x.dtype).tiny) ** 0.5), initial=0)

    def _project(self, x: Array) -> Array:
        return _found(self, x)[0]

    def _nearest(self, x: Array, near: Array | None = None) -> tuple[Array, Array]:
        return _found(self, x)[0], lax.stop_gradient(self._error(*lax.stop_gradient((x, *_found(self, x)))))

    def _error(self, x: Array, y: Array, u: Array) -> Array:
        """Bound the way to the nearest point: |y - x|^2/2 + u g(y) is strongly convex: its slope and what u g(y) lacks tell."""
        values, J = self._values(y), jax.jacobian(self._values)(y)
        slope, gap = y - x + J.T @ u, jnp.maximum(-jnp.vdot(u, values), 0)
        error = jnp.sqrt(jnp.vdot(slope, slope) + 2 * gap) + missed(x, y, self._violation(y))
        return jnp.where(jnp.all(self._values(x) <= 0), 0, error)

    def _hessian(self, y: Array, u: Array) -> Array:
        """Return the second derivative of |y - x|^2/2 + u g(y)."""
        return jnp.eye(y.size, dtype=y.dtype) + jax.hessian(lambda y: jnp.vdot(u, self._values(y)))(y)

    def _newton(self, x: Array, y: Array, u: Array) -> Array:
        """Return Newton's step on the rows with multipliers; at y it is none, its derivatives are the projection's."""
        values, J = self._values(y), jax.jacobian(self._values)(y)
        factor = jax.scipy.linalg.cho_factor(lax.stop_gradient(self._hessian(y, u)))
        active = (u > 0).astype(y.dtype)
        held, solve = active[:, None] * J, lambda v: jax.scipy.linalg.cho_solve(factor, v)
        inverse = held @ solve(held.T) + jnp.diag(1 - active + 100 * float(jnp.finfo(y.dtype).eps))
        found = jnp.linalg.solve(inverse, active * values - held @ solve(y - x))
        return -solve(y - x + held.T @ found)

    def _iterate(self, x: Array) -> Iterate:
        eps = float(jnp.finfo(x.dtype).eps)

        def step(at: Iterate) -> Iterate:
            y, values, J = at.y, self._values(at.y), jax.jacobian(self._values)(at.y)
            root = jnp.linalg.cholesky(self._hessian(y, at.multipliers))
            free = -jax.scipy.linalg.solve_triangular(root, y - x, lower=True)
            A = jax.scipy.linalg.solve_triangular(root, J.T, lower=True).T
            sizes = jax.vmap(norm)(A)
            A, q = unit_rows(A, -values - A @ free)
            move, u = _shortest(A, q)
            d = jax.scipy.linalg.solve_triangular(root, free + move, lower=True, trans=1)
            u = u / jnp.where(sizes > 0, sizes, 1)
            weight = 2 * jnp.max(u) + 1

            def merit(length: Array) -> Array:
                z = y + length * d
                found = jnp.vdot(z - x, z - x) / 2 + weight * jnp.sum(jnp.maximum(self._values(z), 0))
                return jnp.where(jnp.isfinite(found), found, jnp.inf)

            lengths = 0.5 ** jnp.arange(HALVINGS, dtype=x.dtype)
            length = lengths[jnp.argmin(jax.vmap(merit)(lengths))]
            return Iterate(at.steps + 1, y + length * d, u, length * norm(d))

        def going(at: Iterate) -> Array:
            return (at.steps < STEPS) & ~(at.moved <= 4 * eps * (norm(at.y) + norm(x - at.y)))

        outside = ~jnp.all(self._values(x) <= 0)
        first = Iterate(jnp.int32(0), x, jnp.zeros_like(self._values(x)), jnp.where(outside, jnp.inf, 0).astype(x.dtype))
        return lax.while_loop(going, step, first)


@jax.custom_jvp
def _found(member: Sublevel, x: Array) -> tuple[Array, Array]:
    """Return the nearest point and its multipliers."""
    found = member._iterate(x)
    return found.y, found.multipliers


@_found.defjvp
def _found_jvp(primals: Any, tangents: Any) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    y, u = _found(*primals)
    change = jax.jvp(lambda member, x: member._newton(x, y, u), primals, tangents)[1]
    return (y, u), (change, jnp.zeros_like(u))  # nobody asks for the multipliers' own


def _shortest(A: Array, q: Array) -> tuple[Array, Array]:
    """Return the shortest d with `A d <= q` and its multipliers; one row, the usual case, needs no solver, whose code is long."""
    if A.shape[0] > 1:
        return shortest_move(A, q, None)[:2]
    u = jnp.maximum(-q, 0)
    return -(A.T @ u), u


def beyond_ball(x: Array, center: Any, radius: Any) -> Array:
    """Return a function that is at most zero in a ball."""
    return jnp.sum((x - center) ** 2) - radius**2
