"""`benchmarks/levels.py`: both contestants take the same steps, and a row is what the table shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import levels
import user_levels
from fedrzo.problems.two_stage import solve_once
from user_levels import Plain

pytestmark = pytest.mark.slow("compiles programs of both contestants")


def test_the_rows_are_of_both_kinds():
    names = {make().name for make in user_levels.rows()}
    assert len(user_levels.rows()) == 11
    assert len(names) == 5


@pytest.mark.parametrize("place", [0, 5])
def test_both_solve_the_same_bilevel_problem(place):
    row = user_levels.rows()[place]()
    problem = row.problem()
    with problem.precision():
        plain = Plain(row, levels.step_length(row, problem, levels.default_method(row, problem)))
        found = plain.below(jnp.asarray(row.x0), plain.data, steps=2000)
        np.testing.assert_allclose(found, np.ravel(problem.lower_solutions(row.x0[None])[0]), atol=1e-7)


@pytest.mark.parametrize("place", [6, 8])
def test_both_take_the_same_steps_of_a_two_stage_problem(place):
    row = user_levels.rows()[place]()
    problem = row.problem()
    with problem.precision():
        length = levels.step_length(row, problem, None)
        xi = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0, 0], row.data)
        solver = levels.same_steps(row, length).solver
        x = jnp.asarray(row.x0)
        found = Plain(row, length).below(x, xi, steps=levels.STEPS)
        np.testing.assert_allclose(found, solve_once(problem, x, xi, solver, 0).y, rtol=1e-10, atol=1e-12)


def test_a_row_of_the_table():
    found = levels.measure(user_levels.rows()[0](), quick=True)
    times = found["same_accuracy"]["milliseconds"]
    assert found["same_accuracy"]["ratio"] == pytest.approx(times["plain"] / times["fedrzo"])
    assert found["errors"]["plain"] <= found["errors"]["fedrzo"]
    assert len(levels.table({"rows": [found]})) == 2
