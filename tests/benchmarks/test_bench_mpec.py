"""`benchmarks/mpec.py`: the reference of the games, the restated problems, and what is said of those who do not finish."""

import json

import numpy as np
import pytest

import mpec
import mpec_contestants
from helpers import mpec_answers, mpec_game
from helpers.mpec_figure import figure


def by_projection(game, x, demand, steps=4_000):
    """Return the followers' outputs by many short projected steps."""
    a, b = demand
    y = np.zeros(len(game.caps))
    length = 1 / (game.rise.max() + b * (1 + len(y)))
    for _ in range(steps):
        y = np.clip(y - length * (game.first + (game.rise + b) * y - a + b * (x + y.sum())), 0, game.caps)
    return y


def test_the_equilibrium_of_a_game_is_that_of_projected_steps_and_some_firms_are_at_each_bound():
    game = mpec_game.draw(20, 5, seed=1)
    total, y = mpec_game.equilibrium(game, 10.0, game.scenarios)
    np.testing.assert_allclose(total, 10.0 + y.sum(axis=1), rtol=1e-13)
    np.testing.assert_allclose(y, [by_projection(game, 10.0, demand) for demand in game.scenarios], atol=1e-9)
    assert np.any(y == 0)
    assert np.any(y == game.caps)
    assert np.any((y > 0) & (y < game.caps))


def test_the_optimum_of_a_game_with_one_follower_inside_its_bounds_is_the_closed_form():
    game = mpec_game.Game(np.array([1.0]), np.array([0.5]), np.array([50.0]), np.array([[10.0, 0.5]]))
    # y = (a - d - b x) / (k + 2 b): the leader's loss is a parabola in x.
    slope = 0.5 / 1.5
    steep = 0.1 + 2 * 0.5 * (1 - slope)
    best = (10 - 1.0 - 0.5 * 9 / 1.5) / steep
    x, loss = mpec_game.optimum(game)
    assert x == pytest.approx(best, abs=1e-6)
    assert loss == pytest.approx(-steep * best**2 / 2, rel=1e-10)
    assert loss <= min(mpec_game.loss(game, x + step) for step in (-0.01, 0.01))


def test_scenarios_are_divided_unevenly_and_none_is_lost():
    scenarios = mpec_game.draw(2, 100).scenarios
    parts = mpec_game.shares(scenarios)
    np.testing.assert_array_equal(np.concatenate(parts), scenarios)
    assert len(parts) == 10
    assert len(parts[-1]) > 5 * len(parts[0]) > 0
    assert [len(part) for part in mpec_game.shares(scenarios[:1])] == [1]


@pytest.mark.parametrize(
    ("name", "x"),
    [("stackelberg1", [280 / 3]), ("bard1", [1.0]), ("desilva", [0.5, 0.5]), ("gnash10", [47.036]), ("qpec1", [-1.0] * 10),
     ("MuuQuy2003Ex1", [0.8461538])],
)  # fmt: skip
def test_best_known_values_are_those_of_the_exact_lower_solutions(name, x):
    best, loss = mpec_answers.BEST[name]
    assert loss(np.array(x)) == pytest.approx(best, rel=1e-4)
    assert mpec_answers.outside(name, np.array(x)) == 0


@pytest.mark.parametrize("name", ["bard1", "gnash10", "MuuQuy2003Ex1", "3x2"])
def test_ipopt_reaches_the_answers_of_the_restated_problems(name, capsys):
    pytest.importorskip("casadi")
    mpec_contestants.by_ipopt({"problem": name, "seed": 0})
    *_, last = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    best, loss = mpec.reference_of(name, 0)
    assert loss(np.array(last["x"])) == pytest.approx(best, rel=1e-4)
    assert last["done"]
    assert last["complementarity"] < 1e-3


def test_the_smallest_game_is_the_same_for_the_library():
    game = mpec_game.draw(3, 4)
    problem = mpec_contestants.stated(game)
    with problem.precision():
        assert float(problem.evaluate(np.array([2.0]))["loss"]) == pytest.approx(mpec_game.loss(game, 2.0), rel=1e-9)


def row(solver, problem, **more):
    return {"problem": problem, "solver": solver, "seconds": 10.0, "done": True, "why": "", "gap": 1e-4, "near": 5.0} | more


def test_those_who_do_not_finish_are_shown_as_such():
    stopped = mpec.judge("1x1", {"answers": [], "ended": "stopped after 7 s", "took": 7.0}, (0.0, None), None)
    assert (stopped["done"], stopped["gap"], stopped["near"]) == (False, None, None)
    assert mpec.explain(1, "std::bad_alloc", 10) == "out of memory at 10 GiB"
    assert mpec.explain(1, "a\nValueError: b\n", 10) == "ValueError: b"
    rows = [row("fedrzo", "1x1"), row("ipopt", "1x1") | stopped, row("mpecss", "1x1") | stopped]
    assert mpec.hopeless(rows, "mpecss", "10x10")
    assert not mpec.hopeless(rows, "ipopt", "10x10")
    shown = mpec.table({"rows": rows})
    assert shown[1][2:4] == ["10.0", "5.0"]
    assert shown[2][2] == "at least 7"
    assert shown[2][-1] == "stopped after 7 s"
    assert figure({"rows": rows}).axes


def test_the_first_time_that_an_answer_is_near_is_found():
    answers = [{"x": [value], "seconds": seconds} for value, seconds in ((3.0, 1.0), (1.0005, 2.0), (1.0, 3.0))]
    found = mpec.judge("1x1", {"answers": answers, "ended": "", "took": 4.0}, (1.0, lambda x: float(x[0])), None)
    assert (found["near"], found["seconds"], found["gap"]) == (2.0, 3.0, 0.0)


def test_a_problem_that_there_is_not_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit):
        mpec.main(["nothing"])
    assert "PROBLEM: found 'nothing'" in capsys.readouterr().err
