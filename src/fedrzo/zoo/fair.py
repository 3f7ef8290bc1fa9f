"""The paper's Section 5.3, fair classification: the network of Section 5.1 against an adversary that weighs the classes.

The printed formula lacks the weights y_c; meant is min_x max_y sum_c y_c loss_c(x) - lambda/2 |y|^2, as in M. Nouiehed,
M. Sanjabi, T. Huang, J. D. Lee, M. Razaviyayn: "Solving a class of non-convex min-max games using iterative first order
methods", NeurIPS 2019. There y lies on the simplex; the paper leaves it free, whereupon y(x) = loss(x) / lambda. The paper's sums
over local data are means here unless `scale="sum"`: loss_c is the mean over clients of what class c adds to a client's mean
squared error.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import data as datasets
from fedrzo import sets
from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError
from fedrzo.problems.minimax import Minimax
from fedrzo.zoo.relu import Parameters, initial_network, network, sizes_of
from fedrzo.zoo.samples import on_dataset, split_rows

CLASSES = 10


@dataclass(frozen=True)
class FairLoss:
    """Section 5.3's loss with the class weights; equal settings compare equal, so that compiled code is shared."""

    regularisation: float

    def __call__(self, x: Parameters, y: jax.Array, batch: Any) -> jax.Array:
        """Return the loss of one batch; its last part is the factor that turns means into the paper's sums."""
        (images, labels, classes), size = batch
        errors = (labels - network(x, images)) ** 2
        return size * jnp.mean(y[classes] * errors) - self.regularisation / 2 * jnp.sum(y**2)

    def known_labels(self, x: Parameters, samples: Any) -> tuple[Any, Any]:
        """Return the samples' classes, and those that there are weights for."""
        return samples[2], np.arange(CLASSES)


def network_accuracy(x: Parameters, y: jax.Array, test: Any) -> jax.Array:
    """The share of test images whose sign is right."""
    (images, labels, _), _ = test
    return jnp.mean(jnp.sign(network(x, images)) == labels)


def worst_class(x: Parameters, y: jax.Array, test: Any) -> jax.Array:
    """The largest mean squared error of a class on test data, which is what fairness is about."""
    (images, labels, classes), _ = test
    members = jax.nn.one_hot(classes, y.size)
    errors = (labels - network(x, images)) ** 2 @ members
    return jnp.max(errors / jnp.maximum(jnp.sum(members, axis=0), 1))


def fair_classification(
    name: str, clients: int = 5, neurons: int = 4, regularisation: float = 0.1, simplex: bool = False,
    split: str = "dirichlet", alpha: float = 0.5, seed: int = 0, scale: str | float = "mean", data: str | None = None,
) -> Minimax:  # fmt: skip
    """Return Section 5.3's problem on a data set of ten classes. None of these numbers is in the paper.

    The lower level is quadratic with Hessian lambda: one full-batch step solves it, `LocalSGD(rounds=1, batch_size="full")`.

    Args:
        name: of the data set.
        clients: how many there are.
        neurons: of the network.
        regularisation: lambda. At 0.1, ten classes that share a squared error of one have weights of order one.
        simplex: keep y on the simplex, where it is in the source of this problem.
        split: how samples are dealt out, `"dirichlet"` (clients differ in classes) or `"iid"`.
        alpha: of the Dirichlet split.
        seed: of the split and of the first weights.
        scale: `"mean"`, `"sum"` for the paper's sums over local data, or a factor.
        data: the folder where the data are, if not in the usual places.
    """
    if not regularisation > 0:
        raise InputError(f"regularisation: found {regularisation!r}; pass a positive number, or no maximum exists")
    loaded = datasets.load(name, root=data)
    parts = split_rows(split, loaded.y_train, clients, alpha, seed)
    samples = [_labelled(loaded.x_train[rows], loaded.y_train[rows]) for rows in parts]
    sizes = sizes_of(scale, parts)
    return Minimax(
        FairLoss(regularisation), ClientData(samples, fixed=sizes),
        initial_network(loaded.x_train.shape[1], neurons, seed), np.full(CLASSES, 1 / CLASSES),
        lower_constraint=sets.Simplex(1.0) if simplex else None, modulus=regularisation, smoothness=regularisation,
        test=(_labelled(loaded.x_test, loaded.y_test), np.float32(1.0)),
        metrics={"test_accuracy": network_accuracy, "worst_class": worst_class}, name=f"fair-{name}",
    )  # fmt: skip


ABOUT = "A ReLU network against an adversary that weighs ten classes: {}, even against odd."
fair_digits = on_dataset(fair_classification, "digits", ABOUT.format("scikit-learn's digits"))
fair_mnist = on_dataset(fair_classification, "mnist", ABOUT.format("MNIST"))


def _labelled(images: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images with their two-class label and the class they are of."""
    return images, datasets.even_odd(classes), classes
