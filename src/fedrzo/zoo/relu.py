"""The paper's Section 5.1: a two-layer ReLU network on images, with labels in {-1, 1}.

As printed, minimise 1/(2m) sum_i sum_{l in S_i} (v_l - sum_q w_q relu(Z_q u_l))^2 + lambda/2 (|Z|_F^2 + |w|^2): a sum over each
client's samples, so that the loss and gamma = 1e-5 are tied to the size of the data. Losses here are means over a batch; the
factor |S_i| is carried along as a fixed value of each client, so that the paper's step sizes mean the same. `scale="mean"` drops
it; a number takes its place, for sums over minibatches of that many samples. Rows of Z are neurons (the paper writes columns).
How ten classes become two is not printed: even against odd. With `beta`, softplus takes the place of ReLU in what is minimised,
and the ReLU loss is monitored as `relu_loss`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import data as datasets
from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.zoo.samples import on_dataset, split_rows

Parameters = dict[str, jax.Array]


def network(x: Parameters, images: jax.Array, beta: float | None = None) -> jax.Array:
    """The two-layer network: w' relu(Z u) for each image u; with a beta, softplus ln(1 + exp(beta z)) / beta for relu."""
    inputs = images @ x["Z"].T
    hidden = jnp.maximum(inputs, 0) if beta is None else jnp.logaddexp(0, beta * inputs) / beta
    return hidden @ x["w"]


@dataclass(frozen=True)
class ReluLoss:
    """The regularised squared loss of the network; equal settings compare equal, so that compiled code is shared."""

    regularisation: float
    beta: float | None = None

    def __call__(self, x: Parameters, batch: Any) -> jax.Array:
        """Return the loss of one batch; its last part is the factor that turns means into the paper's sums."""
        (images, labels), size = batch
        errors = labels - network(x, images, self.beta)
        penalty = jnp.sum(x["Z"] ** 2) + jnp.sum(x["w"] ** 2)
        return size / 2 * jnp.mean(errors**2) + self.regularisation / 2 * penalty


def accuracy(x: Parameters, test: Any) -> jax.Array:
    """The share of test images whose sign is right."""
    (images, labels), _ = test
    return jnp.mean(jnp.sign(network(x, images)) == labels)


def relu_network(
    name: str, clients: int = 5, neurons: int = 4, regularisation: float = 0.01, split: str = "dirichlet", alpha: float = 0.5,
    seed: int = 0, scale: str | float = "mean", beta: float | None = None, data: str | None = None,
) -> Nonsmooth:  # fmt: skip
    """Return Section 5.1's problem on a data set of ten classes."""
    loaded = datasets.load(name, root=data)
    labels = datasets.even_odd(loaded.y_train).astype(np.float32)
    parts = split_rows(split, loaded.y_train, clients, alpha, seed)
    samples = [(loaded.x_train[rows], labels[rows]) for rows in parts]
    sizes = sizes_of(scale, parts)
    test = ((loaded.x_test, datasets.even_odd(loaded.y_test).astype(np.float32)), np.float32(1.0))
    if beta is not None and not beta > 0:
        raise InputError(f"beta: found {beta!r}; pass a positive number for softplus, or None for ReLU")
    x0 = initial_network(loaded.x_train.shape[1], neurons, seed)
    # A surrogate is minimised in place of the ReLU loss, by which it is then judged.
    judge = {} if beta is None else {"relu_loss": ReluLoss(regularisation)}
    return Nonsmooth(
        ReluLoss(regularisation, beta), ClientData(samples, fixed=sizes), x0, test=test,
        metrics={"test_accuracy": accuracy}, monitored=judge, name=f"relu-{name}" if beta is None else f"softplus-{name}",
    )  # fmt: skip


relu_digits = on_dataset(
    relu_network, "digits", "ReLU network on scikit-learn's 8 x 8 digits, even against odd (n = 260 with 4 neurons)."
)
relu_mnist = on_dataset(relu_network, "mnist", "ReLU network on MNIST, even against odd (n = 3,140 with 4 neurons).")
relu_cifar10 = on_dataset(
    relu_network, "cifar10", "ReLU network on CIFAR-10, even against odd class numbers (n = 12,292 with 4 neurons)."
)


def sizes_of(scale: str | float, parts: list[np.ndarray]) -> list[np.float32]:
    """Return the factor by which each client's mean loss is multiplied."""
    if isinstance(scale, int | float) and not isinstance(scale, bool) and scale > 0:
        return [np.float32(scale)] * len(parts)
    if scale not in ("mean", "sum"):
        raise InputError(
            f'scale: found {scale!r}; pass "mean", "sum" for the paper\'s sums over local data, or a positive factor'
        )
    return [np.float32(len(rows) if scale == "sum" else 1.0) for rows in parts]


def initial_network(pixels: int, neurons: int, seed: int) -> dict[str, np.ndarray]:
    """Return random weights, so that neurons differ, scaled so that the network starts with outputs of order one."""
    rng = np.random.default_rng(seed)
    return {
        "Z": rng.normal(0, 1 / np.sqrt(pixels), (neurons, pixels)).astype(np.float32),
        "w": rng.normal(0, 1 / np.sqrt(neurons), neurons).astype(np.float32),
    }
