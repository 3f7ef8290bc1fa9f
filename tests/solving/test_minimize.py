"""One function and no federation: `fz.minimize`."""

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
    assert set(calls[1:]) == {np.ndarray}  # the first try is JAX's
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
        found = fz.minimize(cost, [3.0], seconds=6, progress=False)
    assert len(calls) > found.nfev > 100
