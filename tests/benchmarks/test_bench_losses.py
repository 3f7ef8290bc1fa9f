"""`benchmarks/losses.py`: both contestants have the same problem, and a row is what the table shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import losses
import user_losses
from plain_losses import Plain

pytestmark = pytest.mark.slow("compiles a program for each loss, twice")
SMALL = [0, 4, 7, 11, 14, 17, 20, 25, 28]  # the smallest row of each loss


def test_the_rows_are_of_the_losses_that_were_promised():
    assert len(user_losses.rows()) >= 31
    assert len({user_losses.rows()[k]().name for k in SMALL}) == len(SMALL)


@pytest.mark.parametrize("place", SMALL)
def test_both_see_the_same_problem(place):
    row = user_losses.rows()[place]()
    problem = row.problem()
    with problem.precision():
        plain = Plain(row)
        assert problem.dim == plain.x0.size == row.dim
        np.testing.assert_array_equal(problem.x0, plain.x0)
        if row.sampler is None:
            found = problem.evaluate(jnp.asarray(problem.x0))["loss"]
            np.testing.assert_allclose(found, plain.evaluate(plain.x0, plain.data), rtol=1e-5)
        if row.project is not None:
            x = jax.random.normal(jax.random.key(0), plain.x0.shape, plain.x0.dtype)
            for i in range(row.clients):
                np.testing.assert_allclose(problem.sets.project(i, x), row.project(x, i), rtol=1e-12, atol=1e-12)


def test_a_row_of_the_table():
    found = losses.measure(user_losses.rows()[0](), quick=True)
    assert found["ratio"] == pytest.approx(found["seconds"]["plain"] / found["seconds"]["fedrzo"])
    assert found["rounds"] // found["every"] <= 200
    assert len(losses.table({"rows": [found]})) == 2
