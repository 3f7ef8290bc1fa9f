"""What methods with hypergradients share: the derivatives that a client computes, and the problems that are in their reach.

With y(x) the minimiser of the mean lower loss g, the gradient of the mean upper loss f(x, y(x)) is

    grad_x f - (d2_xy g) v,  where v solves (d2_yy g) v = grad_y f,

with all derivatives averaged over the clients first: the inverse of an average is not the average of inverses. That formula
holds where y is free; with a constraint y(x) has kinks, which is what `fz.FedRZObl` is for.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.federation.client import Client, check_batch_size
from fedrzo.methods.base import Method, at
from fedrzo.problems.bilevel import Bilevel

PyTree = Any


class Point(NamedTuple):
    """Where a single-loop method is, or a direction to go."""

    x: jax.Array  # the upper variable
    y: jax.Array  # the lower variable
    v: jax.Array  # the estimate of [d2_yy g]^-1 grad_y f


class Products(NamedTuple):
    """Derivatives of the lower loss, from one pass."""

    gradient: jax.Array  # grad_y g
    cross: jax.Array  # (d2_xy g) v, as long as x
    curved: jax.Array  # (d2_yy g) v


@dataclasses.dataclass(frozen=True)
class Oracles:
    """The derivatives of one client's two losses, each on a batch of that level's data."""

    problem: Bilevel
    upper: Client  # the client, seeing the upper data
    lower: Client  # the same client, seeing the lower data

    @classmethod
    def of(cls, client: Client) -> Self:
        """Return the oracles of a client, whichever level it sees."""
        problem = client.level.problem if client.level.nested else client.level
        lower_level = problem.lower_level(jnp.asarray(problem.x0))  # for its data; the oracles take x as an argument
        return cls(problem, dataclasses.replace(client, level=problem), dataclasses.replace(client, level=lower_level))

    def draw(self, key: jax.Array, batch_size: int | str) -> tuple[PyTree, PyTree]:
        """Draw a batch of the upper data and one of the lower data."""
        keys = jax.random.split(key)
        return self.upper.sample(keys[0], batch_size), self.lower.sample(keys[1], batch_size)

    def lower_value(self, x: jax.Array, y: jax.Array, batch: PyTree) -> jax.Array:
        """Return the lower loss g of one batch."""
        return self.problem.lower_level(x).value(y, batch)

    def upper_gradients(self, x: jax.Array, y: jax.Array, batch: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return grad_x f and grad_y f: one sample gradient per sample, since one pass gives both."""
        return self.upper.mean(jax.grad(self.problem.value, (0, 1)), x, y, batch)

    def lower_gradients(self, x: jax.Array, y: jax.Array, batch: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return grad_x g and grad_y g: one sample gradient per sample."""
        return self.lower.mean(jax.grad(self.lower_value, (0, 1)), x, y, batch)

    def products(self, x: jax.Array, y: jax.Array, v: jax.Array, batch: PyTree) -> Products:
        """Return grad_y g and both products of second derivatives with v: two sample gradients per sample.

        A product is the derivative of a gradient. Both come from one pass, as the gradient of <grad_y g(x, y), v>; what a
        caller does not use is not computed.
        """

        def along(x: jax.Array, y: jax.Array, batch: PyTree) -> tuple[jax.Array, jax.Array]:
            gradient = jax.grad(self.lower_value, 1)(x, y, batch)
            return jnp.vdot(gradient, v), gradient

        def one_pass(x: jax.Array, y: jax.Array, batch: PyTree) -> Products:
            (cross, curved), gradient = jax.grad(along, (0, 1), has_aux=True)(x, y, batch)
            return Products(gradient, cross, curved)

        return self.lower.mean(one_pass, x, y, batch)

    def directions(self, point: Point, batches: tuple[PyTree, PyTree]) -> Point:
        """Return which way a single-loop method leads away: down for y and v, along the hypergradient for x.

        v descends on v'(d2_yy g)v / 2 - v'grad_y f, a sum over clients: no inverse is averaged. Three sample gradients.
        """
        f_x, f_y = self.upper_gradients(point.x, point.y, batches[0])
        g = self.products(*point, batches[1])
        return Point(f_x - g.cross, g.gradient, g.curved - f_y)

    def cost(self, uppers: Any, lowers: Any, batch_size: int | str) -> Any:
        """Return the sample gradients of so many upper and lower gradients on such batches; a product is two."""
        return uppers * self.upper.cost(batch_size) + lowers * self.lower.cost(batch_size)


class HypergradientMethod(Method):
    """A method that differentiates both levels: smooth losses, nothing constrained."""

    solves = (Bilevel,)
    needs_gradients = True
    handles_constraints = False

    def check(self, problem: Bilevel) -> None:
        """Refuse what is outside these methods' assumptions, naming the one that is not."""
        name = type(self).__name__
        if problem.lower_domain is not None:
            raise InputError(f"lower_domain: {name} solves the lower level at x itself; use fz.FedRZObl, or drop it")
        super().check(problem)
        if problem.lower_constrained:
            raise InputError(f"lower_constraint: {name} needs an unconstrained lower level; use fz.FedRZObl")
        if problem.lower_weights is not None:
            raise InputError(
                f'weights: found "samples" with lower_data of its own; {name} averages both levels by the same weights: use '
                '"uniform", or fz.FedRZObl'
            )
        if problem.lower_blackbox:
            raise InputError(f"lower: {name} needs gradients, a black box has none; use fz.FedRZObl")
        for argument in ("batch_size", "anchor_batch_size", "first_batch_size"):
            for data in (problem.data, problem.lower_data):
                check_batch_size(getattr(self, argument, 1), data, argument)

    def init(self, problem: Bilevel, key: jax.Array) -> Any:
        """Start at x0 and y0, with v = 0."""
        y = jnp.asarray(problem.y0, float)
        return Point(jnp.asarray(problem.x0, float), y, jnp.zeros_like(y))

    def healthy(self, state: Any) -> Any:
        """Tell whether every variable is finite: the lower level diverges first where its step is too long."""
        return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(state)]))


def length(self: Any, r: Any, *names: str) -> Any:
    """Return a step length in round r: of the first of these fields that is given."""
    given = (value for value in (getattr(self, name) for name in names) if value is not None)
    return at(next(given), r)


def retreat(start: PyTree, lengths: PyTree, directions: PyTree) -> PyTree:
    """Return start - length * direction, for each variable with its own length."""
    return jax.tree.map(lambda z, step, d: z - step * d, start, lengths, directions)


def local_sum(directions: Callable[[Any, PyTree], PyTree], start: PyTree, lengths: PyTree, steps: Any) -> PyTree:
    """Take local steps on all variables at once, each from the old ones, and return the sum of the directions gone.

    The local point is the start less that sum times the lengths, so the sum is all there is to carry, and to send.
    """

    def local_step(k: Any, total: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, total, directions(k, retreat(start, lengths, total)))

    return jax.lax.fori_loop(0, steps, local_step, jax.tree.map(jnp.zeros_like, start))


def into_ball(v: jax.Array, radius: Any) -> jax.Array:
    """Project onto the ball around zero."""
    norm = jnp.linalg.norm(v)
    return jnp.where(norm > radius, radius / jnp.maximum(norm, radius), 1.0) * v
