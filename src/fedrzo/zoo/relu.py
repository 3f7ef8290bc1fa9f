"""The paper's Section 5.1: a two-layer ReLU network on images, with labels in {-1, 1}.

As printed, minimise 1/(2m) sum_i sum_{l in S_i} (v_l - sum_q w_q relu(Z_q u_l))^2 + lambda/2 (|Z|_F^2 + |w|^2): a sum over each
client's samples, so that the loss and gamma = 1e-5 are tied to the size of the data. Losses here are means over a batch; the
factor |S_i| is carried along as a fixed value of each client, so that the paper's step sizes mean the same. `scale="mean"` drops
it. Rows of Z are neurons (the paper writes columns). How ten classes become two is not printed: even against odd.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import data as datasets
from fedrzo.clientdata import ClientData
from fedrzo.errors import InputError
from fedrzo.problems import Nonsmooth

Parameters = dict[str, jax.Array]


def network(x: Parameters, images: jax.Array) -> jax.Array:
    """The two-layer network: w' relu(Z u) for each image u."""
    return jnp.maximum(images @ x["Z"].T, 0) @ x["w"]


class ReluLoss:
    """The regularised squared loss of the network; equal settings compare equal, so that compiled code is shared."""

    def __init__(self, regularisation: float) -> None:
        self.regularisation = regularisation

    def __call__(self, x: Parameters, batch: Any) -> jax.Array:
        """Return the loss of one batch; its last part is the factor that turns means into the paper's sums."""
        (images, labels), size = batch
        errors = labels - network(x, images)
        penalty = jnp.sum(x["Z"] ** 2) + jnp.sum(x["w"] ** 2)
        return size / 2 * jnp.mean(errors**2) + self.regularisation / 2 * penalty

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReluLoss) and self.regularisation == other.regularisation

    def __hash__(self) -> int:
        return hash((ReluLoss, self.regularisation))


def accuracy(x: Parameters, test: Any) -> jax.Array:
    """The share of test images whose sign is right."""
    (images, labels), _ = test
    return jnp.mean(jnp.sign(network(x, images)) == labels)


def relu_digits(
    clients: int = 5, neurons: int = 4, regularisation: float = 0.01, split: str = "dirichlet", alpha: float = 0.5,
    seed: int = 0, scale: str = "mean", data: str | None = None,
) -> Nonsmooth:  # fmt: skip
    """ReLU network on scikit-learn's 8 x 8 digits, even against odd (n = 260 with 4 neurons)."""
    return _relu("digits", clients, neurons, regularisation, split, alpha, seed, scale, data)


def relu_mnist(
    clients: int = 5, neurons: int = 4, regularisation: float = 0.01, split: str = "dirichlet", alpha: float = 0.5,
    seed: int = 0, scale: str = "mean", data: str | None = None,
) -> Nonsmooth:  # fmt: skip
    """ReLU network on MNIST, even against odd (n = 3,140 with 4 neurons)."""
    return _relu("mnist", clients, neurons, regularisation, split, alpha, seed, scale, data)


def relu_cifar10(
    clients: int = 5, neurons: int = 4, regularisation: float = 0.01, split: str = "dirichlet", alpha: float = 0.5,
    seed: int = 0, scale: str = "mean", data: str | None = None,
) -> Nonsmooth:  # fmt: skip
    """ReLU network on CIFAR-10, even against odd class numbers (n = 12,292 with 4 neurons)."""
    return _relu("cifar10", clients, neurons, regularisation, split, alpha, seed, scale, data)


def _relu(
    name: str, clients: int, neurons: int, regularisation: float, split: str, alpha: float, seed: int, scale: str,
    folder: str | None,
) -> Nonsmooth:  # fmt: skip
    check_scale(scale)
    loaded = datasets.load(name, root=folder)
    labels = datasets.even_odd(loaded.y_train).astype(np.float32)
    parts = split_rows(split, loaded.y_train, clients, alpha, seed)
    samples = [(loaded.x_train[rows], labels[rows]) for rows in parts]
    sizes = [np.float32(len(rows) if scale == "sum" else 1.0) for rows in parts]
    test = ((loaded.x_test, datasets.even_odd(loaded.y_test).astype(np.float32)), np.float32(1.0))
    x0 = initial_network(loaded.x_train.shape[1], neurons, seed)
    return Nonsmooth(
        ReluLoss(regularisation), ClientData(samples, fixed=sizes), x0, test=test, metrics={"test_accuracy": accuracy},
        name=f"relu-{name}",
    )  # fmt: skip


def check_scale(scale: str) -> None:
    """Refuse anything but means and sums over local data."""
    if scale not in ("mean", "sum"):
        raise InputError(f'scale: found {scale!r}; pass "mean", or "sum" for the paper\'s sums over local data')


def initial_network(pixels: int, neurons: int, seed: int) -> dict[str, np.ndarray]:
    """Return random weights, so that neurons differ, scaled so that the network starts with outputs of order one."""
    rng = np.random.default_rng(seed)
    return {
        "Z": rng.normal(0, 1 / np.sqrt(pixels), (neurons, pixels)).astype(np.float32),
        "w": rng.normal(0, 1 / np.sqrt(neurons), neurons).astype(np.float32),
    }


def split_rows(split: str, labels: np.ndarray, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Return each client's rows, dealt out by the split of this name."""
    if split == "iid":
        return datasets.iid(labels, clients, seed)
    if split == "dirichlet":
        return datasets.dirichlet(labels, clients, alpha, seed)
    raise InputError(f'split: found {split!r}; pass "dirichlet" or "iid"')
