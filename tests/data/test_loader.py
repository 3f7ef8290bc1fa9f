"""Samples that are loaded where clients are: what is known without them, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.problems.loading import at_hand, loaded, loads, sketched

SIZES = (4, 6, 5)


def samples(i):
    return np.random.default_rng(i).normal(size=(SIZES[i], 2))


def loss(x, batch):
    return jnp.mean(jnp.abs(batch @ x - 1))


def lower(x, y, batch):
    return 0.5 * jnp.mean(jnp.sum((y - x - batch) ** 2, axis=-1))


def upper(x, y, batch):
    return jnp.sum((y - 1) ** 2) + 0.1 * jnp.mean(batch)


def test_only_the_first_client_is_loaded_before_a_run():
    asked = []

    def load(i):
        asked.append(i)
        return samples(i)

    data = fz.Loader(load, 3, sizes=SIZES)
    problem = fz.Nonsmooth(loss, data, np.zeros(2), weights="samples")
    assert asked == [0]
    np.testing.assert_allclose(problem.client_weights, np.array(SIZES) / 15)
    assert repr(data) == "Loader(3 clients, 4 to 6 samples each)"
    part = problem.part([2, 1])
    assert asked == [0]
    assert part.data.flat.shape == (0, 2)  # an actor is not sent the samples of client 0
    own = loaded(part).data
    assert asked == [0, 2, 1]
    np.testing.assert_array_equal(own.flat, np.concatenate([samples(2), samples(1)]))
    assert own.equal_size is None
    assert loads(part)
    assert not loads(loaded(part))
    assert sketched(problem).data.flat.shape == (4, 2)


def test_one_data_set_for_both_levels_is_loaded_once():
    problem = fz.Bilevel(upper, lower, fz.Loader(samples, 3, SIZES), np.zeros(2), np.zeros(2), modulus=1.0, smoothness=1.0)
    here = loaded(problem)
    assert here.lower_data is here.data
    assert here.data.samples == 15


def test_a_simulation_loads_all():
    data = fz.ClientData([samples(i) for i in range(3)])
    ours, theirs = (
        fz.run(fz.FedRZOnn(0.05, 0.1, 4), fz.Nonsmooth(loss, each, np.zeros(2)), 5, progress=False)
        for each in (fz.Loader(samples, 3, SIZES), data)
    )
    np.testing.assert_array_equal(ours.x, theirs.x)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: fz.Loader(3, 3), r"Loader: load: found int, which cannot be called; pass a function"),
        (lambda: fz.Loader(samples, 0), r"clients: found 0; pass a whole number of at least 1"),
        (lambda: fz.Loader(samples, 3, (4, 6)), r"sizes: found \(4, 6\); pass a whole number of samples for each of 3 clients"),
        (lambda: fz.Loader(samples, 3, (5, 6, 5)), r"sizes: found 5 for client 0, whose samples are 4"),
        (lambda: fz.Loader(samples, 3).loaded(), r"data: load\(1\) returned 6 samples, expected were 4; say so by sizes="),
        (lambda: fz.Loader(lambda i: 1 / i, 3), r"Loader: load: calling load\(client\) failed: ZeroDivisionError"),
    ],
)
def test_bad_arguments_are_refused(make, line):
    with pytest.raises(fz.InputError, match=line):
        make()


def test_what_needs_all_samples_says_so():
    problem = fz.Nonsmooth(loss, fz.Loader(samples, 3, SIZES), np.zeros(2))
    with pytest.raises(fz.InputError, match=r"data: this needs samples of all clients, which a Loader leaves where"):
        problem.evaluate(jnp.zeros(2))


def steep(x, y, xi):
    return xi[0] * y - x


def gap(x, y, xi):
    return jnp.sum((y - 1) ** 2)


def test_constants_of_scenarios_are_not_those_of_the_first_client():
    load = lambda i: np.full((4, 1), [1.0, 8.0, 0.1][i])  # noqa: E731
    with pytest.raises(fz.InputError, match=r"data: this needs samples of all clients.* such as modulus= and smoothness="):
        fz.TwoStage(gap, steep, fz.Loader(load, 3), np.zeros(2), np.zeros(2))
    method, stated = fz.FedRZO2s(0.01, 0.1, 2, solver=fz.vi.Projection()), {"modulus": 0.1, "smoothness": 8.0}
    far, here = (
        fz.TwoStage(gap, steep, data, np.zeros(2), np.zeros(2), **stated)
        for data in (fz.Loader(load, 3), fz.ClientData([load(i) for i in range(3)]))
    )
    ours, theirs = (fz.run(method, problem, 3, progress=False) for problem in (far, here))
    np.testing.assert_array_equal(ours.x, theirs.x)
    method.check(far)  # tries the solver, on what is at hand
    assert at_hand(far).data.flat.shape == (4, 1)
    assert at_hand(here) is here
