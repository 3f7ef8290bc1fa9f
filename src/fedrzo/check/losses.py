"""What loss values tell: whether they are finite around x0, depend on x and on the batch, are means, and can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.check.report import NOTE, OK, PROBLEM, Finding
from fedrzo.client import Client
from fedrzo.twostage import TwoStage

CLIENTS = 16  # looked at, at most
DIRECTIONS = 3
FAR = 1.0  # how far from x0 a loss that is flat near it is asked again
ALIKE = 1e-3  # relative differences below this are none
SHARP = 1.5  # the power that second differences grow by: 2 where a loss is smooth, 1 across a kink


class Values(NamedTuple):
    """Losses of single samples, and of a batch that holds one of them twice.

    Attributes:
        singles: by client, sample (two of each) and point; the first point is x0.
        doubled: by client and point: the first sample, twice. None where a loss takes one scenario at a time.
    """

    singles: Any
    doubled: Any


def losses(problem: Any, method: Any, key: int) -> list[Finding]:
    """Look at the loss at x0, as far from it as the method's smoothing, and farther."""
    smoothing = float(getattr(method, "smoothing", 0.01))
    points = _points(np.asarray(problem.x0), smoothing, key)
    values = _look(problem, points, key)
    found = [_finite(values, smoothing), _depends_on_x(values, smoothing), _depends_on_batch(values), _mean(values)]
    if not problem.hierarchical:
        found.append(_shape(values, points.dtype))
    if getattr(problem.loss_fn, "is_blackbox", False):
        found.append(_repeatable(values, _look(problem, points, key), problem.dim, smoothing))
    return [finding for finding in found if finding is not None]


def _points(x: np.ndarray, smoothing: float, key: int) -> np.ndarray:
    """Return x0; x0 + v and x0 - v at once and twice the smoothing, direction by direction; and two points far away."""
    noise = np.random.default_rng(key).normal(size=(DIRECTIONS, x.size))
    units = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    around = [sign * scale * smoothing * unit for unit in units for scale in (1, 2) for sign in (1, -1)]
    return (x + np.array([0 * units[0], *around, FAR * units[0], -FAR * units[0]])).astype(x.dtype)


def _look(problem: Any, points: np.ndarray, key: int) -> Values:
    clients = np.unique(np.linspace(0, problem.clients - 1, min(problem.clients, CLIENTS)).astype(np.int32))
    at = jnp.asarray(points, float if problem.hierarchical else None)
    found = _values(problem, at, jnp.asarray(clients), jax.random.key(key))
    return Values(*(None if part is None else np.asarray(part, np.float64) for part in found))


@jax.jit
def _values(problem: Any, points: jax.Array, clients: jax.Array, key: jax.Array) -> Values:
    loss = _over_points(problem, points)

    def one(i: jax.Array) -> Values:
        batch = Client.of(problem, i).sample(jax.random.fold_in(key, i), 2)
        first, second = (_chosen(problem, batch, jnp.array([j])) for j in (0, 1))
        both = jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second)
        doubled = None if isinstance(problem, TwoStage) else loss(_chosen(problem, batch, jnp.array([0, 0])))
        return Values(jax.lax.map(loss, both), doubled)

    return jax.lax.map(one, clients)


def _over_points(problem: Any, points: jax.Array) -> Callable[[Any], jax.Array]:
    """Return the function of a batch that gives the loss at each point, with lower solutions where there are any."""
    if isinstance(problem, TwoStage):
        return lambda batch: jnp.mean(problem.implicit(points, batch, problem.monitor)[0], axis=1)
    if problem.hierarchical:
        solutions = jax.vmap(problem.solve_lower)(points)
        return lambda batch: jax.vmap(problem.value, (0, 0, None))(points, solutions, batch)
    return lambda batch: jax.vmap(problem.value, (0, None))(points, batch)


def _chosen(problem: Any, batch: Any, rows: jax.Array) -> Any:
    """Return a batch made of some samples of another."""
    samples, *fixed = (batch,) if problem.data.fixed is None else batch
    chosen = jax.tree.map(lambda leaf: leaf[rows], samples)
    return (chosen, *fixed) if fixed else chosen


def _finite(values: Values, smoothing: float) -> Finding:
    near = values.singles[:, :, :-2]
    bad = int(np.sum(~np.isfinite(near)))
    facts = {"values": near.size, "bad": bad}
    if bad:
        text = (
            f"{bad} of {near.size} values up to {2 * smoothing:g} from x0 are not finite, and a method asks there; move x0 into "
            "the loss's domain, make the smoothing smaller, or let the loss return a large number outside"
        )
        return Finding(PROBLEM, "loss", text, facts)
    return Finding(OK, "loss", f"finite at x0 and wherever it was asked up to {2 * smoothing:g} from it", facts)


def _depends_on_x(values: Values, smoothing: float) -> Finding | None:
    change = np.abs(values.singles - values.singles[:, :, :1])
    near, far = (float(np.nanmax(part)) for part in (change[:, :, :-2], change[:, :, -2:]))
    facts = {"near": near, "far": far}
    if near == 0 and far == 0:
        text = f"it has the same value at x0, up to {2 * smoothing:g} from it and {FAR:g} away; check that it uses x"
        return Finding(PROBLEM, "loss", text, facts)
    if near == 0:
        text = f"it has the same value wherever it was asked up to {2 * smoothing:g} from x0: no step goes anywhere from there; "
        return Finding(NOTE, "loss", text + "use a larger smoothing, or another x0", facts)
    return None


def _depends_on_batch(values: Values) -> Finding | None:
    if float(np.nanmax(np.ptp(values.singles, axis=(0, 1)))) > 0:
        return None
    text = (
        "it has the same value for every sample of every client; check that it uses the batch, and that samples differ"
    )
    return Finding(NOTE, "loss", text)


def _mean(values: Values) -> Finding | None:
    """Tell a mean from a sum: a sample that is there twice must count as if it were there once."""
    if values.doubled is None:
        return None
    once = values.singles[:, 0]
    scale = float(np.nanmax(np.abs(once))) or 1.0
    if np.nanmax(np.abs(values.doubled - once)) <= ALIKE * scale:
        return Finding(OK, "loss", "a mean over its batch, as it should be")
    if np.nanmax(np.abs(values.doubled - 2 * once)) <= ALIKE * scale:
        return Finding(
            PROBLEM, "loss", "a sample that is in the batch twice counts twice: a sum; return the mean over the batch"
        )
    text = "a sample that is in the batch twice has another loss than once; return the mean over the batch"
    return Finding(NOTE, "loss", text)


def _shape(values: Values, dtype: Any) -> Finding | None:
    """Tell a kink from a curve by how second differences grow when the distance is doubled."""
    base = values.singles[:, :, :1]
    sides = values.singles[:, :, 1:-2].reshape(*base.shape[:2], DIRECTIONS, 2, 2)
    second = np.abs(sides.sum(axis=-1) - 2 * base[..., None]).sum(axis=(0, 1, 2))
    noise = 100 * np.finfo(dtype).eps * float(np.abs(values.singles).sum())
    if not np.all(second > noise):
        return None  # linear, or too small a distance to tell
    power = float(np.log2(second[1] / second[0]))
    facts = {"power": power}
    if power > SHARP:
        text = "it looks smooth near x0; where it has a gradient, a first-order method needs fewer steps"
        return Finding(OK, "loss", text, facts)
    return Finding(
        OK, "loss", "it has kinks, or jumps, near x0: the case for methods that use loss values alone", facts
    )


def _repeatable(values: Values, again: Values, dim: int, smoothing: float) -> Finding:
    difference = float(np.nanmax(np.abs(values.singles - again.singles)))
    if difference == 0:
        return Finding(OK, "blackbox", "it gives the same value when asked twice")
    text = (
        f"it gave values that differ by {difference:.3g} at one point for one sample; an estimate multiplies that by up to "
        f"{dim / (2 * smoothing):.3g}: fix its seed, or draw its noise from the sample"
    )
    return Finding(NOTE, "blackbox", text, {"difference": difference})
