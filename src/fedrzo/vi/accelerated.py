"""Extragradient steps with Anderson acceleration, safeguarded: few steps as a rule, O(kappa) at worst, up to logarithms."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.sets.base import Set
from fedrzo.support.fields import checked
from fedrzo.vi.base import Map, Solution, Solver, answer, foresee, optional, optional_whole, reached
from fedrzo.vi.newton import begin

# A guess must bring the length of a step below this fraction of the shortest so far. So there are at most
# log(1/tolerance)/log(1/0.9) accepted guesses, and between them plain extragradient steps, with their own guarantee.
PROGRESS = 0.9
# Extragradient steps need alpha |G(y) - G(ahead)| < |y - ahead|; where a map is steeper than its L says, alpha is halved.
STEEPEST = 0.95
# Without that much less residual in so many evaluations, rounding (or an inexact projection) allows no more.
PATIENCE, IMPROVEMENT = 400, 0.999
RIDGE = 1e-13  # keeps past steps that are nearly dependent from making the system singular


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
    moves: jax.Array  # differences of past points, and of their moves: rings of rows
    changes: jax.Array
    known: jax.Array  # how many have been written since the stepsize changed
    best: jax.Array
    residual: jax.Array
    improved: jax.Array  # when the residual last fell


@dataclass(frozen=True, repr=False)
class Accelerated(Solver):
    """The solver for accurate lower levels: any strongly monotone map, symmetric or not, without its matrix.

    The extragradient step is a fixed-point iteration; Anderson acceleration guesses its limit from the last few steps
    (exactly, on an affine map with as few distinct eigenvalues on the free variables). A guess is taken if it shortens the next
    step, else the plain extragradient step is. One step costs two evaluations of the map, three projections, and O(memory n).
    Where y is large and its set has a closed form, a few of Newton's steps come first, by products with the map's derivative.

    Args:
        tolerance: stop as soon as the error bound is below it, relative to max(1, |y|).
        memory: past steps to guess from.
        max_steps: give up after so many evaluations of the map.
    """

    tolerance: float = checked(optional, default=1e-8)
    memory: int = checked(optional_whole, default=8, static=True)
    max_steps: int = checked(optional_whole, default=100_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if None in (self.tolerance, self.memory, self.max_steps):
            raise InputError("solver: found None; fz.vi.Accelerated needs tolerance, memory and max_steps")

    def solve(self, map: Map, set: Set, y0: jax.Array, mu: Any, L: Any, k: Any = 1) -> Solution:
        """See `Solver.solve`."""
        y0, before = begin(map, set, set.project(y0), mu, L, self.tolerance)
        # On an affine map as many past steps as variables tell all; more would only make the system singular.
        zeros = jnp.zeros((min(self.memory, y0.size), y0.size), y0.dtype)
        far, no, yes = jnp.asarray(jnp.inf, y0.dtype), jnp.int32(0), jnp.bool_(True)
        alpha = jnp.asarray(0.9 / L, y0.dtype)
        start = State(no, alpha, y0, yes, y0, far, y0, jnp.zeros_like(y0), zeros, zeros, no, y0, far, no)

        def unsolved(state: State) -> Any:
            going = (state.steps < self.max_steps) & (state.steps - state.improved < PATIENCE)
            return going & ~reached(state.best, state.residual, mu, self.tolerance)

        state = jax.lax.while_loop(unsolved, lambda state: self._step(map, set, state), start)
        return answer(state.best, state.residual, mu, before + state.steps)

    def _step(self, map: Map, set: Set, state: State) -> State:
        y, alpha = state.trial, state.alpha
        g = map(y)
        ahead, g_ahead, residual = foresee(map, set, y, alpha, g)
        better = (residual < state.residual) | (state.steps == 0)
        state = state._replace(
            best=jnp.where(better, ahead, state.best),
            residual=jnp.where(better, residual, state.residual),
            improved=jnp.where(residual < IMPROVEMENT * state.residual, state.steps, state.improved),
            steps=state.steps + 2,
        )
        plain = set.project(y - alpha * g_ahead, near=ahead)
        move = plain - y
        length = jnp.linalg.norm(move)
        steep = alpha * jnp.linalg.norm(g_ahead - g) > STEEPEST * jnp.linalg.norm(ahead - y)
        steep = steep | ~jnp.isfinite(length)
        take = (state.is_plain | (length <= PROGRESS * state.shortest)) & ~steep
        taken = _remember(state, take, y, move)._replace(plain=plain, shortest=jnp.minimum(length, state.shortest))
        taken = taken._replace(trial=set.project(_guess(taken), near=plain), is_plain=taken.known == 0)
        back = taken._replace(trial=state.plain, is_plain=jnp.bool_(True), plain=state.plain, shortest=state.shortest,
                              last=state.last, last_move=state.last_move, known=state.known)  # fmt: skip
        start_again = back._replace(alpha=alpha / 2, trial=state.best, plain=state.best, known=jnp.zeros_like(state.known),
                                    shortest=jnp.full_like(length, jnp.inf))  # fmt: skip
        return _choose(take, taken, _choose(steep, start_again, back))


def _choose(condition: jax.Array, one: State, other: State) -> State:
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), one, other)


def _remember(state: State, take: jax.Array, y: jax.Array, move: jax.Array) -> State:
    """Add the step from the last point taken to the past, unless this is the first one since the stepsize changed."""
    first = jnp.isinf(state.shortest)
    slot = state.known % state.moves.shape[0]

    def write(rows: jax.Array, new: jax.Array) -> jax.Array:
        return rows.at[slot].set(jnp.where(take & ~first, new, rows[slot]))

    return state._replace(
        last=y,
        last_move=move,
        moves=write(state.moves, y - state.last),
        changes=write(state.changes, move - state.last_move),
        known=jnp.where(first, 0, state.known + 1),
    )


def _guess(state: State) -> jax.Array:
    """Combine past steps so that the next move would vanish if moves were affine in y (Anderson's type II)."""
    live = (jnp.arange(state.moves.shape[0]) < state.known)[:, None]
    changes = jnp.where(live, state.changes, 0)
    scale = jnp.linalg.norm(changes, axis=1)
    scale = jnp.where(scale > 0, scale, 1)
    unit = changes / scale[:, None]  # old steps are much longer than new ones: unscaled, the system would be singular
    damping = jnp.where(live[:, 0], RIDGE, 1).astype(unit.dtype)
    weights = _solve(unit @ unit.T + jnp.diag(damping), unit @ state.last_move) / scale
    return state.last + state.last_move - weights @ jnp.where(live, state.moves + changes, 0)


def _solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Solve a small positive definite system by elimination, written out.

    For many scenarios at once that is a few passes over all of them; LAPACK is called for each, and takes 2 to 40 times as long.
    """
    rows = jnp.concatenate([matrix, right[:, None]], axis=1)
    for k in range(right.size):
        pivot = rows[k] / rows[k, k]
        rows = (rows - rows[:, k : k + 1] * pivot).at[k].set(pivot)
    return rows[:, -1]
