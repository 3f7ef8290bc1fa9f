"""Upper constraints that involve y, by an exact penalty; and the multipliers of the lower level."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.sets.multipliers import multipliers

S = fz.sets
SHARES = fz.ClientData([np.array([0.5]), np.array([1.5])])


def upper(x, y, batch):
    return jnp.mean(batch) * (x[0] ** 2 + y[0] ** 2)


def lower(x, y, batch):
    return jnp.mean(batch) * (y[0] - x[0]) ** 2


def half(x, y):
    """x + y >= 1, so that the best x is 1/2, with a multiplier of 1."""
    return 1 - x[0] - y[0]


def stated(coupling=half, start=0.0, **more):
    return fz.Bilevel(
        upper, lower, SHARES, np.array([start]), np.zeros(1), modulus=2.0, smoothness=2.0, coupling=coupling, **more
    )


def run(problem, rounds=300):
    return fz.run(fz.FedRZObl(0.02, 0.02, batch_size="full"), problem, rounds, progress=False)


@pytest.mark.slow("several long runs")
def test_a_penalty_above_the_multiplier_is_exact():
    result = run(stated(penalty=2.0))
    assert result.x[0] == pytest.approx(0.5, abs=0.04)  # a step or two
    assert result.loss_feasible == pytest.approx(0.5, abs=0.05)  # without the penalty
    assert result.history["violation"][0] == 1.0
    assert result.history["violation"][-1] <= 0.05
    assert result.multipliers is None  # of a y without constraints
    with pytest.raises(fz.InputError, match="multipliers: only"):
        _ = dataclasses.replace(result, problem=None).multipliers


def test_a_penalty_below_it_is_not_and_the_result_says_so():
    with pytest.warns(UserWarning, match=r"violation: .* broken by 0.5.*penalty"):
        result = run(stated(penalty=0.5))
    assert result.x[0] == pytest.approx(0.25, abs=0.02)  # where 2 x^2 + (1 - 2 x) / 2 is least


@pytest.mark.parametrize("start", [-3.0, pytest.param(2.0, marks=pytest.mark.slow("another solve"))])
def test_solve_finds_a_penalty_from_either_side(start):
    result = fz.solve(stated(start=start), seconds=30, progress=False)
    assert result.loss_feasible == pytest.approx(0.5, abs=1e-3)
    assert result.history["violation"][-1] <= 1e-3
    assert any("coupling constraints are broken by" in note for note in result.notes)


@pytest.mark.slow("solves at other scales, and of what cannot be kept")
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_constraints_of_any_scale_are_kept(scale):
    problem = stated(lambda x, y: scale * jnp.array([half(x, y), -x[0] - 10]))
    result = fz.solve(problem, progress=False)
    assert result.loss_feasible == pytest.approx(0.5, abs=1e-3)


@pytest.mark.slow("solves at other scales, and of what cannot be kept")
def test_constraints_that_nothing_keeps_are_said_to_be_broken():
    result = fz.solve(stated(lambda x, y: jnp.array([1 - x[0], 1 + x[0]])), seconds=30, progress=False)
    assert any("the coupling constraints do not hold" in note for note in result.notes)


@pytest.mark.parametrize(
    ("coupling", "wanted"),
    [
        (3, "coupling: "),
        (lambda x: x, "coupling: "),
        (lambda x, y: (x, y), "coupling: .* returns"),
        (lambda x, y: x[0] > y[0], "coupling: .* returns"),
        (lambda x, y: jnp.log(x[0]), "coupling: found -inf"),
    ],
)
def test_functions_that_cannot_be_constraints_are_refused(coupling, wanted):
    with pytest.raises(fz.InputError, match=wanted) as caught:
        run(stated(coupling), 1)
    assert "\n" not in str(caught.value)


def test_scenarios_have_constraints_of_their_own():
    scenarios = fz.ClientData([np.array([0.5, 1.0]), np.array([2.0])])
    problem = fz.TwoStage(
        lambda x, y, xi: x[0] ** 2, lambda x, y, xi: y - xi * x, scenarios, np.array([1.5]), np.zeros(1),
        coupling=lambda x, y, xi: 1 - y[0], penalty=40.0, modulus=1.0, smoothness=1.0,
    )  # fmt: skip
    result = fz.run(fz.FedRZO2s(0.005, 0.01, batch_size="full"), problem, 300, progress=False)
    assert result.x[0] == pytest.approx(2.0, abs=0.05)  # which the scenario of 0.5 asks for
    assert result.history["violation"][0] == pytest.approx(0.25 / 4)  # a quarter of the weight, broken by 1/4


@pytest.mark.slow("several lower levels")
def test_multipliers_balance_the_slope_with_and_without_equations():
    rng = np.random.default_rng(0)
    A, b, E = rng.normal(size=(5, 3)) * 10.0 ** np.arange(-2, 3)[:, None], rng.uniform(0, 1, 5), rng.normal(size=(1, 3))
    linear, more = S.Polyhedron(A, b), S.Affine(E, 0.0)
    with jax.enable_x64(True):
        for member, rows in ((linear, 0), (S.Intersection(linear, more), 1)):
            far = 3 * rng.normal(size=3)
            y = member.project(far)  # of which y - far is the slope
            found = multipliers(member, y, y - far)
            u, v = np.asarray(found["inequalities"]), np.asarray(found["equations"])
            np.testing.assert_allclose(y - far + A.T @ u + (E.T @ v if rows else 0), 0, atol=1e-10)
            assert u.min() >= 0
            assert np.abs(u * (b - A @ y)).max() <= 1e-10


def test_multipliers_of_bounds_and_of_sets_without_rows():
    boxed = stated(None, lower_constraint=S.Box(1.0, 3.0))
    found = boxed.lower_multipliers(np.array([0.25]))
    np.testing.assert_allclose([found["lower"], found["upper"]], [[1.5], [0.0]], atol=1e-8)
    assert stated(None, lower_constraint=S.Ball(2.0, 0.5)).lower_multipliers(np.zeros(1)) is None
    assert stated(None).lower_multipliers(np.zeros(1)) is None


@pytest.mark.slow("solves at other scales, and of what cannot be kept")
def test_a_penalty_does_not_drown_a_small_loss():
    problem = fz.Bilevel(
        lambda x, y, b: 1e-6 * jnp.mean(b) * (x[0] - 5) ** 2, lower, SHARES, np.array([-3.0]), np.zeros(1),
        coupling=lambda x, y: 1 - y[0],
    )  # fmt: skip
    assert fz.solve(problem, progress=False).x_feasible[0] == pytest.approx(5.0, abs=0.01)


@pytest.mark.slow("a sweep")
def test_columns_are_without_the_penalty_and_settings_ranked_with_it():
    problem = stated(penalty=2.0, test=np.ones(1))
    row = problem.evaluate(jnp.array([0.25]))
    assert float(row["loss"]) == float(row["test_loss"]) == 0.125
    assert float(row["violation"]) == 0.5
    method = fz.FedRZObl(0.02, 0.02, batch_size="full")
    found = fz.sweep(method, problem, 100, seeds=1, stepsize=[1e-6, 0.02], progress=False)
    assert found.settings[found.best()]["stepsize"] == 0.02


def test_multipliers_of_rows_without_an_end():
    member = S.Intersection(S.Box(0.0, np.inf), S.Halfspace([1.0, 1.0], 1.0))
    with jax.enable_x64(True):
        found = multipliers(member, jnp.array([1.0, 0.0]), jnp.array([-2.0, 0.5]))
    u = np.asarray(found["inequalities"])
    A = np.asarray(member._rows(2, float).A)
    np.testing.assert_allclose(A.T @ u, [2.0, -0.5], atol=1e-10)
    assert u.min() >= 0
