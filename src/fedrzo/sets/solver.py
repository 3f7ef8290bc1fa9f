"""Projection onto `A y <= b, E y = f`, in JAX: traced rows, any batch, exact derivatives.

Equalities are eliminated first. What is left is the shortest move d with A d <= q, a strictly convex
quadratic program: once it is known which rows are active, a linear solve on those rows gives d to rounding.
Those of a point nearby, where there is one, are tried first. Else, of a handful of rows all choices are tried, of a few
they are found one by one, of many by a primal-dual interior-point method. Derivatives come from the same active rows.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedrzo.sets.base import Rows
from fedrzo.sets.interior import interior_point

HANDFUL = 6  # rows of which all choices are tried
FEW = 16  # rows that are added one by one
MANY = 128  # beyond so many, that takes too long, also where all else has failed
FINISHING_STEPS = 5  # 1 is used, unless the first guess of the active rows is wrong
SHARPEST = 3  # how often the finish starts again, for rows at angles below 1e-5
REFINEMENTS = 8
HUGE = 100  # for a multiplier, in units of the largest violation
Best = tuple[Array, Array, Array]  # what misses optimality by the least so far: by how much, multipliers, active rows
Way = Callable[[Array], tuple[Array, Array]]  # of guessing multipliers and slacks


@jax.jit  # so that a call outside compiled code compiles once, not each time
def project_rows(rows: Rows, x: Array, near: Array | None = None) -> Array:
    """Return the point of `A y <= b, E y = f` nearest to x; `near` is a point of it that may be close, and is only a hint."""
    dtype = x.dtype
    x, rows, near = jax.tree.map(lambda v: v.astype(jnp.promote_types(dtype, jnp.float32)), (x, rows, lax.stop_gradient(near)))
    A, b, E, f = rows
    y = x
    if E.shape[0] > 0:  # nothing is traced for rows that are not there
        E, f = _idle_rows_out(*unit_rows(E, f), says_nothing=0)
        held = least_multipliers(E)
        y = x - E.T @ held(E @ x - f)
        y = y - E.T @ held(E @ y - f)  # the large multipliers of nearly parallel rows have lost digits
    if A.shape[0] > 0:
        A, b = _idle_rows_out(*unit_rows(A, b), says_nothing=1)
        # A slack that is only the rounding of its terms is none: a point on the boundary stays there.
        slack, size = b - A @ y, jnp.abs(b) + jnp.abs(A) @ jnp.abs(y)
        eps = float(jnp.finfo(slack.dtype).eps)
        slack = jnp.where(jnp.abs(slack) <= 4 * eps * size, 0, slack)
        tight = None if near is None else (b - A @ near <= eps**0.7 * (jnp.abs(b) + jnp.abs(A) @ jnp.abs(near))).astype(A.dtype)
        if E.shape[0] > 0:  # a move must keep E y = f: of each row, only the part along such moves counts
            along = A - jax.vmap(lambda row: E.T @ held(E @ row))(A)
            moves = jnp.max(jnp.abs(along), axis=1, keepdims=True) > eps**0.6
            A, slack = _idle_rows_out(*unit_rows(jnp.where(moves, along, 0), slack), says_nothing=1)
        y = y + least_move(A, slack, tight)
    return y.astype(dtype)


@jax.jit
def rows_violation(rows: Rows, x: Array) -> Array:
    """Return the largest violation by x, over rows scaled to unit norm."""
    broken = []
    if len(rows.b) > 0:
        A, b = unit_rows(rows.A, rows.b)
        broken.append(A @ x - b)
    if len(rows.f) > 0:
        E, f = unit_rows(rows.E, rows.f)
        broken.append(jnp.abs(E @ x - f))
    return jnp.max(jnp.concatenate(broken), initial=0) if broken else jnp.zeros((), x.dtype)


def unit_rows(A: Array, b: Array) -> tuple[Array, Array]:
    """Scale each row and its right-hand side to unit norm; a row of zeros stays."""
    largest = lax.stop_gradient(jnp.max(jnp.abs(A), axis=1, initial=0))
    zero = largest == 0
    scale = jnp.where(zero, 1, largest)
    A, b = A / scale[:, None], b / scale  # first, so that squares neither overflow nor vanish
    norms = jnp.sqrt(jnp.where(zero, 1, jnp.sum(A * A, axis=1)))
    return A / norms[:, None], b / norms


def _idle_rows_out(A: Array, b: Array, says_nothing: float) -> tuple[Array, Array]:
    """Neutralise rows of zeros and infinite right-hand sides: no move can help or hurt them."""
    live = jnp.any(A != 0, axis=1) & jnp.isfinite(b)
    return jnp.where(live[:, None], A, 0), jnp.where(live, b, says_nothing)


def least_multipliers(B: Array, sharpness: Any = 0) -> Callable[[Array], Array]:
    """Return the map from g to the least u with `B B'u = g`; rows of B may be dependent or zero.

    With `sharpness` above 0, rows that are nearly dependent count as what they are, if rounding permits.

    A damped Cholesky factor and a few passes of refinement. A pseudo-inverse is no better here, and slow: on
    a busy machine, its singular values have taken a hundred times as long.
    """
    p, n = B.shape
    eps = float(jnp.finfo(B.dtype).eps)
    gram, damping = (B @ B.T, 100 * p * eps) if p <= n else (B.T @ B, eps**0.6)
    damping = jnp.where(jnp.equal(sharpness, 0), damping, eps * 1000.0 / 100.0 ** (sharpness - 1.0))
    factor = jax.scipy.linalg.cho_factor(gram + damping * jnp.eye(min(p, n), dtype=B.dtype))

    def once(g: Array) -> Array:
        if p <= n:
            return jax.scipy.linalg.cho_solve(factor, g)
        inner = jax.scipy.linalg.cho_solve(factor, B.T @ g)
        return B @ jax.scipy.linalg.cho_solve(factor, inner)

    def solve(g: Array) -> Array:
        refine = lambda _, u: u + once(g - B @ (B.T @ u))  # noqa: E731
        passes = REFINEMENTS if isinstance(sharpness, int) else jnp.where(sharpness == 0, REFINEMENTS, 3 * REFINEMENTS)
        return lax.fori_loop(0, passes, refine, jnp.zeros_like(g))

    return solve


@jax.custom_jvp
def least_move(A: Array, q: Array, tight: Array | None = None) -> Array:
    """Return the shortest d with `A d <= q`; the rows of A have unit norm or are zero. `tight` is 1 for rows tried as active."""
    return shortest_move(A, q, tight)[0]


@least_move.defjvp
def _least_move_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    # d = -A'u on the active rows, where A d = q: differentiate both, with the active rows held fixed.
    (A, q, tight), (dA, dq, _) = primals, tangents
    d, multipliers, active = shortest_move(A, q, tight)
    held = jnp.where(active[:, None], A, 0)
    drift = -(dA.T @ multipliers)
    gap = jnp.where(active, A @ drift + dA @ d - dq, 0)
    return d, drift - held.T @ least_multipliers(held)(gap)


def shortest_move(A: Array, q: Array, tight: Array | None) -> tuple[Array, Array, Array]:
    """Return the move, the multipliers and the active rows."""
    worst = jnp.max(-q)
    inside = worst <= 0
    unit = jnp.where(inside, 1, worst)  # the length that makes the largest violation one
    # In more dimensions than rows, d lies in the span of the rows: work in that span.
    B = jnp.linalg.qr(A.T, mode="r").T if A.shape[1] > A.shape[0] else A
    multipliers, active = _solve(B, q / unit, tight, inside)
    multipliers = jnp.where(inside, 0, unit * multipliers)
    return -(A.T @ multipliers), multipliers, active & ~inside


def _solve(B: Array, q: Array, tight: Array | None, done: Array) -> tuple[Array, Array]:
    """Return the multipliers of the shortest d with `B d <= q`, and the active rows.

    One way of finding them after the other, until one is right: the rows that are tight nearby, if any are known; then all
    choices where there is a handful; else row by row where there are few, by the interior-point method where there are more;
    then the other of the two.
    """
    ways: list[Way] = [lambda done: interior_point(B, q, done)]
    if B.shape[0] <= HANDFUL:  # whose code is short: compiling the others takes longer than all else about a polygon
        ways = [lambda done: _all_choices(B, q)]
    elif B.shape[0] <= MANY:
        ways.insert(B.shape[0] > FEW, lambda done: _row_by_row(B, q, done))
    if tight is not None:
        ways.insert(0, lambda done: (tight, jnp.zeros_like(q)))

    def attempt(carry: Any) -> Any:
        count, best, done = carry
        guesses = [way(done | (count != i)) for i, way in enumerate(ways)]
        u, s = jax.tree.map(lambda *each: lax.select_n(count, *each), *guesses)
        hinted = (tight is not None) & (count == 0)
        return count + 1, *_finish(B, q, u, s, best, jnp.where(hinted, 1, SHARPEST), done)

    nothing = jnp.asarray(jnp.inf, q.dtype), jnp.zeros_like(q), q < 0
    if len(ways) == 1:
        (_, u, active), _ = _finish(B, q, *ways[0](done), nothing, SHARPEST, done)
        return u, active
    start = (jnp.int32(0), nothing, done)
    _, (_, u, active), _ = lax.while_loop(lambda c: (c[0] < len(ways)) & ~c[2], attempt, start)
    return u, active


def _all_choices(B: Array, q: Array) -> tuple[Array, Array]:
    """Return the multipliers, and no slacks, of the choice of active rows that is nearest to optimality: all are tried."""
    p, gram = B.shape[0], B @ B.T
    sizes = range(min(B.shape) + 1)  # no more are ever needed than the rows span dimensions
    chosen = np.array([[i in rows for i in range(p)] for size in sizes for rows in itertools.combinations(range(p), size)])
    tiny = 100 * p * float(jnp.finfo(B.dtype).eps)

    def one(active: Array) -> tuple[Array, Array]:
        both = active[:, None] & active
        factor = jax.scipy.linalg.cho_factor(jnp.where(both, gram, 0) + jnp.diag(jnp.where(active, tiny, 1)))
        u = jax.scipy.linalg.cho_solve(factor, jnp.where(active, -q, 0))
        return jnp.max(jnp.abs(jnp.minimum(u, q + gram @ u))), jnp.where(active, jnp.maximum(u, tiny), 0)

    residuals, multipliers = jax.vmap(one)(jnp.asarray(chosen))
    return multipliers[jnp.argmin(jnp.where(jnp.isnan(residuals), jnp.inf, residuals))], jnp.zeros_like(q)


def _row_by_row(B: Array, q: Array, done: Array) -> tuple[Array, Array]:
    """Return multipliers and slacks by Lawson's and Hanson's method: the most violated row is added, until none is."""
    p, gram = B.shape[0], B @ B.T
    tiny = 100 * p * float(jnp.finfo(B.dtype).eps)

    def step(carry: Any) -> Any:
        count, u, active, _ = carry
        both = active[:, None] & active
        factor = jax.scipy.linalg.cho_factor(jnp.where(both, gram, 0) + jnp.diag(jnp.where(active, tiny, 1)))
        ahead = jax.scipy.linalg.cho_solve(factor, jnp.where(active, -q, 0))
        # Multipliers stay positive: go as far as they do, and drop the row that ends it.
        falling = active & (ahead <= 0)
        length = jnp.min(jnp.where(falling, u / jnp.where(falling, u - ahead, 1), 1))
        u = u + length * (ahead - u)
        blocked = jnp.any(falling)
        kept = active & ~(falling & (u <= tiny))
        slack = jnp.where(kept, jnp.inf, q + gram @ u)
        worst = jnp.argmin(slack)
        solved = ~blocked & (slack[worst] >= -tiny)
        added = kept | (~blocked & (jnp.arange(p) == worst))
        return count + 1, jnp.where(kept, u, 0), jnp.where(solved | blocked, kept, added), solved

    start = (jnp.int32(0), jnp.zeros_like(q), jnp.arange(p) == jnp.argmin(q), done)
    _, u, active, _ = lax.while_loop(lambda c: (c[0] < 3 * p) & ~c[3], step, start)
    return jnp.where(active, jnp.maximum(u, tiny), 0), jnp.zeros_like(q)


def _finish(B: Array, q: Array, u: Array, s: Array, best: Best, sharpest: Any, done: Array) -> tuple[Best, Array]:
    """Solve on the rows that look active, correct the guess, and keep the best of what was seen; tell whether it is exact.

    The measure is the residual of the optimality conditions: u >= 0, q + B B'u >= 0, one of each pair zero.
    """
    eps = float(jnp.finfo(B.dtype).eps)

    def slack(u: Array) -> Array:
        return q + B @ (B.T @ u)

    def better(best: Best, seen: Best) -> Best:
        return jax.tree.map(lambda old, new: jnp.where(seen[0] < best[0], new, old), best, seen)

    def step(carry: Any) -> Any:
        count, u, active, best, _ = carry
        # Where rows meet at tiny angles, what is left is large. From then on, the same guess is solved more sharply.
        u, active = jax.tree.map(lambda now, guess: jnp.where(count % FINISHING_STEPS == 0, guess, now), (u, active), first)
        u = jnp.where(active, u, 0)
        held = least_multipliers(jnp.where(active[:, None], B, 0), count // FINISHING_STEPS)
        u = u - held(jnp.where(active, slack(u), 0))
        residual = jnp.max(jnp.abs(jnp.minimum(u, slack(u))))
        best = better(best, (residual, u, active))
        guess = jnp.where(active, u > 0, slack(u) < 0)
        settled = jnp.all(guess == active)
        # Rounding leaves more where multipliers are large; huge ones are a wrong guess: opposite rows that hold each other.
        small = residual < 100 * eps * jnp.clip(jnp.max(jnp.abs(u)), 1, HUGE)
        following = jnp.where(settled, (count // FINISHING_STEPS + 1) * FINISHING_STEPS, count + 1)
        return following, u, guess, best, small

    first = (u, u > s)
    start = (jnp.int32(0), *first, better(best, (jnp.max(jnp.abs(jnp.minimum(u, slack(u)))), *first)), done)
    *_, best, exact = lax.while_loop(lambda c: (c[0] < sharpest * FINISHING_STEPS) & ~c[4], step, start)
    return best, exact
