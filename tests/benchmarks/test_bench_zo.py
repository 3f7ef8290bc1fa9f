"""`benchmarks/zo.py`: the contestants compute the same thing, and the output has the agreed shape. No time is tested."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plain_zo
import zo
from fedrzo.zoo.relu import ReluLoss

SETTING = plain_zo.Setting(pixels=12, neurons=3, clients=2, samples=7, local_steps=4, batch_size=3)


def test_the_losses_and_their_difference_are_the_same():
    images, labels, x0 = plain_zo.draw_data(SETTING)
    v = 0.1 * np.random.default_rng(1).normal(size=x0.size).astype(np.float32)

    def tree(x):
        return {"Z": x[:36].reshape(3, 12), "w": x[36:]}

    batch = ((images[0], labels[0]), np.float32(1))
    loss = ReluLoss(SETTING.regularisation)
    plain = [plain_zo.loss(xp, x0, images[0], labels[0], SETTING) for xp in (np, jnp)]
    np.testing.assert_allclose(plain, loss(tree(x0), batch), rtol=1e-5)
    difference = loss(tree(x0 + v), batch) - loss(tree(x0 - v), batch)
    np.testing.assert_allclose(zo.ReluPair(SETTING.regularisation)(tree(x0), tree(v), batch), difference, rtol=1e-3)


def many(one, x):
    for _ in range(zo.ROUNDS):
        x = one(x)
    return x


@pytest.mark.slow("compiles all contestants")
def test_all_contestants_descend_alike():
    """With the same settings, all lower the mean loss over all data; they differ in their random numbers alone."""
    setting = SETTING._replace(stepsize=2e-3, local_steps=20, batch_size=7)
    images, labels, x0 = plain_zo.draw_data(setting)
    rng, key = np.random.default_rng(0), jax.random.key(0)
    ours = zo.ours(setting, images, labels, x0, key, zo.ReluPair(setting.regularisation))
    ends = {
        "start": x0,
        "numpy": many(lambda x: plain_zo.numpy_round(x, images, labels, rng, setting), x0),
        "jax": many(lambda x: plain_zo.jax_round(x, images, labels, key, setting), x0),
        "ours": ours().state.x,
    }
    losses = {
        name: np.mean([plain_zo.loss(np, np.asarray(x), *pair, setting) for pair in zip(images, labels, strict=True)])
        for name, x in ends.items()
    }
    gains = [losses["start"] - losses[name] for name in ("numpy", "jax", "ours")]
    assert min(gains) > 0.5 * max(gains) > 0


def start(*args):
    """Start the script as users do."""
    return subprocess.run([sys.executable, zo.__file__, *args], capture_output=True, text=True)


@pytest.mark.slow("runs a whole benchmark")
def test_the_command_prints_the_agreed_shape(tmp_path):
    done = start("--quick", "--json", "--quiet", "--out", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    for name in ("vs_numpy", "vs_plain_jax", "vs_numpy_without_pair", "vs_plain_jax_without_pair"):
        assert set(found[name]) == {"1", "32"}
        assert min(found[name].values()) > 0
    assert json.loads((tmp_path / "zo.json").read_text()) == found


def test_what_it_does_not_take_is_refused():
    done = start("logistic")
    said = "benchmarks/zo.py: it takes no problem, --budget or --seeds; pass --quick for fewer repetitions\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
