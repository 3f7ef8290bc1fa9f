"""`fedrzo bench zo`: the contestants compute the same thing, and the output has the agreed shape. No time is tested."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.bench import timing, zo
from fedrzo.cli.main import main
from fedrzo.compare.options import Options
from fedrzo.zoo.relu import ReluLoss, ReluPair

PLAIN = timing.plain("plain_zo")
SETTING = PLAIN.Setting(pixels=12, neurons=3, clients=2, samples=7, local_steps=4, batch_size=3)


def test_the_losses_and_their_difference_are_the_same():
    images, labels, x0 = PLAIN.draw_data(SETTING)
    v = 0.1 * np.random.default_rng(1).normal(size=x0.size).astype(np.float32)

    def tree(x):
        return {"Z": x[:36].reshape(3, 12), "w": x[36:]}

    batch = ((images[0], labels[0]), np.float32(1))
    loss = ReluLoss(SETTING.regularisation)
    plain = [PLAIN.loss(xp, x0, images[0], labels[0], SETTING) for xp in (np, jnp)]
    np.testing.assert_allclose(plain, loss(tree(x0), batch), rtol=1e-5)
    difference = loss(tree(x0 + v), batch) - loss(tree(x0 - v), batch)
    np.testing.assert_allclose(ReluPair(SETTING.regularisation)(tree(x0), tree(v), batch), difference, rtol=1e-3)


def many(one, x):
    for _ in range(zo.ROUNDS):
        x = one(x)
    return x


def test_all_contestants_descend_alike():
    """With the same settings, all lower the mean loss over all data; they differ in their random numbers alone."""
    setting = SETTING._replace(stepsize=2e-3, local_steps=20, batch_size=7)
    images, labels, x0 = PLAIN.draw_data(setting)
    rng, key = np.random.default_rng(0), jax.random.key(0)
    ours = zo.ours(setting, images, labels, x0, key, ReluPair(setting.regularisation))
    ends = {
        "start": x0,
        "numpy": many(lambda x: PLAIN.numpy_round(x, images, labels, rng, setting), x0),
        "jax": many(lambda x: PLAIN.jax_round(x, images, labels, key, setting), x0),
        "ours": ours().state.x,
    }
    losses = {
        name: np.mean([PLAIN.loss(np, np.asarray(x), *pair, setting) for pair in zip(images, labels, strict=True)])
        for name, x in ends.items()
    }
    gains = [losses["start"] - losses[name] for name in ("numpy", "jax", "ours")]
    assert min(gains) > 0.5 * max(gains) > 0


@pytest.mark.slow
def test_the_command_prints_the_agreed_shape(capsys, tmp_path):
    assert main(["bench", "zo", "--quick", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("vs_numpy", "vs_plain_jax", "vs_numpy_without_pair", "vs_plain_jax_without_pair"):
        assert set(found[name]) == {"1", "32"}
        assert min(found[name].values()) > 0
    assert json.loads((tmp_path / "zo.json").read_text()) == found


def test_what_it_does_not_take_is_refused():
    with pytest.raises(fz.InputError, match="bench zo: it takes no problem"):
        zo.run(Options("logistic", 1))
