"""The Stackelberg-Nash-Cournot game: equilibria, optima and the paper's table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

import fedrzo as fz
from fedrzo.paper import table4
from fedrzo.paper.reproduction import Reproduction
from fedrzo.zoo import cournot


def equilibrium(problem, x, a):
    """The followers' total output by bisection on it: given the total, each one's best reply is explicit."""
    market = problem.map_fn

    def replies(total):
        return np.clip((a - market.b * (x + total)) / (market.costs + market.b), 0, market.caps)

    total = brentq(lambda total: replies(total).sum() - total, 0, market.caps.sum() + 1, xtol=1e-14, rtol=1e-15)
    return replies(total)


def leader_loss(problem, x, points=200):
    """The expected loss by a fine midpoint rule over the demand and bisection for the followers."""
    demands = 7.5 + 5 * (np.arange(points) + 0.5) / points
    b = problem.map_fn.b
    return np.mean([0.05 * x**2 - x * (a - b * (x + equilibrium(problem, x, a).sum())) for a in demands])


def numeric_optimum(problem):
    return minimize_scalar(lambda x: leader_loss(problem, x), bounds=(0, 10), method="bounded", options={"xatol": 1e-7})


@pytest.mark.parametrize("cap", [None, 0.9])
def test_lower_solutions_are_equilibria(cap):
    problem = cournot.cournot(12, 0.5, seed=3, cap=cap)
    for x, a in ((0.0, 12.5), (4.0, 9.0), (9.0, 7.5)):
        y = problem.lower(np.array([x]), jnp.asarray(a))
        np.testing.assert_allclose(y, equilibrium(problem, x, a), atol=1e-7)
    assert (cap is not None) == bool(np.any(equilibrium(problem, 0.0, 12.5) == problem.map_fn.caps))


@pytest.mark.parametrize(("followers", "b"), [(10, 0.5), (10, 1.0), (20, 0.5), (1000, 1.0)])
def test_the_closed_form_is_the_optimum(followers, b):
    problem = cournot.cournot(followers, b)
    x, loss = cournot.optimum(problem)
    assert leader_loss(problem, x) == pytest.approx(loss, rel=1e-5)
    found = numeric_optimum(problem)
    assert found.fun == pytest.approx(loss, rel=1e-5)
    # As published: -2.7709 and -1.6467 for ten followers.
    known = {(10, 0.5): -2.770936, (10, 1.0): -1.6466618}
    assert (followers, b) not in known or loss == pytest.approx(known[followers, b], rel=1e-6)


@pytest.mark.slow("long runs to known values")
def test_where_caps_bind_the_closed_form_is_refused_and_the_method_still_finds_the_optimum():
    problem = cournot.cournot(10, 0.5, cap=1.0, scenarios=64, clients=3)
    with pytest.raises(fz.InputError, match="a follower is at a bound"):
        cournot.optimum(problem)
    best = numeric_optimum(problem)
    method = fz.FedRZO2s(0.3, 0.15, 10, batch_size=8, solver=cournot.solver(10))
    result = fz.run(method, problem, 30, eval_every=30, progress=False)
    assert result.history["loss"][-1] == pytest.approx(best.fun, rel=0.01)
    assert result.history["lower_error"][-1] < 1e-7


@pytest.mark.slow("a long run and its certificate")
def test_certified_value_is_within_a_percent_with_its_certificate():
    entry = table4.solved(10, 1.0)
    assert entry["optimum"] == pytest.approx(-1.6466618, rel=1e-6)
    assert entry["ours"] == pytest.approx(entry["optimum"], rel=0.01)
    assert entry["ours"] >= entry["optimum"] - 1e-6
    assert 0 < entry["error_bound"] < 1e-8


@pytest.mark.slow("a row of the paper's table")
def test_paper_setting_repeats_a_row_of_the_table():
    cells = table4.as_printed(10, 0.5)
    assert len(cells) == 9
    deviations = [abs(cell["ours"] / cell["paper"] - 1) for cell in cells]
    assert max(deviations) < 0.12
    assert cells[0]["paper"] == -7.810


def test_paper_setting_leaves_the_followers_near_zero_and_says_so():
    problem = cournot.cournot(1000, 0.5, "paper", clients=1, scenarios=4)
    with problem.precision():
        row = table4.monitored(problem, np.array([8.0]))
        y = np.asarray(problem.solve(jnp.array([8.0]), jnp.asarray(10.0), problem.monitor).y)
    truth = equilibrium(problem, 8.0, 10.0)
    assert y.sum() < 0.05 < 5 < truth.sum()
    assert row["lower_error"] >= np.linalg.norm(y - truth)


@pytest.mark.parametrize(("followers", "tau", "needed"), [(10, 20, 87), (20, 35, 312), (100, 55, 7112), (1000, 80, 696112)])
def test_the_printed_tau_is_warned_of_with_what_the_theory_needs(followers, tau, needed):
    problem = cournot.cournot(followers, 0.5, "paper", evaluation=1)
    assert cournot.solver(followers, "paper").tau == tau
    assert round(fz.vi.needed_tau(problem.modulus, problem.smoothness)) == pytest.approx(needed, rel=1e-3)
    with pytest.warns(UserWarning, match=f"tau is {tau}, the theory needs at least"):
        cournot.solver(followers, "paper").check(problem.modulus, problem.smoothness)


def test_drawn_markets_have_valid_constants_and_share_compiled_code():
    problem = cournot.cournot(8, 1.0, seed=1)
    market = problem.map_fn
    values = np.linalg.eigvalsh(np.diag(market.costs + 1.0) + 1.0)
    assert problem.modulus <= values[0]
    assert problem.smoothness >= values[-1]
    assert market == cournot.Map(8, 1.0, 1, None)
    assert market != cournot.Map(8, 1.0, 2, None)
    assert hash(market) == hash(cournot.Map(8, 1.0, 1, None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"setting": "exact"}, "setting: found 'exact'"),
        ({"followers": 0}, "followers: found 0"),
        ({"b": 0.0}, "b: found 0.0"),
        ({"followers": 7, "setting": "paper"}, "followers: found 7; the paper prints"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(fz.InputError) as error:
        cournot.cournot(**options)
    assert str(error.value).startswith(message)


def test_table_rows_show_both_values():
    cell = {"followers": 10, "b": 0.5, "paper": -7.81, "ours": -8.0}
    cells = [{**cell, "H": H, "eta": eta} for H in (1, 10, 20) for eta in (1.0, 0.1, 0.01)]
    certified = [{"followers": 10, "b": 0.5, "optimum": -2.77, "ours": -2.76, "error_bound": 1e-12}]
    heading, *rows = table4.table({"cells": cells, "certified": certified})
    assert {len(row) for row in (heading, *rows)} == {9}
    assert [row[:3] for row in rows] == [["10", "0.5", H] for H in ("1", "10", "20")]
    assert rows[1][3:6] == ["-8.000 (-7.810)"] * 3
    assert rows[0][-3:] == ["-2.76", "-2.77", "1e-12"]
    assert rows[2][-3:] == ["", "", ""]


@pytest.mark.slow("long runs to known values")
def test_half_of_the_cells_and_four_certificates():
    """Those of 20 and 100 followers; `fedrzo reproduce table4` does all 72."""
    record = table4.run(Reproduction("table4", quick=True, progress=False))
    found = record.data
    deviations = np.array([abs(cell["ours"] / cell["paper"] - 1) for cell in found["cells"]])
    assert len(deviations) == 36
    assert np.median(deviations) <= 0.03
    assert deviations.max() <= 0.12
    assert len(found["certified"]) == 4
    for entry in found["certified"]:
        assert entry["ours"] == pytest.approx(entry["optimum"], rel=0.01)
        assert entry["error_bound"] < 1e-8
    assert [claim.holds for claim in record.claims] == [True, True, True, False, True]


def test_certified_solves_take_no_more_steps_with_more_followers():
    """With a map whose cost is linear in the followers, so is the solve's; benchmarks/cournot.py measures the time."""
    steps = {}
    for n in (1000, 16000):
        problem = cournot.cournot(n, 0.5, seed=0)
        with problem.precision():
            found = jax.jit(lambda a, p=problem: p.solve(jnp.ones(1), a, fz.vi.Accelerated()))(jnp.asarray(10.0))
        assert float(found.error_bound) <= 1e-8 * max(1.0, float(np.linalg.norm(found.y)))
        steps[n] = int(found.steps)
    assert steps[16000] <= 2 * steps[1000]
