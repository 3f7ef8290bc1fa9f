"""The loss at x_feasible: what it is, where it is kept and shown, and that sweeps and methods are ranked by it."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.compare import comparison
from fedrzo.compare.candidates import Candidate
from fedrzo.compare.contest import Contest, judged_by
from fedrzo.problems.base import Problem
from fedrzo.results.history import History
from fedrzo.results.sweep import Sweep
from fedrzo.zoo import toys

DATA = fz.ClientData([np.zeros((1, 2)), np.zeros((1, 2))])
BOXES = [fz.sets.Box(-1, 2), fz.sets.Box(-2, 1)]


def problem():
    """The sets stop at x[0] = -1, so that -3 is the least loss there; outside of them it goes on falling."""
    return fz.Nonsmooth(lambda x, batch: 3 * x[0] + jnp.abs(x[1]) + 0 * jnp.sum(batch), DATA, np.zeros(2), constraint=BOXES)


def by_hand(x):
    return 3 * x[0] + abs(x[1])


METHOD = fz.FedRZOnn(0.01, 0.3, 2)


@pytest.fixture(scope="module")
def sweep():
    return fz.sweep(METHOD, problem(), 60, seeds=2, eval_every=20, smoothing=[0.3, 0.03])


@pytest.mark.parametrize("engine", ["simulation", "loop"])
def test_the_loss_at_x_feasible_is_that_of_the_projection(engine, tmp_path):
    result = fz.run(METHOD, problem(), 60, eval_every=20, engine=engine)
    assert result.history["feasibility"][-1] == pytest.approx(-1 - result.x[0])
    assert result.history["loss"][-1] == pytest.approx(by_hand(result.x))
    assert result.history["loss"][-1] < -6
    assert result.x_feasible[0] == -1
    assert result.loss_feasible == pytest.approx(by_hand(result.x_feasible))
    result.save(tmp_path)
    loaded = fz.Result.load(tmp_path)
    assert loaded.loss_feasible == result.loss_feasible
    for shown in (repr(result), repr(loaded)):
        assert f"  loss at x_feasible  {result.loss_feasible:.6g}\n" in shown


def test_without_sets_it_is_the_last_loss():
    result = fz.run(fz.FedRZOnn(0.02, 0.1, 3), toys.quadratic(3, 4), 3)
    assert result.loss_feasible == result.history["loss"][-1]
    assert "x_feasible" not in repr(result)


def test_a_lower_level_is_solved_at_x_feasible_too():
    """max over y of x y - y^2 / 2 is x^2 / 2, and x is kept above 1."""
    loss = lambda x, y, batch: jnp.sum(x * y - 0.5 * y**2) + 0 * jnp.sum(batch)  # noqa: E731
    above = fz.sets.Box(1, 3)
    bounded = fz.Minimax(loss, DATA, np.ones(1), np.ones(1), constraint=above, modulus=1.0, smoothness=1.0)
    result = fz.run(fz.FedRZObl(0.3, 0.3, batch_size="full"), bounded, 10, eval_every=10)
    assert result.x[0] < 0.95
    assert result.loss_feasible == pytest.approx(0.5)


def test_a_sweep_is_not_won_by_straying_from_the_sets(sweep):
    at_x = [sweep.values(i, "loss")[:, -1].mean() for i in range(2)]
    projected = [np.mean([by_hand(result.x_feasible) for result in results]) for results in sweep.results]
    assert at_x[0] < at_x[1] - 1  # by the loss at x, the setting would win that strays further
    assert projected[1] < projected[0] - 0.01
    assert [sweep.ends(i).mean() for i in range(2)] == pytest.approx(projected)
    assert sweep.best() == 1
    assert sweep.best("feasibility") == 1
    lines = repr(sweep).splitlines()
    assert lines[0] == "Sweep of 2 settings with 2 seeds each; loss at x_feasible and feasibility at the end:"
    for i, line in enumerate(lines[1:]):
        assert f"  {projected[i]:.6g} ± " in line
        assert f"  {sweep.values(i, 'feasibility')[:, -1].mean():.3g}" in line
    assert lines[2].endswith("  (best)")
    assert "<th>loss at x_feasible at the end, 2 seeds</th><th>feasibility</th>" in sweep._repr_html_()


def test_a_setting_that_diverged_does_not_win_by_its_projection(sweep):
    """A set may bring an infinite x back to a point that is finite, and good."""
    history = History({"loss": [0.0, np.nan], "feasibility": [0.0, np.inf]})
    gone = [dataclasses.replace(result, history=history, loss_feasible=-3.0) for result in sweep.results[0]]
    both = Sweep(sweep.settings, [gone, sweep.results[1]])
    assert both.best() == 1
    assert "diverged" in repr(both).splitlines()[1]


@pytest.mark.slow("a comparison with its searches")
def test_a_comparison_of_methods_is_not_won_by_straying_from_the_sets():
    """Long steps go far outside, where the loss is lower; inside, they cross the kink at x[1] = 0 and are worth less."""
    start = fz.Nonsmooth(problem().loss_fn, DATA, np.array([0.0, 0.04]), constraint=BOXES)
    budgets = {"evaluations": 3 * 2 * 30 * 2, "bytes": 2 * 2 * 16 * 30}  # 30 rounds of two steps of two clients
    contest = Contest(Candidate("FedAvg", fz.FedAvg(0.3, 2)), start, 100, {"evaluations": 12.0, "bytes": 64.0})
    longest = contest.sweep(30, [7], contest.candidate.grid).results[-1][0]
    assert longest.history["loss"][-1] < -6  # below the least loss inside, which is -3
    np.testing.assert_allclose(longest.history["loss_feasible"][-1], by_hand(longest.x_feasible), rtol=1e-12)
    assert longest.history["loss_feasible"][-1] == pytest.approx(longest.loss_feasible)
    contest.tune(budgets, 7)
    contest.compete(budgets, [0, 1, 2, 3, 4])
    entry = contest.entry(budgets)
    assert contest.stepsize < 0.3
    assert entry["grid_loss"][-1] > entry["at_equal_evaluations"]["loss"]
    for end in (entry["at_equal_evaluations"], entry["at_equal_bytes"]):
        assert -3 <= end["low"] <= end["loss"] < -2.9
        assert 0.02 < end["feasibility"] < 1
    assert all(np.all(history["loss_feasible"] >= -3) for history in contest.histories["bytes"])


def made_up(name, at_x, inside, outside):
    """A contest of three seeds whose histories are given."""
    contest = Contest(Candidate(name, fz.FedAvg(0.1)), problem(), 100, {"evaluations": 3.0, "bytes": 10.0}, {0.1: 1.0}, 0.1)
    rows = {"round": [0, 1, 2], "loss": at_x, "loss_feasible": inside, "feasibility": outside, "evaluations": [0, 0, 0],
            "gradients": [0, 1, 2], "upload_bytes": [0, 5, 10], "download_bytes": [0, 5, 10]}  # fmt: skip
    contest.histories = {budget: [History(rows)] * 3 for budget in ("evaluations", "bytes")}
    return contest


def test_the_table_and_the_figure_of_a_comparison_show_both_numbers():
    budgets = {"evaluations": 6, "bytes": 20}
    contests = [made_up("Stray", [2.0, 1.0, 0.1], [2.0, 1.9, 1.8], [0, 0.2, 0.4651]),
                made_up("Stay", [2.0, 1.6, 1.4], [2.0, 1.7, 1.5], [0, 0.1, 0.01])]  # fmt: skip
    entries = [contest.entry(budgets) for contest in contests]
    assert [entry["at_equal_bytes"]["loss"] for entry in entries] == [1.8, 1.5]
    found = {"column": "loss_feasible", "start": 2.0, "budget": budgets, "methods": entries[::-1], "same": [], "refused": [],
             "note": "", "rounds_cap": 100}  # fmt: skip
    heads, stay, stray = comparison.table(found)
    assert heads[2:5] == ["loss at x_feasible\nafter 6 evaluations", "feasibility", "rounds"]
    assert heads[5:8] == ["loss at x_feasible\nafter 20 B", "feasibility", "rounds"]
    assert stay[2:5] == stay[5:8] == ["1.5", "0.01", "2"]
    assert stray[2:5] == ["1.8", "0.465", "2"]
    assert comparison.PROJECTED in comparison.remarks(found)
    drawn = comparison.figure(found, contests)
    assert drawn.axes[0].get_ylabel() == "feasible loss above the least found, log scale"
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [
        "Stay (0.01 outside)",
        "Stray (0.465 outside)",
    ]
    np.testing.assert_allclose(drawn.axes[0].lines[1].get_ydata(), [0.5, 0.4, 0.3])  # of the one that strays


def test_without_sets_a_comparison_is_as_it_was():
    free = toys.quadratic(2, 3)
    assert free.following_projection() is free
    assert judged_by(History({"loss": [1.0]})) == "loss"


def test_a_point_that_is_lost_has_no_loss_inside():
    """A box makes a finite point of an infinite one."""
    stand_in = SimpleNamespace(project=lambda x: np.clip(x, -1, 1), evaluate=lambda x: {"loss": by_hand(x)})
    assert Problem.projected_loss(stand_in, np.array([-5.0, 0.0]), np.float64(-15.0)) == -3
    assert Problem.projected_loss(stand_in, np.array([-np.inf, 0.0]), np.float64(-np.inf)) == -np.inf
