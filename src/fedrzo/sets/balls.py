"""Projection onto a set P and one or several balls at once, in JAX: exact, of fixed shapes, with exact derivatives.

With one ball, its multiplier is the only unknown: the projection of x is `P(c + t (x - c))` for the largest t in [0, 1]
that keeps this point in the ball. Its distance from the centre c grows with t, so a bracket that Newton's steps narrow
finds t however thin the set is, and the bracket's width bounds the error, since projections do not expand.

Several balls are cut into pieces: in piece j, ball j is the one that is exceeded most (or kept least). There the other
balls follow from ball j and from `|y - c_k|^2 - r_k^2 <= |y - c_j|^2 - r_j^2`, which is linear in y. So a piece is one ball
and a polyhedron, the pieces together are the set, and the nearest of their projections is the projection.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedrzo.sets.base import Pytree, Rows, Set, missed, norm, promise
from fedrzo.sets.dykstra import alternate
from fedrzo.sets.polyhedral import Given, Halfspace, Linear

TRIALS = 80  # of t: 2 to 5 are used where few rows of P become active between x and the centre
SHORT = 500  # sweeps of alternating projections that are tried before the pieces of several balls
PENALTY = 1e6  # a piece that misses a constraint may win by a millionth of that: more than rounding would be a mistake


class Trial(NamedTuple):
    """The search for t: the bracket, whether its lower end was seen to be in the ball, t, its point, a bound of its error."""

    tried: Array
    low: Array
    high: Array
    seen: Array
    following: Array
    t: Array
    y: Array
    error: Array
    done: Array


class Best(NamedTuple):
    """The nearest piece so far."""

    merit: Array
    piece: Array
    t: Array
    y: Array
    error: Array


@dataclass(frozen=True, eq=False)
class Members(Pytree):
    """Balls and a set, one by one."""

    linear: Set
    centers: Array
    radii: Array

    def project(self, i: Any, z: Array) -> Array:
        """Return the projection onto ball i, or onto the set that comes after all balls."""
        if isinstance(i, int):
            return self._ball(i, z) if i < len(self.radii) else self.linear._project(z)
        return lax.cond(i < len(self.radii), lambda: self._ball(i, z), lambda: self.linear._project(z))

    def _ball(self, i: Any, z: Array) -> Array:
        off = z - self.centers[i]
        length = norm(off)
        return jnp.where(length > self.radii[i], self.centers[i] + off * (self.radii[i] / jnp.maximum(length, self.radii[i])), z)


@jax.jit  # so that a call outside compiled code compiles once, not each time
def project_balls(linear: Set, centers: Array, radii: Array, x: Array) -> tuple[Array, Array]:
    """Return the point of a set and of all balls that is nearest to x, and a bound of its error.

    The set has an exact projection, and is polyhedral where there are several balls; each has a row of `centers`.
    """
    linear, centers, radii = jax.tree.map(lambda leaf: jnp.asarray(leaf, x.dtype), (linear, centers, radii))
    return _project(linear, centers, radii, x)


@jax.custom_jvp
def _project(linear: Set, centers: Array, radii: Array, x: Array) -> tuple[Array, Array]:
    known = None
    # Where P alone has a closed form and its pieces do not, some hundred sweeps are faster, and mostly enough.
    if len(radii) > 1 and not _closed_form(linear, radii, x) and type(linear)._project is not Linear._project:
        y, error = alternate(Members(linear, centers, radii), len(radii) + 1, x, SHORT)
        known = y, error, error <= promise(x, y)
    best = _nearest(linear, centers, radii, x, known)
    rounding = 4 * float(jnp.finfo(x.dtype).eps) * jnp.max(jnp.abs(centers))
    beyond = missed(x, best.y, _violation(linear, centers, radii, best.y) - rounding)
    return best.y, jnp.where(best.merit == 0, best.error, best.error + beyond)


@_project.defjvp
def _project_jvp(primals: Any, tangents: Any) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    # y = P(c + t (x - c)) with |y - c| = r: t follows from the second where the ball holds y back (t < 1).
    linear, centers, radii, x = primals
    best = _nearest(linear, centers, radii, x, None)

    def at(t: Array, linear: Set, centers: Array, radii: Array, x: Array) -> tuple[Array, Array, Array]:
        center = centers[best.piece]
        inner = _piece(linear, centers, radii, best.piece, x)
        return inner._project(center + t * (x - center)), center, radii[best.piece]

    (y, center, radius), linear_part = jax.linearize(at, best.t, *primals)
    zeros = jax.tree.map(jnp.zeros_like, tangents)
    dy, dcenter, dradius = linear_part(jnp.zeros_like(best.t), *tangents)
    along, _, _ = linear_part(jnp.ones_like(best.t), *zeros)
    off = y - center
    rise = off @ along
    held = (best.t < 1) & (rise > 0)
    dt = jnp.where(held, radius * dradius - off @ (dy - dcenter), 0) / jnp.where(held, rise, 1)
    return (y, best.error), (dy + along * dt, jnp.zeros_like(best.error))


def _closed_form(linear: Set, radii: Array, x: Array) -> bool:
    return len(radii) == 2 and linear._row_count(x.shape[0]) == 0


def _violation(linear: Set, centers: Array, radii: Array, y: Array) -> Array:
    beyond = jnp.max(jax.vmap(norm)(y - centers) - radii)
    return jnp.maximum(linear.violation(y), jnp.maximum(beyond, 0))


def _nearest(linear: Set, centers: Array, radii: Array, x: Array, known: Any) -> Best:
    """Return the nearest piece, or what is known already: a point, a bound of its error, and whether that will do."""
    y, error, solved = (x, jnp.zeros((), x.dtype), jnp.bool_(False)) if known is None else known
    start = Best(jnp.where(solved, 0, jnp.inf).astype(x.dtype), jnp.int32(0), jnp.zeros((), x.dtype), y, error)

    def step(carry: tuple[Array, Best]) -> tuple[Array, Best]:
        j, best = carry
        trial = _along_the_ray(_piece(linear, centers, radii, j, x), centers[j], radii[j], x)
        merit = norm(x - trial.y) + PENALTY * _violation(linear, centers, radii, trial.y) if len(radii) > 1 else best.merit
        here = Best(merit, j, trial.t, trial.y, trial.error)
        better = (merit < best.merit) | (j == 0)
        return j + 1, jax.tree.map(lambda new, old: jnp.where(better, new, old), here, best)

    if len(radii) == 1:
        return step((jnp.int32(0), start))[1]
    return lax.while_loop(lambda carry: (carry[0] < len(radii)) & ~solved, step, (jnp.int32(0), start))[1]


def _piece(linear: Set, centers: Array, radii: Array, j: Array, x: Array) -> Set:
    """Return the polyhedron in which ball j is the one that is exceeded most."""
    if len(radii) == 1:
        return linear
    if _closed_form(linear, radii, x):
        return Halfspace(*(part[1 - j] for part in _cuts(centers, radii, j)))
    rows, (A, b) = linear._rows(x.shape[0], x.dtype), _cuts(centers, radii, j)
    return Given(Rows(jnp.concatenate([rows.A, A]), jnp.concatenate([rows.b, b]), rows.E, rows.f))


def _cuts(centers: Array, radii: Array, j: Array) -> tuple[Array, Array]:
    """Return the rows that keep ball j the one that is exceeded most; its own is a row of zeros."""
    apart = centers[j] - centers
    power = (radii - radii[j]) * (radii + radii[j]) - jnp.sum(apart * apart, axis=1)
    return apart, apart @ centers[j] + power / 2


def _along_the_ray(inner: Set, center: Array, radius: Array, x: Array) -> Trial:
    """Find the largest t in [0, 1] for which `P(c + t (x - c))` lies in the ball."""
    eps = float(jnp.finfo(x.dtype).eps)
    ray = x - center
    length = norm(ray)
    one, zero = jnp.ones((), x.dtype), jnp.zeros((), x.dtype)
    rounding = 4 * eps * (radius + jnp.max(jnp.abs(center)))
    closest = jnp.minimum(radius / jnp.where(length > 0, length, 1), 1)

    def step(trial: Trial) -> Trial:
        t = trial.following
        y, along = jax.jvp(lambda t: inner._project(center + t * ray), (t,), (one,))
        off = y - center
        distance = norm(off)
        gap = distance - radius
        inside = gap <= 0
        low, high = jnp.where(inside, t, trial.low), jnp.where(inside, trial.high, t)
        seen = trial.seen | inside
        # While the active rows stay, y moves on a line: the larger root of |off + s along| = r.
        square, rise = along @ along, off @ along
        root = rise**2 - square * gap * (distance + radius)
        down = rise + jnp.sqrt(jnp.maximum(root, 0))
        newton = jnp.maximum(t - gap * (distance + radius) / jnp.where(down > 0, down, 1), 0)
        useful = (root >= 0) & (down > 0) & (newton < high) & ((newton > low) | ~seen) & (trial.tried % 4 != 3)
        middle = jnp.where(low > 0, jnp.sqrt(low * high), high / 16)  # t may be small by many orders of magnitude
        middle = jnp.where(seen, middle, jnp.where(trial.tried == 0, closest, 0))  # t = 0 tells whether the set is empty
        # The width of the bracket; what a radius that is off by `doubt` means, whatever P is (y minimises a function of
        # modulus 1/t over P, so |y - z|^2 <= |r'^2 - r^2|); and what it means while y moves on that line.
        doubt = jnp.abs(gap) + rounding
        anyhow = jnp.sqrt(doubt * (2 * radius + doubt))
        local = jnp.where(rise > 0, doubt * distance * jnp.sqrt(square) / jnp.where(rise > 0, rise, 1), jnp.inf)
        free = inside & (t == 1)
        bracket = jnp.where(free, jnp.where(gap < -rounding, 0, jnp.inf), (high - low) * length)
        error = jnp.minimum(bracket, jnp.minimum(anyhow, local))
        # P may be empty, as pieces may be: then nothing is to be found.
        empty = inner.violation(y) > eps**0.5 * (distance + length)
        done = free | empty | (jnp.abs(gap) <= rounding) | (high - low <= 2 * eps * high) | ((t == 0) & ~inside)
        following = jnp.where(useful, newton, middle)
        return Trial(trial.tried + 1, low, high, seen, following, t, y, error, done)

    start = Trial(jnp.int32(0), zero, one, jnp.bool_(False), one, one, x, zero, jnp.bool_(False))
    return lax.while_loop(lambda trial: (trial.tried < TRIALS) & ~trial.done, step, start)
