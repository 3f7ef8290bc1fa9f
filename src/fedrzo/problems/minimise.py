"""An accurate minimiser of a smooth convex function over a set, for monitoring and reference solutions; not federated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

STEPS = 20_000


class Iterate(NamedTuple):
    """The state of the accelerated projected gradient method; `residual` is the norm of the gradient mapping at y."""

    y: jax.Array
    ahead: jax.Array
    momentum: jax.Array
    smoothness: jax.Array
    residual: jax.Array
    steps: jax.Array


def minimise(
    gradient: Callable[[jax.Array], jax.Array],
    project: Callable[[jax.Array, jax.Array], jax.Array],
    y0: jax.Array,
    tolerance: float,
) -> jax.Array:
    """Minimise by accelerated projected gradients, until the gradient mapping is below `tolerance`, relative to its start.

    The smoothness is found on the way (doubled whenever a step shows it too small), momentum restarts where it points uphill;
    so neither constant need be known. `project` takes a point and one that its projection may be near to.
    """
    y0 = project(y0, y0)
    slope = gradient(y0)
    nudge = y0 - 1e-4 * (1 + jnp.linalg.norm(y0)) * slope / jnp.maximum(jnp.linalg.norm(slope), 1e-300)
    guess = jnp.linalg.norm(gradient(nudge) - slope) / jnp.maximum(jnp.linalg.norm(nudge - y0), 1e-300)
    scale = 1 + jnp.linalg.norm(slope)
    start = Iterate(y0, y0, jnp.ones_like(scale), jnp.maximum(guess, 1e-3), scale, jnp.int32(0))
    return jax.lax.while_loop(
        lambda it: (it.residual > tolerance * scale) & (it.steps < STEPS),
        lambda it: _step(it, gradient, project),
        start,
    ).y


def _step(it: Iterate, gradient: Any, project: Any) -> Iterate:
    slope = gradient(it.ahead)
    y = project(it.ahead - slope / it.smoothness, it.y)
    moved = jnp.linalg.norm(y - it.ahead)
    # A step longer than the curvature allows is thrown away and tried again with twice the smoothness.
    short = jnp.linalg.norm(gradient(y) - slope) <= 1.0001 * it.smoothness * moved + 1e-13 * jnp.linalg.norm(slope)
    uphill = jnp.vdot(it.ahead - y, y - it.y) > 0
    momentum = jnp.where(uphill, 1.0, (1 + jnp.sqrt(1 + 4 * it.momentum**2)) / 2)
    ahead = y + jnp.where(uphill, 0.0, (it.momentum - 1) / momentum) * (y - it.y)
    keep = Iterate(y, ahead, momentum, it.smoothness, it.smoothness * moved, it.steps + 1)
    again = it._replace(smoothness=2 * it.smoothness, steps=it.steps + 1)
    return jax.tree.map(lambda a, b: jnp.where(short, a, b), keep, again)


def numeric_gradient(value: Callable[[jax.Array], jax.Array], y: jax.Array) -> jax.Array:
    """Return central differences, for a black box's reference solution; good to about 1e-9 of the loss's scale."""
    width = 1e-5 * (1 + jnp.max(jnp.abs(y)))

    def slope(direction: jax.Array) -> jax.Array:
        return (value(y + width * direction) - value(y - width * direction)) / (2 * width)

    return jax.lax.map(slope, jnp.eye(y.size, dtype=y.dtype))
