"""One record changes the sum of a release by its clip at most, whatever its slopes are; and by no less, in the worst case."""

import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedrzo as fz
from fedrzo.federation.client import Client
from fedrzo.methods import decomfl, private
from fedrzo.privacy.refusals import made_up
from releases import client_of, promise, release, whole_sum

LONGEST = 7  # more than a chunk of samples of one has
DTYPES = ("float32", "float64")
ROUNDING = {"float32": 1e-5, "float64": 1e-13}
SLOPES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-6, 1e30, -1e30, 3e38, 1e-45, math.nan, math.inf, -math.inf]),
    st.floats(-40, 30).map(lambda power: 10.0**power),
    st.floats(-1e3, 1e3),
)


@functools.cache
def summed(dtype, adaptive, batch_size):
    """Return the compiled sum over the first records of a table, of the second of two clients of unequal size."""
    privacy = promise(clip="auto" if adaptive else 1.0, clients=2)

    def one(table, size, clip):
        client = client_of(jnp.stack([2, size]), dtype, index=1, longest=LONGEST)
        return whole_sum(client, privacy, jax.random.key(3), table, clip, batch_size)

    return jax.jit(one)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("directions", [1, 3])
def test_a_record_more_or_less_changes_the_sum_by_one_clip_at_most(dtype, adaptive, directions):
    @settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.lists(SLOPES, min_size=directions, max_size=directions), min_size=LONGEST, max_size=LONGEST),
        st.integers(0, LONGEST - 1),
        st.sampled_from([1e-30, 1e-3, 1.0, 1e5]),
        st.sampled_from([1, "full"]),
    )
    def check(slopes, size, clip, batch_size):
        with jax.enable_x64(dtype == "float64"), np.errstate(over="ignore"):
            table = jnp.asarray(np.vstack([np.full((2, directions), 1e9), slopes]).astype(dtype))
            without, having = (np.asarray(summed(dtype, adaptive, batch_size)(table, n, clip)) for n in (size, size + 1))
        assert np.isfinite(having).all()
        assert np.linalg.norm(having.astype(float) - without) <= 1 + ROUNDING[dtype]

    check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slope", [1.0, 2.5, 1e6, 1e30])
@pytest.mark.parametrize("directions", [1, 3])
def test_a_steep_record_changes_the_sum_by_exactly_one_clip(dtype, slope, directions):
    with jax.enable_x64(dtype == "float64"):
        table = jnp.full((2 + LONGEST, directions), slope, dtype)
        for adaptive in (False, True):
            without, having = (np.asarray(summed(dtype, adaptive, "full")(table, n, 1.0)) for n in (4, 5))
            change = np.linalg.norm(having.astype(float) - without)
            assert change == pytest.approx(1.0, abs=ROUNDING[dtype])


@pytest.mark.parametrize("clip", [1e-6, 1.0, 50.0])
def test_what_is_sent_changes_by_the_clip_in_the_units_of_a_slope(clip):
    """Sums are divided by one here; a slope of 30 is shorter than the last clip, and counts as it is."""
    table = jnp.full((5, 1), 30.0)
    sent = [release(client_of([n], longest=5), promise(clip=clip), jax.random.key(0), table, clip)[0] for n in (4, 5)]
    assert float(sent[1][0] - sent[0][0]) == pytest.approx(min(clip, 30.0), rel=1e-5)


def test_slopes_shorter_than_the_clip_are_not_changed():
    table = jnp.asarray([[3.0, 4.0], [0.3, 0.4], [-6.0, 8.0]])
    for clip, adaptive in ((5.0, False), (5.0, True)):
        privacy = promise(clip="auto" if adaptive else clip)
        sent, _ = release(client_of([3]), privacy, jax.random.key(0), table, clip)
        np.testing.assert_allclose(sent, [3.0 + 0.3 - 3.0, 4.0 + 0.4 + 4.0], rtol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_record_whose_slope_is_no_number_says_nothing(bad):
    table = jnp.asarray([[0.5, 0.5], [bad, 0.1], [0.25, 0.0]])
    sent, _ = release(client_of([3]), promise(), jax.random.key(0), table)
    np.testing.assert_allclose(sent, [0.75, 0.5], rtol=1e-6)


def test_an_adaptive_clip_comes_to_the_median_length():
    lengths = np.geomspace(1e-2, 1e4, 41)
    table, clip = jnp.asarray(lengths[:, None], jnp.float32), 1e-3
    step = jax.jit(lambda clip: release(client_of([41]), promise(clip="auto", expected=41), jax.random.key(0), table, clip)[1])
    for _ in range(200):
        clip = step(clip)
    assert lengths[19] <= float(clip) <= lengths[21]


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_all_slopes_vanish_the_clip_follows_and_the_sum_stays_a_number(dtype):
    with jax.enable_x64(dtype == "float64"):
        privacy, table = promise(clip="auto", expected=3), jnp.zeros((3, 1), dtype)
        step = jax.jit(lambda clip: release(client_of([3], dtype), privacy, jax.random.key(0), table, clip))
        clip = jnp.asarray(1e-3, dtype)
        for _ in range(450 if dtype == "float32" else 2900):  # the clip falls by a factor of exp(1/4) each time
            sent, clip = step(clip)
            assert float(sent[0]) == 0
        assert float(clip) < 1.01 * float(jnp.finfo(dtype).tiny)


RNG = np.random.default_rng(0)
RECORDS = RNG.normal(size=(5, 2))
RECORDS[3] = 1e30
RECORDS[4] = -50.0  # whose losses are no numbers


def fails(batch):
    return jnp.mean(jnp.where(batch < -40, jnp.nan, 0.0))


def spread(x, batch):
    return jnp.mean(jnp.abs(batch @ x) + jnp.sum((x - batch) ** 2, axis=-1)) + fails(batch)


def upper(x, y, batch):
    return jnp.mean(jnp.sum((y - batch) ** 2, axis=-1)) + jnp.sum(x**2) + fails(batch)


def scenario_loss(x, y, xi):
    return jnp.sum((x - xi) ** 2) + jnp.sum(y**2) + fails(xi)


def scenario_map(x, y, xi):
    return 2 * y - x - jnp.where(jnp.abs(xi) < 1e3, xi, 0)


ARGUMENTS = {
    "FedRZOnn": lambda x: (x,),
    "FedRZO2s": lambda x: (x,),
    "FedRZObl": lambda x: (jnp.concatenate([x, -x]),),
}
METHODS = {
    "FedRZOnn": lambda p: fz.FedRZOnn(0.1, 0.1, directions=2, privacy=p),
    "FedRZO2s": lambda p: fz.FedRZO2s(0.1, 0.1, directions=2, solver=fz.vi.Projection(steps=20), privacy=p),
    "FedRZObl": lambda p: fz.FedRZObl(0.1, 0.1, privacy=p),
    "DeComFL": lambda p: fz.DeComFL(0.1, directions=2, privacy=p),
    "DeComFL forward": lambda p: fz.DeComFL(0.1, directions=2, forward=True, privacy=p),
}


def problem_of(name):
    data, x0 = fz.ClientData([RECORDS]), np.full(2, 0.3)
    if name == "FedRZO2s":
        return fz.TwoStage(scenario_loss, scenario_map, data, x0, np.zeros(2), modulus=2.0, smoothness=2.0)
    if name == "FedRZObl":
        lower = fz.ClientData([np.zeros((1, 2))])
        return fz.Bilevel(upper, lambda x, y, b: jnp.sum((y - x) ** 2), data, x0, np.zeros(2), lower_data=lower)
    return fz.Nonsmooth(spread, data, x0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore:data")
def test_a_records_slopes_do_not_depend_on_the_records_beside_it(name):
    """Else one record would change what others add, and clipping its own slopes would not bound that."""
    seen = []

    def spy(client, privacy, key, batch_size, slopes, count, clip):
        together = slopes(jnp.arange(5))
        alone = jnp.concatenate([slopes(jnp.asarray([i])) for i in (0, 3)])
        jax.debug.callback(lambda *found: seen.append(found), together, alone)
        return jnp.zeros(count), clip

    problem = problem_of(name)
    method = METHODS[name](promise(clients=1))
    with problem.precision(), mock.patch.object(private, "release", spy), mock.patch.object(decomfl, "release", spy):
        x = jnp.asarray(problem.x0)
        client = Client.of(problem, 0, points=jnp.stack([x + 0.06, x - 0.06]))
        if isinstance(method, fz.DeComFL):
            method.find(client, x, jnp.uint32(5), None, jax.random.key(1), None)
        else:
            method.client_steps(client, jax.random.key(1), None, *ARGUMENTS[name](x))
        jax.effects_barrier()
    [(together, alone)] = seen
    assert together.shape == (5, method.slopes_per_step if hasattr(method, "slopes_per_step") else 2)
    assert np.isfinite(together[:3]).all()
    assert not np.isfinite(together[4]).any()
    np.testing.assert_allclose(together[np.array([0, 3])], alone, rtol=1e-9)


def test_records_that_are_made_up_for_checks_have_nothing_of_the_private_ones():
    data = fz.ClientData([(RNG.normal(7, 1, (9, 3)), np.arange(9) + 5)])
    features, labels = made_up(data).flat
    assert features.shape == (4, 3)
    assert labels.shape == (4,)
    assert not np.asarray(labels).any()
    other = made_up(fz.ClientData([(RNG.normal(-99, 5, (2, 3)), np.arange(2))])).flat[0]
    np.testing.assert_array_equal(features, other)
