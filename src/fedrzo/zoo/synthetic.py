"""FedProx's synthetic data: multinomial logistic regression on clients whose models and inputs differ by as much as one likes.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020.
The recipe is that of the authors' generator, where alpha and beta are standard deviations (they are written as variances in
print; at 0 and 1 that is the same). Random numbers are not theirs, so samples differ.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.zoo.samples import knows

TRAINING = 0.9  # the share of each client's samples that it trains on
Part = tuple[np.ndarray, np.ndarray]


@knows(lambda x, samples: (samples[1], np.arange(x["b"].size)))
def cross_entropy(x: dict[str, jax.Array], batch: Any) -> jax.Array:
    """The mean of -log p(label) under the softmax of W'u + b."""
    inputs, labels = batch
    scores = jax.nn.log_softmax(inputs @ x["W"] + x["b"])
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


def accuracy(x: dict[str, jax.Array], test: Any) -> jax.Array:
    """The share of test samples whose largest score is that of their label."""
    inputs, labels = test
    return jnp.mean(jnp.argmax(inputs @ x["W"] + x["b"], axis=1) == labels)


def synthetic(
    alpha: float = 1.0, beta: float = 1.0, clients: int = 30, dim: int = 60, classes: int = 10, iid: bool = False,
    weights: str = "samples", max_samples: int | None = None, seed: int = 0, dtype: str = "float32",
) -> Nonsmooth:  # fmt: skip
    """FedProx's synthetic data: multinomial logistic regression on clients that differ (n = 610).

    Args:
        alpha: how much clients' models differ.
        beta: how much clients' inputs differ.
        clients: how many there are.
        dim: features.
        classes: labels.
        iid: give all clients one model and inputs around zero instead; alpha and beta do not matter then.
        weights: `"samples"` as the authors do, or `"uniform"`.
        max_samples: a cap on a client's samples, whose numbers are heavy-tailed; none in the original.
        seed: of everything random here.
        dtype: of the model.
    """
    _check(alpha, beta, clients, dim, classes, max_samples)
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(4, 2, clients).astype(int) + 50
    if max_samples is not None:
        sizes = np.minimum(sizes, max_samples)
    shared = rng.normal(size=(dim + 1, classes))
    parts = [_client(rng, int(size), alpha, beta, shared, iid) for size in sizes]
    train, test = zip(*(_split(part) for part in parts), strict=True)
    x0 = {"W": np.zeros((dim, classes), dtype), "b": np.zeros(classes, dtype)}
    together = (np.concatenate([inputs for inputs, _ in test]), np.concatenate([labels for _, labels in test]))
    return Nonsmooth(
        cross_entropy, ClientData(train), x0, weights=weights, test=together, metrics={"test_accuracy": accuracy},
        name="synthetic",
    )  # fmt: skip


def _client(rng: np.random.Generator, size: int, alpha: float, beta: float, shared: np.ndarray, iid: bool) -> Part:
    """Draw one client's samples: u ~ N(v_k, Sigma), Sigma_jj = j^-1.2, labelled by its own model without noise."""
    dim, classes = shared.shape[0] - 1, shared.shape[1]
    model = shared if iid else rng.normal(rng.normal(0, alpha), 1, (dim + 1, classes))  # W_k and, last, b_k ~ N(u_k, 1)
    centre = np.zeros(dim) if iid else rng.normal(rng.normal(0, beta), 1, dim)  # v_k ~ N(B_k, 1)
    inputs = rng.normal(centre, np.arange(1, dim + 1) ** -0.6, (size, dim))
    labels = np.argmax(inputs @ model[:-1] + model[-1], axis=1)  # softmax keeps the order
    return inputs.astype(np.float32), labels.astype(np.int32)


def _split(part: Part) -> tuple[Part, Part]:
    """Split one client's samples, which are in random order, into those for training and those for testing."""
    inputs, labels = part
    train = int(TRAINING * len(labels))
    return (inputs[:train], labels[:train]), (inputs[train:], labels[train:])


def _check(alpha: float, beta: float, clients: int, dim: int, classes: int, max_samples: int | None) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not value >= 0:
            raise InputError(f"{name}: found {value!r}; pass a number of zero or more")
    for name, value, least in (("clients", clients, 1), ("dim", dim, 1), ("classes", classes, 2)):
        if not value >= least:
            raise InputError(f"{name}: found {value!r}; pass a whole number of at least {least}")
    if max_samples is not None and max_samples < 10:
        raise InputError(f"max_samples: found {max_samples!r}; pass at least 10, so that each client can train and test")
