"""The loss at x_feasible: what it is, where it is kept and shown, and that sweeps are ranked by it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.results import History, Sweep
from fedrzo.zoo import toys

DATA = fz.ClientData([np.zeros((1, 2)), np.zeros((1, 2))])
BOXES = [fz.sets.Box(-1, 2), fz.sets.Box(-2, 1)]


def problem():
    """The sets stop at x[0] = -1, so that -3 is the least loss there; outside of them it goes on falling."""
    return fz.Nonsmooth(
        lambda x, batch: 3 * x[0] + jnp.abs(x[1]) + 0 * jnp.sum(batch), DATA, np.zeros(2), constraint=BOXES
    )


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
