"""`benchmarks/twostage.py`: the contestants compute the same thing, and the output has the agreed shape. No time is tested."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
import plain_twostage
import twostage
from fedrzo.compare.options import Options
from fedrzo.problems.two_stage import solve_once
from fedrzo.zoo.cournot import cournot
from helpers.command import main


def test_both_compute_the_same_loss_and_map():
    problem = cournot(7, seed=3)
    followers = plain_twostage.Followers(problem.map_fn.costs, problem.map_fn.caps)
    setting = plain_twostage.Setting(lower_steps=1)
    y = np.random.default_rng(0).random(7)
    with problem.precision():
        x, a = jnp.array([1.5]), 9.0
        np.testing.assert_allclose(plain_twostage.loss(x, y, a, setting), problem.loss_fn(x, jnp.asarray(y), a), rtol=1e-14)
        # One step of length one from zero is minus the map there, cut to the box.
        one = plain_twostage.project_steps(x, a, followers, setting._replace(lower_stepsize=1.0))
        np.testing.assert_allclose(one, np.clip(-problem.map_fn(x, jnp.zeros(7), a), 0, problem.map_fn.caps), rtol=1e-14)


def test_both_take_the_same_steps():
    problem = cournot(30, seed=1)
    setting = plain_twostage.Setting(lower_stepsize=1 / problem.smoothness, lower_steps=20)
    followers = plain_twostage.Followers(problem.map_fn.costs, problem.map_fn.caps)
    with problem.precision():
        x, a = jnp.array([0.4]), jnp.asarray(11.0)
        exact, ours = (
            solve_once(problem, x, a, solver).y
            for solver in (twostage.REFERENCE, fz.vi.Projection(setting.lower_stepsize, steps=20))
        )
        plain = plain_twostage.project_steps(x, a, followers, setting)
    assert twostage.farthest([ours], [plain]) < 1e-13
    assert 1e-4 < twostage.farthest([plain], [exact]) < 1e-2  # there is something left to solve


@pytest.mark.slow("runs a whole benchmark")
def test_same_steps_and_same_accuracy():
    problem = cournot(30, clients=3, seed=1, evaluation=4)
    with problem.precision():
        found = twostage.measure(problem, jax.random.key(0), accurate=50, repetitions=1)
    same, accurate = found["same_steps"], found["same_accuracy"]
    assert same["difference"] < 1e-12
    assert same["lower_error"]["fedrzo"] == pytest.approx(same["lower_error"]["plain_jax"], rel=1e-6)
    assert accurate["lower_error"]["fedrzo"] <= accurate["lower_error"]["plain_jax"]
    losses = accurate["losses"]
    gains = [losses["start"] - losses[name] for name in ("plain_jax", "fedrzo")]
    assert min(gains) > 0.9 * max(gains) > 0


@pytest.mark.slow("runs a whole benchmark")
def test_the_command_prints_the_agreed_shape(capsys, tmp_path):
    assert main(twostage, ["--quick", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "twostage.json").read_text()) == found
    assert all(found[m][name]["vs_plain_jax"] > 0 for m in ("5", "20") for name in ("same_steps", "same_accuracy"))
    assert len(twostage.table(found)) == 5
    assert "differ by" in twostage.remarks(found)[1]


def test_what_it_does_not_take_is_refused():
    with pytest.raises(fz.InputError, match="it takes no problem"):
        twostage.run(Options("cournot", 1))
