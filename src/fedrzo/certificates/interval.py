"""The statistics of a certificate: an unbiased estimate of a squared mean from samples of vectors, and its interval.

Directions are dealt into `BLOCKS` blocks; the blocks' mean vectors h_1 .. h_I are independent, each with mean G (the gradient)
and covariance S. The mean of h_i'h_j over all pairs i != j is unbiased for |G|^2. Its variance is 4 G'SG/I + 2 tr(S^2)/I^2, up
to terms of higher order. Far from stationarity the first part rules and the estimate is close to normal; at G = 0 the
second part is all there is, and the estimate is a centred sum of squares. An interval made from the variance *estimated at the
estimate* fails in between: where noise pulls the estimate down, it pulls the estimated variance down too. So the interval here
holds the values t that the estimate does not contradict, each with the variance it would have at |G|^2 = t:

    (estimate - t)^2 <= q^2 (4 t s / I + 2 c / I^2),

with s an estimate of G'SG/|G|^2 and c one of tr(S^2). That is a quadratic in t. G'SG and tr(S^2) are estimated without bias; the
ratio of the former to |G|^2 is drawn towards a prior as |G|^2 vanishes in the noise.

A sum of squares is skewed: near stationarity misses lie almost all below, so that the upper end, which is what a certificate is
read for, is wrong less often than it may be. What it leaves of the error is the lower end's, whose quantile is that of a sum of
squares (gamma) as skewed as the estimate would be at t: its third cumulant is 8 tr(S^3)/I^3 + 24 G'S^2G/I^2, and s stands for
an eigenvalue of S. At 95 % that is about q; at 99.9 %, in few dimensions, nearly twice as much.
"""

import bisect
import functools
import math
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose parts are imported when they are used

BLOCKS = 64
PILOT = 4  # directions per block in the first pilot
LEAST = 16  # in a sample that is reported, where there are many dimensions: see `least_for`
PRIOR = 1.2  # s over tr(S^2)/tr(S): estimates of a linear loss have 1 across its gradient and almost 2 along it
GROWTH = 4  # a sample is at most so many times as large as the pilot that it was planned from
BELIEF = 0.9  # plans are for a |G|^2 at the upper end of the pilot's interval at this level ...
SINGLE = math.sqrt(8)  # the skewness of a single squared normal, above which no sum of squares has one
LUCK = 0.999  # ... and for an estimate as far above it as a sample gives at this level


class SquaredNorm(NamedTuple):
    """An estimate of |G|^2 from one sample."""

    value: float  # unbiased; may be below zero where |G|^2 is small
    lower: float  # the lower end of the interval; not cut at zero, for that would not change what it covers
    upper: float  # the upper end
    resolution: float  # half the width that the interval has at |G| = 0: what this sample cannot tell from zero
    slope: float  # s for a single direction
    spread: float  # c for a single direction
    directions: int  # how many the sample holds

    @property
    def width(self) -> float:
        """The interval's width."""
        return self.upper - self.lower

    def norm_interval(self) -> tuple[float, float]:
        """Return an interval of |G|; its upper end is never below what the sample can resolve."""
        return math.sqrt(max(self.lower, 0.0)), math.sqrt(max(self.upper, self.resolution))


def estimate_square(means: np.ndarray, per_block: int, confidence: float) -> SquaredNorm:
    """Estimate |G|^2 from the mean vectors of four blocks at least, one per row, with so many directions behind each."""
    means = np.asarray(means, np.float64)
    count = len(means)
    value, along, spread, total = _moments(means @ means.T)
    noise = math.sqrt(2 * spread) / count  # of the estimate at G = 0
    prior = PRIOR * spread / total if total > 0 else 0.0
    weight = max(value, 0.0) + noise
    slope = (max(along, 0.0) + noise * prior) / weight if weight > 0 else 0.0
    spread *= count / (count - 1)
    lower, upper, resolution = ends(value, slope, spread, count, confidence)
    return SquaredNorm(value, lower, upper, resolution, slope * per_block, spread * per_block**2, count * per_block)


def _moments(gram: np.ndarray) -> tuple[float, float, float, float]:
    """Estimate |G|^2, G'SG, tr(S^2) and tr(S), all without bias whatever the distribution, from the blocks' inner products.

    The first three are means over distinct blocks i, j, k, l: of h_i'h_j, of (h_i'h_j)(h_j'h_k) - (h_i'h_j)(h_k'h_l), and
    the same with (h_i'h_j)^2 in front for differences to the mean. Plug-in estimates of the second are off by the third moments
    of two-point estimates, by a third and more: opposite to the loss's own gradient their tail is short.
    """
    size = len(gram)
    pairs = size * (size - 1)
    triples, fours = pairs * (size - 2), pairs * (size - 2) * (size - 3)
    diagonal = np.diag(gram)
    rows = gram.sum(axis=1) - diagonal
    value = rows.sum() / pairs
    # Sums over distinct blocks, written in differences to the mean, so that a large G costs no digits.
    across = float(np.sum((rows - rows.mean()) ** 2))
    apart = float(np.sum((gram - value) ** 2) - np.sum((diagonal - value) ** 2))
    along = (across - apart) / triples + (4 * across - 2 * apart) / fours
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    own = np.diag(centred)
    squares, total = float(np.sum(own**2)), float(own.sum())
    products = float(np.sum(centred**2)) - squares
    spread = products / pairs - 2 * (squares - products) / triples
    spread += (total**2 - 4 * squares + 2 * products) / fours
    return float(value), along, max(spread, 0.0), total / (size - 1)


def ends(value: float, slope: float, spread: float, count: float, confidence: float) -> tuple[float, float, float]:
    """Return the interval's ends, and its half width at zero; `count` samples, each with this slope and spread."""
    q = quantile(confidence)
    a, c = 4 * q**2 * slope / count, 2 * q**2 * spread / count**2
    middle, half = value + a / 2, math.sqrt(max(a * value + a**2 / 4 + c, 0.0))
    lower = middle - half
    if lower > 0:
        lower = _skewed_lower(value, lower, slope, spread, count, confidence)
    # The estimate may lie below an interval that reaches zero; it is let in, which changes nothing for values above zero.
    return float(min(lower, value) if lower <= 0 else lower), float(middle + half), math.sqrt(c)


def _skewed_lower(value: float, high: float, slope: float, spread: float, count: float, confidence: float) -> float:
    """Return the least t that the estimate does not contradict, its skewness regarded; `high` is not contradicted."""

    def contradicted(t: float) -> bool:
        along = t * slope * count
        both = spread + 2 * along  # half of the variance, times count^2
        skewness = SINGLE * slope / math.sqrt(both) * ((spread + 3 * along) / both)
        return value - t > skewed_quantile(min(skewness, SINGLE), confidence) * math.sqrt(2 * both) / count

    low = 0.0
    if spread <= 0:
        return high
    if not contradicted(low):
        return low
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if contradicted(middle) else (low, middle)
    return high


def skewed_quantile(skewness: float, confidence: float) -> float:
    """Return how many standard deviations the lower end takes: all error that the upper end does not, and no fewer than it.

    The quantile of a gamma distribution, as much longer than that of known variance as Student's is than the normal one.
    """
    q = quantile(confidence)
    normal = float(scipy.special.ndtri(0.5 + confidence / 2))
    if skewness < 1e-3:
        return q
    shape = 4 / skewness**2
    left = float(scipy.special.gammainc(shape, max(shape - normal * math.sqrt(shape), 0.0)))  # misses of the upper end
    skewed = (float(scipy.special.gammaincinv(shape, confidence + left)) - shape) / math.sqrt(shape)
    return max(q, skewed * q / normal)


@functools.lru_cache(maxsize=256)
def quantile(confidence: float) -> float:
    """Return Student's two-sided quantile for the degrees of freedom that a sample has."""
    return float(scipy.special.stdtrit(BLOCKS - 1, 0.5 + confidence / 2))


class Outcome(NamedTuple):
    """What an adaptive rule ends with."""

    estimate: SquaredNorm  # from one fresh sample, or from a pilot where `decided` is "pilot"
    # `"fixed"`: from as many directions as asked; `"narrow"`: as narrow as asked; `"capped"`: the cap on directions was hit;
    # `"pilot"`: a pilot showed the value to lie above the threshold, and no more was spent; `"exact"`: nothing was random.
    decided: str
    directions: int  # all that were drawn, pilots included


def least_for(dim: int) -> int:
    """Return the directions per block that a sample which is reported has at least.

    Along its gradient, the variance of a two-point estimate of a linear loss is (2n - 2)/(n + 2) times its square: with so many,
    an interval is as wide, relative to the squared norm, for every n. Estimates in few dimensions are also closer to normal.
    """
    return max(PILOT, math.ceil(LEAST * (dim - 1) / (dim + 2)))


def exact(derivatives: np.ndarray) -> SquaredNorm:
    """Return the squared norm of the gradient in one dimension, from derivatives that nothing random is left in."""
    square = float(np.mean(derivatives)) ** 2
    return SquaredNorm(square, square, square, 0.0, 0.0, 0.0, 1)


def fixed(size: int, confidence: float) -> Generator[int, np.ndarray, Outcome]:
    """Ask for one sample of so many directions per block."""
    found = estimate_square((yield size), size, confidence)
    return Outcome(found, "fixed", found.directions)


def adaptive(
    width: float, most: int, confidence: float, threshold: float | None = None, least: int = LEAST
) -> Generator[int, np.ndarray, Outcome]:
    """Ask for samples until an interval is as narrow as asked: yields directions per block, is sent the blocks' means.

    Pilots only plan: what they say of the variance gives the size of one fresh sample, and the interval comes from that
    sample alone. So its size does not depend on its own values, and a fixed sample's coverage carries over. A sample that is
    still too wide is replaced by a fresh larger one. Estimates far above |G|^2 make wide intervals, so that the samples replaced
    would be those that miss, and coverage would grow: plans leave room, so that this is seldom. The sample reported has at `most`
    so many directions, and at `least` so many per block; a pilot whose whole interval lies above the threshold is the end.
    """
    cap = max(most // BLOCKS, least)
    size, drawn = PILOT, 0
    while True:
        pilot = estimate_square((yield size), size, confidence)
        drawn += pilot.directions
        if threshold is not None and pilot.lower > threshold:
            return Outcome(pilot, "pilot", drawn)
        planned = min(_blocks_for(pilot, width, confidence, least), cap)
        if planned <= GROWTH * size:
            break
        size *= GROWTH
    while True:
        found = estimate_square((yield planned), planned, confidence)
        drawn += found.directions
        if found.width <= width:
            return Outcome(found, "narrow", drawn)
        if planned >= cap:
            return Outcome(found, "capped", drawn)
        planned = min(max(_blocks_for(found, width, confidence, least), math.ceil(1.3 * planned)), cap)


def _blocks_for(pilot: SquaredNorm, width: float, confidence: float, least: int) -> int:
    """Return the least directions per block for which the pilot foresees an interval of this width."""
    slope, spread = pilot.slope, pilot.spread
    value = max(ends(pilot.value, slope, spread, pilot.directions, BELIEF)[1], 0.0)

    def wide(size: int) -> bool:
        highest = ends(value, slope, spread, size * BLOCKS, LUCK)[1]
        lower, upper, _ = ends(highest, slope, spread, size * BLOCKS, confidence)
        return upper - lower > width

    high = least
    while wide(high) and high < 2**40:
        high *= 2
    low = max(high // 2, least)
    return low + bisect.bisect_left(range(low, high), True, key=lambda size: not wide(size))


def drive(rule: Generator[int, np.ndarray, Outcome], sample: Any) -> Outcome:
    """Run an adaptive rule on `sample(size, stage) -> means`."""
    size, stage = next(rule), 0
    while True:
        try:
            size, stage = rule.send(sample(size, stage)), stage + 1
        except StopIteration as end:
            return end.value
