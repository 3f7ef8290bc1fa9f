"""The end of a lower level's solve: one exact projected gradient step, whose two ends bound the error that is left."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.problems.curvature import correct


class Closing(NamedTuple):
    """The lower level's answer, with what is known of its error."""

    y: jax.Array  # projected
    error: jax.Array  # a bound on its distance to the solution, over all points together
    curvature: jax.Array  # mu and L, corrected by what was seen
    gradient: jax.Array  # of the lower level there


def close(federation: Federation, owner: Any, y: jax.Array, curvature: Any) -> Closing:
    """Take one exact projected gradient step and bound its error; two more communications, both counted."""
    _, closing = start_closing(federation, owner, y, curvature)
    return closing()


def start_closing(
    federation: Federation, owner: Any, y: jax.Array, curvature: Any
) -> tuple[jax.Array, Callable[[], Closing]]:  # fmt: skip
    """Take the step of `close`; return where it led, before the projection, and what gives the rest.

    Clients that project what they are sent need no more than that: the second communication then travels with theirs.

    For a step of length a from y to z = P(y - a g), (y - z)/a - g is normal to Y at z, so that (y - z)/a - g + g(z) is an element
    of the sum of gradient and normal cone there, and its length over mu bounds ||z - y*||, whatever a is. The bound is as good as
    mu is: estimated ones (see `problems.curvature`) hold near x0, and gradients over a sampler's draws are themselves estimates.
    """
    mu, L = curvature
    step = 2 / (mu + L)
    y, gradient = federation.average(owner.lower_gradient, y)
    there = y - step * gradient
    arrived = federation.later(owner.lower_project, there)

    def closing() -> Closing:
        new, ahead = arrived()
        residual = jnp.linalg.norm((y - new) / step - gradient + ahead)
        corrected = correct(curvature, new - y, ahead - gradient)
        return Closing(new, residual / corrected[0], corrected, ahead)

    return there, closing


class LowerClosing:
    """The client steps of `close`, for methods that own a lower level."""

    def lower_gradient(self, client: Client, key: jax.Array, memory: Any, y: jax.Array) -> Reply:
        """Return y projected onto Y(x), and this client's full gradient there."""
        y = client.project(y)
        size = client.level.data.full_batch  # many samples where they are drawn on demand
        # The same samples at both ends of the step, so that the gradients differ by their curvature and not by their noise.
        same = jax.random.fold_in(jax.random.fold_in(client.private, client.round), client.iteration)
        return Reply((y, client.gradient(y, client.sample(same, size))), gradients=client.cost(size), steps=1)

    def lower_project(self, client: Client, key: jax.Array, memory: Any, y: jax.Array) -> Reply:
        """Do the same at the end of the step."""
        return self.lower_gradient(client, key, memory, y)._replace(steps=0)
