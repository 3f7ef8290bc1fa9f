"""Logistic regression: its answer, its constants, its splits."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import fedrzo as fz
from fedrzo.zoo import logistic, make


def scikit_learn(problem):
    """Return somebody else's solution of the same problem."""
    features, labels = problem.data.flat
    strength = float(problem.data.fixed[0]) * len(labels)
    fit = LogisticRegression(C=1 / strength, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    return fit.fit(features, labels).coef_[0]


@pytest.mark.parametrize("options", [{"split": "sorted"}, {"split": "dirichlet"}, {"dataset": "digits", "kappa": 1e4}])
def test_the_answer_is_scikit_learns(options):
    problem = make("logistic", **options)
    np.testing.assert_allclose(logistic.answer(problem), scikit_learn(problem), atol=1e-9)


@pytest.mark.parametrize("split", logistic.SPLITS)
def test_the_loss_is_the_mean_over_all_samples_however_they_are_split(split):
    problem = make("logistic", split=split, clients=5)
    features, labels = problem.data.flat
    assert problem.data.samples == 455
    x = np.linspace(-1, 1, problem.dim)
    moved = fz.Nonsmooth(problem.loss_fn, problem.data, x, weights=problem.weights)
    ours = fz.run(fz.LocalSGD(0.1), moved, 0, progress=False).history["loss"][0]
    penalty = float(problem.data.fixed[0]) / 2 * x @ x
    assert ours == pytest.approx(np.mean(np.log1p(np.exp(-labels * (features @ x)))) + penalty, rel=1e-12)


def test_kappa_sets_the_regularisation_and_the_constants_hold():
    problem = make("logistic", kappa=50.0)
    modulus, smoothness, worst = logistic.curvature(problem)
    assert smoothness / modulus == pytest.approx(50.0, rel=1e-12)
    assert worst > 1.5 * smoothness  # sorted clients differ
    features, _ = problem.data.flat
    # At x = 0 the logistic loss is as curved as it gets: the mean loss attains L there.
    hessian = features.T @ features / (4 * len(features)) + modulus * np.eye(problem.dim)
    assert np.linalg.eigvalsh(hessian)[-1] == pytest.approx(smoothness, rel=1e-12)
    assert make("logistic", regularisation=0.25).data.fixed[0] == 0.25


def test_sorted_clients_see_one_class_and_equally_many_samples():
    problem = make("logistic", clients=10)
    assert problem.data.equal_size == 45
    _, labels = problem.data.flat
    mixed = [len(set(part)) == 2 for part in labels.reshape(10, 45)]
    assert sum(mixed) == 1
    halves = make("logistic", clients=10, split="iid").data.flat[1].reshape(10, 45)
    assert all(len(set(part)) == 2 for part in halves)


def test_a_part_of_the_samples():
    problem = make("logistic", samples=100, clients=4)
    assert problem.data.samples == 100
    other = make("logistic", samples=100, clients=4, seed=1)
    assert not np.array_equal(problem.data.flat[0], other.data.flat[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "a9b"}, "dataset: found 'a9b'.*a9a"),
        ({"split": "sort"}, "split: found 'sort'.*sorted"),
        ({"clients": 456}, "clients: found 456; pass a whole number from 1 to 455"),
        ({"clients": 2.0}, "clients: found 2.0; pass a whole number"),
        ({"kappa": 1.0}, "kappa: found 1.0; pass a number above 1"),
        ({"kappa": 9.0, "regularisation": 0.1}, "kappa: found 9.0 beside regularisation=0.1; give one of the two"),
        ({"regularisation": 0}, "regularisation: found 0; pass a positive number"),
        ({"samples": 456}, "samples: found 456; pass a whole number from 1 to 455"),
    ],
)
def test_bad_options_give_one_clear_line(options, message):
    with pytest.raises(fz.InputError, match=message) as caught:
        make("logistic", **options)
    assert "\n" not in str(caught.value)


def test_other_problems_have_no_logistic_answer():
    with pytest.raises(fz.InputError, match="problem: found 'quadratic', which is no logistic regression"):
        logistic.answer(make("quadratic"))
