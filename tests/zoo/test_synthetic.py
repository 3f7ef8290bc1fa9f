"""FedProx's synthetic data: that the recipe is followed, and what FedAvg and FedProx make of it."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.stats import kstest, norm

import fedrzo as fz
from fedrzo.zoo import make, synthetic

ROOT = Path(__file__).resolve().parents[2]


def parts(problem):
    """Return each client's training inputs and labels."""
    inputs, labels = (np.asarray(leaf) for leaf in problem.data.flat)
    ends = np.cumsum(problem.data.sizes)[:-1]
    return list(zip(np.split(inputs, ends), np.split(labels, ends), strict=True))


def test_shape_and_sizes_are_the_recipes():
    problem = make("synthetic")
    assert (problem.clients, problem.dim, problem.layout.dtype) == (30, 610, np.float32)
    tests = len(problem.test[1])
    share = tests / (tests + problem.data.samples)
    assert 0.1 <= share < 0.11  # rounded up for each client
    np.testing.assert_allclose(problem.client_weights, problem.data.sizes / problem.data.samples)
    assert set(np.unique(problem.test[1])) <= set(range(10))
    # Of 400 clients: at least 45 samples each, and log(size - 50) is N(4, 2), up to the rounding of small sizes.
    sizes = make("synthetic", clients=400, dim=2, seed=1).data.sizes / 0.9
    assert sizes.min() >= 49
    excess = sizes[sizes > 70] - 50
    tail = norm(4, 2)
    conditional = (tail.cdf(np.log(excess)) - tail.cdf(np.log(20))) / tail.sf(np.log(20))
    assert kstest(conditional, "uniform").pvalue > 1e-3  # a right program fails with probability of about 1e-3
    assert max(make("synthetic", max_samples=100).data.sizes) == 90


def test_inputs_have_the_recipes_spread():
    """Within a client, feature j has variance j^-1.2; between clients, means have variance 1 + beta^2."""
    problem = make("synthetic", clients=300, classes=2, beta=2.0, max_samples=200, seed=2)
    clients = parts(problem)
    spread = np.mean([inputs.var(axis=0, ddof=1) for inputs, _ in clients], axis=0)
    degrees = sum(len(labels) - 1 for _, labels in clients)
    # A variance over so many degrees of freedom is known to five times sqrt(2 / degrees).
    np.testing.assert_allclose(spread, np.arange(1.0, 61) ** -1.2, rtol=10 * np.sqrt(2 / degrees))
    means = np.array([inputs.mean(axis=0) for inputs, _ in clients])
    # B_k is common to a client's features: their mean has variance beta^2 + 1/60 over clients, the rest is N(0, 1).
    assert means.mean(axis=1).var(ddof=1) == pytest.approx(4 + 1 / 60, rel=5 * np.sqrt(2 / 299))
    assert (means - means.mean(axis=1, keepdims=True)).var() == pytest.approx(59 / 60, rel=0.06)


def test_labels_are_those_of_a_linear_model_per_client_or_of_one_for_all():
    """No noise in labels: a linear model separates a client's classes, and all clients' classes only where they are iid."""
    options = {"clients": 6, "dim": 3, "classes": 3, "max_samples": 120, "seed": 4}
    for iid in (True, False):
        problem = make("synthetic", iid=iid, **options)
        clients = parts(problem)
        pooled = tuple(map(np.concatenate, zip(*clients, strict=True)))
        assert all(separable(*part) for part in clients)
        assert separable(*pooled) == iid


def separable(inputs, labels):
    """Tell by a linear program whether some W, b gives every sample's own class the largest score, by a margin of one."""
    from scipy.optimize import linprog

    extended = np.hstack([inputs, np.ones((len(inputs), 1))]).astype(float)
    rows = []
    for u, label in zip(extended, labels, strict=True):
        for other in set(range(3)) - {int(label)}:
            row = np.zeros((3, extended.shape[1]))
            row[other], row[label] = u, -u
            rows.append(row.ravel())
    A = np.array(rows)
    return linprog(np.zeros(A.shape[1]), A, -np.ones(len(A)), bounds=(None, None)).status == 0


def test_loss_and_accuracy_are_those_of_softmax_regression():
    rng = np.random.default_rng(0)
    x = {"W": rng.normal(size=(4, 3)), "b": rng.normal(size=3)}
    inputs, labels = rng.normal(size=(7, 4)), rng.integers(0, 3, 7)
    scores = inputs @ x["W"] + x["b"]
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    with jax.enable_x64(True):
        loss = float(synthetic.cross_entropy(x, (inputs, labels)))
    assert loss == pytest.approx(-np.mean(np.log(probabilities[np.arange(7), labels])), rel=1e-12)
    assert float(synthetic.accuracy(x, (inputs, labels))) == pytest.approx(np.mean(scores.argmax(axis=1) == labels))


def test_the_start_knows_nothing():
    problem = make("synthetic", max_samples=60)
    first = fz.run(fz.FedAvg(0.01), problem, 0, progress=False).history.last
    assert first["loss"] == pytest.approx(np.log(10), rel=1e-6)


@pytest.mark.slow("a large problem")
def test_fedprox_is_steadier_than_fedavg_where_clients_differ():
    """The reduced form of benchmarks/fedprox_synthetic.py; a rise is the sum of all increases of the training loss."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import fedprox_synthetic

    found = fedprox_synthetic.compare(0, 40, 20, ("FedAvg", "FedProx"), max_samples=200)
    assert found["FedAvg"]["rise"] > 0.07
    assert found["FedProx"]["rise"] < 0.5 * found["FedAvg"]["rise"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1}, "alpha: found -1; pass a number of zero or more"),
        ({"clients": 0}, "clients: found 0; pass a whole number of at least 1"),
        ({"classes": 1}, "classes: found 1"),
        ({"max_samples": 5}, "max_samples: found 5"),
        ({"weights": "none"}, "weights: found 'none'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(fz.InputError, match=message):
        make("synthetic", **options)
