"""The server's part of `QuasiNewton`: BFGS for functions with kinks, as a state machine of arrays.

A. S. Lewis, M. L. Overton: "Nonsmooth optimization via quasi-Newton methods", Mathematical Programming 141 (2013), 135-163: the
weak Wolfe conditions ask for a decrease and for a slope that is less steep, not for a small slope, which a kink does not have.
J. V. Burke, A. S. Lewis, M. L. Overton: "A robust gradient sampling algorithm for nonsmooth, nonconvex optimization", SIAM J.
Optimization 15 (2005), 751-779: points drawn in shrinking balls lead on from a point at which a descent ends.

A round evaluates `TRIALS` points. The phase says which:

* `START`: the current point, when a descent begins or after multipliers have changed;
* `SETTLE`: the current point, at which clients change their multipliers;
* `SEARCH`: trial lengths along one direction, between known lower and upper bounds;
* `SCATTER`: points drawn in a ball around the best point; a descent goes on from one of them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

START, SETTLE, SEARCH, SCATTER = 0, 1, 2, 3
TRIALS = 6
DECREASE, FLATTER = 1e-4, 0.9  # of the weak Wolfe conditions
FIRST, USUAL = (8.0, 3.0, 1.0, 0.3, 0.1, 0.03), (4.0, 2.0, 1.0, 0.5, 0.2, 0.05)  # trial lengths
LONGER = (64.0, 32.0, 16.0, 8.0, 4.0, 2.0)  # of the longest so far, while none is too long
SHORTER = (0.5, 0.2, 0.05, 1e-2, 1e-3, 1e-4)  # of the shortest so far, while all are too long
BETWEEN = (0.9, 0.7, 0.5, 0.3, 0.1, 0.02)  # of the way from one that is too short to one that is too long
LOOKS = 8  # of one search, at most
LITTLE, OFTEN = 1e-8, 8  # least gain of a step, relative to the total gain; number of smaller ones in a row that end a descent
BEHIND = 1e-3  # least gain of a step of a descent that began at a scattered point, relative to its gap to the best value
SETTLED, SOONER = 1e-4, 0.3  # least relative gain before the first change of multipliers; factor per further change
QUICK = 2  # number of smaller gains in a row before such a change
INSIDE = 1e-7  # distance from the sets that counts as feasible, relative to the first step
SETTLES = 40  # largest number of changes of multipliers in a row
FALL = 4.0  # factor by which a change of multipliers has to lower that distance; else the Moreau parameter is divided by it
FALLS = 5  # largest number of such divisions
GAIN = 1e-6  # gain over the best value, relative to the total gain, that makes a scattered descent the new best one
BALLS, SHRINK = 3, 8.0  # number of balls before a rest; factor between their radii
DENSE, PAIRS = 500, 10  # up to so many variables all of the inverse Hessian is kept, beyond so many pairs


class Curvature(NamedTuple):
    """An estimate of the inverse Hessian: a matrix, or pairs of steps and changes of the gradient, the last one first."""

    matrix: Any  # or None
    steps: Any  # or None
    changes: Any  # or None
    known: jax.Array  # pairs seen, up to those that are kept; 0 where there is no estimate yet


class Descent(NamedTuple):
    """Where a descent is."""

    x: jax.Array  # the best point
    best: jax.Array  # its value
    z: jax.Array  # where the descent is
    value: jax.Array
    gradient: jax.Array
    away: jax.Array  # distance from the sets there
    direction: jax.Array
    lengths: jax.Array
    low: jax.Array  # the longest length that is too short
    high: jax.Array  # the shortest that is too long
    at_low: tuple[jax.Array, jax.Array, jax.Array]  # value, gradient and distance at `low`
    looks: jax.Array  # of this search
    phase: jax.Array
    curvature: Curvature
    first: jax.Array  # the value that gains are measured from
    little: jax.Array  # steps in a row that gained little
    scattered: jax.Array  # whether this descent began at a scattered point
    ball: jax.Array  # the radius that points are scattered in
    misses: jax.Array  # scattered points that led nowhere, in a row
    rests: jax.Array  # how often all balls led nowhere
    settles: jax.Array  # changes of multipliers
    settled: jax.Array  # of them, since x last jumped
    missed: jax.Array  # distance from the sets at the last change
    moreau: jax.Array
    falls: jax.Array  # how often that was made smaller


def begin(x: jax.Array, stepsize: Any, moreau: Any) -> Descent:
    """Return a descent that is about to look at x."""
    zero, one = jnp.zeros((), x.dtype), jnp.int32(0)
    n, flat, far = x.size, jnp.zeros_like(x), jnp.full((), jnp.inf, x.dtype)
    matrix = jnp.eye(n, dtype=x.dtype) if n <= DENSE else None
    pairs = None if n <= DENSE else jnp.zeros((PAIRS, n), x.dtype)
    return Descent(
        x=x, best=far, z=x, value=zero, gradient=flat, away=zero, direction=flat, lengths=jnp.zeros(TRIALS, x.dtype),
        low=zero, high=far, at_low=(zero, flat, zero), looks=one, phase=one, curvature=Curvature(matrix, pairs, pairs, one),
        first=zero, little=one, scattered=jnp.bool_(False), ball=jnp.asarray(stepsize, x.dtype), misses=one, rests=one,
        settles=one, settled=one, missed=far, moreau=jnp.asarray(moreau, x.dtype), falls=one,
    )  # fmt: skip


def trials(d: Descent, key: jax.Array) -> jax.Array:
    """Return the points to look at, one per row."""
    n = d.z.size
    noise = jax.random.normal(key, (TRIALS, n), d.z.dtype)
    radii = jax.random.uniform(jax.random.fold_in(key, 0), (TRIALS, 1), d.z.dtype) ** (1 / n)
    scattered = d.x + d.ball * radii * noise / jnp.linalg.norm(noise, axis=1, keepdims=True)
    searched = d.z + d.lengths[:, None] * d.direction
    return jnp.where(d.phase <= SETTLE, d.z, jnp.where(d.phase == SEARCH, searched, scattered))


def after(
    d: Descent, z: jax.Array, values: jax.Array, gradients: jax.Array, away: jax.Array, step: Any, settling: Any
) -> Descent:
    """Return the descent after the evaluation of the rows of z.

    Args:
        d: the descent before.
        z: the points, one per row.
        values: the values there.
        gradients: likewise.
        away: distances from the sets.
        step: the length of a first step.
        settling: whether there are sets, whose multipliers change.

    Each part of the descent is updated once, by masks, so that compiled code has no part twice.
    """
    starting, searching, scattering = (d.phase == phase for phase in (START, SEARCH, SCATTER))
    fine = jnp.isfinite(values) & jnp.all(jnp.isfinite(gradients), axis=1)
    seen, gradients = jnp.where(fine, values, jnp.inf), jnp.where(fine[:, None], gradients, 0)

    # The line search: the lowest point that fits both of Wolfe's conditions, or lengths between too short and too long ones.
    slope = d.direction @ d.gradient
    short = seen <= d.value + DECREASE * d.lengths * slope
    fits = short & (gradients @ d.direction >= FLATTER * slope)
    longest = jnp.argmax(jnp.where(short, d.lengths, -jnp.inf))
    at_low = _pick(short[longest], (seen[longest], gradients[longest], away[longest]), d.at_low)
    low = jnp.where(short[longest], d.lengths[longest], d.low)
    high = jnp.minimum(d.high, jnp.min(jnp.where(~short & (d.lengths > low), d.lengths, jnp.inf)))
    over = (d.looks + 1 >= LOOKS) | (high <= jnp.finfo(z.dtype).eps ** 0.9)
    accepted = searching & jnp.any(fits)
    given_up = searching & ~accepted & over
    partly = given_up & (low > 0)  # at a kink the slope may jump past what is asked for
    anew = given_up & (low == 0) & (d.curvature.known > 0)
    failed = given_up & (low == 0) & (d.curvature.known == 0)
    on = searching & ~accepted & ~given_up

    # Where the gradient leads away from x there is another valley, or a kink's other side; the lowest of such points first.
    leaves = jnp.sum(gradients * (z - d.x), axis=1) < 0
    lowest = jnp.argmin(jnp.where(jnp.any(leaves & fine) & ~leaves, jnp.inf, seen))
    blind = scattering & ~fine[lowest]

    j = jnp.where(starting, 0, jnp.where(scattering, lowest, jnp.argmin(jnp.where(fits, seen, jnp.inf))))
    value, gradient, distance = _pick(partly, at_low, (jnp.where(starting, values[0], seen[j]), gradients[j], away[j]))
    point = jnp.where(partly, d.z + low * d.direction, z[j])
    taken, moved = accepted | partly, accepted | partly | starting | (scattering & ~blind)

    # Gains, and whether a descent from a scattered point has overtaken the best one.
    rounding = 4 * jnp.finfo(z.dtype).eps * jnp.abs(d.value)
    overtakes = taken & d.scattered & (value < d.best - jnp.maximum(GAIN * jnp.abs(d.first - d.best), rounding))
    scattered = (d.scattered & ~overtakes) | (scattering & ~blind)
    settled = jnp.where(overtakes, 0, d.settled)  # in another place multipliers change anew
    more = settling & (settled < SETTLES) & ~scattered
    enough = jnp.where(more, jnp.maximum(SETTLED * SOONER ** settled.astype(z.dtype), LITTLE), LITTLE)
    behind = jnp.where(scattered, BEHIND * (value - d.best), 0)
    gained = d.value - value
    small = gained <= jnp.maximum(jnp.maximum(enough * jnp.abs(d.first - value), behind), rounding)
    little = jnp.where(taken & small, d.little + jnp.where(gained <= 0, OFTEN // 2, 1), 0)
    little = jnp.where(on, d.little, little)
    improved = starting | (taken & ~scattered)

    # The end of a descent: multipliers change if sets still pull; else points are scattered, in a smaller ball after a miss.
    ended = failed | (taken & (little >= jnp.where(more, QUICK, OFTEN)))
    distance = jnp.where(moved, distance, d.away)
    missed = (ended & scattered) | blind
    settle = ended & ~scattered & settling & (settled < SETTLES) & (distance > INSIDE * step)
    misses = jnp.where(overtakes, 0, d.misses) + missed
    rest = misses >= BALLS
    ball = jnp.where(missed, jnp.where(rest, jnp.asarray(step, z.dtype), d.ball / SHRINK), d.ball)

    # Multipliers have changed: a stronger pull if they do not bring the sets closer soon.
    changed = d.phase == SETTLE
    slow = changed & (d.settled > 1) & (d.away > d.missed / FALL) & (d.falls < FALLS)

    curvature = _learn(d.curvature, point - d.z, gradient - d.gradient, taken)
    curvature = curvature._replace(known=jnp.where(scattering | anew, 0, curvature.known))
    z_new, value, gradient = _pick(moved, (point, value, gradient), (d.z, d.value, d.gradient))
    search = (moved & ~ended) | anew
    newton = -_applied(curvature, gradient)
    usable = (curvature.known > 0) & jnp.all(jnp.isfinite(newton)) & (newton @ gradient < 0)
    size = jnp.linalg.norm(gradient)
    direction = jnp.where(usable, newton, -gradient * jnp.where(size > 0, step / jnp.where(size > 0, size, 1), 0))
    begun = _row(FIRST, low) + usable * (_row(USUAL, low) - _row(FIRST, low))
    between = low + (jnp.where(jnp.isfinite(high), high, 0) - low) * _row(BETWEEN, low)
    further = jnp.where(~jnp.isfinite(high), low * _row(LONGER, low), jnp.where(low == 0, high * _row(SHORTER, low), between))
    phase = jnp.where(search | on, SEARCH, jnp.where(settle, SETTLE, jnp.where(changed, START, SCATTER)))
    return d._replace(
        x=jnp.where(improved, z_new, d.x), best=jnp.where(improved, value, d.best), z=z_new, value=value, gradient=gradient,
        away=distance, direction=jnp.where(search, direction, d.direction),
        lengths=jnp.where(search, begun, jnp.where(on, further, d.lengths)),
        low=jnp.where(on, low, 0), high=jnp.where(on, high, jnp.inf), at_low=at_low, looks=jnp.where(on, d.looks + 1, 0),
        phase=phase.astype(d.phase.dtype), curvature=curvature._replace(known=jnp.where(search & ~usable, 0, curvature.known)),
        first=jnp.where(starting & ~jnp.isfinite(d.best), value, d.first), little=jnp.where(ended, 0, little),
        scattered=scattered, ball=ball, misses=jnp.where(rest, 0, misses), rests=d.rests + rest, settles=d.settles + settle,
        settled=settled + settle, missed=jnp.where(changed, d.away, d.missed),
        moreau=jnp.where(slow, d.moreau / FALL, d.moreau), falls=d.falls + slow,
    )  # fmt: skip


def _learn(c: Curvature, s: jax.Array, y: jax.Array, taken: jax.Array) -> Curvature:
    """Return the estimate with the pair of a step that was taken, if it bends upwards; a first one sets the scale."""
    sy, yy = s @ y, y @ y
    good = taken & (sy > 10 * jnp.finfo(s.dtype).eps * jnp.linalg.norm(s) * jnp.linalg.norm(y))
    sy = jnp.where(good, sy, 1)
    if c.matrix is None:
        steps, changes = (jnp.where(good, jnp.roll(a, 1, 0).at[0].set(new), a) for a, new in ((c.steps, s), (c.changes, y)))
        return Curvature(None, steps, changes, jnp.where(good, jnp.minimum(c.known + 1, PAIRS), c.known))
    scale = sy / jnp.where(yy > 0, yy, 1)
    old = jnp.where(c.known > 0, c.matrix, scale * jnp.eye(s.size, dtype=s.dtype))
    along = old @ y
    new = old + ((sy + y @ along) / sy**2) * jnp.outer(s, s) - (jnp.outer(along, s) + jnp.outer(s, along)) / sy
    return Curvature(jnp.where(good, (new + new.T) / 2, c.matrix), None, None, jnp.where(good, 1, c.known))


def _applied(c: Curvature, g: jax.Array) -> jax.Array:
    """Return the estimate of the inverse Hessian, applied to a vector."""
    if c.matrix is not None:
        return c.matrix @ g
    products = jnp.sum(c.steps * c.changes, axis=1)
    use = jnp.arange(PAIRS) < c.known
    rho = jnp.where(use, 1 / jnp.where(products > 0, products, 1), 0)
    scale = jnp.where(c.known > 0, products[0] / jnp.maximum(c.changes[0] @ c.changes[0], jnp.finfo(g.dtype).tiny), 1)

    def back(i: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        q, parts = carry
        a = rho[i] * (c.steps[i] @ q)
        return q - a * c.changes[i], parts.at[i].set(a)

    def forth(k: Any, q: jax.Array) -> jax.Array:
        i = PAIRS - 1 - k
        return q + (parts[i] - rho[i] * (c.changes[i] @ q)) * c.steps[i]

    q, parts = jax.lax.fori_loop(0, PAIRS, back, (g, jnp.zeros(PAIRS, g.dtype)))
    return jax.lax.fori_loop(0, PAIRS, forth, scale * q)


def _row(lengths: tuple[float, ...], like: jax.Array) -> jax.Array:
    return jnp.asarray(lengths, like.dtype)


def _pick(condition: jax.Array, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
