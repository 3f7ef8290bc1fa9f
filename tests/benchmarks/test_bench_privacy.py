"""`benchmarks/privacy.py`: DP-SGD does what it says, the figures are those of the runs, and the output has the agreed shape."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import privacy
from fedrzo.privacy.accounting import Release, epsilon
from helpers import private_sgd
from helpers.private_contestants import CLIPPED, DELTA, NOISY, PLAIN, SGD, SILENT, Case, Contestant, Size, Tuning
from helpers.private_digits import cross_entropy, digits
from helpers.private_figure import figure


@pytest.fixture(scope="module")
def small():
    return digits(2, 40, seed=0, name="digits")


def gradients(data, silo):
    """Return each record's gradient, found one by one."""
    flat, unravel = ravel_pytree(data.x0)
    one = jax.jit(jax.grad(lambda x, image, label: cross_entropy(unravel(x), (image[None], label[None]))))
    return flat, unravel, np.stack([one(flat, *pair) for pair in zip(data.images[silo], data.labels[silo], strict=True)])


def released(data, clip, deviation, keys, batch_size):
    """Return noisy gradients of the first silo at the first weights, and how many records they are of."""
    flat, unravel = ravel_pytree(data.x0)
    own = jnp.asarray(data.images[0]), jnp.asarray(data.labels[0])

    def one(key):
        return private_sgd._private_gradient(flat, unravel, key, own, (1.0, clip, deviation), batch_size)

    return jax.vmap(one)(jax.random.split(jax.random.key(0), keys))


@pytest.mark.slow("a network's gradients")
def test_all_records_without_clip_and_noise_give_the_gradient(small):
    found, drawn = released(small, math.inf, 0.0, 1, small.records)
    np.testing.assert_allclose(found[0], gradients(small, 0)[2].mean(axis=0), atol=1e-5)
    assert drawn[0] == small.records


def test_each_record_is_clipped_by_itself(small):
    found, _ = released(small, 0.5, 0.0, 1, small.records)
    each = gradients(small, 0)[2]
    lengths = np.linalg.norm(each, axis=1, keepdims=True)
    np.testing.assert_allclose(found[0], (each * np.minimum(1, 0.5 / lengths)).mean(axis=0), atol=1e-5)


@pytest.mark.slow("many steps")
def test_samples_and_noise_are_as_large_as_accounted_for(small):
    found, drawn = released(small, 0.5, 3.0, 200, 10)
    assert np.mean(drawn) == pytest.approx(10, abs=1)  # five standard deviations of the mean of 200 binomial numbers
    assert np.var(drawn) == pytest.approx(10 * (1 - 10 / 40), rel=0.4)
    assert np.std(found) == pytest.approx(3.0 / 10, rel=0.02)  # the clipped sum adds little to that


@pytest.mark.slow("trains once more")
def test_the_noise_of_an_epsilon_is_the_librarys(small):
    contestant = Contestant(SGD, Tuning(0.5), None, Tuning(0.5, 1.0))
    row = contestant.run(small, None, Size(steps=20, batch_size=10), Case(2.0, NOISY), 0)
    assert row["spent"] == pytest.approx(epsilon({Release(0.25, row["noise"]): 20}, DELTA))
    assert 1.9 < row["spent"] <= 2.0
    assert (row["upload_bytes"], row["gradients"]) == (20 * 2 * small.dim * 4, 20 * 2 * 10)


@pytest.mark.slow("trains three times")
def test_it_learns(small):
    setting = private_sgd.Setting(0.3)
    assert private_sgd.train(small, setting, 60, 1, 20, seed=0)["train_accuracy"] > 0.8
    assert private_sgd.train(small, setting, 6, 10, 20, seed=0)["train_accuracy"] > 0.7


def test_images_are_dealt_out_once_each():
    data = digits(4, 100, seed=1, name="digits")
    assert data.images.shape == (4, 100, 16)
    assert data.problem().dim == data.dim == 16 * 32 + 32 + 32 * 10 + 10
    rows = {
        image.tobytes() + bytes([label]) for image, label in zip(data.images.reshape(400, 16), data.labels.ravel(), strict=True)
    }
    assert len(rows) > 390  # a few pooled images are equal


def row(method, level, tuned, accuracy):
    costs = {"upload_bytes": 8e5, "download_bytes": 9e6, "evaluations": 1e8, "gradients": 0}
    settings = {"stepsize": 0.25, "clip": None if level == PLAIN else 0.3, "noise": 1.0}
    return {"method": method, "level": level, "tuned": tuned, "accuracy": accuracy} | settings | costs


def test_the_goal_compares_with_the_best_without_noise():
    cases = [(PLAIN, SILENT, 0.90), (CLIPPED, SILENT, 0.92), (2.0, SILENT, 0.80), (2.0, NOISY, 0.90), (2.0, NOISY, 0.92)]
    found = {"epsilons": [2.0], "delta": DELTA, "rows": [row("a", *case) for case in cases]}
    shares = [(goal["tuned"], goal["share"]) for goal in privacy.goals(found)]
    assert shares == [(SILENT, pytest.approx(0.80 / 0.92)), (NOISY, pytest.approx(0.91 / 0.92))]
    shown = privacy.table(found)
    assert shown[1][:3] == ["a", "none", SILENT]
    assert shown[-1][5:10] == ["1", "0.9100", "0.9000", "0.80", "9.00"]
    assert len(figure(found).axes) == 2


@pytest.mark.slow("compiles both methods of the library, with and without privacy")
def test_the_command_prints_the_agreed_shape(tmp_path, capsys):
    args = ["--dataset", "digits", "--quick", "--steps", "20", "--directions", "4", "--out", str(tmp_path)]
    assert privacy.main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["level"]) for row in found["rows"]] == [
        (method, level) for method in ("FedRZO_nn", "DeComFL", "DP-SGD") for level in (PLAIN, 2.0)
    ]
    assert all(0 < row["accuracy"] <= 1 for row in found["rows"])
    assert all(1.9 < row["spent"] <= 2.0 for row in found["rows"] if row["level"] == 2.0)
    assert json.loads((tmp_path / "privacy.json").read_text()) == found
    assert (tmp_path / "privacy.png").read_bytes()[:4] == b"\x89PNG"
