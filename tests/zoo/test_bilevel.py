"""The paper's bilevel and minimax experiments: what their levels are, and that FedRZO_bl gets somewhere."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fedrzo as fz
from fedrzo.zoo import bilevel, make

ONE_STEP = fz.LocalSGD(rounds=1, batch_size="full")  # solves a lower level whose Hessian is a multiple of the identity
FLOOR = 0.01


@functools.cache
def hyper():
    return make("hyper-digits", floor=FLOOR)


def tuned(**changes):
    settings = {"stepsize": 0.01, "smoothing": 0.01, "local_steps": 5, "batch_size": "full"}
    return fz.FedRZObl(**{**settings, "lower": fz.FedAC(rounds=300, batch_size="full"), **changes})


def monitored(problem, x):
    with problem.precision():
        return jax.jit(lambda problem, x: problem.evaluate(x))(problem, jnp.asarray(x, float))


def logistic_fit(problem, x):
    """Return the lower solution at x by a solver of somebody else's."""
    data = problem.lower_data
    images, labels = (np.asarray(leaf, float) for leaf in data.flat)
    weights = np.repeat(1 / (problem.clients * data.sizes), data.sizes)

    def loss(y):
        margins = labels * (images @ y)
        slope = -(weights * labels / (1 + np.exp(margins))) @ images + np.mean(x) * y
        return weights @ np.logaddexp(0, -margins) + np.mean(x) * y @ y / 2, slope

    return minimize(loss, np.zeros(images.shape[1]), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}).x


@pytest.mark.slow("learns from real data")
def test_hyper_parameters_are_learnt():
    result = fz.run(tuned(), hyper(), 120, eval_every=60, progress=False)
    loss, test_loss = result.history["loss"], result.history["test_loss"]
    assert loss[-1] < 0.7 * loss[0]
    assert test_loss[-1] < 0.7 * test_loss[0]
    assert result.history["feasibility"][-1] <= 10 * 0.01
    assert np.all(result.x_feasible >= FLOOR)


def test_hyper_parameters_lower_level_is_regularised_logistic_regression():
    x = np.array([0.02, 0.1, 0.05, 0.3, 0.03])
    problem = hyper()
    with problem.precision():
        y = problem.lower_solutions(x[None])[0]
    np.testing.assert_allclose(y, logistic_fit(problem, x), atol=1e-5)
    held, used = problem.data, problem.lower_data
    assert used.samples == 5 * 20
    assert abs(held.samples - 0.25 * 1437) <= 5 / 2  # rounded for each client
    on_both = {row.tobytes() for row in held.flat[0]} & {row.tobytes() for row in used.flat[0]}
    assert not on_both  # no two digits are the same image


def test_only_the_mean_of_the_hyper_parameters_matters_and_only_inside_the_domain():
    problem = hyper()
    spread, even, outside = (
        float(monitored(problem, x)["loss"]) for x in ([0.1, 0.2, 0.3, 0.4, 0.5], [0.3] * 5, [-1.0, 0.2, 0.3, 0.4, 0.59])
    )
    assert spread == pytest.approx(even, rel=1e-7)
    assert outside == pytest.approx(even, rel=1e-7)  # -1 counts as the floor, 0.01


@pytest.mark.slow("several programs")
def test_local_steps_are_one_longer_step_for_hyper_parameters_but_not_for_direct():
    def apart(problem, lower):
        short = fz.run(tuned(local_steps=4, stepsize=0.005, lower=lower), problem, 3, eval_every=3, progress=False).x
        long = fz.run(tuned(local_steps=1, stepsize=0.02, lower=lower), problem, 3, eval_every=3, progress=False).x
        return np.abs(short - long).max() / np.abs(long - problem.x0).max()

    assert apart(hyper(), fz.FedAC(rounds=300, batch_size="full")) < 1e-9
    assert apart(make("direct"), ONE_STEP) > 1e-3


@pytest.mark.slow("a long run")
def test_direct_meets_its_answer():
    problem = make("direct")
    method = fz.FedRZObl(0.02, 0.05, local_steps=4, batch_size="full", lower=ONE_STEP)
    result = fz.run(method, problem, 600, eval_every=600, progress=False)
    answer = bilevel.direct_answer(problem)
    np.testing.assert_allclose(result.x, answer, atol=1e-6)
    assert result.history["loss"][-1] < result.history["loss"][0]
    # The answer is one: the loss rises in every direction.
    best = float(monitored(problem, answer)["loss"])
    for step in 0.1 * np.eye(problem.dim):
        assert min(float(monitored(problem, answer + sign * step)["loss"]) for sign in (-1, 1)) > best


def class_losses(problem, x):
    """Return what each class adds to the mean over clients of their mean squared errors."""
    images, labels, classes = problem.data.flat
    errors = (labels - np.maximum(images @ np.asarray(x["Z"]).T, 0) @ np.asarray(x["w"])) ** 2
    weights = np.repeat(1 / (problem.clients * problem.data.sizes), problem.data.sizes)
    return np.bincount(classes, weights * errors, minlength=10)


def fair(problem):
    method = fz.FedRZObl(0.002, 0.01, local_steps=5, batch_size=32, lower=ONE_STEP)
    result = fz.run(method, problem, 40, eval_every=40, progress=False)
    assert result.history["loss"][-1] < 0.9 * result.history["loss"][0]
    assert result.history["lower_error"][-1] < 1e-12
    return result


@pytest.mark.slow("a long run")
def test_fair_classification_free_weights_are_losses_over_lambda():
    problem = make("fair-digits", regularisation=0.1)
    result = fair(problem)
    losses = class_losses(problem, result.x)
    np.testing.assert_allclose(result.y, losses / 0.1, rtol=1e-6)
    assert result.history["loss"][-1] == pytest.approx(np.sum(losses**2) / (2 * 0.1), rel=1e-6)


@pytest.mark.slow("learns from real data")
def test_fair_classification_on_the_simplex():
    problem = make("fair-digits", simplex=True)
    result = fair(problem)
    nearest = fz.sets.Simplex(1.0).project(class_losses(problem, result.x) / 0.1)
    np.testing.assert_allclose(result.y, nearest, atol=1e-6)
    assert np.sum(result.y) == pytest.approx(1)


def test_fair_classification_in_the_papers_sums():
    sums, means = (make("fair-digits", scale=scale) for scale in ("sum", "mean"))
    x, y, size = sums.x0, np.ones(10), int(sums.data.sizes[0])
    whole = [problem.value(x, y, (jax.tree.map(lambda leaf: leaf[:size], problem.data.flat), problem.data.fixed[0]))
             for problem in (sums, means)]  # fmt: skip
    assert float(whole[0]) + 0.5 == pytest.approx(size * (float(whole[1]) + 0.5), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hyper-digits", {"floor": 0.0}, "floor: found 0.0; pass a positive number"),
        ("hyper-digits", {"start": 0.001}, "start: found 0.001, below the floor"),
        ("hyper-digits", {"validation": 1.0}, "validation: found 1.0; pass a share"),
        ("hyper-digits", {"training": 0}, "training: found 0; pass a whole number"),
        ("hyper-digits", {"clients": 1437}, "has one sample for two levels"),
        ("hyper-digits", {"split": "even"}, "split: found 'even'"),
        ("fair-digits", {"regularisation": 0}, "regularisation: found 0; pass a positive number"),
        ("fair-digits", {"scale": "total"}, "scale: found 'total'"),
        ("fair-digits", {"neuron": 3}, "did you mean 'neurons'"),
        ("direct", {"lower_dim": 0}, "lower_dim: found 0; pass a whole number"),
    ],
)
def test_bad_options_give_one_clear_line(name, options, message):
    with pytest.raises(fz.InputError, match=message) as caught:
        make(name, **options)
    assert "\n" not in str(caught.value)
