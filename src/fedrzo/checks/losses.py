"""What loss values tell: whether they are finite around x0, depend on x and on the batch, are means, and can be repeated."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.checks.report import NOTE, OK, PROBLEM, Finding
from fedrzo.federation.client import FULL, Client
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.inputs import one_sample
from fedrzo.problems.mistakes import FAR, STATE, Values, no_mean, tells, usable

CLIENTS = 12  # looked at, at most
SAMPLES = 4  # of each, at least
IN_ALL = 24  # samples, at least: all labels alike would hide that a loss mixes samples up
DIRECTIONS = 3
SCENARIOS = 2  # of each client: they come one at a time, so that nothing can mix them up, and each takes a lower solve
SHARP = 1.5  # the power that second differences grow by: 2 where a loss is smooth, 1 across a kink
AFFAIR = ", which it need not be where it gets all samples of a client"
WHOLE = 'pass batch_size="full", which needs no mean'
LOOK_ELSEWHERE = "see to it that it is, or check it at another x0"


class Extent(NamedTuple):
    """How much is asked of a loss."""

    clients: int  # at most
    samples: int  # of each client, once alone and once together
    directions: int  # along which kinks are looked for; if there are none, one point is asked near x0

    @property
    def points(self) -> int:
        """The number of points that a black box is asked at: x0 twice, two far away, and those near x0."""
        return 4 + max(1, 4 * self.directions)


# For black boxes, the largest that the calls suffice for. Of two samples, the median is the mean.
EXTENTS = (
    Extent(CLIENTS, SAMPLES, DIRECTIONS), Extent(4, SAMPLES, DIRECTIONS), Extent(2, SAMPLES, DIRECTIONS), Extent(2, 3, 1),
    Extent(2, 3, 0), Extent(1, 3, 0), Extent(1, 2, 0),
)  # fmt: skip


def price(problem: Problem, extent: Extent, lower: bool = False) -> int:
    """Return the number of calls that a black box, the loss or the lower one, takes."""
    box: Any = problem.stated[1 if lower else 0].loss
    asked = min(problem.clients, extent.clients) * (extent.samples + 1 if problem.takes_batches else SCENARIOS)
    return asked * (1 if box.vectorized else extent.points)


def losses(problem: Problem, method: Method, key: int, extent: Extent | None = None) -> list[Finding]:
    """Look at the loss at x0, as far from it as the method's smoothing, and farther."""
    smoothing, blackbox = float(getattr(method, "smoothing", None) or 0.01), is_blackbox(problem.loss_fn)
    extent = _extent(problem) if extent is None else extent
    points = _points(np.asarray(problem.x0), smoothing, key, extent.directions)
    values, again = _values_at(problem, points, key, extent, blackbox)
    found = [_finite(values, smoothing), _depends_on_x(values, smoothing, _widening(problem, method)), _depends_on_batch(values)]
    whole = blackbox and getattr(method, "batch_size", None) == FULL
    found.append(_mean(problem.loss_fn, values, again, points.dtype, whole))
    if not problem.hierarchical and extent.directions:
        found.append(_shape(values, points.dtype))
    if again is None:
        found.append(_redrawn(problem))
    else:
        found.append(_repeatable(values, again, problem.dim, smoothing))
    return [finding for finding in found if finding is not None]


def _extent(problem: Problem) -> Extent:
    return Extent(CLIENTS, max(SAMPLES, IN_ALL // min(problem.clients, CLIENTS)), DIRECTIONS)


def _points(x: np.ndarray, smoothing: float, key: int, directions: int) -> np.ndarray:
    """Return x0; x0 + v and x0 - v at once and twice the smoothing, direction by direction; and two points far away.

    Without directions, only one x0 + v.
    """
    noise = np.random.default_rng(key).normal(size=(max(1, directions), x.size))
    units = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    around = [sign * scale * smoothing * unit for unit in units for scale in (1, 2) for sign in (1, -1)]
    around = around if directions else around[:1]
    return (x + np.array([0 * units[0], *around, FAR * units[0], -FAR * units[0]])).astype(x.dtype)


def _values_at(
    problem: Problem, points: np.ndarray, key: int, extent: Extent, twice: bool, lower: bool = False
) -> tuple[Values, Values | None]:
    """Return the losses at all points; and again at the first one if they are asked `twice`."""
    clients = np.unique(np.linspace(0, problem.clients - 1, min(problem.clients, extent.clients)).astype(np.int32))
    places = np.concatenate([points, points[:1]]) if twice else points
    at, samples = jnp.asarray(places, problem.dtype), extent.samples if problem.takes_batches else SCENARIOS
    found = _values(problem, at, jnp.asarray(clients), jax.random.key(key), samples, lower)
    values = Values(*(None if part is None else np.asarray(part, np.float64) for part in found))
    if not twice:
        return values, None
    first, last = (
        Values(*(None if part is None else part[..., chosen] for part in values)) for chosen in (np.s_[:-1], np.s_[-1:])
    )
    return first, last


@functools.partial(jax.jit, static_argnums=(4, 5))
def _values(problem: Problem, points: jax.Array, clients: jax.Array, key: jax.Array, samples: int, lower: bool) -> Values:
    """Return losses at points x; or of the lower level at x0, at points y."""
    level = problem.lower_level(problem.start) if lower else problem
    value = level.losses_at(points)

    def one(i: jax.Array) -> Values:
        batch = Client.of(level, i).sample(jax.random.fold_in(key, i), samples)
        drawn, *fixed = (batch,) if level.data.fixed is None else batch
        each = jax.tree.map(lambda leaf: leaf[:, None], drawn)
        singles = jax.lax.map(lambda sample: value((sample, *fixed) if fixed else sample), each)
        return Values(singles, value(batch) if problem.takes_batches else None)

    return jax.lax.map(one, clients)


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


def _widening(problem: Problem, method: Method) -> str:
    """Return how steps can be made to see farther than a method does now."""
    if getattr(method, "smoothing", None) is not None:
        return "use a larger smoothing"
    return f"{type(method).__name__} has no smoothing, so use a method by values, such as {problem.usual}"


def _depends_on_x(values: Values, smoothing: float, widening: str) -> Finding | None:
    change = np.abs(values.singles - values.singles[:, :, :1])
    near, far = (float(np.nanmax(part)) for part in (change[:, :, :-2], change[:, :, -2:]))
    facts = {"near": near, "far": far}
    if near == 0 and far == 0:
        text = f"it has the same value at x0, up to {2 * smoothing:g} from it and {FAR:g} away; check that it uses x"
        return Finding(PROBLEM, "loss", text, facts)
    if near == 0:
        text = f"it has the same value wherever it was asked up to {2 * smoothing:g} from x0: no step goes anywhere from there; "
        return Finding(NOTE, "loss", f"{text}{widening}, or another x0", facts)
    return None


def _depends_on_batch(values: Values) -> Finding | None:
    if float(np.nanmax(np.ptp(values.singles, axis=(0, 1)))) > 0:
        return None
    text = "it has the same value for every sample of every client; "
    return Finding(NOTE, "loss", text + "check that it uses the batch, and that samples differ")


def _mean(loss: Any, values: Values, again: Values | None, dtype: Any, whole: bool = False) -> Finding | None:
    """Say whether the loss is a mean over its batch; values that are not finite are told of elsewhere.

    A black box is asked again, and where it only ever gets `whole` batches, what it makes of one is its own affair.
    """
    if values.together is None or not usable(values).any():
        return None
    noise = 0.0 if again is None else 4 * _apart(values, again)
    found = no_mean(values, noise, dtype, again is not None)
    if found is not None:
        facts = {"together": found.together, "mean": found.mean}
        if whole and not found.is_sum:
            return Finding(OK, "loss", f"no mean over its batch{AFFAIR}", facts)
        return Finding(PROBLEM if found.moves else NOTE, "loss", found.text, facts)
    if tells(values, noise, dtype):
        return Finding(OK, "loss", "a mean over its batch, as it should be")
    if getattr(loss, "mean", False):
        return Finding(OK, "loss", "a mean over its batch, as stated: its values do not tell")
    text = "it cannot be told whether it is a mean over its batch: samples cost alike wherever it was asked"
    if whole:
        return Finding(OK, "loss", text + AFFAIR)
    return Finding(NOTE, "loss", f"{text}; {LOOK_ELSEWHERE if again is None else f'{WHOLE}, or {STATE}'}")


def lower_mean(problem: Problem, method: Method, key: int, extent: Extent | None = None) -> list[Finding]:
    """Look at a stated lower loss in the same way, around y0; what does not change with y has no effect."""
    if len(problem.stated) < 2:
        return []
    smoothing, level = float(getattr(method, "smoothing", None) or 0.01), problem.stated[1]
    extent = _extent(problem) if extent is None else extent
    points = _points(np.asarray(level.start), smoothing, key, extent.directions)
    values, again = _values_at(problem, points, key, extent, problem.lower_blackbox, lower=True)
    found = _mean(level.loss, values, again, np.float64)
    return [dataclasses.replace(found, about="lower")] if found is not None and found.level == PROBLEM else []


def _apart(values: Values, again: Values) -> float:
    """Return the largest difference between what a black box returned at x0 and what it returned there later."""
    pairs = [(first[..., 0], last[..., 0]) for first, last in zip(values, again, strict=True) if first is not None]
    return max(float(np.nanmax(np.abs(first - last), initial=0.0)) for first, last in pairs)


def _shape(values: Values, dtype: Any) -> Finding | None:
    """Tell a kink from a curve by how second differences grow when the distance is doubled."""
    base = values.singles[:, :, :1]
    sides = values.singles[:, :, 1:-2].reshape(*base.shape[:2], -1, 2, 2)
    second = np.abs(sides.sum(axis=-1) - 2 * base[..., None]).sum(axis=(0, 1, 2))
    noise = 100 * np.finfo(dtype).eps * float(np.abs(values.singles).sum())
    if not np.all(second > noise):
        return None  # linear, or too small a distance to tell
    power = float(np.log2(second[1] / second[0]))
    facts = {"power": power}
    text = "it has kinks, or jumps, near x0: the case for methods that use loss values alone"
    if power > SHARP:
        text = "it looks smooth near x0; where it has a gradient, a first-order method needs fewer steps"
    return Finding(OK, "loss", text, facts)


def _redrawn(problem: Problem) -> Finding | None:
    """Say that a loss is another one when it is traced again: random numbers of NumPy's become constants of compiled code."""
    level = problem.stated[0]
    arguments = (*level.trees(jnp.asarray(level.start, problem.dtype)), problem.alone(one_sample(level.data)))
    one, other = (jax.jit(lambda *given: level.loss(*given)).lower(*arguments).as_text() for _ in range(2))
    if one == other:
        return None
    text = (
        "it changes when it is traced again, as where NumPy draws random numbers, which compiled code keeps for ever; draw noise "
        "with the samples, or wrap the loss: fz.blackbox"
    )
    return Finding(NOTE, "loss", text)


def _repeatable(values: Values, again: Values, dim: int, smoothing: float) -> Finding:
    difference = _apart(values, again)
    if difference == 0:
        return Finding(OK, "blackbox", "it gives the same value when asked twice")
    text = (
        f"it gave values that differ by {difference:.3g} at one point for one sample; an estimate multiplies that by up to "
        f"{dim / (2 * smoothing):.3g}: fix its seed, or draw its noise from the sample"
    )
    return Finding(NOTE, "blackbox", text, {"difference": difference})
