"""FedZO: one-sided estimates, several directions, displacements averaged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedrzo as fz
from conformance import Case, suite
from fedrzo.federation import directions
from fedrzo.federation.client import Client
from fedrzo.federation.estimators import estimate_one_sided
from fedrzo.federation.protocol import Roots, path_key
from fedrzo.zoo import toys


def toy(wrap):
    plain = toys.quadratic(clients=4, dim=6)
    return fz.Nonsmooth(wrap(plain.loss_fn), plain.data, np.zeros(6))


test_conformance = pytest.mark.slow("the suite of a baseline")(
    suite(
        Case(
            method=fz.FedZO(stepsize=0.02, smoothing=0.1, local_steps=5, batch_size=2, directions=3),
            problem=toy,
            numpy_loss=lambda x, batch: 0.5 * np.mean(np.sum((x - batch) ** 2, axis=-1)),
            rounds=60,
            optimum=0.5 * float(np.mean(np.var(np.asarray(toys.quadratic(4, 6).data.flat), axis=0)) * 6),
            changes={"stepsize": 0.03, "local_steps": 3, "smoothing": 1e-8},  # rounding tells radii apart on a quadratic
        )
    )
)


def test_one_round_computed_by_hand():
    """Two clients, two local steps, three directions, in plain NumPy from the same keys."""
    n, mu, eta, H, b2 = 4, 0.2, 0.03, 2, 3
    problem = toys.quadratic(clients=2, dim=n)
    ours = fz.run(fz.FedZO(eta, mu, H, 2, b2), problem, 1, key=5, progress=False).x
    with problem.precision():
        roots = Roots.of(jax.random.key(5))
        moved = []
        for i in range(2):
            key = path_key(roots.directions, (0, 0, i))  # round 0, call 0, client i
            x = np.zeros(n)
            for k in range(H):
                step = jax.random.fold_in(key, k)
                samples = np.asarray(Client.of(problem, i, roots).sample(step, 2))
                loss = lambda x: 0.5 * np.mean(np.sum((x - samples) ** 2, axis=1))  # noqa: B023, E731
                g = np.zeros(n)
                for j in range(b2):
                    v = np.asarray(directions.sphere(jax.random.fold_in(step, j), n, 1.0, jnp.float64))
                    g += n / (mu * b2) * (loss(x + mu * v) - loss(x)) * v
                x = x - eta * g
            moved.append(x)
    np.testing.assert_allclose(ours, np.mean(moved, axis=0), rtol=1e-12)


def test_the_estimate_is_unbiased_on_a_quadratic():
    """Odd moments of v vanish, so the mean is x - mean(samples) whatever mu is.

    Hotelling's T^2 of 20,000 estimates (normal enough at that number) against that mean, at confidence 1 - 1e-6; a wrong
    factor of 5 % must be seen.
    """
    n, draws = 5, 20_000
    problem = toys.quadratic(clients=1, dim=n)
    x = jnp.arange(1.0, n + 1)
    with problem.precision():
        client = Client.of(problem, 0)
        batch = client.sample(jax.random.key(1), "full")

        def one(key):
            return estimate_one_sided(client, key, jnp.asarray(x, jnp.float64), batch, 0.5, 2)

        found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(2), draws)))
    truth = np.asarray(x) - toys.answer(problem)
    limit = stats.chi2.ppf(1 - 1e-6, n)

    def distance(mean):
        error = found.mean(axis=0) - mean
        return draws * error @ np.linalg.solve(np.cov(found.T), error)

    assert distance(truth) < limit
    assert distance(1.05 * truth) > limit
    assert distance(0.95 * truth) > limit


def test_reaches_the_minimiser_of_a_quadratic():
    """Within 0.03 after 2,000 rounds of decreasing steps, where it starts 1.4 away.

    Clients differ and draw directions of their own, so that the error falls with one over the root of the rounds only.
    """
    problem = toys.quadratic()
    method = fz.FedZO(lambda r: 1 / (r + 20), 1e-3, local_steps=1, batch_size="full", directions=20)
    x = fz.run(method, problem, 2000, eval_every=2000, progress=False).x
    assert np.linalg.norm(toys.answer(problem)) > 1.3
    assert np.linalg.norm(x - toys.answer(problem)) < 0.03


@pytest.mark.parametrize(("H", "b2", "batch"), [(1, 20, 1), (3, 5, 4)])
def test_one_vector_each_way_and_one_evaluation_more_than_directions(H, b2, batch):
    problem = toys.quadratic(clients=3, dim=7)
    history = fz.run(fz.FedZO(0.01, 0.1, H, batch, b2), problem, 2, progress=False).history
    assert list(np.diff(history["upload_bytes"])) == [3 * 7 * 8] * 2
    assert list(np.diff(history["download_bytes"])) == [3 * 7 * 8] * 2
    assert list(np.diff(history["evaluations"])) == [3 * H * (b2 + 1) * batch] * 2
    assert history.last["gradients"] == 0


def test_constraints_are_refused():
    with pytest.raises(fz.InputError, match="constraint: FedZO handles no constraints"):
        fz.run(fz.FedZO(0.1, 0.1), toys.boxes(), 1, progress=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"directions": 0}, "directions: found 0; pass a whole number of at least 1"),
        ({"stepsize": -1.0}, "stepsize: found -1.0; pass a positive number"),
        ({"smoothing": 0.0}, "smoothing: found 0.0; pass a positive number"),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(fz.InputError, match=message):
        fz.FedZO(**{"stepsize": 0.1, "smoothing": 0.1, **fields})
