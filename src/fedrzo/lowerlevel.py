"""The lower level of a bilevel problem at given points: itself a single-level federated problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


class LowerLevel:
    """The lower level of a bilevel problem at given points, as a single-level problem in all their y at once.

    Solving at x+v and x-v together is one problem in the pair (y+, y-): one message carries both, both see the same samples.
    """

    def __init__(self, problem: Any, points: jax.Array) -> None:
        self.problem = problem
        self.points = jax.vmap(problem.into_domain)(points)
        self.copies = self.points.shape[0]
        self.nested = True
        self.client_weights = problem.client_weights
        self.data = problem.lower_data
        self.sets = LowerSets(self)
        self.clients = problem.clients
        self.dim = self.copies * problem.lower_layout.size

    @property
    def x0(self) -> jax.Array:
        """The problem's y0, once per point; in the precision of the solve, which what clients remember has too."""
        return jnp.tile(jnp.asarray(self.problem.y0, float), self.copies)

    def value(self, y: jax.Array, batch: PyTree) -> jax.Array:
        """Return the sum over the points of the lower loss of one batch."""
        layout, lower = self.problem.layout, self.problem.lower_layout

        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            return self.problem.lower_fn(layout.unravel(x), lower.unravel(y), batch)

        return jnp.sum(jax.vmap(one)(self.points, self.split(y)))

    def pair(self, y: jax.Array, v: jax.Array, batch: PyTree) -> jax.Array:
        """Return value(y+v) - value(y-v)."""
        return self.value(y + v, batch) - self.value(y - v, batch)

    def split(self, y: jax.Array) -> jax.Array:
        """Return the y of each point as the rows of a matrix."""
        return y.reshape(self.copies, -1)


class LowerSets:
    """Y at each of a lower level's points; the same for every client."""

    def __init__(self, level: LowerLevel) -> None:
        self.level = level
        self.identical = True
        self.free = level.problem.lower_set is None and level.problem.lower_set_fn is None

    def project(self, i: Any, y: jax.Array) -> jax.Array:
        """Project each point's y onto its own Y(x)."""
        del i
        return y if self.free else self._each(lambda found, y: found.project(y), y).ravel()

    def violation(self, i: Any, y: jax.Array) -> jax.Array:
        """Return the largest violation over the points."""
        del i
        return jnp.zeros((), y.dtype) if self.free else jnp.max(self._each(lambda found, y: found.violation(y), y))

    def _each(self, function: Callable, y: jax.Array) -> jax.Array:
        level = self.level
        return jax.vmap(lambda x, y: function(level.problem.lower_set_at(x), y))(level.points, level.split(y))
