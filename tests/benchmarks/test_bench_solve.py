"""`benchmarks/solve.py`: the problems agree with their plain losses, the stored optima hold, results are shown and judged."""

import jax
import numpy as np
import pytest

import solve
from helpers import solve_cases
from helpers.solve_figure import figure
from helpers.solve_rivals import Trace, applies, by_ipopt, by_slsqp

NAMES = solve_cases.names()


def test_there_are_enough_problems_of_each_kind_and_half_of_them_are_held_out():
    counts = {kind: len(solve_cases.names(kind)) for kind in solve_cases.KINDS}
    assert all(counts[kind] >= least for kind, least in zip(solve_cases.KINDS, (12, 11, 7, 9, 3), strict=True))
    for kind, count in counts.items():
        assert len(solve_cases.held_out() & set(solve_cases.names(kind))) == count // 2


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_optimum_is_feasible_and_no_drawn_point_is_better(name):
    case = solve_cases.make(name)
    assert case.reference
    loss, violation = case.truth(np.array(case.reference["x"]))
    assert loss == pytest.approx(case.best, rel=1e-6, abs=1e-7)
    assert violation <= 1e-4
    assert case.best < case.start
    drawn = case.region.draw(np.random.default_rng(5), case.x0)
    loss, violation = case.truth(drawn)
    assert loss >= case.best - 1e-6 * abs(case.best) or violation > 1e-3


def agrees(name):
    """Check that the library's loss is the plain one, at the start and at a drawn point."""
    case = solve_cases.make(name)
    if case.minimize:
        stated = case.state()
        assert stated["fun"](np.array(stated["x0"])) == pytest.approx(case.loss(case.x0), rel=1e-9)
        return
    problem = case.state()
    with problem.precision():
        flat, whole = jax.flatten_util.ravel_pytree(problem.x0)
        assert np.array_equal(flat, case.x0)
        for x in (case.region.project(case.x0), case.region.draw(np.random.default_rng(3), case.x0)):
            assert float(problem.evaluate(whole(x))["loss"]) == pytest.approx(case.loss(x), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["k_medians", "pid"])
def test_the_library_and_the_plain_loss_agree(name):
    agrees(name)


@pytest.mark.slow("each problem is compiled")
@pytest.mark.parametrize("name", NAMES)
def test_the_library_and_the_plain_loss_agree_in_all_problems(name):
    agrees(name)


def test_quadratic_programs_with_multipliers_that_are_not_unique_are_solved():
    A = np.array([[1.0, 1.0], [-1.0, -1.0], [2.0, 2.0]])
    y = solve_cases.with_rows(np.eye(2), np.array([[-3.0, -1.0], [3.0, 1.0]]), A, np.array([1.0, 1.0, 2.0]), -0.5, 0.5)
    np.testing.assert_allclose(y, [[0.5, 0.5], [-0.5, -0.5]], atol=1e-6)
    y = solve_cases.with_rows(np.eye(2), np.array([[-3.0, -1.0]]), A, np.array([1.0, 1.0, 2.0]), -5.0, 5.0)
    np.testing.assert_allclose(y, [[1.5, -0.5]], atol=1e-6)


def test_rivals_solve_a_small_problem_and_keep_their_best_points():
    case = solve_cases.make("ridge_features")
    solvers = [by_slsqp]
    if applies("ipopt", case):
        pytest.importorskip("casadi")
        solvers.append(by_ipopt)
    for solver in solvers:
        trace = Trace(case)
        solver(case, trace, 1.0)
        losses = [loss for _, loss, _ in trace.rows]
        assert losses == sorted(losses, reverse=True)
        assert case.gain(case.truth(trace.x)[0]) > 0.9


def recorded(solver, name, after, **more):
    case = solve_cases.make(name)
    row = {
        "problem": name, "kind": case.kind, "n": case.n, "held_out": case.held_out, "solver": solver, "applies": True,
        "total": 9.0, "solved_after": after, "gain": 0.5 if after is None else 1.0, "loss": 0.0, "violation": 0.0, "says": "",
    }  # fmt: skip
    return row | more


def test_results_are_shown_and_judged():
    rows = [
        recorded("fedrzo", "pid", 3.0), recorded("cma", "pid", 1.0), recorded("ipopt", "pid", None, applies=False, gain=None),
        recorded("fedrzo", "tolls", None), recorded("cma", "tolls", None, violation=0.5), recorded("ipopt", "tolls", 2.0),
    ]  # fmt: skip
    found = {"problem": "all", "seconds": 60.0, "absent": ["cma"], "rows": rows}
    shown = solve.table(found)
    assert shown[0][3:] == ["fedrzo", "ipopt", "cma"]
    assert shown[1][3:] == ["3.0 s", "", "1.0 s"]
    assert shown[2][3:] == ["50.0 % of the gain", "2.0 s", "infeasible by 0.5"]
    assert "fedrzo 1 of 2" in solve.verdict(found)
    assert "ipopt 1 of 1" in solve.verdict(found)
    assert len(solve.remarks(found)) == 2
    assert len(figure(found).axes) == 2


def test_a_point_counts_as_solved_only_if_it_is_near_has_the_gain_and_is_feasible():
    case = solve_cases.make("quantile")
    assert case.solved(case.best, 0.0)
    assert not case.solved(case.best, 0.01)
    assert not case.solved(case.best + 0.02 * (case.start - case.best), 0.0)
    done = {"total": 5.0, "rows": [[1.0, case.start, 0.0], [2.0, case.best, 0.0]], "x": case.reference["x"]}
    assert solve.judge("cma", case, done)["solved_after"] == 2.0
    assert solve.judge("cma", case, done | {"x": None, "error": "why"})["says"] == "why"


def test_a_problem_that_there_is_not_is_refused_in_one_line(fails):
    assert "PROBLEM: found 'nothing'" in fails(solve, "nothing")
