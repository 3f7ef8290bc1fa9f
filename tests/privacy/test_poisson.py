"""Poisson samples: each record by itself with its rate, none left out, and sums that are divided by the declared size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedrzo as fz
from fedrzo.privacy.privacy import thresholds
from fedrzo.running.private import PrivacyPlan
from releases import client_of, promise, release

LEVEL = 1e-4  # of each statistical test: a right sampler fails one in so many seeds, and the seeds are fixed
RECORDS, DRAWS = 40, 3000


@functools.cache
def samples(rate, batch_size, draws=DRAWS):
    """Return who is in each of many samples: the slopes of record i are the i-th unit vector, as long as the clip."""
    privacy = promise(threshold=int(thresholds([rate])[0]))
    client, table = client_of([RECORDS]), jnp.eye(RECORDS)
    keys = jax.random.split(jax.random.key(11), draws)
    found = jax.jit(jax.vmap(lambda key: release(client, privacy, key, table, batch_size=batch_size)[0]))(keys)
    found = np.asarray(found)
    assert set(np.unique(found)) <= {0.0, 1.0}
    return found


CASES = [(0.05, 2), (0.5, 3), (0.5, "full")]


@pytest.mark.parametrize(("rate", "batch_size"), CASES)
def test_each_record_is_in_a_sample_as_often_as_its_rate_says(rate, batch_size):
    times = samples(rate, batch_size).sum(axis=0)
    square = np.sum((times - DRAWS * rate) ** 2) / (DRAWS * rate * (1 - rate))
    assert stats.chi2.ppf(LEVEL, RECORDS) < square < stats.chi2.ppf(1 - LEVEL, RECORDS)


@pytest.mark.parametrize(("rate", "batch_size"), CASES)
def test_records_are_drawn_independently_of_each_other_and_from_step_to_step(rate, batch_size):
    centred = (samples(rate, batch_size) - rate) / np.sqrt(rate * (1 - rate))
    together = centred.T @ centred / np.sqrt(DRAWS)
    pairs = np.abs(together[np.triu_indices(RECORDS, 1)])
    assert pairs.max() < 1.05 * stats.norm.isf(LEVEL / pairs.size / 2)
    later = centred[1:].T @ centred[:-1] / np.sqrt(DRAWS - 1)
    assert np.abs(later).max() < 1.05 * stats.norm.isf(LEVEL / later.size / 2)


@pytest.mark.parametrize(("rate", "batch_size"), CASES)
def test_the_number_drawn_is_binomial_and_not_fixed(rate, batch_size):
    number = samples(rate, batch_size).sum(axis=1).astype(int)
    edges = np.unique(stats.binom.ppf(np.linspace(0, 1, 8), RECORDS, rate))[1:-1]
    seen = np.bincount(np.searchsorted(edges, number), minlength=len(edges) + 1)
    expected = DRAWS * np.diff(np.concatenate([[0], stats.binom.cdf(edges, RECORDS, rate), [1]]))
    assert stats.chisquare(seen, expected).pvalue > LEVEL


def test_more_records_may_be_drawn_than_go_together():
    """A chunk for samples of two has six records; with a rate of one half some forty records give about twenty."""
    number = samples(0.5, 3).sum(axis=1)
    assert number.min() < 12
    assert number.max() > 28
    np.testing.assert_array_equal(samples(0.5, 3), samples(0.5, "full"))


@pytest.mark.parametrize("batch_size", [1, 700, "full"])
def test_a_rate_of_one_takes_every_record_once_however_many_chunks_that_is(batch_size):
    """Record i of 2,500 has a slope of i/2500; only 1,024 go together at most."""
    records = 2500
    with jax.enable_x64(True):
        table = jnp.arange(records)[:, None] / records
        privacy = promise(threshold=int(thresholds([1.0])[0]))
        sent, _ = release(client_of([records], "float64"), privacy, jax.random.key(0), table, batch_size=batch_size)
        assert float(sent[0]) == pytest.approx((records - 1) / 2, rel=1e-12)


def test_a_client_draws_from_its_own_records_alone():
    table = jnp.repeat(jnp.asarray([1.0, 1e3, 1e6]), jnp.asarray([4, 1, 7]))[:, None]
    for index, total in ((0, 4.0), (1, 1e3), (2, 7e6)):
        client = client_of([4, 1, 7], index=index)
        sent, _ = release(client, promise(clients=3, clip=1e9), jax.random.key(0), table, 1e9)
        assert float(sent[0]) == pytest.approx(total, rel=1e-6)


def test_sums_are_divided_by_the_declared_size_whatever_was_drawn():
    privacy = promise(threshold=int(thresholds([0.3])[0]), expected=12.0)
    client, table = client_of([RECORDS]), jnp.full((RECORDS, 1), 1.0)
    keys = jax.random.split(jax.random.key(5), 400)
    found = np.asarray(jax.jit(jax.vmap(lambda key: release(client, privacy, key, table)[0][0]))(keys))
    number = found * 12
    np.testing.assert_allclose(number, np.round(number), atol=1e-4)  # a sum of ones, divided by 12
    assert len(np.unique(np.round(number))) > 8
    assert abs(found.mean() - 1) < stats.norm.isf(LEVEL / 2) * np.sqrt(0.7 / 12 / 400)


def test_rates_and_declared_sizes_are_each_clients_own():
    data = fz.ClientData([np.zeros((size, 1)) for size in (3, 10, 40)])
    problem = fz.Nonsmooth(lambda x, batch: (x * batch).mean(), data, np.zeros(1))
    for batch_size, expected in ((10, [3, 10, 10]), ("full", [3, 10, 40])):
        method = fz.FedRZOnn(0.1, 0.1, batch_size=batch_size, privacy=fz.Privacy(noise=1.0, clip=1.0))
        plan = PrivacyPlan.of(method, problem, 3, jax.random.key(0), None)
        known = plan.calibrated()
        np.testing.assert_array_equal(known.expected, expected)
        np.testing.assert_array_equal(plan.rates, np.asarray(expected) / (3, 10, 40))
        np.testing.assert_array_equal(known.threshold, thresholds(plan.rates))


def test_no_rate_is_exceeded_by_rounding():
    rates = np.array([1e-9, 1e-3, 1 / 3, 0.5, 0.999999, 1.0])
    taken = thresholds(rates) / 2**32
    assert (taken <= rates).all()
    assert (rates - taken <= 2.0**-32).all()


def test_more_than_eight_rates_are_charged_for_at_no_less_than_they_are():
    sizes = np.arange(20, 50)
    data = fz.ClientData([np.zeros((size, 1)) for size in sizes])
    problem = fz.Nonsmooth(lambda x, batch: (x * batch).mean(), data, np.zeros(1))
    method = fz.FedRZOnn(0.1, 0.1, batch_size=10, privacy=fz.Privacy(noise=1.0, clip=1.0))
    plan = PrivacyPlan.of(method, problem, 1, jax.random.key(0), None)
    charged = np.array([plan.releases[kind].rate for kind in plan.classes])
    np.testing.assert_allclose(plan.rates, 10 / sizes)
    assert (charged >= plan.rates).all()
    assert (charged <= plan.rates * 2 ** (1 / 8) * (1 + 1e-9)).all()
