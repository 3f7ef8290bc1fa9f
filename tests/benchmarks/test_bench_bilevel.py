"""`benchmarks/bilevel.py`: the contestants compute the same thing, and the output has the agreed shape. No time is tested."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel
import fedrzo as fz
import plain_bilevel
from fedrzo.compare.options import Options
from fedrzo.zoo.bilevel import hyper_digits, softplus, training_loss
from helpers.command import main

SETTING = plain_bilevel.Setting(lower_rounds=3, lower_steps=4)


@pytest.mark.slow("compiles both contestants")
@pytest.mark.parametrize("products", [False, True])
def test_both_find_the_same_lower_solutions(products):
    """Same points, same steps: equal up to rounding, also where steps are taken by products."""
    problem = bilevel.digits(4, products=products)
    lower = fz.LocalSGD(SETTING.lower_stepsize, SETTING.lower_steps, SETTING.lower_rounds, "full")
    method = fz.FedRZObl(SETTING.stepsize, SETTING.smoothing, 2, lower=lower, warm_start=False, closing=False)
    with problem.precision():
        key, data = jax.random.key(0), bilevel.plain_data(problem)
        assert bilevel.difference(SETTING, data, method, problem, key) < 1e-13
        session = bilevel.start(method, problem, key)
        points, y = bilevel.last_round(session, method, key)
        far = bilevel.error(problem, points, y)
    assert 0.1 < far < 1  # twelve steps from zero do not get far, so that an error of nothing would be wrong


def test_padding_keeps_every_sample():
    problem = hyper_digits(4)
    data = bilevel.plain_data(problem)
    for i, (first, size) in enumerate(zip(problem.data.offsets, problem.data.sizes, strict=True)):
        np.testing.assert_array_equal(data.held_images[i, :size], problem.data.flat[0][first : first + size])
        np.testing.assert_array_equal(data.held_labels[i, size:], 0)
    np.testing.assert_array_equal(data.images[1, 0], problem.lower_data.flat[0][20])


def test_steps_by_products_are_gradient_steps():
    rng = np.random.default_rng(0)
    batch = ((rng.normal(size=(5, 9)), rng.choice([-1.0, 1.0], 5)), np.int32(1))
    x, y = np.array([0.3, 0.7]), rng.normal(size=9)
    with jax.enable_x64(True):
        wanted = jnp.asarray(y)
        for _ in range(3):
            wanted = wanted - 0.2 * jax.grad(training_loss, 1)(x, wanted, batch)
        found = bilevel.descend_by_products(x, y, jax.tree.map(jnp.asarray, batch), 0.2, 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


def test_softplus_and_its_derivatives():
    """Also where its exponential would overflow, and the second derivative."""
    with jax.enable_x64(True):
        at = jnp.array([-800.0, -2.0, 0.0, 3.0, 800.0])
        p = 1 / (1 + np.exp(-np.array([-2.0, 0.0, 3.0])))
        np.testing.assert_allclose(jax.vmap(jax.grad(softplus))(at), [0, *p, 1], rtol=1e-15)
        np.testing.assert_allclose(jax.vmap(jax.grad(jax.grad(softplus)))(at), [0, *p * (1 - p), 0], rtol=1e-14)
        np.testing.assert_allclose(softplus(at), np.logaddexp(0, at), rtol=1e-15)


def test_a_wrong_descent_is_refused():
    problem = hyper_digits(3)
    wrong = fz.Bilevel(
        problem.loss_fn, problem.lower_fn, problem.data, np.full(3, 0.3), problem.y0, lower_data=problem.lower_data,
        lower_descent=lambda x, y, batch, stepsize, steps: y,
    )  # fmt: skip
    with pytest.raises(fz.InputError, match=r"lower_descent: after 2 steps from y0 it is .* away from gradient steps"):
        fz.run(fz.FedRZObl(0.01, 0.01), wrong, 1)


@pytest.mark.slow("runs a whole benchmark")
def test_the_command_prints_the_agreed_shape(capsys, tmp_path):
    assert main(bilevel, ["--quick", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "bilevel.json").read_text()) == found
    same = found["same_steps"]["5"]
    assert min(same["vs_plain_jax"], same["vs_plain_jax_without_products"], found["same_accuracy"]["vs_plain_jax"]) > 0
    assert same["difference"] < 1e-13
    errors = found["same_accuracy"]["lower_error"]
    assert errors["fedrzo"] <= errors["plain_jax"]
    assert bilevel.table(found)[-1][0] == "same accuracy"
    assert "differ by" in bilevel.remarks(found)[1]


def test_what_it_does_not_take_is_refused():
    with pytest.raises(fz.InputError, match="it takes no problem"):
        bilevel.run(Options("hyper-digits", 1))
