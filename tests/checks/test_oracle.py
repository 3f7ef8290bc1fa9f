"""What a check says of gradients: the gain that was measured, and nothing where there is none to be had."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz


def finding(loss, n, **method):
    rng = np.random.default_rng(0)
    data = fz.ClientData([{"A": rng.normal(size=(9, n)), "y": rng.normal(size=9)} for _ in range(2)])
    report = fz.check(fz.Nonsmooth(loss, data, np.full(n, 0.1)), fz.FedRZOnn(1e-3, 0.01, 2, 4, **method), rounds=2)
    return next((found for found in report.findings if found.about == "oracle"), None)


def absolute(x, batch):
    return jnp.mean(jnp.abs(batch["A"] @ x - batch["y"]))


def test_the_gain_is_about_two_thirds_of_n():
    """Far from a kink an estimate from values has n times the mean square of a gradient, and costs two thirds of it."""
    found = finding(absolute, 90)
    assert 30 < found.data["gain"] < 120
    assert 'oracle="gradients"' in found.text


def test_clients_of_unequal_sizes_are_looked_at_whole():
    data = fz.ClientData([{"A": np.ones((k, 90)), "y": np.zeros(k)} for k in (2, 5)])
    report = fz.check(fz.Nonsmooth(absolute, data, np.full(90, 0.1)), fz.FedRZOnn(1e-3, 0.01, 2, "full"), rounds=2)
    assert report.ok
    assert any(found.about == "oracle" for found in report.findings)


@pytest.mark.slow("several checks")
def test_nothing_is_said_where_nothing_is_gained_or_gradients_are_wrong():
    assert finding(absolute, 2) is None
    assert finding(absolute, 90, oracle="gradients") is None
    assert finding(lambda x, batch: jnp.mean(jnp.floor(90 * batch["A"] @ x)), 90) is None
