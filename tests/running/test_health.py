"""Runs that are not well: steps that cannot settle between sets, ends worse than starts, x that is lost or far outside."""

import dataclasses
import json
import math
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.cli import output
from fedrzo.compare.candidates import RATIO, Candidate
from fedrzo.compare.contest import Contest
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.paper.report.find import Found, find
from fedrzo.paper.report.page import render
from fedrzo.results.history import History
from fedrzo.results.sweep import Sweep
from fedrzo.running.experiment import tasks
from fedrzo.running.health import ROWS, Runaway, warn_of_long_steps, worse_end
from fedrzo.running.search import FINE, LANES, NEAR, Search
from fedrzo.running.spec import Spec

ONE = fz.ClientData([np.ones((2, 1)), np.ones((2, 1))])
BOX = fz.sets.Box(-1, 1)


def linear(x, batch):
    """A line, whose slope is the mean of the batch."""
    return jnp.mean(batch) * jnp.sum(x)


def nonsmooth(constraint=BOX, slopes=(1.0, 1.0)):
    """Few shapes, so that little is compiled; both clients have the same two slopes."""
    return fz.Nonsmooth(linear, fz.ClientData([np.array(slopes)[:, None]] * 2), np.zeros(1), constraint=constraint)


def run(method, problem, rounds, **options):
    return fz.run(method, problem, rounds, engine="loop", progress=False, **options)


def bilevel(constraint=BOX, lower_constraint=None):
    return fz.Bilevel(
        lambda x, y, batch: jnp.sum(y**2) * jnp.mean(batch), lambda x, y, batch: jnp.sum((y - x) ** 2) * jnp.mean(batch), ONE,
        np.zeros(1), np.zeros(1), constraint=constraint, lower_constraint=lower_constraint, modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def two_stage(constraint=BOX):
    return fz.TwoStage(
        lambda x, y, xi: jnp.sum(y**2), lambda x, y, xi: y - x, ONE, np.zeros(1), np.zeros(1), constraint=constraint,
        modulus=1.0, smoothness=1.0,
    )  # fmt: skip


def below(stepsize):
    lower = fz.FedRZOnn(stepsize, 0.1)
    return fz.FedRZObl(0.1, 0.1, lower=lower, lower_rounds=lambda r: 3 + r, closing=False)


def heard(method, problem, rounds=10):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_long_steps([method] if not isinstance(method, list) else method, problem, rounds)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("ratio", [0.5, 1.9, 2.1, 5.0])
def test_the_moreau_term_contracts_up_to_twice_the_smoothing(ratio):
    """A step without slope, from outside a line in the plane, and of three clients' mean: the distance is what NumPy says."""
    line, method = fz.sets.Affine([[0.0, 1.0]], [0.0]), fz.FedRZOnn(ratio * 0.1, 0.1)
    x = np.array([3.0, 0.5])
    steps = [method.descend(x, np.zeros(2), np.asarray(line.project(x)), 0) for _ in range(3)]
    np.testing.assert_allclose(np.mean(steps, axis=0), [3.0, (1 - ratio) * 0.5], rtol=1e-6)
    assert (abs(1 - ratio) > 1) == (method.stepsize > method.longest_step(True))
    assert math.isinf(method.longest_step(False))


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (fz.FedRZOnn(0.201, 0.1), nonsmooth),
        (fz.FedRZObl(0.201, 0.1), bilevel),
        (fz.FedRZO2s(0.201, 0.1), two_stage),
        (fz.ZSOL(0.201, 0.1), two_stage),
    ],
    ids=["nn", "bl", "2s", "zsol"],
)
def test_a_step_that_cannot_settle_is_warned_of(method, problem):
    [text] = heard(method, problem())
    assert text.startswith("stepsize: found 0.201, 2.01 times the smoothing")
    assert "pass at most twice the smoothing, 0.2," in text
    assert heard(method, problem(constraint=None)) == []
    assert heard(method, problem(), rounds=0) == []
    some = problem(constraint=[fz.sets.Reals(), BOX])
    assert len(heard(method, some)) == 1


def test_steps_up_to_the_limit_and_methods_without_the_term_are_not():
    assert heard(fz.FedRZOnn(0.2, 0.1), nonsmooth()) == []
    assert heard(fz.FedRZOnn("auto", 0.1), nonsmooth()) == []
    assert heard(fz.FedAvg(7.0), nonsmooth()) == []


def test_schedules_are_looked_at_in_the_rounds_to_be_run():
    late = fz.FedRZOnn(lambda r: jnp.where(r < 5, 0.1, 0.5), 0.1)
    assert heard(late, nonsmooth(), rounds=5) == []
    [text] = heard(late, nonsmooth(), rounds=6)
    assert text.startswith("stepsize: found 0.5 in round 5, 5 times the smoothing")
    assert heard(fz.FedRZOnn(lambda r: 0.2, 0.1), nonsmooth()) == []


def test_a_lower_level_is_looked_at_by_itself():
    late = lambda r: jnp.where(r < 11, 0.1, 0.3)  # noqa: E731
    method, problem = below(late), bilevel(lower_constraint=BOX)
    assert heard(method, problem, rounds=8) == []  # 10 lower rounds in the last one, 0 to 9
    assert heard(method, problem, rounds=9) == []
    [text] = heard(method, problem, rounds=10)
    assert text.startswith("lower: stepsize: found 0.3 in round 11, 3 times the smoothing")
    assert heard(below(0.3), bilevel()) == []


def test_of_a_sweep_the_longest_step_is_named():
    [text] = heard([fz.FedRZOnn(step, 0.1) for step in (0.1, 0.7, 0.3)], nonsmooth())
    assert text.startswith("stepsize: found 0.7")


def test_every_way_to_run_says_it(tmp_path):
    """Warnings are errors here, so that nothing is run."""
    long = fz.FedRZOnn(0.5, 0.1)
    with pytest.raises(UserWarning, match=r"stepsize: found 0.5, 5 times"):
        fz.run(long, nonsmooth(), 1)
    with pytest.raises(UserWarning, match=r"stepsize: found 0.9, 9 times"):
        fz.sweep(long, nonsmooth(), 1, stepsize=[0.1, 0.9])
    with pytest.raises(UserWarning, match=r"stepsize: found 0.5, 50 times"):
        fz.sweep(long, nonsmooth(), 1, smoothing=[0.01, 0.3])
    task = tasks(Spec.read("boxes").override("method.stepsize=0.8"))[0]
    for seeds in (None, 2):
        with pytest.raises(UserWarning, match=r"stepsize: found 0.8, 8 times"):
            task.run(seeds)


class Tempted(Search):
    """A search to which longer steps always look better, or never any, and which runs nothing."""

    better = 1.0

    def _try(self, numbers, rounds, keys=1):
        self.looks = [*getattr(self, "looks", []), numbers := list(numbers)]
        return {i: self.loss - self.better * self.stepsize(i) for i in numbers}


@pytest.mark.parametrize("unit", [1e-7, 0.003, 0.02 / FINE])
@pytest.mark.parametrize("better", [1.0, -1.0])
def test_the_search_stays_below_the_limit(unit, better):
    tried = Tempted(fz.FedRZOnn("auto", 0.01, 3), nonsmooth(), jax.random.key(0), None, Simulation())
    tried.unit, tried.loss, tried.better = unit, 0.0, better
    best, _ = tried.first_stage(4)
    tried.stage(8, best, walk=True)
    lengths = [tried.stepsize(i) for numbers in tried.looks for i in numbers]
    assert max(lengths) <= 0.02 / FINE * (1 + 1e-9)
    if better > 0:  # it goes as far as it may, along every second number
        assert max(lengths) > 0.02 / FINE**3 * (1 - 1e-9)
        assert tried.stepsize(best) == max(tried.stepsize(i) for numbers in tried.looks[:-1] for i in numbers)
    # Looks have the same number of candidates, none of them twice: so they share one compiled program.
    assert {len(set(numbers)) for numbers in tried.looks} <= {LANES, len(NEAR)}


@pytest.mark.slow("a search over many stepsizes")
def test_from_an_inflection_point_longer_steps_do_not_win():
    """Slopes say nothing there, and ever longer steps looked better: x ended at 1e86."""
    problem = fz.Nonsmooth(lambda x, batch: jnp.mean(batch) * jnp.sum(x**3), ONE, np.zeros(1), constraint=BOX)
    result = fz.run(fz.FedRZOnn("auto", 0.01, 3), problem, 60, progress=False, eval_every=60)
    assert max(trial.stepsize for trial in result.tuning.trials) <= 0.02 / FINE * (1 + 1e-9)
    assert result.x[0] <= 0
    assert result.history["feasibility"][-1] == 0
    assert result.notes == ()


@pytest.fixture(scope="module")
def worse():
    """The mean slope is 0.05, but batches of one have -2.5 or 2.6: with this key, x goes up."""
    return run(fz.FedRZOnn(0.05, 0.1), nonsmooth(slopes=(-2.5, 2.6)), 3, key=0)


def test_an_end_that_is_worse_than_the_start_is_said(worse, tmp_path):
    [note] = worse.notes
    end = 0.05 * float(worse.x_feasible[0])
    assert end > 0
    assert note == (
        f"the end is worse than the start: the loss at x_feasible is {end:.6g} after 3 rounds, and was 0 at x0; use a smaller "
        "stepsize, or larger batches"
    )
    worse.save(tmp_path / "run")
    loaded = fz.Result.load(tmp_path / "run")
    assert loaded.notes == worse.notes
    for shown in (repr(worse), repr(loaded)):
        assert re.search(f"\n  note +{re.escape(note)}$", shown)
    assert note in worse._repr_html_()
    [record] = find(tmp_path / "run").records.values()
    assert record.notes == [f"run: {note}"]


def test_it_is_on_screen_and_in_the_report(worse, tmp_path, capsys):
    several = [worse, worse, dataclasses.replace(worse, notes=())]
    output.report("one", {"A": [worse]}, None, False)
    assert capsys.readouterr().out.splitlines()[-1] == worse.notes[0]
    output.report("two", {"A": [worse], "B": several}, 3, False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"A: {worse.notes[0]}", f"B: 2 of 3 runs: {worse.notes[0]}"]
    output.report("one", {"A": [worse]}, None, True)
    out, err = capsys.readouterr()
    assert set(json.loads(out)) == {"history", "stopped"}
    assert err == f"{worse.notes[0]}\n"
    assert "(2 of 3 worse than the start)" in repr(Sweep([{}], [several]))
    for i, result in enumerate(several):
        result.save(tmp_path / "b" / f"seed-{i}")
    [record] = find(tmp_path).records.values()
    assert record.notes == [f"b: 2 of 3 runs: {worse.notes[0]}"]
    assert f"<p>b: 2 of 3 runs: {worse.notes[0]}</p>" in render(Found({tmp_path: dataclasses.replace(record, figures=[])}, []))


def test_what_is_no_worse_is_not_said():
    def said(start, end, rounds=5, dtype=np.float64):
        return worse_end(History({"round": [0, rounds], "loss": [start, 0.0]}), end, dtype, False)

    assert said(2.0, 2.0) is said(2.0, 1.0) is said(-1.0, -2.0) is None
    assert said(2.0, None) is None  # nobody has all data
    assert said(2.0, 3.0, rounds=0) is None
    assert said(2.0, 2.0 * (1 + 5e-7)) is said(-2.0, -2.0 * (1 - 5e-7)) is None
    assert said(2.0, 2.0 * (1 + 5e-6), dtype=np.float32) is None
    assert "is 2.00001 after" in said(2.0, 2.0 * (1 + 5e-6))
    assert said(-2.0, -1.9).startswith("the end is worse than the start: the loss is -1.9 after 5 rounds, and was -2 at x0")
    assert "loss is nan" in said(2.0, math.nan)


def test_a_run_that_leaves_its_start_for_good_is_lost_though_finite():
    """On a line that falls for ever x goes 2e5 in a round: beyond 1e6 from row 6 on, and row 15 is the tenth of those."""
    falling, method = nonsmooth(None), fz.FedRZOnn(2e5, 0.1)
    with pytest.raises(fz.DivergedError, match=r"^stopped after round 14: x is 3e\+06 away from its start, and was farther"):
        run(method, falling, 20)
    assert run(method, falling, 14).x[0] == pytest.approx(-14 * 2e5)
    with pytest.raises(fz.DivergedError, match=r"stopped after round 32: x is 6.6"):
        run(method, falling, 40, eval_every=3)  # rows of the history count, not rounds
    assert run(method, falling, 40, eval_every=10).notes == ()


def test_only_who_is_far_and_goes_on_is_lost():
    def looks(points, x0):
        run = Runaway(np.array(x0))
        return [run.look(float(np.linalg.norm(np.subtract(point, x0)))) is not None for point in points]

    away = [[0.0, 1e6 * (1 + i)] for i in range(1, ROWS + 2)]
    assert looks(away, [0.0, 0.0]) == [False] * (ROWS - 1) + [True, True]
    assert not any(looks([*away[:6], away[5], *away[6:]], [0.0, 0.0]))  # it paused: counted anew
    assert not any(looks(away, [0.0, 1e3]))  # as far as 1e9 is near to such an x0
    assert not any(looks([[0.0, 1e5 * i] for i in range(1, ROWS)], [0.0, 0.0]))
    assert any(looks([[0.0, (-3.0) ** i] for i in range(30)], [0.0, 0.0]))  # from side to side


@pytest.mark.slow("a search over many stepsizes")
def test_a_sweep_goes_on_where_a_run_is_lost():
    swept = fz.sweep(fz.FedRZOnn(2e5, 0.1), nonsmooth(None), 20, seeds=1, progress=False, stepsize=[1e-3, 2e5])
    assert [result.x[0] for [result] in swept.results] == pytest.approx([-0.02, -4e6])


@pytest.mark.parametrize("slope", [1.0, 30.0, 1000.0])
def test_infeasibility_is_smoothing_times_slope(slope):
    """At rest x - P(x) is minus eta times the gradient; more than 20 times the smoothing is warned of, and kept as a note."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(fz.FedRZOnn(0.1, 0.1), nonsmooth(slopes=(-slope, -slope)), 15)
    assert result.history["feasibility"][-1] == pytest.approx(0.1 * slope)
    assert result.x_feasible[0] == 1
    said = [str(warning.message) for warning in caught]
    assert list(result.notes) == said
    if slope == 1:
        assert said == []
    else:
        assert f"x ended {0.1 * slope:.3g} outside of a client's set, {slope:.3g} times the smoothing" in said[0]
        assert f"divide the loss by about {slope:.2g}, or use a smaller smoothing" in said[0]


@pytest.mark.parametrize(("method", "top"), [(fz.FedRZOnn(0.2, 0.01), 0.02), (fz.FedAvg(0.2), 2.0)], ids=["nn", "avg"])
def test_a_comparison_tries_no_step_that_cannot_settle(method, top):
    """Its grid ends within half a decade of the limit; a winner there is not at an edge that could be moved."""
    contest = Contest(Candidate("a", method), nonsmooth(), 10)
    assert top / RATIO <= max(contest.grid) <= top
    np.testing.assert_allclose(np.diff(np.log(contest.grid)), np.log(RATIO), atol=0.01)
    contest.tried = dict.fromkeys(contest.grid, 0.0)
    contest.stepsize = min(contest.grid)
    assert contest.at_edge
    contest.stepsize = max(contest.grid)
    assert contest.at_edge == math.isinf(contest.limit)
