"""Every method on problems whose answer is known, from elsewhere or in closed form.

Methods that correct for what tells clients apart are given clients that differ; of the others it is known that several local
steps, or private directions, leave them off the answer then, so they are given copies of one client, or one exact step a round.
"""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import fedrzo as fz
from fedrzo import data, zoo
from fedrzo.zoo import logistic, minimax

KAPPA = 50.0
LONG = 4000


@pytest.fixture(scope="module")
def differing():
    return logistic.logistic(clients=5, kappa=KAPPA)


@pytest.fixture(scope="module")
def copies(differing):
    """Three clients with all the samples each: gradients vanish at the answer, so zeroth-order noise does too."""
    samples, weight = differing.data.flat, np.asarray(differing.data.fixed)[0]
    return fz.Nonsmooth(differing.loss_fn, fz.ClientData([samples] * 3, fixed=[weight] * 3), np.zeros(differing.dim))


@pytest.fixture(scope="module")
def answer(differing):
    """Scikit-learn's minimiser of the same loss: C = 1/(N lambda), no intercept."""
    (features, labels), weight = differing.data.flat, float(np.asarray(differing.data.fixed)[0])
    features, labels = np.asarray(features, float), np.asarray(labels)
    model = LogisticRegression(C=1 / (len(labels) * weight), fit_intercept=False, tol=1e-10, max_iter=10_000)
    return model.fit(features, labels).coef_[0]


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        (fz.LocalSGD(batch_size="full"), 1000),
        (fz.LFD(batch_size="full"), 3000),
        (fz.FedAC(batch_size="full"), 500),
        (fz.FedAvg(batch_size="full"), 1000),
        (fz.Scaffold(0.05, 5, batch_size="full"), 1500),
        (fz.Scaffnew(), 300),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, fz.Method) else str(value),
)
def test_gradient_methods_meet_scikit_learn_where_clients_differ(method, rounds, differing, answer):
    x = fz.run(method, differing, rounds, eval_every=rounds, progress=False).x
    np.testing.assert_allclose(x, answer, atol=1e-4)


@pytest.mark.parametrize(
    "method",
    [
        fz.FedRZOnn(0.01, 1e-4, 3, "full"),
        fz.FedZO(0.02, 1e-6, 3, "full", directions=10),
        fz.DeComFL(0.04, 1e-4, 1, 5, "full"),
    ],
    ids=lambda method: type(method).__name__,
)
@pytest.mark.slow("long runs on real data")
def test_zeroth_order_methods_meet_scikit_learn(method, copies, answer):
    x = fz.run(method, copies, LONG, eval_every=LONG, progress=False).x
    np.testing.assert_allclose(x, answer, atol=1e-4)


@pytest.mark.parametrize(
    "method",
    [
        fz.LocalSGDA(0.05, 0.1, batch_size="full"),
        fz.LocalSGDA(0.05, 0.1, batch_size="full", momentum=3.0),
        fz.FedNest(0.05, 0.5, lower_rounds=20, batch_size="full"),
    ],
    ids=lambda method: repr(method)[:60],
)
def test_minimax_methods_meet_a_stationary_point_of_the_closed_form(method):
    problem = minimax.ncsc()
    result = fz.run(method, problem, 3000, eval_every=3000, progress=False)
    assert np.linalg.norm(minimax.grad_phi(problem, result.x)) < 1e-4
    start = np.linalg.norm(minimax.grad_phi(problem, problem.x0))
    assert start > 0.1
    np.testing.assert_allclose(result.y, minimax.best_y(problem, result.x), atol=1e-4)


def test_the_data_are_the_published_ones(differing):
    loaded = data.load("breast-cancer")
    assert differing.dim == loaded.x_train.shape[1] == 30
    assert zoo.make("logistic", clients=5, kappa=KAPPA).dim == 30
