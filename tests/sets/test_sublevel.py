"""Sets given by smooth convex inequalities: nearest points, bounds, derivatives, and what is said of wrong functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fedrzo as fz
from fedrzo.sets import Ball, Sublevel
from setkinds import double_precision  # noqa: F401 - used by every test

RNG = np.random.default_rng(3)
FUNCTIONS = {
    "ellipsoid": lambda y: (y * jnp.arange(1, 4) ** 2) @ y - 1,
    "thin, and of large values": lambda y: 1e6 * y[0] ** 2 - 1 + 1e-3 * y @ y,
    "of small values": lambda y: 1e-3 * (jax.nn.logsumexp(y) - 1),
    "flat at its edge": lambda y: jnp.sum(y**4) - 1,
    "two": lambda y: jnp.array([y @ y - 1, jnp.exp(y[0]) + y[1] - 1.0]),
}


def by_scipy(g, x):
    """The nearest point by sequential quadratic programming from several starts."""
    values = lambda y: -np.atleast_1d(g(jnp.asarray(y)))  # noqa: E731
    runs = [
        minimize(lambda y: np.sum((y - x) ** 2) / 2, start, jac=lambda y: y - x, method="SLSQP",
                 constraints={"type": "ineq", "fun": values}, options={"ftol": 1e-15, "maxiter": 500})
        for start in (0 * x, x / 10, 0.1 * RNG.normal(size=x.size))
    ]  # fmt: skip
    return min((run for run in runs if np.all(values(run.x) >= -1e-9)), key=lambda run: run.fun).x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_projections_agree_with_another_solver_and_bound_their_error(name):
    g = FUNCTIONS[name]
    found = jax.jit(Sublevel(g)._nearest)
    for scale in (0.5, 3.0, 100.0):
        x = scale * RNG.normal(size=3)
        y, error = found(x)
        wanted = by_scipy(g, x)
        moved = max(np.linalg.norm(x - wanted), 1e-9)
        assert np.linalg.norm(y - wanted) <= 1e-6 * moved + 1e-7
        assert float(error) <= 1e-6 * moved
        assert np.linalg.norm(x - y) <= np.linalg.norm(x - wanted) * (1 + 1e-9)  # no farther than what scipy found


@pytest.mark.slow("compiles derivatives of many sets")
def test_a_ball_by_its_function_is_the_ball_with_its_derivatives():
    x, ball = jnp.array([3.0, 1.0, -2.0]), Sublevel(lambda y, r: y @ y - r**2, 1.5)
    np.testing.assert_allclose(ball.project(x), Ball(0.0, 1.5).project(x), atol=1e-12)
    np.testing.assert_allclose(jax.jacobian(ball.project)(x), jax.jacobian(Ball(0.0, 1.5).project)(x), atol=1e-10)
    slope = jax.grad(lambda r: jnp.sum(Sublevel(lambda y, r: y @ y - r**2, r).project(x)))(1.5)
    assert slope == pytest.approx(float(jax.grad(lambda r: jnp.sum(Ball(0.0, r).project(x)))(1.5)))
    np.testing.assert_array_equal(ball.project(x / 10), x / 10)  # a point inside stays


def test_an_empty_set_is_not_passed_over():
    with pytest.warns(UserWarning, match="Sublevel: found a projection that may be off by"):
        y = Sublevel(lambda y: y @ y + 1).project(jnp.ones(2))
    assert float(Sublevel(lambda y: y @ y + 1).violation(y)) > 0


def test_functions_that_cannot_be_used_are_refused_in_one_line():
    data = fz.ClientData([np.ones(3)])
    loss = lambda x, b: jnp.sum(x**2)  # noqa: E731
    for g, wanted in ((lambda x: x[5:] @ x, "Sublevel"), (lambda x: (x, x), "Sublevel"), (3, "Sublevel: g")):
        with pytest.raises(fz.InputError, match=wanted) as caught:
            fz.Nonsmooth(loss, data, np.zeros(2), Sublevel(g))
        assert "\n" not in str(caught.value)


def test_a_run_keeps_to_it():
    data = fz.ClientData([np.full(3, 2.0), np.full(3, 1.0)])
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(x - jnp.mean(b))), data, np.zeros(2), Sublevel(lambda x: x @ x - 1))
    result = fz.run(fz.FedRZOnn(0.02, 0.02), problem, 150, progress=False)
    np.testing.assert_allclose(result.x_feasible, [0.5**0.5] * 2, atol=0.05)
