"""One function and no federation: `fz.minimize`."""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import Bounds

import fedrzo as fz


def test_a_function_that_jax_traces_is_minimised_by_its_gradients():
    def valley(x, height):
        return jnp.abs(x[0] - 1) + height * (x[1] - x[0]) ** 2

    found = fz.minimize(valley, np.array([-1.0, 2.0]), args=(3.0,), seconds=300, progress=False)  # ends long before
    assert found.success
    assert found.fun < 1e-3
    np.testing.assert_allclose(found.x, [1, 1], atol=0.02)
    assert found.njev > 0
    assert isinstance(found.result, fz.Result)


@pytest.mark.slow("a black box, until nothing more is gained")
def test_a_function_of_numpy_is_called_as_it_is_and_keeps_to_its_bounds():
    calls = []

    def distance(x):
        calls.append(type(x))
        return float(np.abs(x - np.array([1.0, 2.0])).sum())

    found = fz.minimize(distance, [0.0, 0.0], bounds=[(0, 0.5), (None, None)], seconds=60, progress=False)
    assert set(calls) == {np.ndarray}
    assert 0.5 <= found.fun < 0.51
    assert found.x[0] <= 0.5
    assert found.njev == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bounds": [(0, 1)]}, "bounds: found 1 pairs for an x0 of 2 entries"),
        ({"bounds": 3}, "bounds: pass a pair"),
        ({"bounds": [(2, 1), (0, 1)]}, "bounds: found a low above its high, at entry 0"),
        ({"bounds": [("a", 1), (0, 1)]}, "bounds: found 'a'"),
        ({"bounds": Bounds(1, 0)}, "bounds: found a low above its high"),
        ({"args": 3}, "args: found int"),
        ({"x0": ["a", "b"]}, "x0: found list"),
        ({"x0": [np.nan, 1.0]}, "x0: found a number that is not finite"),
        ({"fun": 3}, "fun: found"),
        ({"calls": 0}, "calls: found 0; pass a whole number"),
        ({"seconds": 0}, "seconds: found 0; pass a positive number"),
    ],
)
def test_mistakes_are_told_in_one_line(given, said):
    call = {"fun": lambda x: jnp.sum(x**2), "x0": [1.0, 2.0]} | given
    with pytest.raises(fz.InputError, match=said):
        fz.minimize(**call)


def test_a_function_that_draws_numbers_is_called_anew_and_said_to_be_noisy():
    calls = []

    def cost(x):  # JAX could trace it, and would keep the one number that it drew
        calls.append(1)
        return abs(x[0] - 1) + np.random.default_rng(len(calls)).normal()

    with pytest.warns(UserWarning, match=r"fun: found .* and .* at x0; points are compared by one value each"):
        found = fz.minimize(cost, [3.0], calls=300, seconds=60, progress=False)
    assert len(calls) == found.nfev == 300
    assert found.fun == found.result.loss_feasible  # not the lowest of all draws


def test_what_the_function_raises_is_said_of_fun():
    def cost(x):
        if float(x[0]) > 0:
            raise ValueError("no such tank")
        return 0.0

    with pytest.raises(fz.BlackboxError, match=r"^fun: cost raised ValueError: no such tank; it must return"):
        fz.minimize(cost, [1.0], seconds=5, progress=False)
    with pytest.raises(fz.BlackboxError, match=r"^fun: append returned None; it must return one number"):
        fz.minimize([].append, [1.0], seconds=5, progress=False)


def test_a_function_is_asked_within_its_bounds_alone_and_ends_at_an_active_one():
    low, high, asked = np.array([0.0, 0.1, -1.0]), np.array([0.7, 1.3, 1.0]), []

    def cost(x):  # math.sqrt raises an error outside
        asked.append(x)
        return abs(x[0] - 2) + math.sqrt(x[1] - 0.1) + math.sqrt(1 - x[2]) * 0 + (x[2] - 0.3) ** 2

    found = fz.minimize(cost, [0.3, 0.5, 0.0], bounds=list(zip(low, high, strict=True)), calls=600, seconds=60, progress=False)
    assert np.all(np.min(asked, axis=0) >= low)
    assert np.all(np.max(asked, axis=0) <= high)
    np.testing.assert_allclose(found.x[:2], [0.7, 0.1], atol=0.01)
    assert found.fun == cost(found.x) < 1.4


def test_a_traced_function_ends_at_active_bounds():
    def cost(x):
        return -jnp.log(x[0]) + x[1] + jnp.abs(x[2] - 0.3)  # log is nan outside

    found = fz.minimize(cost, [0.5, 0.5, 0.0], bounds=[(1e-3, 2), (-0.25, 1), (None, None)], seconds=60, progress=False)
    np.testing.assert_allclose(found.x, [2.0, -0.25, 0.3], atol=1e-3)
    assert found.njev > 0


def test_a_limit_of_calls_returns_the_best_of_them():
    values = []

    def cost(x):
        values.append(float(np.abs(x - np.array([1.0, -0.5])).sum()))
        return values[-1]

    found = fz.minimize(cost, [0.0, 0.0], bounds=[(-2, 2), (-2, 2)], calls=150, seconds=60, progress=False)
    assert found.nfev == len(values) == 150
    assert found.fun == min(values) < 0.75
    assert found.fun == cost(found.x)
    assert not found.success
    assert found.message.startswith("the limit of 150 calls was reached, after stage")
    assert isinstance(found.result, fz.Result)
    one = fz.minimize(cost, [0.0, 0.0], calls=1, progress=False)
    np.testing.assert_array_equal(one.x, [0.0, 0.0])
    assert (one.fun, one.nfev, one.result) == (1.5, 1, None)


def test_a_function_of_jax_with_a_limit_of_calls_is_called_from_python():
    @jax.jit
    def cost(x):
        return jnp.sum(jnp.abs(x - 1))

    found = fz.minimize(cost, [0.0, 0.0], calls=80, seconds=60, progress=False)
    assert (found.nfev, found.njev) == (80, 0)
    assert found.fun < 2.0


def test_a_time_limit_before_the_first_stage_returns_the_best_of_the_points_asked():
    values = []

    def cost(x):
        time.sleep(0.2)
        values.append(float(np.abs(x - 1).sum()))
        return values[-1]

    found = fz.minimize(cost, [0.0, 0.0], seconds=3.0, progress=False)
    assert found.fun == min(values)
    assert found.nfev == len(values) <= 16
    assert found.message.startswith("the time limit was reached")
    assert not found.success
    traced = fz.minimize(lambda x: jnp.sum((x - 1.0) ** 2), [0.0, 0.0], seconds=1e-3, progress=False)
    np.testing.assert_array_equal(traced.x, [0.0, 0.0])
    assert (traced.fun, traced.result) == (2.0, None)


def test_a_start_outside_the_bounds_is_moved_before_the_first_call():
    asked = []

    def cost(x):
        asked.append(x[0])
        return float(x[0] ** 2)

    with pytest.warns(UserWarning, match="x0: found a point outside the bounds"):
        fz.minimize(cost, [3.0], bounds=[(1, 2)], calls=3, progress=False)
    assert asked[0] == 2.0
