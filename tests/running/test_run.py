"""run() and sweep(): history, results on disk, seeds, and what is refused. Checkpoints are in test_checkpoint.py."""

import csv
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines.simulation import rounds as simulation
from fedrzo.results.text import confidence_band
from fedrzo.running.checkpoint import Checkpoint
from fedrzo.support.columns import COLUMNS
from fedrzo.zoo import toys

METHOD = fz.FedRZOnn(0.02, 0.1, 3)


def go(rounds=5, method=METHOD, problem=None, **options):
    return fz.run(method, problem or toys.quadratic(3, 4), rounds, **{"progress": False, **options})


def test_history_has_the_contracts_columns_in_order():
    history = go(5, eval_every=2).history
    assert tuple(history)[: len(COLUMNS)] == COLUMNS
    assert list(history["round"]) == [0, 2, 4, 5]
    assert history["upload_bytes"][0] == 0
    assert list(history["upload_bytes"]) == [r * 3 * 4 * 8 for r in (0, 2, 4, 5)]
    assert np.all(np.diff(history["seconds"]) > 0)
    assert {"loss", "feasibility"} <= set(history)


def test_the_objective_is_evaluated_over_all_data():
    problem = toys.quadratic(3, 4)
    samples = np.asarray(problem.data.flat)
    np.testing.assert_allclose(go(0, problem=problem).history["loss"][0], 0.5 * np.mean(np.sum(samples**2, axis=1)))


def test_a_loss_that_is_not_finite_for_another_client_is_refused():
    data = fz.ClientData([np.ones((3, 4)), np.zeros((3, 4))])
    problem = fz.Nonsmooth(lambda x, b: jnp.sum(x) + jnp.mean(1 / b), data, np.zeros(4))
    with pytest.raises(fz.InputError, match="loss: found inf at x0 over all clients' data"):
        go(problem=problem)


def test_stop_and_log():
    rows = []
    result = go(50, log=[rows.append], stop=lambda row: row["round"] >= 4)
    assert result.history["round"][-1] == 4
    assert [row["round"] for row in rows] == [0, 1, 2, 3, 4]


def steep():
    return fz.Nonsmooth(lambda x, b: jnp.sum(jnp.exp((x - b.mean(0)) ** 2)), fz.ClientData([np.ones((2, 4))] * 3), np.zeros(4))


def test_divergence_names_the_round_and_keeps_the_checkpoint(tmp_path):
    method = fz.FedRZOnn(lambda r: jnp.where(r < 5, 1e-3, 1e3), 0.1, 5)  # well at first, wild from round 5 on
    with pytest.raises(fz.DivergedError, match=r"stopped after round \d+: x is no longer finite .* is from before") as error:
        go(500, method=method, problem=steep(), checkpoint=tmp_path)
    assert "use a smaller stepsize" in str(error.value)
    kept = Checkpoint.read(tmp_path)
    assert all(np.isfinite(array).all() for array in kept.arrays if array.dtype.kind == "f")
    assert go(kept.round, method=method, problem=steep(), checkpoint=tmp_path, resume=True).history["round"][-1] == kept.round


def test_results_are_kept_in_open_formats(tmp_path):
    x0 = {"a": np.zeros((2, 2)), "b": (np.zeros(1), [np.zeros(2)])}
    loss = lambda x, batch: jnp.sum(x["a"] ** 2) + jnp.sum((x["b"][1][0] - batch.mean(0)) ** 2)  # noqa: E731
    result = go(3, problem=fz.Nonsmooth(loss, fz.ClientData([np.ones((2, 2))]), x0))
    result.save(tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["arrays.npz", "history.csv", "spec.toml"]
    again = fz.Result.load(tmp_path / "run")
    assert again.history == result.history
    assert jax.tree.structure(again.x) == jax.tree.structure(result.x)
    for name in ("x", "x_feasible", "x_random"):
        for a, b in zip(jax.tree.leaves(getattr(again, name)), jax.tree.leaves(getattr(result, name)), strict=True):
            np.testing.assert_array_equal(a, b)
    assert (again.spec, again.random_round) == (result.spec, result.random_round)
    with (tmp_path / "run" / "history.csv").open() as file:
        assert next(csv.reader(file))[:3] == ["round", "lower_rounds", "upload_bytes"]
    assert tomllib.loads((tmp_path / "run" / "spec.toml").read_text())["rounds"] == 3


def test_load_of_another_folder_is_refused(tmp_path):
    with pytest.raises(fz.InputError, match=r"holds no history\.csv"):
        fz.Result.load(tmp_path)


def test_frame():
    assert list(go(3).to_frame()["round"]) == [0, 1, 2, 3]


def test_sweep_equals_single_runs_and_traces_once():
    problem = toys.quadratic(3, 4)
    before = simulation.TRACES[0]
    sweep = fz.sweep(METHOD, problem, 6, seeds=3, stepsize=[0.01, 0.02], local_steps=[1, 3], progress=False)
    assert simulation.TRACES[0] == before + 1
    assert [list(s.values()) for s in sweep.settings] == [[0.01, 1], [0.01, 3], [0.02, 1], [0.02, 3]]
    single = go(6, problem=problem, key=2)
    np.testing.assert_allclose(sweep.results[3][2].x, single.x, rtol=1e-12)
    for name in single.history:
        if name != "seconds":
            np.testing.assert_allclose(sweep.values(3, name)[2], single.history[name], rtol=1e-12)
    assert len(sweep.to_frame()) == 4 * 3 * 7
    assert sweep.best() == 3


def test_a_sweep_survives_a_setting_that_diverges():
    sweep = fz.sweep(METHOD, steep(), 30, seeds=2, stepsize=[0.001, 1e3], progress=False, eval_every=30)
    assert sweep.best() == 0
    assert not np.isfinite(sweep.values(1, "loss")[:, -1]).any()


def test_confidence_band_covers():
    """95 % intervals of the mean of 5 normals, 4,000 times: coverage within 93.5 to 96.5 % (4.4 standard errors)."""
    rng = np.random.default_rng(0)
    mean, low, high = confidence_band(rng.normal(size=(5, 4000)))
    covered = np.mean((low < 0) & (high > 0))
    assert 0.935 < covered < 0.965
    np.testing.assert_allclose((low + high) / 2, mean)


def test_x0_outside_a_set_is_projected_with_a_warning():
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.zeros((2, 2))]), np.array([3.0, 0.0]), fz.sets.Box(-1, 1))
    with pytest.warns(UserWarning, match="x0: found a point 2 outside a client's set; it is projected first"):
        result = go(0, problem=problem)
    np.testing.assert_allclose(result.x, [1.0, 0.0])
    assert result.history["feasibility"][0] == 0


@pytest.mark.filterwarnings("ignore:x0. found a point")
def test_sets_without_a_common_point_are_refused():
    apart = [fz.sets.Ball(0.0, 1.0), fz.sets.Ball(5.0, 1.0)]
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.zeros((2, 2))] * 2), np.zeros(2), apart)
    with pytest.raises(fz.InputError, match="constraint: found clients' sets that have no point in common; correct the sets"):
        go(problem=problem)


def bad_loss(value):
    return fz.Nonsmooth(lambda x, batch: value(x), fz.ClientData([np.ones(3)]), np.zeros(2))


@pytest.mark.parametrize("engine", ["simulation", "loop"])
def test_a_loss_that_is_not_finite_near_x0_is_told_from_steps_that_are_too_long(engine):
    """At x0 = 0 itself the square root is finite; in half of the directions away from it, it is not."""
    with pytest.raises(fz.DivergedError) as error:
        go(problem=bad_loss(lambda x: jnp.sqrt(x[0])), engine=engine)
    assert str(error.value).startswith("stopped after round 0: the loss is not finite at 16 of 32 points ")
    assert f" {METHOD.smoothing:g} away from x0; start farther inside its domain" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": -1}, "rounds: found -1; pass a whole number of at least 0"),
        ({"rounds": 2.5}, "rounds: found 2.5"),
        ({"eval_every": 0}, "eval_every: found 0"),
        ({"clients_per_round": 4}, "clients_per_round: found 4; pass a whole number from 1 to 3"),
        ({"clients_per_round": 0}, "clients_per_round: found 0"),
        ({"key": -1}, "key: found -1"),
        ({"key": 2**32}, "key: found 4294967296; pass a whole number from 0 to 2"),
        ({"key": "seed"}, "key: found str"),
        ({"engine": "simulatoin"}, "engine: found 'simulatoin'; did you mean 'simulation'?"),
        ({"method": "FedRZOnn"}, "method: found str; pass a method such as"),
        ({"problem": "toy"}, "problem: found str; pass fz.Nonsmooth"),
        ({"resume": True}, "resume: found True without a checkpoint"),
        ({"problem": bad_loss(lambda x: x)}, "loss: found shape \\(2,\\); it must return one number"),
        ({"problem": bad_loss(lambda x: x.sum() + jnp.inf)}, "loss: found inf at x0"),
        ({"problem": bad_loss(lambda x: jnp.log(x.sum() - 1))}, "loss: found nan at x0"),
        ({"problem": bad_loss(lambda x: x @ jnp.ones(3))}, "loss: calling loss\\(x, batch\\) failed"),
    ],
)
def test_bad_runs_are_refused_by_name(options, message):
    with pytest.raises(fz.InputError, match=message) as error:
        go(**options)
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_written_is_refused_before_work(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    evaluated = []
    problem = bad_loss(lambda x: evaluated.append(1) or x.sum())
    with pytest.raises(fz.InputError, match=r"checkpoint: cannot write in .*; choose another folder"):
        go(problem=problem, checkpoint=file / "run")
    assert not evaluated


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"stepsiz": [1]}, "sweep: FedRZOnn has no field 'stepsiz'; did you mean 'stepsize'?"),
        ({"batch_size": [1, 2]}, "sweep: batch_size shapes the compiled program"),
        ({"stepsize": 0.1}, "sweep: stepsize is 0.1; pass a list"),
        ({"stepsize": [lambda r: 1]}, "sweep: stepsize holds a function"),
    ],
)
def test_bad_sweeps_are_refused_by_name(grid, message):
    with pytest.raises(fz.InputError, match=message):
        fz.sweep(METHOD, toys.quadratic(3, 4), 2, progress=False, **grid)
