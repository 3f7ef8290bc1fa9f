"""The minimax problems of the zoo, against their closed forms."""

import jax
import numpy as np
import pytest
from scipy.optimize import approx_fprime

import fedrzo as fz
from fedrzo import zoo
from fedrzo.zoo import minimax


def test_phi_and_its_gradient_are_those_of_the_monitor():
    problem = zoo.make("ncsc", clients=3, dim=5, lower_dim=2, heterogeneity=1.0)
    rng = np.random.default_rng(1)
    for x in rng.normal(size=(4, 5)) * 2:
        with problem.precision():
            row = jax.jit(problem.evaluate)(x)
            [y] = problem.lower_solutions(x[None])
        np.testing.assert_allclose(row["loss"], minimax.phi(problem, x), rtol=1e-9)
        np.testing.assert_allclose(row["test_loss"], minimax.phi(problem, x), rtol=1e-9)
        np.testing.assert_allclose(y, minimax.best_y(problem, x), atol=1e-9)
        np.testing.assert_allclose(row["stationarity"], np.linalg.norm(minimax.grad_phi(problem, x)), rtol=1e-9)
        numeric = approx_fprime(x, lambda x: minimax.phi(problem, x), 1e-7)
        np.testing.assert_allclose(minimax.grad_phi(problem, x), numeric, atol=1e-5)


def test_ncsc_is_not_convex_and_its_clients_differ_as_asked():
    problem = minimax.ncsc()
    A = np.asarray(problem.data.fixed[0]).mean(0)
    assert np.linalg.eigvalsh(A.T @ A - np.eye(6)).min() < -0.5  # the Hessian of Phi at zero
    alike = np.asarray(minimax.ncsc(heterogeneity=0.0).data.fixed[0])
    assert np.ptp(alike, axis=0).max() == 0
    np.testing.assert_allclose(alike[0], A, atol=1e-12)  # heterogeneity moves no mean
    assert np.ptp(np.asarray(problem.data.fixed[0]), axis=0).min() > 0.1


@pytest.mark.parametrize("centred", [True, False])
def test_fednests_saddle_point_is_a_saddle_point(centred):
    problem = zoo.make("fednest-minimax", clients=40, s=10.0, centred=centred)
    x, y = minimax.answer(problem)
    t, b = (np.asarray(part) for part in problem.data.fixed)
    np.testing.assert_allclose(np.mean(t[:, None] * y + 0.1 * x, axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.mean(-y - b + t[:, None] * x, axis=0), 0, atol=1e-12)
    assert (np.linalg.norm(x) < 1e-12) == centred
    np.testing.assert_allclose(problem.lower_solutions(x[None])[0], y, atol=1e-9)


def test_fednests_draws_are_those_of_the_sheet():
    problem = zoo.make("fednest-minimax")
    t, b = (np.asarray(part) for part in problem.data.fixed)
    assert (problem.clients, problem.dim, b.shape) == (1000, 10, (1000, 10))
    assert t.min() > 0
    assert 0.09 < t.max() < 0.1
    # s_i ~ U(0, 2s) makes the variance of an entry 4 s^2 / 3; 10,000 of them tell it to 5 % with room to spare.
    for s in (1.0, 10.0):
        _, b = (np.asarray(part) for part in minimax.fednest_minimax(s=s).data.fixed)
        np.testing.assert_allclose(b.var(), 4 * s**2 / 3, rtol=0.1)
    np.testing.assert_array_equal(problem.x0, np.full(10, 10.0))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ncsc", {"clients": 0}, "clients: found 0; pass a whole number of at least 1"),
        ("fednest-minimax", {"dim": 1.5}, "dim: found 1.5"),
        ("fednest-minimax", {"s": -1.0}, "s: found -1.0; pass a positive number"),
        ("fednest-minimax", {"regularisation": 0}, "regularisation: found 0"),
    ],
)
def test_bad_options_are_refused_by_name(name, options, message):
    with pytest.raises(fz.InputError, match=message):
        zoo.make(name, **options)


def test_only_fednests_problem_has_an_answer_here():
    with pytest.raises(fz.InputError, match="problem: 'ncsc' has no closed-form answer here; see phi and grad_phi"):
        minimax.answer(minimax.ncsc())
