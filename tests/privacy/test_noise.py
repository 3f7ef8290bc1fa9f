"""The noise of a release: normal, as large as it should be, independent, and unknown to who knows the public keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedrzo as fz
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.privacy import mechanism
from fedrzo.privacy.privacy import thresholds
from fedrzo.running.private import PrivacyPlan, fresh_secret
from releases import client_of, promise, release

LEVEL = 1e-4  # of each statistical test: right noise fails one in so many seeds, and the seeds are fixed
DRAWS, NOISE, CLIP, EXPECTED = 4000, 1.7, 3.0, 5.0
SECRET = np.array([7, 9], np.uint32)


@functools.cache
def noises(dtype="float32", secret=None, index=0, private=0, key=1, directions=4):
    """Return many releases of records without slopes, steps by directions: noise alone."""
    with jax.enable_x64(dtype == "float64"):
        words = None if secret is None else np.asarray(secret, np.uint32)
        privacy = promise(NOISE, expected=EXPECTED, secret=words, clip=CLIP, clients=3)
        client = client_of([2, 2, 2], dtype, index, private=jax.random.key(private))
        table, keys = jnp.zeros((6, directions), dtype), jax.random.split(jax.random.key(key), DRAWS)
        return np.asarray(jax.jit(jax.vmap(lambda k: release(client, privacy, k, table, CLIP)[0]))(keys)).astype(float)


def assert_standard_normal(values):
    """Mean and variance by their own tests, the shape by Kolmogorov and Smirnov's, each at the stated level."""
    values = np.ravel(values)
    assert abs(values.mean()) < stats.norm.isf(LEVEL / 2) / np.sqrt(values.size)
    square = np.sum(values**2)
    assert stats.chi2.ppf(LEVEL / 2, values.size) < square < stats.chi2.isf(LEVEL / 2, values.size)
    assert stats.kstest(values, "norm").pvalue > LEVEL


def assert_independent(rows, others):
    """Correlations between the columns of two tables, each at its share of the level."""
    found = np.abs(rows.T @ others) / np.sqrt(len(rows))
    assert found.max() < stats.norm.isf(LEVEL / found.size / 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("secret", [None, (7, 9)])
def test_noise_is_normal_with_the_standard_deviation_that_is_charged_for(dtype, secret):
    assert_standard_normal(noises(dtype, secret) * EXPECTED / (NOISE * CLIP))


def test_noise_is_independent_across_directions_steps_and_clients():
    unit = EXPECTED / (NOISE * CLIP)
    for secret in (None, (7, 9)):
        own = noises(secret=secret) * unit
        for j in range(3):
            assert_independent(own[:, j : j + 1], own[:, j + 1 :])
        assert_independent(own[1:], own[:-1])
        if secret is not None:  # without one, it is the client's own key that tells them apart
            assert_independent(own, noises(secret=secret, index=1) * unit)
        assert_independent(own, noises(secret=secret, key=2) * unit)


def test_who_knows_the_public_key_does_not_know_the_noise():
    """Another private key of the client's, or another secret, gives other noise for the same public key."""
    unit = EXPECTED / (NOISE * CLIP)
    for one, other in ((noises(), noises(private=5)), (noises(secret=(7, 9)), noises(secret=(7, 10)))):
        assert not np.isclose(one, other, rtol=1e-3).all(axis=1).any()
        assert_independent(one * unit, other * unit)
    np.testing.assert_array_equal(noises(secret=(7, 9)), noises(secret=(7, 9), private=5))


def test_the_sample_is_as_secret_as_the_noise_and_tells_nothing_of_it():
    privacy = promise(NOISE, threshold=int(thresholds([0.5])[0]), secret=SECRET, clients=1)
    silent = promise(0.0, threshold=int(thresholds([0.5])[0]), secret=SECRET, clients=1)
    other = promise(0.0, threshold=int(thresholds([0.5])[0]), secret=SECRET + 1, clients=1)
    client, table, keys = client_of([30]), jnp.ones((30, 1)), jax.random.split(jax.random.key(0), DRAWS)
    noisy, number, elsewhere = (
        np.asarray(jax.jit(jax.vmap(lambda k, p=p: release(client, p, k, table)[0]))(keys)).astype(float)
        for p in (privacy, silent, other)
    )
    unit = np.sqrt(30 / 4)
    assert_independent((number - 15) / unit, (noisy - number) / NOISE)
    assert_independent((number - 15) / unit, (elsewhere - 15) / unit)


def flat(x, batch):
    return 0.0 * jnp.mean(batch) * jnp.sum(x)


CLIENTS = 3
FLAT = fz.Nonsmooth(flat, fz.ClientData([np.zeros((4, 1))] * CLIENTS), np.zeros(2))


@pytest.mark.parametrize("simulation", [pytest.param(True, marks=pytest.mark.slow("once is enough")), False])
def test_the_slopes_of_a_run_on_a_flat_loss_are_independent_normal_noise(simulation):
    """DeComFL keeps the mean of clients' slopes for each round, step and direction; its variance tells clients apart."""
    rounds, steps, directions = 400, 2, 3
    privacy = fz.Privacy(noise=NOISE, clip=CLIP, simulation=simulation)
    method = fz.DeComFL(1e-9, local_steps=steps, directions=directions, batch_size="full", records=rounds, privacy=privacy)
    with FLAT.precision():
        known = PrivacyPlan.of(method, FLAT, rounds, jax.random.key(0), None).calibrated()
        if not simulation:
            assert known.secret is not None
            object.__setattr__(known, "secret", SECRET)
        session = Simulation().start([method.with_calibrated(known)], FLAT, [jax.random.key(0)], None)
        session.advance(rounds)
        slopes = np.asarray(session.carry.state.records.slopes).reshape(rounds, steps * directions)
    unit = slopes * 4 * np.sqrt(CLIENTS) / (NOISE * CLIP)
    assert_standard_normal(unit)
    assert_independent(unit[1:], unit[:-1])
    for j in range(5):
        assert_independent(unit[:, j : j + 1], unit[:, j + 1 :])


@pytest.mark.filterwarnings("ignore:loss. it has the same value at x0")  # all records are zero
@pytest.mark.slow("four runs")
def test_only_a_simulation_repeats_itself():
    def ends(**options):
        method = fz.FedRZOnn(0.1, 0.1, batch_size="full", privacy=fz.Privacy(noise=0.04, clip=1.0, delta=0.01, **options))
        return [np.asarray(fz.run(method, FLAT, 2, key=4, progress=False).x) for _ in range(2)]

    np.testing.assert_array_equal(*ends(simulation=True))
    first, second = ends()
    assert not np.isclose(first, second).any()


def test_secrets_are_fresh():
    assert len({tuple(fresh_secret().tolist()) for _ in range(50)}) == 50
    method = fz.FedRZOnn(0.1, 0.1, privacy=fz.Privacy(noise=1.0, clip=1.0))
    plan = PrivacyPlan.of(method, FLAT, 2, jax.random.key(0), None)
    assert plan.calibrated().secret.tolist() != plan.calibrated().secret.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_a_sum_may_become_does_not_depend_on_it(dtype):
    """Whatever noise is added to, the result lies on one grid: a single draw has gaps, by which sums could be told apart."""
    with jax.enable_x64(dtype == "float64"):
        deviation = jnp.asarray(3.7, dtype)
        keys = jax.random.split(jax.random.key(0), 400)
        grid = np.asarray(deviation / mechanism.GRID)
        found = []
        for total in (0.0, 1.0, 0.123456789):
            sums = jax.vmap(lambda key, total=total: mechanism._noisy(key, jnp.full(5, total, dtype), deviation))(keys)
            steps = np.asarray(sums) / grid
            np.testing.assert_allclose(steps, np.round(steps), atol=2e-3)
            found.append(set(np.round(steps).astype(int).ravel() % 7))
        assert all(residues == set(range(7)) for residues in found)  # no places that only some sums can reach
