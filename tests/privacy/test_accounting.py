"""Epsilons against dp-accounting's own accountants, published ones, and the closed form of the Gaussian mechanism."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import optimize, stats

import fedrzo as fz
from fedrzo.privacy import accounting
from fedrzo.privacy.accounting import GRID, Release, affordable, epsilon, noise_for


def by_accountant(*releases, delta=1e-5):
    """Return the epsilon that dp-accounting's accountant finds for (rate, noise, count) one after the other."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=GRID)
    for rate, noise, count in releases:
        event = dp_accounting.GaussianDpEvent(noise)
        accountant.compose(event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event), count)
    return accountant.get_epsilon(delta)


def gaussian(noise, delta=1e-5):
    """Return the epsilon of the Gaussian mechanism (B. Balle, Y.-X. Wang, ICML 2018, Theorem 8); many compose to one."""

    def excess(spent):
        one, two = 0.5 / noise - spent * noise, -0.5 / noise - spent * noise
        return stats.norm.cdf(one) - math.exp(spent) * stats.norm.cdf(two) - delta

    return optimize.brentq(excess, 0, 200)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "delta"),
    [(1.0, 5.0, 10, 1e-5), (0.1, 1.0, 30, 1e-5), (0.01, 0.8, 1000, 1e-6), (0.3, 4.0, 200, 1e-3), (0.5, 0.6, 1, 1e-5)],
)
def test_an_epsilon_is_that_of_dp_accountings_own_accountant(rate, noise, count, delta):
    found = epsilon({Release(rate, noise): count}, delta)
    assert found == pytest.approx(by_accountant((rate, noise, count), delta=delta), rel=1e-3)


def test_different_releases_compose_as_the_accountant_composes_them_in_any_order():
    releases = {Release(0.1, 1.0): 30, Release(0.02, 0.7): 100, Release(1.0, 8.0): 3}
    found = epsilon(releases, 1e-5)
    assert found == pytest.approx(by_accountant((0.1, 1.0, 30), (0.02, 0.7, 100), (1.0, 8.0, 3)), rel=1e-3)
    assert found == epsilon(dict(reversed(releases.items())), 1e-5)
    alone = [epsilon({release: count}, 1e-5) for release, count in releases.items()]
    assert max(alone) < found < sum(alone)
    assert epsilon(releases | {Release(0.5, 1.0): 0}, 1e-5) == found


@pytest.mark.parametrize(
    ("batch", "noise", "epochs", "published"), [(250, 1.3, 15, 1.19), (256, 1.1, 60, 3.01), (256, 0.7, 45, 7.10)]
)
def test_published_epsilons_of_dp_sgd_on_mnist_are_not_exceeded_and_nearly_reached(batch, noise, epochs, published):
    """TensorFlow Privacy's tutorial: 60,000 records, delta 1e-5; its Renyi accountant gives upper bounds of the exact ones."""
    found = epsilon({Release(batch / 60_000, noise): epochs * 60_000 // batch}, 1e-5)
    assert 0.7 * published < found < published


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("count", [1, 7])
def test_at_a_rate_of_one_releases_cost_what_the_closed_form_says(noise, count):
    """So many Gaussian mechanisms are one with a noise smaller by the root of their number; the grid only rounds up."""
    exact, found = gaussian(noise / math.sqrt(count)), epsilon({Release(1.0, noise): count}, 1e-5)
    assert exact * (1 - 1e-6) <= found <= exact + 2e-3


@pytest.mark.parametrize(("budget", "rate", "count"), [(0.5, 0.1, 40), (2.0, 1.0, 10), (4.0, 0.02, 500), (8.0, 1.0, 1)])
def test_the_noise_for_an_epsilon_is_the_least_that_keeps_within_it(budget, rate, count):
    noise = noise_for(budget, 1e-5, rate, count)
    assert epsilon({Release(rate, noise): count}, 1e-5) <= budget
    assert epsilon({Release(rate, noise * 0.997): count}, 1e-5) > budget


def test_more_rounds_higher_rates_less_noise_and_smaller_deltas_cost_more():
    base = epsilon({Release(0.1, 1.0): 20}, 1e-5)
    assert epsilon({Release(0.1, 1.0): 21}, 1e-5) > base
    assert epsilon({Release(0.11, 1.0): 20}, 1e-5) > base
    assert epsilon({Release(0.1, 0.95): 20}, 1e-5) > base
    assert epsilon({Release(0.1, 1.0): 20}, 1e-6) > base


def test_nothing_released_costs_nothing():
    assert epsilon({}, 1e-5) == 0
    assert epsilon({Release(0.5, 1.0): 0}, 1e-5) == 0


@pytest.mark.parametrize(
    "releases", [{Release(0.1, 1e-9): 1}, {Release(1.0, 0.1): 1000}, {Release(0.2, 1.0): 9, Release(0.1, 0.01): 1}]
)
def test_noise_that_protects_nothing_has_an_infinite_epsilon(releases):
    assert epsilon(releases, 1e-5) == math.inf


def test_as_many_releases_are_affordable_as_the_budget_allows_after_those_before():
    release, budget = Release(0.1, 1.5), 2.0
    alone = affordable(budget, 1e-5, release, 500)
    assert epsilon({release: alone}, 1e-5) <= budget < epsilon({release: alone + 1}, 1e-5)
    before = {release: 10, Release(0.2, 3.0): 5}
    rest = affordable(budget, 1e-5, release, 500, before)
    assert rest < alone - 10
    assert epsilon({release: 10 + rest, Release(0.2, 3.0): 5}, 1e-5) <= budget
    assert epsilon({release: 11 + rest, Release(0.2, 3.0): 5}, 1e-5) > budget


def test_no_more_releases_are_affordable_than_wanted_and_none_where_the_budget_is_gone():
    assert affordable(5.0, 1e-5, Release(0.1, 1.5), 4) == 4
    assert affordable(0.1, 1e-5, Release(1.0, 1.0), 50) == 0
    assert affordable(1.0, 1e-5, Release(0.1, 1.5), 9, {Release(1.0, 0.01): 1}) == 0


def test_an_epsilon_that_no_noise_reaches_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(accounting, "MOST", 100.0)
    with pytest.raises(fz.InputError, match=r"no noise brings 1000 releases .* use a smaller batch_size, fewer rounds"):
        noise_for(1e-3, 1e-9, 1.0, 1000)


def test_an_epsilon_bounds_what_an_attacker_can_tell_of_a_sampled_gaussian():
    """By quadrature: delta at that epsilon, for a record added and for one removed, of one release."""
    rate, noise, delta = 0.3, 1.2, 1e-3
    spent = epsilon({Release(rate, noise): 1}, delta)
    grid = np.linspace(-15, 16, 400_001)
    apart = stats.norm.pdf(grid, 0, noise)
    mixed = (1 - rate) * apart + rate * stats.norm.pdf(grid, 1, noise)
    deltas = [np.trapezoid(np.maximum(p - math.exp(spent) * q, 0), grid) for p, q in ((mixed, apart), (apart, mixed))]
    assert max(deltas) <= delta * (1 + 1e-6)
    tighter = math.exp(spent - 3e-3)
    assert max(np.trapezoid(np.maximum(p - tighter * q, 0), grid) for p, q in ((mixed, apart), (apart, mixed))) > delta
