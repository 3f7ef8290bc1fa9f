"""An audit: what an attacker can tell of a planted record bounds epsilon from below, and stays below what is promised.

A canary with a huge slope is among a client's records, or is not. The attacker knows all else, the clip included, and guesses
from where x went: beyond half of the way that the canary would move it, or not. Clopper and Pearson's bounds on how often the
guess is right and wrong bound epsilon from below. Where all records are in each sample, releases compose to one Gaussian
mechanism, whose shift the two rates bound; that says more of few runs than the ratio of the rates does, which holds for every
mechanism (M. Nasr et al.: "Tight Auditing of Differentially Private Machine Learning", USENIX Security 2023).
"""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import fedrzo as fz

# Without the canary all records are zero, which is what a run warns of.
pytestmark = pytest.mark.filterwarnings("ignore:loss. it has the same value at x0")
SEEDS, DELTA, ROUNDS, LEVEL = 500, 1e-3, 3, 0.025  # two bounds, so that both hold with a confidence of 95 %
PROMISED = 2.0
HALFWAY = ROUNDS * 0.1 / 30 / 2  # each round moves x by 0.1 times the mean slope of thirty records, one of which is the clip


def loss(x, batch):
    """Records pull x by as much as they are large, and not at all where they are zero."""
    return jnp.mean(batch[:, 0]) * x[0]


@functools.cache
def scores(canary, **options):
    """Return how far each of many runs went against the canary's slope; all in one compiled program."""
    records = np.zeros((30, 1))
    records[-1] = 1e6 if canary else 0.0  # without it, a record that adds nothing to the sum: as if it were not there
    problem = fz.Nonsmooth(loss, fz.ClientData([records]), np.zeros(1))
    privacy = fz.Privacy(delta=DELTA, clip=1.0, simulation=True, **options)
    method = fz.FedRZOnn(0.1, 0.1, batch_size="full", privacy=privacy)
    seeds = list(range(SEEDS)) if canary else list(range(SEEDS, 2 * SEEDS))
    found = fz.sweep(method, problem, ROUNDS, seeds=seeds, eval_every=ROUNDS, progress=False)
    assert (found.results[0][0].history["epsilon"][-1] <= PROMISED) == ("epsilon" in options)
    return np.array([-float(np.asarray(result.x)[0]) for result in found.results[0]])


def rates(threshold, inside, outside):
    """Return a lower bound on the rate of true alarms and an upper one on that of false ones."""
    number = len(inside)
    true, false = (int((scores > threshold).sum()) for scores in (inside, outside))
    low = stats.beta.ppf(LEVEL, true, number - true + 1) if true > 0 else 0.0
    return low, stats.beta.ppf(1 - LEVEL, false + 1, number - false) if false < number else 1.0


def of_shift(shift):
    """Return the epsilon of a Gaussian mechanism whose mean moves by so many standard deviations."""

    def excess(spent):
        one, two = shift / 2 - spent / shift, -shift / 2 - spent / shift
        return stats.norm.cdf(one) - math.exp(spent) * stats.norm.cdf(two) - DELTA

    return 0.0 if shift <= 0 or excess(0) <= 0 else optimize.brentq(excess, 0, 100)


def lower_bounds(inside, outside, threshold):
    """Return two epsilons that the promise cannot be below: for a Gaussian mechanism, and for any."""
    true, false = rates(threshold, inside, outside)
    ratio = math.log(max(true - DELTA, 1e-9) / false)
    return of_shift(float(stats.norm.ppf(true) - stats.norm.ppf(false))), max(0.0, ratio)


def test_the_bounds_are_right_for_scores_whose_epsilon_is_known():
    """Normal scores that are one standard deviation apart, many times: bounds hold in 95 % of them, and are not idle."""
    rng, exact = np.random.default_rng(1), of_shift(1.0)
    found = np.array([lower_bounds(rng.normal(1, 1, SEEDS), rng.normal(0, 1, SEEDS), 0.5) for _ in range(100)])
    assert (found > exact).any(axis=1).sum() <= stats.binom.ppf(1 - 1e-4, 100, 0.05)
    assert np.median(found[:, 0]) > 0.4 * exact
    same = [lower_bounds(rng.normal(0, 1, SEEDS), rng.normal(0, 1, SEEDS), 0.5)[0] for _ in range(100)]
    assert np.count_nonzero(same) <= stats.binom.ppf(1 - 1e-4, 100, 0.05)


@pytest.mark.slow("a thousand runs")
def test_an_attacker_learns_something_of_a_canary_but_no_more_than_is_promised():
    gaussian, any_mechanism = lower_bounds(scores(True, epsilon=PROMISED), scores(False, epsilon=PROMISED), HALFWAY)
    assert 0.4 < gaussian <= PROMISED
    assert any_mechanism <= PROMISED


def test_scores_are_spread_as_the_noise_that_is_charged_for_says():
    """Each round moves x by 0.1 times the mean slope of thirty records, one of which may be the canary's clip."""
    inside, outside = scores(True, epsilon=PROMISED), scores(False, epsilon=PROMISED)
    unit = 0.1 / 30
    shift = (inside.mean() - outside.mean()) / unit
    deviation = np.concatenate([inside - inside.mean(), outside - outside.mean()]).std() / unit
    assert shift == pytest.approx(ROUNDS, abs=4 * deviation * math.sqrt(2 / SEEDS))
    assert of_shift(ROUNDS / deviation) == pytest.approx(PROMISED, rel=0.15)


def test_without_noise_the_same_attack_breaks_the_promise():
    assert min(lower_bounds(scores(True, noise=0.04), scores(False, noise=0.04), HALFWAY)) > PROMISED
