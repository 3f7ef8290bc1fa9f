"""Clients' data: flat storage, sampling, full batches, samplers, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedrzo as fz
from fedrzo.data import client_data
from fedrzo.data.client_data import CHUNK
from fedrzo.federation.client import Client
from fedrzo.zoo import toys


def test_unequal_clients_are_stored_without_padding():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 10_001, 10_000)
    data = fz.ClientData([np.zeros(size, np.int8) for size in sizes])
    assert data.flat.nbytes == sizes.sum()
    assert data.clients == 10_000


def test_samples_come_from_the_client_itself_and_uniformly():
    data = fz.ClientData([np.arange(5) + 10 * i for i in range(3)])
    drawn = jax.vmap(lambda k: data.batch(data.draw(k, 2, 4), 2, 2))(jax.random.split(jax.random.key(0), 500))
    counts = np.bincount(np.asarray(drawn).ravel() - 20, minlength=5)
    assert counts.sum() == 2000
    assert len(counts) == 5
    assert stats.chisquare(counts).pvalue > 1e-3


def test_identical_clients_store_their_samples_once():
    samples = np.random.default_rng(0).normal(size=(50, 2))
    shared, copied = fz.ClientData.shared(samples, 3), fz.ClientData([samples] * 3)
    assert shared.flat.nbytes == samples.nbytes
    method = fz.FedRZOnn(0.02, 0.1, 2, batch_size=4)
    runs = [
        fz.run(method, fz.Nonsmooth(toys.squared_distance, data, np.zeros(2)), 4, progress=False) for data in (shared, copied)
    ]
    np.testing.assert_array_equal(runs[0].x, runs[1].x)
    np.testing.assert_allclose(runs[0].history["loss"], runs[1].history["loss"], rtol=1e-12)
    with pytest.raises(fz.InputError, match="clients: found 0"):
        fz.ClientData.shared(samples, 0)


def test_sampling_is_private():
    """The same public key gives different batches under different private keys, and equal ones under equal."""
    problem = fz.Nonsmooth(lambda x, b: x.sum(), fz.ClientData([np.arange(1000)]), np.zeros(1))
    key = jax.random.key(7)
    seen = [np.asarray(Client(problem, 0, 0, jax.random.key(seed)).sample(key, 20)) for seed in (1, 2, 1)]
    assert (seen[0] == seen[2]).all()
    assert (seen[0] == seen[1]).mean() < 0.2


SIZES = (1, 3, CHUNK, CHUNK + 1, 2 * CHUNK + 5)


@pytest.mark.parametrize("fixed", [False, True])
def test_full_batches_of_unequal_clients(fixed):
    rng = np.random.default_rng(0)
    clouds = [rng.normal(size=(size, 2)) for size in SIZES]
    factors = [np.float64(i + 1) for i in range(len(SIZES))]
    data = fz.ClientData(clouds, fixed=factors if fixed else None)

    def loss(x, batch):
        samples, factor = batch if fixed else (batch, 1.0)
        return factor * toys.squared_distance(x, samples)

    problem = fz.Nonsmooth(loss, data, np.array([0.5, -0.5]))
    with problem.precision():
        x = jnp.asarray(problem.x0)
        expected = []
        for i, cloud in enumerate(clouds):
            factor = factors[i] if fixed else 1.0
            client = Client.of(problem, i)
            batch = client.sample(jax.random.key(0), "full")
            value = factor * 0.5 * np.mean(np.sum((problem.x0 - cloud) ** 2, axis=1))
            expected.append(value)
            np.testing.assert_allclose(client.loss(x, batch), value, rtol=1e-12)
            np.testing.assert_allclose(client.gradient(x, batch), factor * (problem.x0 - cloud.mean(axis=0)), rtol=1e-10)
            assert client.cost("full") == SIZES[i]
        np.testing.assert_allclose(problem.evaluate(x)["loss"], np.mean(expected), rtol=1e-12)


@pytest.mark.slow("client by client")
def test_full_batches_agree_between_engines_and_count_each_clients_size():
    rng = np.random.default_rng(0)
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([rng.normal(size=(s, 2)) for s in SIZES]), np.zeros(2))
    method = fz.FedRZOnn(0.01, 0.1, 2, batch_size="full")
    fast, plain = (fz.run(method, problem, 3, engine=e, progress=False) for e in ("simulation", "loop"))
    np.testing.assert_allclose(fast.x, plain.x, rtol=1e-12)
    assert fast.history["evaluations"][-1] == plain.history["evaluations"][-1] == 3 * 2 * 2 * sum(SIZES)


@pytest.mark.parametrize("sizes", [(4,) * 7, (3, 1, 6, 2, 5, 4, 7)])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_walking_through_all_samples_counts_each_once(sizes, weights, monkeypatch):
    """The last chunk is not full: it goes back over samples that have been counted."""
    monkeypatch.setattr(client_data, "MONITOR_CHUNK", 5)
    monkeypatch.setattr(client_data, "CLIENTS_AT_A_TIME", 3)
    monkeypatch.setattr(client_data, "BYTES_AT_A_TIME", {})
    monkeypatch.setattr(client_data, "ALL_AT_ONCE", 0)
    rng = np.random.default_rng(1)
    clouds, shifts = [rng.normal(size=(size, 2)) for size in sizes], [rng.normal() for _ in sizes]
    data = fz.ClientData(clouds, fixed=shifts)
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(b[0] @ x + b[1])), data, np.array([0.5, -1.0]), weights=weights)
    assert data.all_chunks == (3 if len(set(sizes)) == 1 else 6)
    each = [np.mean(np.abs(cloud @ problem.x0 + shift)) for cloud, shift in zip(clouds, shifts, strict=True)]
    expected = np.average(each, weights=sizes if weights == "samples" else None)
    with problem.precision():
        np.testing.assert_allclose(problem.evaluate(jnp.asarray(problem.x0))["loss"], expected, rtol=1e-14)


def test_what_a_sampler_is_monitored_over_is_drawn_once(monkeypatch):
    sampler = fz.Sampler(lambda key, i: i + jax.random.normal(key, (2,)), clients=3, evaluation=10)
    problem = fz.Nonsmooth(toys.squared_distance, sampler, np.ones(2))
    with problem.precision():
        kept, x = problem.keeping_samples(), jnp.asarray(problem.x0)
        assert kept.data.drawn.shape == (3, 10, 2)
        np.testing.assert_allclose(kept.evaluate(x)["loss"], problem.evaluate(x)["loss"], rtol=1e-14)
        # Two programs draw it, and JAX's normal numbers may differ in their last bit between two.
        np.testing.assert_allclose(kept.data.everything_of(1), sampler.everything_of(1), rtol=4e-16)
        monkeypatch.setattr("fedrzo.data.sampler.ALL_AT_ONCE", 3 * 10 * 2 * 8 - 1)
        assert problem.keeping_samples().data.drawn is None  # too large


def test_sampler_draws_by_client():
    sampler = fz.Sampler(lambda key, i: i + 0.1 * jax.random.normal(key, (2,)), clients=3, evaluation=4000)
    problem = fz.Nonsmooth(toys.squared_distance, sampler, np.zeros(2, np.float32))
    loss = float(problem.evaluate(jnp.zeros(2))["loss"])
    # mean of 0.5 (2 i^2 + 2 * 0.01) over i = 0, 1, 2; standard error below 2e-3
    assert abs(loss - (5 / 3 + 0.01)) < 0.01
    method = fz.FedRZOnn(lambda r: 1 / (r + 10), 0.05, 2, batch_size=8)
    x = fz.run(method, problem, 800, eval_every=800, progress=False).x
    np.testing.assert_allclose(x, [1.0, 1.0], atol=0.1)


def test_blackbox_sees_numpy_and_equals_the_traced_loss():
    plain = toys.quadratic(clients=3, dim=4)

    def numpy_loss(x, batch):
        assert isinstance(x, np.ndarray)
        assert isinstance(batch, np.ndarray)
        return 0.5 * np.mean(np.sum((x - batch) ** 2, axis=-1))

    points = []

    def vectorized_loss(x, batch):
        points.append(len(x))
        return 0.5 * np.mean(np.sum((x[:, None] - batch) ** 2, axis=-1), axis=-1)

    method = fz.FedRZOnn(0.02, 0.1, 3, batch_size=2)
    expected = fz.run(method, plain, 4, progress=False).x
    for loss in (fz.blackbox(numpy_loss), fz.blackbox(vectorized_loss, vectorized=True)):
        problem = fz.Nonsmooth(loss, plain.data, plain.x0)
        np.testing.assert_allclose(fz.run(method, problem, 4, progress=False).x, expected, rtol=1e-10)
    assert max(points) == 6  # both signs of all three clients in one call


def test_blackbox_with_pytrees_and_a_wrong_shape():
    loss = fz.blackbox(lambda x, batch: float(x["a"].sum() + x["b"] ** 2 + batch.mean()))
    problem = fz.Nonsmooth(loss, fz.ClientData([np.ones(3), np.ones(2)]), {"a": np.ones(2), "b": np.float64(2.0)})
    with problem.precision():
        assert float(problem.value(jnp.asarray(problem.x0), np.ones(1))) == 7.0
    wrong = fz.Nonsmooth(fz.blackbox(lambda x, b: x), fz.ClientData([np.ones(3)]), np.ones(2))
    with pytest.raises(Exception, match="returned shape \\(2,\\); it must return one number"):
        fz.run(fz.FedRZOnn(0.1, 0.1), wrong, 1, progress=False)


GOOD = [np.zeros((3, 2)), np.zeros((4, 2))]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.ClientData([]), "data: found no clients"),
        (lambda: fz.ClientData(np.zeros((3, 2))), "data: found ndarray; pass a list with one entry per client"),
        (lambda: fz.ClientData([np.zeros((3, 2)), np.zeros((0, 2))]), "data: client 1 is empty"),
        (lambda: fz.ClientData([np.zeros((3, 2)), np.zeros((3, 5))]), r"data: array 0 has samples of shapes \[\(2,\), \(5,\)\]"),
        (lambda: fz.ClientData([(np.zeros(3), np.zeros(2))]), "data: client 0 has leading axes"),
        (lambda: fz.ClientData([np.zeros(3), (np.zeros(3), np.zeros(3))]), "data: client 1 has structure"),
        (lambda: fz.ClientData([np.zeros(3), np.array([0.0, np.nan])]), "data: client 1 has a value that is not finite"),
        (lambda: fz.ClientData(GOOD, fixed=["a", "b"]), "fixed: found str of dtype"),
        (lambda: fz.ClientData([{"a": np.ones(3), 1: np.ones(3)}]), "data: found a dictionary whose keys cannot be sorted"),
        (lambda: fz.ClientData(GOOD, fixed=[{"a": 1.0, 1: 2.0}] * 2), "fixed: found a dictionary whose keys cannot be sorted"),
        (lambda: fz.ClientData(GOOD, fixed=[1.0]), "fixed: found 1 entries for 2 clients"),
        (lambda: fz.ClientData(GOOD, fixed=[np.zeros(2), np.zeros(3)]), "fixed: entries differ in shape"),
        (lambda: fz.ClientData(GOOD, fixed=[1.0, np.nan]), "fixed: client 1 has a value that is not finite"),
        (lambda: fz.Sampler(3, clients=2), "Sampler: fn is int"),
        (lambda: fz.Sampler(lambda k, i: i, clients=0), "Sampler: clients is 0"),
    ],
)  # fmt: skip
def test_bad_data_is_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message) as error:
        build()
    assert "\n" not in str(error.value)


def test_tables_with_columns_in_another_order_are_refused():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    np.testing.assert_array_equal(fz.ClientData([table, table]).flat, np.array([[1, 3], [2, 4]] * 2))
    with pytest.raises(fz.InputError, match=r"client 1 has a table with the columns \['b', 'a'\], client 0 has \['a', 'b'\]"):
        fz.ClientData([(table, np.zeros(2)), (table[["b", "a"]], np.zeros(2))])
