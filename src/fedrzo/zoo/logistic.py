"""l2-regularised logistic regression: the usual test of methods that fight client drift, with an answer to compare with.

Minimise, over all samples, the mean of log(1 + exp(-b a'x)) plus lambda/2 |x|^2, without an intercept. L = lambda_max(A'A)/(4N)
bounds the curvature of the first part, so kappa = (L + lambda)/lambda; `kappa` sets lambda by that.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from fedrzo import data as datasets
from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError, nearest
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.zoo.bilevel import logistic as logistic_loss
from fedrzo.zoo.bilevel import logistic_smoothness
from fedrzo.zoo.samples import known_signs, knows

DATASETS = ("breast-cancer", "digits", "a9a", "w8a")
SPLITS = ("sorted", "iid", "dirichlet")
KAPPA = 1e3


@knows(known_signs)
def regularised(x: jax.Array, batch: Any) -> jax.Array:
    """The loss of one batch, which carries lambda, so that another lambda needs no new program."""
    samples, weight = batch
    return logistic_loss(x, *samples) + weight / 2 * jnp.sum(x**2)


def accuracy(x: jax.Array, test: Any) -> jax.Array:
    """The share of test samples whose sign is right."""
    (features, labels), _ = test
    return jnp.mean(jnp.sign(features @ x) == labels)


def logistic(
    dataset: str = "breast-cancer", clients: int = 10, split: str = "sorted", regularisation: float | None = None,
    kappa: float | None = None, alpha: float = 0.5, samples: int | None = None, seed: int = 0, data: str | None = None,
) -> Nonsmooth:  # fmt: skip
    """l2-regularised logistic regression on breast-cancer, digits (even against odd), a9a or w8a.

    Args:
        dataset: one of those.
        clients: how many there are.
        split: `"sorted"`: by label, so that most clients see one class only; `"iid"`; `"dirichlet"`. The first two give all
            clients equally many samples and leave out what is over, fewer samples than there are clients.
        regularisation: lambda; or give `kappa`.
        kappa: the condition number from which lambda is made, 1000 by default.
        alpha: of the Dirichlet split.
        samples: use so many of the training samples, drawn at random; all by default.
        seed: of that draw and of the splits.
        data: the folder where the data are, if not in the usual places.
    """
    features, labels, test = _load(dataset, samples, seed, data)
    parts = _split(split, labels, clients, alpha, seed)
    used = np.concatenate(parts)
    weight = np.float64(_weight(regularisation, kappa, logistic_smoothness(features[used])))
    batches = [(features[rows], labels[rows]) for rows in parts]
    held = (test, weight) if len(test[1]) else None  # w8a may come without its test part
    return Nonsmooth(
        regularised, ClientData(batches, fixed=[weight] * clients), np.zeros(features.shape[1]), weights="samples",
        test=held, metrics={"test_accuracy": accuracy}, name=f"logistic-{dataset}",
    )  # fmt: skip


class Curvature(NamedTuple):
    """The constants of a logistic problem, exact bounds rather than estimates."""

    modulus: float  # lambda
    smoothness: float  # of the mean loss, lambda included
    worst_client: float  # the largest smoothness of any one client's loss; local steps must respect it


def curvature(problem: Nonsmooth) -> Curvature:
    """Return the constants of a logistic problem."""
    features, _, weight = _samples(problem)
    clients = np.split(features, problem.data.offsets[1:])  # type: ignore[union-attr]
    worst = max(logistic_smoothness(part) for part in clients)
    return Curvature(weight, logistic_smoothness(features) + weight, worst + weight)


def answer(problem: Nonsmooth) -> np.ndarray:
    """Return the minimiser, by Newton's method on all samples together."""
    features, labels, weight = _samples(problem)

    def loss(x: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0, -labels * (features @ x))) + weight / 2 * x @ x)

    x = np.zeros(features.shape[1])
    for _ in range(100):
        probability = expit(-labels * (features @ x))
        slope = weight * x - features.T @ (labels * probability) / len(labels)
        spread = features.T @ (features * (probability * (1 - probability))[:, None]) / len(labels)
        step = np.linalg.solve(spread + weight * np.eye(len(x)), slope)
        if slope @ step < 1e-26:  # twice the distance to the least loss, as far as a quadratic can tell
            break
        length = 1.0
        while loss(x - length * step) > loss(x) and length > 1e-10:
            length /= 2
        x = x - length * step
    return x


def _samples(problem: Nonsmooth) -> tuple[np.ndarray, np.ndarray, float]:
    """Return all samples and lambda."""
    if problem.loss_fn is not regularised:
        raise InputError(f"problem: found {problem.name!r}, which is no logistic regression of this page")
    features, labels = (np.asarray(leaf) for leaf in problem.data.flat)  # type: ignore[union-attr]
    return features, labels, float(problem.data.fixed[0])  # type: ignore[index]


def _load(name: str, samples: int | None, seed: int, folder: str | None) -> tuple[np.ndarray, np.ndarray, tuple]:
    """Return features and labels of the training part, and the test part, in float64."""
    if name not in DATASETS:
        raise InputError(f"dataset: found {name!r}{nearest(str(name), DATASETS)}")
    loaded = datasets.load(name, root=folder)
    two = datasets.even_odd if name == "digits" else np.asarray
    rows = np.arange(len(loaded.y_train))
    if samples is not None:
        if isinstance(samples, bool) or not isinstance(samples, int) or not 1 <= samples <= len(rows):
            raise InputError(f"samples: found {samples!r}; pass a whole number from 1 to {len(rows)}, those there are")
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:samples])
    test = (loaded.x_test.astype(float), two(loaded.y_test).astype(float))
    return loaded.x_train[rows].astype(float), two(loaded.y_train[rows]).astype(float), test


def _split(split: str, labels: np.ndarray, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Return each client's rows."""
    if split not in SPLITS:
        raise InputError(f"split: found {split!r}{nearest(str(split), SPLITS)}")
    if split == "dirichlet":
        return datasets.dirichlet(labels, clients, alpha, seed)
    if isinstance(clients, bool) or not isinstance(clients, int) or not 1 <= clients <= len(labels):
        raise InputError(f"clients: found {clients!r}; pass a whole number from 1 to {len(labels)}, the samples there are")
    order = np.random.default_rng(seed).permutation(len(labels))
    if split == "sorted":
        order = np.argsort(labels, kind="stable")
    # Equal sizes: a full gradient is then one matrix product for all clients.
    each = len(labels) // clients
    return [np.sort(order[i * each : (i + 1) * each]) for i in range(clients)]


def _weight(regularisation: float | None, kappa: float | None, smoothness: float) -> float:
    """Return lambda, as given or by the condition number."""
    if regularisation is not None and kappa is not None:
        raise InputError(f"kappa: found {kappa!r} beside regularisation={regularisation!r}; give one of the two")
    if regularisation is not None:
        if not 0 < regularisation < np.inf:
            raise InputError(f"regularisation: found {regularisation!r}; pass a positive number")
        return regularisation
    kappa = KAPPA if kappa is None else kappa
    if not 1 < kappa < np.inf:
        raise InputError(f"kappa: found {kappa!r}; pass a number above 1")
    return smoothness / (kappa - 1)
