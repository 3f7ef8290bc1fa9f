"""The distance to the intersection of the clients' sets, without any set leaving its client."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Cost, Federation, Reply
from fedrzo.methods.base import Method, method
from fedrzo.problems.base import Problem

SWEEPS, AT_ONCE = 4000, 50
CLOSE = 1e-6  # how near to x every client's point must be, relative to 1 + |x|


class Point(NamedTuple):
    """A sweep's point, and how far the clients' own points were from the one before, on average."""

    x: jax.Array
    apart: jax.Array


@method
class Nearest(Method):
    """Dykstra's method for the product of the clients' sets and the points that all clients share.

    Each client keeps its own correction p_i and sends a projected point z_i, of which the server sees the mean. Corrections are
    normal to the sets at z_i, and their mean is what x has moved since the start: where all z_i are x, x is the nearest point.
    Neither an x that stands still nor one that lies in all sets shows as much.
    """

    solves = (Problem,)

    def init(self, problem: Problem, key: jax.Array) -> Point:
        """Start at the problem's x0."""
        return Point(problem.start, jnp.asarray(jnp.inf, problem.start.dtype))

    def init_memory(self, problem: Problem) -> Any:
        """Start without a correction."""
        return jnp.zeros_like(problem.start)

    def round(self, federation: Federation, state: Point, r: Any) -> Point:
        """Run one sweep."""
        return Point(*federation.average(self.visit, state.x))

    def visit(self, client: Client, key: jax.Array, memory: jax.Array, x: jax.Array) -> Reply:
        """Project the corrected point, and remember what that took away."""
        start = x + memory
        nearest = client.project(start)
        return Reply((nearest, jnp.linalg.norm(nearest - x)), memory=start - nearest)


class Found(NamedTuple):
    """The distance, whether the sweeps found it, and what they cost."""

    distance: float
    settled: bool
    cost: Cost


def distance_to_all(problem: Problem, engine: Any, key: jax.Array) -> Found:
    """Return the distance from the problem's x0 to the intersection of its clients' sets."""
    start = np.asarray(problem.x0, float)
    close = CLOSE * (1 + np.linalg.norm(start)) * float(np.min(problem.client_weights))
    if start.dtype != problem.layout.dtype:  # single precision ends earlier
        close *= 100
    with contextlib.closing(engine.start([Nearest()], problem, [key], None)) as session:
        for _ in range(SWEEPS // AT_ONCE):
            session.advance(AT_ONCE)
            [state] = session.states()
            if state.apart <= close:
                break
        return Found(
            float(np.linalg.norm(np.asarray(state.x, float) - start)), bool(state.apart <= close), session.costs()[0]
        )
