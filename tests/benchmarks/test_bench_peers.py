"""`benchmarks/peers.py`: the job, our own contestant, what happens without a peer, and the agreed shape. No time is tested."""

import importlib.util
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import peers
from fedrzo.compare.options import Options
from helpers.environments import Environment, PeerError

FEDJAX, _, PFL_NUMPY, _ = peers.PEERS


@pytest.fixture(scope="module")
def job_module():
    spec = importlib.util.spec_from_file_location("job", peers.SCRIPTS / "job.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
            patch.setenv(name, "0")
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def job(tmp_path_factory, job_module):
    path = tmp_path_factory.mktemp("job") / "job.npz"
    peers.write_job(path, 3, 7)
    return job_module.Job.read(path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """We, and a peer that pip does not find: a folder without packages stands for a machine without a network."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        return peers.run(Options(peers.PROBLEM, 1, out=out, quick=True, progress=False), (FEDJAX,)), out


def test_data_are_drawn_from_the_seed_and_have_the_size_that_is_promised():
    data, again, other = peers.draw_data(0), peers.draw_data(0), peers.draw_data(1)
    assert data.features.shape == (100, 50, 20)
    assert data.targets.shape == (100, 50)
    assert {array.dtype for array in data} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(data.targets, again.targets)
    assert not np.allclose(data.targets, other.targets)


def test_the_problem_is_strongly_convex_and_its_optimum_is_least():
    data = peers.draw_data(0)
    rows, targets = data.features.reshape(-1, 20).astype(float), data.targets.ravel().astype(float)
    eigenvalues = np.linalg.eigvalsh(rows.T @ rows / len(rows))
    assert 0.8 < eigenvalues[0] < eigenvalues[-1] < 1.2
    best = np.linalg.solve(rows.T @ rows, rows.T @ targets)
    assert data.optimum() == pytest.approx(data.loss(best), rel=1e-12)
    directions = np.random.default_rng(0).normal(size=(10, 20))
    assert all(data.loss(best + 1e-3 * v) > data.optimum() for v in directions)


def test_every_script_reads_the_same_job(job):
    data = peers.draw_data(3)
    np.testing.assert_array_equal(job.features, data.features)
    assert (job.clients, job.dimension, job.batch_size, job.local_steps, job.seed) == (100, 20, 10, 5, 7)
    x = np.random.default_rng(0).normal(size=20)
    assert job.loss(x) == pytest.approx(data.loss(x), rel=1e-12)
    for peer in (peers.OURS, *peers.PEERS):
        assert (peers.SCRIPTS / peer.script).is_file()


def test_local_steps_in_numpy_are_gradient_steps_on_the_loss(job):
    batches = [(job.features[0][rows], job.targets[0][rows]) for rows in np.arange(50).reshape(5, 10)]
    x = np.zeros(20, np.float32)
    for features, targets in batches:
        x = x - 0.05 * np.asarray(jax.grad(lambda x, u, t: jnp.mean((u @ x - t) ** 2) / 2)(x, features, targets))
    np.testing.assert_allclose(job.local_sgd(np.zeros(20, np.float32), batches), x, rtol=1e-4, atol=1e-6)


def test_a_stopwatch_leaves_the_first_round_out(job, job_module, capsys):
    watch = job_module.Stopwatch()
    watch.ends = [job_module.BEGAN + seconds for seconds in (5.0, 6.0, 7.0, 20.0)]
    watch.report(job, np.zeros(20), ["numpy"])
    found = json.loads(capsys.readouterr().out)
    assert found["setup_seconds"] == pytest.approx(5.0)
    assert found["seconds_per_round"] == pytest.approx(1.0)
    assert found["loss"] == peers.draw_data(3).loss(np.zeros(20))
    assert found["versions"] == {"numpy": np.__version__}


@pytest.mark.slow("runs a whole benchmark")
def test_our_own_contestant_comes_as_near_the_optimum_as_sampling_lets_it(alone):
    found, _ = alone
    loss, ours = found["loss"], found["contestants"]["fedrzo"]
    assert loss["optimum"] < ours["loss"] < loss["optimum"] + 1e-4 * (loss["start"] - loss["optimum"])
    assert ours["agrees"]
    assert ours["seconds_per_round"] > 0
    assert ours["versions"]["jax"] == jax.__version__
    (only,) = ours["runs"]
    assert len(set(only["losses"])) == len(only["losses"]) >= 10  # other seeds, other draws


@pytest.mark.slow("runs a whole benchmark")
def test_a_peer_that_cannot_be_installed_is_reported_and_the_others_go_on(alone):
    found, out = alone
    assert list(found["contestants"]) == ["fedrzo"]
    assert found["missing"]["fedjax"].startswith("ERROR: Could not find a version that satisfies")
    assert not (out / "environments" / "fedjax").exists()  # half an environment would be taken for a whole one
    assert any("fedjax is missing" in line for line in peers.remarks(found))
    assert json.loads((out / "peers.json").read_text()) == found


def test_a_script_that_fails_or_prints_nothing_says_so(tmp_path):
    peers.write_job(tmp_path / "job.npz", 0, 0)
    with pytest.raises(PeerError, match="No module named 'fedjax'"):
        peers.contest(FEDJAX, tmp_path / "job.npz")
    with pytest.raises(PeerError, match=r"job\.py printed no result"):
        peers.contest(peers.Peer("silent", "job.py", ""), tmp_path / "job.npz")


def test_an_environment_is_found_again_only_with_the_same_requirements(tmp_path):
    assert not Environment(tmp_path, ("a==1",)).ready
    (tmp_path / "requirements.txt").write_text("a==1\nb==2")
    assert Environment(tmp_path, ("a==1", "b==2")).ready
    assert not Environment(tmp_path, ("a==1", "b==3")).ready


def run_of(seconds, loss, **more):
    return {"setup_seconds": 1.0, "seconds_per_round": seconds, "loss": loss, "versions": {"numpy": "2"}, **more}


def test_ratios_are_medians_of_those_within_a_repetition():
    timed = zip((1.0, 2.0, 4.0), (0.60, 0.65, 0.70), strict=True)
    ours = [run_of(seconds, loss, losses=[loss], device="cpu") for seconds, loss in timed]
    theirs = [run_of(seconds, loss) for seconds, loss in ((30.0, 0.6), (40.0, 0.9), (40.0, 0.6))]
    found = peers.summary({"fedrzo": ours, "flower": theirs}, {"pfl": "why"}, 0)
    assert found["vs_flower"] == 20.0  # of 30, 20 and 10
    assert "vs_fedrzo" not in found
    assert found["contestants"]["fedrzo"]["rounds_per_second"] == 0.5
    assert found["loss"]["highest"] == pytest.approx(0.65 + 3 * 0.05)
    assert found["contestants"]["fedrzo"]["agrees"]
    assert not found["contestants"]["flower"]["agrees"]
    rows = peers.table(found)
    assert {len(row) for row in rows} == {6}
    assert rows[2][3] == "20 x"
    assert rows[2][-1].endswith("too high")
    assert peers.remarks(found)[-1] == "pfl is missing: why"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["logistic"], "benchmarks/peers.py: it takes no problem"),
        (["--budget", "10"], "benchmarks/peers.py: it takes no problem, --budget"),
        (["--seeds", "2"], "benchmarks/peers.py: it takes no problem, --budget or --seeds"),
        (["--seed", "-1"], "--seed: found -1; pass a whole number from 0 to 2**32 - 1"),
        (["--out", __file__], "--out: cannot write in"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message, fails):
    assert message in fails(peers, *arguments)


@pytest.mark.slow("runs a whole benchmark")
def test_a_real_peer_does_the_same_job(tmp_path, capsys):
    found = peers.run(Options(peers.PROBLEM, 1, out=tmp_path, quick=True), (PFL_NUMPY,))
    said = capsys.readouterr()
    assert said.out == ""
    assert "pip downloads pfl==0.6.0" in said.err
    assert found["missing"] == {}
    theirs = found["contestants"]["pfl_numpy"]
    assert theirs["agrees"]
    assert theirs["loss"] > found["loss"]["optimum"]
    assert theirs["versions"]["pfl"] == "0.6.0"
    assert found["vs_pfl_numpy"] > 0
    assert Environment(tmp_path / "environments" / "pfl_numpy", PFL_NUMPY.requirements).ready
