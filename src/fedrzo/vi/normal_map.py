"""Newton's method on the normal map of a variational inequality, as a state machine of arrays.

y solves the inequality of a map G over a set Y if y = P(z) and z - P(z) + a G(P(z)) = 0, with P the projection onto Y and any
length a (S. M. Robinson: "Normal maps induced by linear transformations", Mathematics of Operations Research 17 (1992), 691-714).
The equation has kinks. Newton's method takes an element I - P'(z) + a G'(y) P'(z) of its generalised Jacobian. After some free
steps it shortens those that do not lower the residual, and falls back to extragradient steps, which converge for monotone G.

One evaluation of the projection, the map and their Jacobians serves all kinds of steps: compiled code contains each once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

NEWTON, AHEAD, STEP = 0, 1, 2
LARGEST = 200  # entries of y: larger Jacobians are not factorised
LESS, SHORTER, SHORTEST = 0.1, 4.0, 0.05  # of Newton steps: relative decrease asked for, factor between lengths, least length
STEEP = 0.9  # an extragradient step has a length of at most this over the local Lipschitz constant
FREE = 30  # full Newton steps that are taken whether the residual falls or not: it rises where the active set changes


class Zero(NamedTuple):
    """The state of a search for a zero of the normal map; `best_*` belong to the least residual."""

    trial: jax.Array  # the next z to evaluate at
    phase: jax.Array  # NEWTON, AHEAD or STEP: what the trial is
    t: jax.Array  # relative length of the Newton step
    a: jax.Array  # length in the normal map; 0 before the first evaluation
    z: jax.Array  # the last accepted z
    y: jax.Array  # its projection
    g: jax.Array  # G(y)
    step: jax.Array  # the Newton step there
    accepted: jax.Array  # least accepted residual
    residual: jax.Array  # least residual, |z - y + a G(y)| / a
    best_z: jax.Array
    best_y: jax.Array
    best_a: jax.Array
    best_slope: jax.Array  # G'(y)
    steps: jax.Array  # evaluations


def begin(z: jax.Array) -> Zero:
    """Return the state before the first evaluation, at z."""
    one, none, far = jnp.ones((), z.dtype), jnp.int32(0), jnp.full((), jnp.inf, z.dtype)
    slope = jnp.eye(z.size, dtype=z.dtype)
    return Zero(z, none, one, 0 * one, z, z, z, z, far, far, z, z, one, slope, none)


def solved(s: Zero, tolerance: float) -> jax.Array:
    """Return whether the residual is below a tolerance relative to y."""
    return s.residual * s.best_a <= tolerance * (1 + jnp.linalg.norm(s.best_y))


def jacobian(a: jax.Array, slope: jax.Array, projection: jax.Array) -> jax.Array:
    """Return the generalised Jacobian of the normal map from those of G and of the projection."""
    return jnp.eye(projection.shape[0], dtype=projection.dtype) - projection + a * slope @ projection


def after(s: Zero, y: jax.Array, g: jax.Array, slope: jax.Array, projection: jax.Array) -> Zero:
    """Return the state after the evaluation at `s.trial`: y = P(z), G(y), G'(y) and P'(z)."""
    largest = jnp.max(jnp.sum(jnp.abs(slope), axis=1))  # at least the norm of G'
    first = 1 / jnp.maximum(largest, jnp.maximum(1e-3 * jnp.linalg.norm(g) / (1 + jnp.linalg.norm(y)), 1e-30))
    s = s._replace(a=jnp.where(s.steps == 0, first, s.a), steps=s.steps + 1)
    value = s.trial - y + s.a * g
    size = jnp.linalg.norm(value) / s.a
    size = jnp.where(jnp.isfinite(size), size, jnp.inf)
    step = -jnp.linalg.solve(jacobian(s.a, slope, projection), value)
    step = jnp.where(jnp.all(jnp.isfinite(step)), step, -value)
    begun = s.steps == 1
    falls = size <= (1 - LESS * s.t) * s.accepted
    accept = begun | (s.phase == STEP) | ((s.phase == NEWTON) & (falls | (s.steps < FREE)))
    steep = ~(s.a * jnp.linalg.norm(g - s.g) <= STEEP * jnp.linalg.norm(y - s.y))

    phase, one = s.phase, jnp.ones_like(s.t)
    new = s._replace(
        trial=s.trial + step, phase=jnp.full_like(phase, NEWTON), t=one, z=s.trial, y=y, g=g, step=step,
        accepted=jnp.where(begun, size, jnp.minimum(size, s.accepted)),
    )  # fmt: skip
    shorter = s._replace(t=s.t / SHORTER, trial=s.z + s.t / SHORTER * s.step)
    ahead = s._replace(trial=s.y - s.a * s.g, phase=jnp.full_like(phase, AHEAD))
    extra = s._replace(trial=s.y - s.a * g, phase=jnp.full_like(phase, STEP))
    halved = s._replace(a=s.a / 2, trial=s.y - s.a / 2 * s.g, phase=jnp.full_like(phase, AHEAD))
    rejected = _where(phase == NEWTON, _where(s.t > SHORTEST, shorter, ahead), _where(steep, halved, extra))
    better = size < s.residual
    best = [(size, s.residual), (s.trial, s.best_z), (y, s.best_y), (s.a, s.best_a), (slope, s.best_slope)]
    names = ("residual", "best_z", "best_y", "best_a", "best_slope")
    kept = {name: jnp.where(better, new, old) for name, (new, old) in zip(names, best, strict=True)}
    return _where(accept, new, rejected)._replace(**kept)


def _where(condition: Any, one: Zero, other: Zero) -> Zero:
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), one, other)


def with_jacobian(project: Callable[[jax.Array], jax.Array], z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return P(z) and P'(z), from one pass."""

    def twice(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = project(z)
        return y, y

    projection, y = jax.jacfwd(twice, has_aux=True)(z)
    return y, projection
