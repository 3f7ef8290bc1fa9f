"""Published bilevel and minimax problems reach their published values."""

import dataclasses

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.paper import published as experiment
from fedrzo.paper.published import solve
from fedrzo.paper.reproduction import Reproduction
from fedrzo.running.health import losses_at
from fedrzo.zoo import mpecs, published

ENTRIES = published.ENTRIES
SLOW = [name for name in ENTRIES if name in experiment.LONG]
FAST = [name for name in ENTRIES if name not in experiment.LONG]


def check(name):
    entry = ENTRIES[name]
    found = solve(entry)
    assert found["gap"] <= 1e-2
    assert found["infeasibility"] <= 10 * entry.method.smoothing


@pytest.mark.parametrize("name", FAST)
def test_reaches_its_published_value(name):
    check(name)


@pytest.mark.slow("long runs to published values")
@pytest.mark.parametrize("name", SLOW)
def test_reaches_its_published_value_in_a_longer_run(name):
    check(name)


# One of each kind: Y a box, fixed and moving, a polygon; a sum of zero; an equilibrium for each scenario.
BY_GRADIENTS = ("desilva", "MuuQuy2003Ex1", "Yezza1996Ex41", "paper_minimax", "gauvin-vi")


@pytest.mark.slow("published values once more, by gradients")
@pytest.mark.filterwarnings("ignore:x0. found a point")
@pytest.mark.parametrize("name", BY_GRADIENTS)
def test_gradients_reach_it_with_the_same_step_sizes_and_no_more_rounds(name):
    entry = (ENTRIES | mpecs.ENTRIES)[name]
    found = solve(dataclasses.replace(entry, method=dataclasses.replace(entry.method, oracle="gradients")))
    assert found["gap"] <= 1e-2
    assert found["infeasibility"] <= 10 * entry.method.smoothing


# Where published, the solutions of those whose runs are slow: x, y, and the digits that the value is given to.
SOLUTIONS = {
    "outrata31": ([4.060406], [2.682244, 1.487147], 5e-5),
    "ShimizuAiyoshi1981Ex2": ([20.0, 5.0], [10.0, 5.0], 1e-6),
    "MuuQuy2003Ex1": ([0.846154], [0.769231, 0.0], 5e-5),
    "Outrata1990Ex1a": ([1.03157, 3.0978], [2.59705, 1.79294], 5e-3),
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_published_solutions_have_their_published_value(name):
    entry = ENTRIES[name]
    problem = entry.make()
    x, y, digits = SOLUTIONS[name]
    with problem.precision():
        assert entry.scale * losses_at(problem, np.array([x]))[0] == pytest.approx(entry.published, abs=digits)
        np.testing.assert_allclose(problem.lower_solutions(np.array([x]))[0], y, atol=2e-5)


@pytest.mark.slow("the runs whose values are looked at in every test run")
@pytest.mark.parametrize(("name", "outer", "inner"), [("paper_minimax", 0.5, -0.5), ("paper_minimax_reversed", 1.0, -1.0)])
def test_both_orders_of_the_papers_minimax_example(name, outer, inner):
    entry = ENTRIES[name]
    problem = entry.make()
    result = fz.run(entry.method, problem, entry.rounds, eval_every=entry.rounds, progress=False)
    with problem.precision():
        [found] = problem.lower_solutions(result.x_feasible[None])
    np.testing.assert_allclose([result.x_feasible[0], found[0]], [outer, inner], atol=0.02)


def test_shares_of_unequal_clients_average_to_the_published_objective():
    problem = ENTRIES["ShimizuAiyoshi1981Ex2"].make()
    held = np.stack(np.split(np.asarray(problem.data.flat), problem.clients))
    np.testing.assert_allclose(held.mean(axis=0), 1.0)
    assert all(entry.make().clients >= 2 for entry in ENTRIES.values())
    assert np.ptp(held, axis=0).min() > 0


def test_gaps_are_relative_to_what_there_was_to_gain():
    still = dataclasses.replace(ENTRIES["jr1"], method=fz.FedRZObl(1e-12, 0.05), rounds=1, scale=2.0, published=1.0)
    found = solve(still)
    assert found["ours"] == pytest.approx(2 * 5)  # at the start, x = 2
    assert found["gap"] == pytest.approx((10 - 1) / (10 - 1))
    near = dataclasses.replace(still, published=9.0)
    assert solve(near)["gap"] == pytest.approx((10 - 9) / 9)


def test_the_experiment_prints_every_problem(monkeypatch, capsys):
    monkeypatch.setattr(experiment, "entries", lambda quick: [ENTRIES["jr2"]])
    record = experiment.run(Reproduction("published", seed=1))
    assert [sorted(row) for row in record.data["problems"]] == [["gap", "infeasibility", "name", "ours", "published"]]
    assert capsys.readouterr().err.splitlines()[1:] == ["published: jr2"]
    assert [claim.holds for claim in record.claims] == [True]
    [heading, row] = record.tables[0].rows
    assert row[:3] == ["jr2", "0.5", "0.5"]
    assert len(heading) == len(row)


def test_a_quick_experiment_leaves_out_the_long_ones():
    names = [entry.name for entry in experiment.entries()]
    assert len(set(names)) == len(names)
    assert set(experiment.LONG) < set(names)
    assert {entry.name for entry in experiment.entries(quick=True)} == set(names) - set(experiment.LONG)
