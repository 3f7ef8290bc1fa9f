"""FedMSPP: one minibatch per round, and its proximal point."""

import jax
import numpy as np
import pytest
from test_fedavg import case, unequal

import fedrzo as fz
from conformance import suite
from fedrzo.federation.client import Client
from fedrzo.zoo import toys

test_conformance = pytest.mark.slow("the suite of a baseline")(
    suite(case(fz.FedMSPP(1.0, 0.2, 5, 2), proximal=0.5, stepsize=0.1, local_steps=3))
)


def test_a_round_is_the_listings():
    problem = unequal()
    result = fz.run(fz.FedMSPP(0.5, 0.1, 3), problem, 1, progress=False)
    ends = []
    for target in ([1.0, 2.0], [-2.0, 0.5]):
        w = problem.x0.copy()
        for _ in range(3):
            w = w - 0.1 * ((w - target) + (w - problem.x0) / 0.5)
        ends.append(w)
    np.testing.assert_allclose(result.x, (3 * ends[0] + 5 * ends[1]) / 8, rtol=1e-13)


def inner(problem, steps, x, eta=0.5, batch_size=3):
    """Run one client's round, and return what it sends and the minibatch it drew."""
    with problem.precision():
        client, key = Client.of(problem, 0), jax.random.key(7)
        sent = fz.FedMSPP(eta, 0.2, steps, batch_size).proximal_point(client, key, None, jax.numpy.asarray(x)).value
        return np.asarray(sent), np.asarray(client.sample(key, batch_size))


def test_inner_steps_converge_to_the_exact_proximal_point_of_one_minibatch():
    """For |w - b|^2 / 2 it is (x + eta b) / (1 + eta), b being the minibatch's mean; each step of length a shrinks the error
    by 1 - a (1 + 1/eta)."""
    problem, x, eta = toys.quadratic(1, 4), np.array([1.0, -2.0, 0.5, 3.0]), 0.5
    errors = []
    for steps in (1, 2, 5, 40):
        w, minibatch = inner(problem, steps, x, eta)
        exact = (x + eta * minibatch.mean(axis=0)) / (1 + eta)
        errors.append(np.linalg.norm(w - exact))
    begin = np.linalg.norm(x - exact)
    np.testing.assert_allclose(errors[:3], begin * (1 - 0.2 * 3) ** np.array([1, 2, 5]), rtol=1e-10)
    assert errors[3] < 1e-14 * begin + 1e-14
    # The minibatch is not the whole data, so that a fresh one in each step would have ended elsewhere.
    whole = (x + eta * toys.answer(problem)) / (1 + eta)
    assert np.linalg.norm(exact - whole) > 1e-2


def test_each_round_draws_a_fresh_minibatch():
    problem = toys.quadratic(1, 2)
    method = fz.FedMSPP(1e6, 0.5, 60, 1)  # a proximal point that is all but the sample itself
    samples = np.asarray(problem.data.flat)
    ends = np.array([fz.run(method, problem, rounds, progress=False).x for rounds in range(1, 7)])
    distances = np.linalg.norm(ends[:, None] - samples[None], axis=2)
    np.testing.assert_allclose(distances.min(axis=1), 0, atol=1e-4)
    assert len(set(distances.argmin(axis=1))) > 1


def test_proximal_points_of_full_batches_reach_the_mean_of_quadratics_of_one_curvature():
    problem = toys.quadratic()
    result = fz.run(fz.FedMSPP(1.0, 0.4, 20, "full"), problem, 60, eval_every=60, progress=False)
    np.testing.assert_allclose(result.x, toys.answer(problem), atol=1e-10)


def test_a_decreasing_proximal_parameter_averages_the_minibatches_out():
    """With eta_t = 1/(t+1) on quadratics the iterate is close to the mean of all samples drawn so far."""
    problem = toys.quadratic(5, 3)
    method = fz.FedMSPP(lambda r: 1.0 / (r + 1), lambda r: 1.0 / (r + 3), 10)
    result = fz.run(method, problem, 2000, eval_every=2000, progress=False)
    # 10,000 samples of standard deviation 0.5 in 3 coordinates: five standard errors are 0.025.
    np.testing.assert_allclose(result.x, toys.answer(problem), atol=0.025)


@pytest.mark.parametrize("name", ["proximal", "stepsize", "local_steps", "batch_size"])
def test_bad_settings_are_refused(name):
    settings = {"proximal": 1.0, "stepsize": 0.1, "local_steps": 5, "batch_size": 1}
    with pytest.raises(fz.InputError, match=f"{name}: found 0"):
        fz.FedMSPP(**{**settings, name: 0})


def test_black_boxes_have_no_gradients_to_give():
    problem = fz.Nonsmooth(fz.blackbox(lambda x, b: 0.0), fz.ClientData([np.ones(1)]), np.zeros(1))
    with pytest.raises(fz.InputError, match="loss: FedMSPP needs gradients, a black box has none"):
        fz.run(fz.FedMSPP(1.0, 0.1), problem, 1, progress=False)
