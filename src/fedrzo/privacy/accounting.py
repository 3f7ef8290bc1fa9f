"""How much privacy releases cost, by privacy-loss distributions; all numbers are those of Google's `dp-accounting`.

A release is a Gaussian sum over a Poisson sample: every record is in it with probability `rate`, changes it by at most the clip,
and the noise has `noise` times the clip as its standard deviation. Neighbouring data sets differ by one record, added or removed.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedrzo.errors import InputError
from fedrzo.support.extras import require

GRID = 1e-3  # of privacy losses; what lies between is rounded up, so that every epsilon is an upper bound
TOLERANCE = 1e-3  # relative, of a noise multiplier that is searched for; it is rounded up
LEAST = 0.05  # a noise multiplier below this protects nothing worth the name: its epsilon is called infinite,
HOPELESS = 1e4  # as is one that would come out near this, or above
MOST = 1e7  # a noise multiplier as large as this is not searched beyond


class Release(NamedTuple):
    """One noisy sum, as accounting sees it."""

    rate: float  # with which each record is in the sample
    noise: float  # standard deviation, in units of the clip


def epsilon(releases: Mapping[Release, int], delta: float) -> float:
    """Return the epsilon of so many of each release, one after the other, each chosen with a view to those before."""
    return _epsilon(tuple(sorted((release, count) for release, count in releases.items() if count > 0)), delta)


def noise_for(budget: float, delta: float, rate: float, count: int) -> float:
    """Return the least noise multiplier, to a tenth of a percent, with which so many releases stay within an epsilon."""

    def spent(noise: float) -> float:
        return epsilon({Release(rate, noise): count}, delta)

    high = 1.0
    while spent(high) > budget:
        high *= 2
        if high > MOST:
            raise InputError(
                f"privacy: no noise brings {count} releases at a sampling rate of {rate:.3g} below epsilon = {budget:g} with "
                f"delta = {delta:g}; use a smaller batch_size, fewer rounds or local_steps, or a larger epsilon"
            )
    low = high / 2
    while low > LEAST and spent(low) <= budget:
        low, high = low / 2, low
    while high - low > TOLERANCE * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= budget else (middle, high)
    return high


def affordable(budget: float, delta: float, release: Release, most: int, before: Mapping[Release, int] | None = None) -> int:
    """Return how many releases, up to `most`, an epsilon allows after those that were made before."""

    def fits(count: int) -> bool:
        total = dict(before or {})
        total[release] = total.get(release, 0) + count
        return epsilon(total, delta) <= budget

    return largest(fits, most)


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, as all below it do; 0 where none does."""
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@functools.lru_cache(maxsize=10_000)
def _epsilon(releases: tuple[tuple[Release, int], ...], delta: float) -> float:
    if not releases:
        return 0.0
    if any(noise < LEAST or count * rate / noise**2 > HOPELESS for (rate, noise), count in releases):
        return math.inf
    parts = [_single(release).self_compose(count) if count > 1 else _single(release) for release, count in releases]
    whole = functools.reduce(lambda one, other: one.compose(other), parts)
    return float(whole.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=32)
def _single(release: Release) -> Any:
    pld = require("dp_accounting.pld.privacy_loss_distribution", "privacy")
    return pld.from_gaussian_mechanism(
        release.noise, sampling_prob=release.rate, value_discretization_interval=GRID, use_connect_dots=True
    )
