"""Extragradient steps with Anderson acceleration, safeguarded: few steps on affine maps, O(kappa) at worst."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.sets.base import Set
from fedrzo.vi.base import Map, Solution, Solver, answer, optional, reached, residual_of_step

# A guess must bring the length of a step below this fraction of the shortest so far. So there are at most
# log(1/tolerance)/log(1/0.9) accepted guesses, and between them plain extragradient steps, with their own guarantee.
PROGRESS = 0.9
# Extragradient steps need alpha |G(y) - G(ahead)| < |y - ahead|; where a map is steeper than its L says, alpha is halved.
STEEPEST = 0.95


class State(NamedTuple):
    """Between two steps: where to look next, what to fall back on, the past, and the best point seen."""

    steps: jax.Array
    alpha: jax.Array
    trial: jax.Array
    is_plain: jax.Array  # the trial is an extragradient step, which is always taken
    plain: jax.Array  # the extragradient step from the last point taken
    shortest: jax.Array
    last: jax.Array  # the last point taken, and its move
    last_move: jax.Array
    moves: jax.Array  # differences of past points, and of their moves, newest first
    changes: jax.Array
    known: jax.Array  # how many of them there are
    best: jax.Array
    residual: jax.Array


@dataclass(frozen=True, repr=False)
class Accelerated(Solver):
    """The solver for accurate lower levels: any strongly monotone map, symmetric or not, without its matrix.

    The extragradient step is a fixed-point iteration; Anderson acceleration guesses its limit from the last few steps
    (exactly, on an affine map with as few distinct eigenvalues on the free variables). A guess is taken if it shortens the next
    step, else the plain extragradient step is. One step costs two evaluations of the map, three projections, and O(memory n).

    Args:
        tolerance: stop as soon as the error bound is below it, relative to max(1, |y|).
        memory: past steps to guess from.
        max_steps: give up after so many evaluations of the map.
    """

    tolerance: Any = 1e-8
    memory: int = field(default=8, metadata={"static": True})
    max_steps: Any = 100_000

    def __post_init__(self) -> None:
        self._store(
            tolerance=optional(self.tolerance, "solver: tolerance"),
            memory=optional(self.memory, "solver: memory", whole=True),
            max_steps=optional(self.max_steps, "solver: max_steps", whole=True),
        )
        if None in (self.tolerance, self.memory, self.max_steps):
            raise InputError("solver: found None; fz.vi.Accelerated needs tolerance, memory and max_steps")

    def solve(self, map: Map, set: Set, y0: jax.Array, mu: Any, L: Any, k: Any = 1) -> Solution:
        """See `Solver.solve`."""
        del k
        y0 = set.project(y0)
        zeros = jnp.zeros((self.memory, y0.size), y0.dtype)
        far, no, yes = jnp.asarray(jnp.inf, y0.dtype), jnp.int32(0), jnp.bool_(True)
        alpha = jnp.asarray(0.9 / L, y0.dtype)
        start = State(no, alpha, y0, yes, y0, far, y0, jnp.zeros_like(y0), zeros, zeros, no, y0, far)

        def unsolved(state: State) -> Any:
            return ~reached(state.best, state.residual, mu, self.tolerance) & (state.steps < self.max_steps)

        state = jax.lax.while_loop(unsolved, lambda state: self._step(map, set, state), start)
        return answer(state.best, state.residual, mu, state.steps)

    def _step(self, map: Map, set: Set, state: State) -> State:
        y, alpha = state.trial, state.alpha
        g = map(y)
        ahead = set.project(y - alpha * g)
        g_ahead = map(ahead)
        state = _keep_best(state, ahead, residual_of_step(y, g, ahead, g_ahead, alpha))
        plain = set.project(y - alpha * g_ahead)
        move = plain - y
        length = jnp.linalg.norm(move)
        steep = alpha * jnp.linalg.norm(g_ahead - g) > STEEPEST * jnp.linalg.norm(ahead - y)
        take = (state.is_plain | (length <= PROGRESS * state.shortest)) & ~steep
        taken = _remember(state, y, move)._replace(plain=plain, shortest=jnp.minimum(length, state.shortest))
        guess = set.project(_guess(taken))
        taken = taken._replace(trial=guess, is_plain=taken.known == 0)
        back = state._replace(trial=state.plain, is_plain=jnp.bool_(True))
        shorter = state._replace(alpha=alpha / 2, trial=state.best, plain=state.best, known=jnp.int32(0),
                                 shortest=jnp.full_like(length, jnp.inf), is_plain=jnp.bool_(True))  # fmt: skip
        return _choose(take, taken, _choose(steep, shorter, back))


def _choose(condition: jax.Array, one: State, other: State) -> State:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _keep_best(state: State, y: jax.Array, residual: jax.Array) -> State:
    better = (residual < state.residual) | (state.steps == 0)
    return state._replace(
        best=jnp.where(better, y, state.best),
        residual=jnp.where(better, residual, state.residual),
        steps=state.steps + 2,
    )


def _remember(state: State, y: jax.Array, move: jax.Array) -> State:
    """Add the step from the last point taken to the past, unless this is the first since the stepsize changed."""
    first = jnp.isinf(state.shortest)
    moves = jnp.roll(state.moves, 1, axis=0).at[0].set(y - state.last)
    changes = jnp.roll(state.changes, 1, axis=0).at[0].set(move - state.last_move)
    return state._replace(
        last=y,
        last_move=move,
        moves=jnp.where(first, state.moves, moves),
        changes=jnp.where(first, state.changes, changes),
        known=jnp.where(first, 0, jnp.minimum(state.known + 1, state.moves.shape[0])),
    )


def _guess(state: State) -> jax.Array:
    """Combine past steps so that the next move would vanish if moves were affine in y (Anderson's type II)."""
    live = (jnp.arange(state.moves.shape[0]) < state.known)[:, None]
    changes = jnp.where(live, state.changes, 0)
    scale = jnp.linalg.norm(changes, axis=1)
    scale = jnp.where(scale > 0, scale, 1)
    unit = changes / scale[:, None]  # old steps are much longer than new ones: unscaled, the system would be singular
    gram = unit @ unit.T + 1e-13 * jnp.eye(scale.size, dtype=unit.dtype)
    gram = gram + jnp.diag(jnp.where(live[:, 0], 0.0, 1.0).astype(unit.dtype))
    weights = jax.scipy.linalg.solve(gram, unit @ state.last_move, assume_a="pos") / scale
    return state.last + state.last_move - weights @ (jnp.where(live, state.moves, 0) + changes)
