"""Mistakes that a few loss values and samples show: a loss that is no mean over its batch, a sampler that ignores its key.

`run` looks at a handful of samples and warns; `check` asks the same questions of more samples at more points.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.sampler import Sampler
from fedrzo.errors import warn
from fedrzo.federation.client import FULL
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.courtesy import ask
from fedrzo.problems.inputs import SAMPLES, Data, drawn, some_samples
from fedrzo.problems.questions import Stated
from fedrzo.support.compiling import trial
from fedrzo.support.known import known

FAR = 1.0  # how far from x0 a loss that is flat near it is asked again
ALIKE = 1e-3  # relative differences below this are none
CLEAR = 0.05  # relative differences above this are worth a warning; a ratio of sums, say, is nearly the mean of ratios
NEAR = 0.01  # stands for the smoothing of a method that has none
# What `run` looks at, from all over the list: samples with equal labels would hide that a loss mixes them up.
CLIENTS = 2
BLACKBOX = 1, 3  # it may be slow
COPIES = 2  # of the last sample, in a black box's batch: of two samples, and of evenly spaced ones, the median is the mean
NO_MEAN = "return the mean over the batch, not its median or maximum, and look at shapes: (n, 1) and (n,) broadcast to (n, n)"
NO_MEAN_BLACKBOX = (
    'if it is meant to be no mean, such as a median, pass batch_size="full": it then gets all samples of a client; else return '
    "the mean over the batch, and look at shapes: (n, 1) and (n,) broadcast to (n, n)"
)
UNTOLD = (
    "it is the same for each of the few samples that were tried, which cannot tell a mean over a batch from a median or a score; "
    'pass batch_size="full", which needs no mean, or state the mean: fz.blackbox(fn, mean=True)'
)
STATE = "if it is the mean over its batch, state it, and smaller batches will do: fz.blackbox(fn, mean=True)"
SWAPPED = (
    "its slope in y is the same for every x, so that x cannot move y; the upper loss comes first: are loss and lower swapped?"
)
REDRAWN = (
    "it is another function each time that JAX traces it, so that compiled code keeps numbers which it drew once (np.random, the "
    "time); take them from the batch or a fz.Sampler, or pass fz.blackbox(...), which is called anew each time"
)
UNUSED = "it has the same value at x0 and some way off; check that it uses x"
IGNORED = "samples do not change with the key; draw them with jax.random and the key, since NumPy draws only once"


class Values(NamedTuple):
    """Losses of single samples, and of a batch that holds all of them."""

    singles: Any  # by client, sample and point; the first point is x0
    together: Any  # by client and point. None where a loss takes one scenario at a time


class Mistake(NamedTuple):
    """What is wrong with a loss."""

    text: str  # in words, with what to do
    moves: bool  # whether steps see it; where not, only the monitored loss is off
    is_sum: bool  # whether a sum stands where a mean is due
    together: float  # the loss of a batch, where it is farthest from the mean of its samples' losses
    mean: float  # that mean
    told: bool = True  # whether values show it; where not, it is a doubt

    @property
    def apart(self) -> float:
        """The difference, relative to the larger of the two; infinite if it cannot be told."""
        return abs(self.together - self.mean) / max(abs(self.together), abs(self.mean)) if self.told else math.inf


def warn_of_mistakes(problem: Problem, method: Any) -> None:
    """Look at a few samples before the first round, and warn of what is most likely not meant; nothing is charged."""
    data = problem.data

    def asked(question: Any, find: Callable[..., Any], *arguments: Any) -> Any:
        return ask(lambda: known(problem, question, lambda: find(*arguments)))

    if not data.stored and asked("ignores its key", ignores_key, data):
        warn(f"Sampler: {IGNORED}")
    for level in problem.stated:
        if asked(("redrawn", level.argument), redrawn, problem, level):
            warn(f"{level.argument}: {REDRAWN}")
            return  # whatever else is found would be found of one of its draws
    if not problem.takes_batches:
        return  # its loss gets one scenario at a time: there is nothing to take a mean of
    if asked("ignores x", ignores_x, problem):
        warn(f"loss: {UNUSED}")
    if asked("lower ignores x", lower_ignores_x, problem):
        warn(f"lower: {SWAPPED}")
    smoothing = float(getattr(method, "smoothing", None) or NEAR)
    for level in problem.stated:
        found = asked((level.argument, smoothing), mistake, level, smoothing, problem.dtype)
        if found is not None and found.apart >= CLEAR:
            _warn_of_no_mean(level, found, method)


def redrawn(problem: Problem, level: Stated) -> bool:
    """Return whether a loss is another one each time it is traced."""
    if is_blackbox(level.loss):
        return False
    batch = problem.alone(some_samples(level.data, 0, 1))
    return differs_when_traced(level.loss, *level.trees(np.asarray(level.start)), batch)


def differs_when_traced(function: Any, *arguments: Any) -> bool:
    """Return whether tracing a function twice gives two programs."""
    first, second = (jax.make_jaxpr(lambda *given: function(*given))(*arguments) for _ in range(2))  # two lambdas: JAX remembers
    if str(first) != str(second):
        return True
    pairs = zip(first.consts, second.consts, strict=True)
    return not all(one is other or np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True) for one, other in pairs)


def mistake(level: Stated, smoothing: float, dtype: np.dtype) -> Mistake | None:
    """Return what is wrong with a loss as a mean over its batch; for a black box, also that it cannot be told."""
    values, blackbox = _tried(level, smoothing, dtype), is_blackbox(level.loss)
    if values is None:
        return None
    found = no_mean(values, 0.0, dtype, blackbox)
    if found is None and blackbox and not _needs_no_doubt(level) and not tells(values, 0.0, dtype):
        return Mistake(UNTOLD, False, False, float(values.together.flat[0]), float(values.together.flat[0]), told=False)
    return found


def doubt(level: Stated, smoothing: float, dtype: np.dtype) -> str | None:
    """Return why the values of a black box do not show it to be a mean over its batch; None if they do, or it is stated."""
    if not is_blackbox(level.loss) or _needs_no_doubt(level):
        return None
    values = _tried(level, smoothing, dtype)
    if values is None:
        return f"differs when it is asked twice; {STATE}"
    if no_mean(values, 0.0, dtype, blackbox=True) is not None:
        return "is no mean over a batch"
    return None if tells(values, 0.0, dtype) else f"is the same for each of the few samples that were tried; {STATE}"


def _needs_no_doubt(level: Stated) -> bool:
    """Return whether a black box is stated to be a mean, or only ever gets copies of one sample."""
    return getattr(level.loss, "mean", False) or (level.data.stored and level.data.longest == 1)


def _tried(level: Stated, smoothing: float, dtype: np.dtype) -> Values | None:
    """Ask at the start, at a point as far from it as the method asks, and at one that is farther."""
    direction = np.random.default_rng(0).normal(size=level.start.size)
    lengths = np.array([0.0, smoothing, FAR]) / np.linalg.norm(direction)
    places = (np.asarray(level.start) + lengths[:, None] * direction).astype(dtype)
    points = [level.trees(place) for place in places]
    if is_blackbox(level.loss):
        return _ask(level.loss, level.data, points[:2], *BLACKBOX)
    return _ask(level.loss, level.data, points, CLIENTS, SAMPLES)


def _warn_of_no_mean(level: Stated, found: Mistake, method: Any) -> None:
    data, blackbox = level.data, is_blackbox(level.loss)
    # Where a black box gets whole batches only, what it makes of one is its own affair, but for a sum; where sizes are equal,
    # the monitored loss of other functions is that of whole batches.
    whole = getattr(method, "batch_size", None) == FULL if blackbox else data.equal_size is not None
    if found.is_sum or not whole or (found.moves and not blackbox):
        warn(f"{level.argument}: {found.text}")


def _ask(function: Any, data: Data, points: list[tuple], clients: int, samples: int) -> Values | None:
    """Ask for losses; None where they differ when asked twice.

    Of single samples, they come from the program that has just tried the loss; of several, it takes another small one.
    """
    loss = trial(function)
    singles, together = [], []
    chosen = np.unique(np.linspace(0, data.clients - 1, clients).astype(int))
    if data.stored and clients == 1:
        chosen = np.array([np.argmax(data.sizes)])
    if data.stored:  # a single sample is taken twice, as a larger batch would do
        samples = min(samples, max(2, int(np.asarray(data.sizes)[chosen].min())))
    rows = np.array([*range(samples), *([samples - 1] * COPIES if is_blackbox(function) else [])])
    for i in chosen:
        batch = some_samples(data, int(i), samples)
        stacked, *fixed = (batch,) if data.fixed is None else batch
        each = [jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], stacked) for k in range(samples)]
        alone = [[loss(*point, (one, *fixed) if fixed else one) for point in points] for one in each]
        singles.append([alone[k] for k in rows])
        some = jax.tree.map(lambda leaf: leaf[rows], stacked)
        batch = (some, *fixed) if fixed else some
        together.append([loss(*point, batch) for point in points])
    values = Values(np.asarray(singles, np.float64), np.asarray(together, np.float64))
    if is_blackbox(function) and not np.array_equal(loss(*points[0], batch), together[-1][0], equal_nan=True):
        return None
    return values


def ignores_key(sampler: Sampler) -> bool:
    """Draw with two keys: a generator of NumPy's, run once while JAX traces, would give the same samples for ever."""
    one, other = (jax.tree.leaves(drawn(sampler, jax.random.key(seed), np.int32(0))) for seed in (0, 1))
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def ignores_x(problem: Problem) -> bool:
    """Tell whether a loss has the same value at x0 and on both sides of it; black boxes, and losses of y, are not asked.

    Where a few samples have nothing to say about x, all of them are asked: it may be a few others that do.
    """
    [level, *below] = problem.stated
    if below or problem.hierarchical or is_blackbox(level.loss):
        return False
    x, away = _away(level, problem.dtype)
    places = (x, x + away, x - away)
    values = _ask(level.loss, level.data, [level.trees(place) for place in places], CLIENTS, SAMPLES)
    if values is None or np.any(values.singles != values.singles[:, :, :1]):
        return False
    return len({float(problem.evaluate(jnp.asarray(place))["loss"]) for place in places}) == 1


def lower_ignores_x(problem: Any) -> bool:
    """Tell whether a lower loss has the same slope in y at x0 and on both sides of it, and Y(x) does not depend on x either."""
    if len(problem.stated) < 2 or problem.lower_blackbox or problem.lower_set_fn is not None:
        return False
    upper, lower = problem.stated
    batch = some_samples(lower.data, 0, SAMPLES if not lower.data.stored else min(SAMPLES, int(lower.data.sizes[0])))
    (x, far), (_, aside) = (_away(level, problem.dtype) for level in (upper, lower))
    y = np.asarray(lower.start, problem.dtype) + aside  # at y0 itself a product of x and y may vanish
    slope = trial(jax.grad(lower.loss, 1))
    points = (problem.into_domain(place) for place in (x, x + far, x - far))
    here, *there = (jax.tree.leaves(slope(*problem.trees(point, y), batch)) for point in points)
    return all(np.array_equal(a, b) for other in there for a, b in zip(here, other, strict=True))


def _away(level: Stated, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return where a level starts, and some way to go from there."""
    direction = np.random.default_rng(0).normal(size=level.start.size)
    return np.asarray(level.start, dtype), (FAR * direction / np.linalg.norm(direction)).astype(dtype)


def usable(values: Values) -> np.ndarray:
    """Tell at which points a client's losses are finite."""
    return np.isfinite(values.together) & np.isfinite(values.singles).all(axis=1)


def no_mean(values: Values, noise: float, dtype: Any, blackbox: bool) -> Mistake | None:
    """Tell a mean from anything else: what samples cost together against the mean of what each costs, as x moves.

    At x0 alone they may well agree: at x = 0, say, predictions are 0 whatever samples are mixed up with which.
    """
    finite = usable(values)
    seen = finite.any(axis=1)  # clients
    if not seen.any():
        return None
    means = values.singles.mean(axis=1)
    together, means = (np.where(finite, part, np.nan)[seen] for part in (values.together, means))
    samples = values.singles.shape[1]
    gap, sums = together - means, samples * means
    rounding = 100 * np.finfo(dtype).eps * _largest(means) + noise
    if _largest(gap) <= rounding:
        return None
    worst = np.unravel_index(np.nanargmax(np.abs(gap)), gap.shape)
    there = float(together[worst]), float(means[worst])
    if _range(gap) > ALIKE * _range(means) + rounding:
        if _largest(together - sums) <= ALIKE * _largest(sums):
            return Mistake("over a batch it is the sum of its samples' losses; return their mean", True, True, *there)
        return Mistake(
            f"over {samples} samples it is {there[0]:.4g}, but the mean of their losses is {there[1]:.4g}; "
            f"{NO_MEAN_BLACKBOX if blackbox else NO_MEAN}",
            True, False, *there,
        )  # fmt: skip
    if _largest(gap) > ALIKE * _largest(means) + rounding:
        text = (
            f"over {samples} samples it differs by {_largest(gap):.3g} from the mean of their losses, wherever x is: steps do "
            "not see that, but the monitored loss depends on how samples are put together; return the mean over the batch"
        )
        return Mistake(text, False, False, *there)
    return None


def tells(values: Values, noise: float, dtype: Any) -> bool:
    """Return whether `no_mean` would have seen that a loss is the median of its samples' losses instead of their mean.

    Where a client's samples cost alike, the mean is also their median, their maximum, and what most scores return.
    """
    singles = values.singles[np.isfinite(values.singles).all(axis=(1, 2))]
    if not singles.size:
        return False
    means, medians = singles.mean(axis=1), np.median(singles, axis=1)
    return _largest(means - medians) > ALIKE * _largest(means) + 100 * np.finfo(dtype).eps * _largest(means) + noise


def _largest(values: np.ndarray) -> float:
    return float(np.nanmax(np.abs(values)))


def _range(values: np.ndarray) -> float:
    """Return by how much values change from point to point, at most."""
    return float(np.nanmax(np.nanmax(values, axis=1) - np.nanmin(values, axis=1)))
