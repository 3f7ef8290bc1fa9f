"""The problem of `benchmarks/privacy.py`: handwritten digits at 10 silos, and a network of one hidden layer.

Images of 28 x 28 pixels are averaged over squares of 2 x 2, and have 196; with 32 hidden neurons (ReLU) that makes 6,634
parameters. Pixels are divided by public constants, about what the mean and the deviation of all of MNIST's are: a mean that is
taken over the silos' own records would be one more number that tells something about them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz

HIDDEN, CLASSES = 32, 10
MEAN, DEVIATION = 0.13, 0.29  # of pixels between 0 and 1, after averaging

Parameters = dict[str, jax.Array]


def logits(x: Parameters, images: jax.Array) -> jax.Array:
    """Return ten logits for each image."""
    hidden = jnp.maximum(_times(images, x["first"]) + x["bias1"], 0)
    return _times(hidden, x["second"]) + x["bias2"]


def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    # Accelerators otherwise round float32 products to fewer bits, which differences of losses cannot afford.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def cross_entropy(x: Parameters, batch: Any) -> jax.Array:
    """The mean cross-entropy of a batch of images and labels."""
    images, labels = batch
    scores = jax.nn.log_softmax(logits(x, images))
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


def accuracy(x: Parameters, test: Any) -> jax.Array:
    """The share of test images whose class has the largest logit."""
    images, labels = test
    return jnp.mean(jnp.argmax(logits(x, images), axis=1) == labels)


class Digits(NamedTuple):
    """What silos hold, and what all are tested on."""

    images: np.ndarray  # silos by records by pixels
    labels: np.ndarray  # silos by records
    test: tuple[np.ndarray, np.ndarray]
    x0: dict[str, np.ndarray]

    @property
    def silos(self) -> int:
        """How many there are."""
        return len(self.labels)

    @property
    def records(self) -> int:
        """Of each silo."""
        return self.labels.shape[1]

    @property
    def dim(self) -> int:
        """How many parameters the network has."""
        return sum(leaf.size for leaf in self.x0.values())

    def problem(self) -> fz.Nonsmooth:
        """State it for the library."""
        data = fz.ClientData(list(zip(self.images, self.labels, strict=True)))
        return fz.Nonsmooth(
            cross_entropy, data, self.x0, test=self.test, metrics={"accuracy": accuracy},
            monitored={"train_accuracy": accuracy}, name="private digits",
        )  # fmt: skip


def digits(silos: int, records: int, seed: int, folder: str | None = None, name: str = "mnist") -> Digits:
    """Deal `silos` times `records` training images out at random."""
    loaded = fz.data.load(name, root=folder)
    rows = np.random.default_rng(seed).permutation(len(loaded.y_train))[: silos * records].reshape(silos, records)
    images = pooled(loaded.x_train)
    test = pooled(loaded.x_test), loaded.y_test
    return Digits(images[rows], loaded.y_train[rows], test, first_weights(images.shape[1], seed))


def pooled(images: np.ndarray) -> np.ndarray:
    """Average over squares of 2 x 2 pixels, and shift and scale what comes out."""
    side = int(np.sqrt(images.shape[1]))
    squares = images.reshape(-1, side // 2, 2, side // 2, 2).mean(axis=(2, 4))
    return ((squares.reshape(len(images), -1) - MEAN) / DEVIATION).astype(np.float32)


def first_weights(pixels: int, seed: int) -> dict[str, np.ndarray]:
    """Return random first weights, and biases of zero."""
    rng = np.random.default_rng(seed)

    def layer(inputs: int, outputs: int) -> np.ndarray:
        return (rng.normal(size=(inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)

    return {
        "first": layer(pixels, HIDDEN), "bias1": np.zeros(HIDDEN, np.float32),
        "second": layer(HIDDEN, CLASSES), "bias2": np.zeros(CLASSES, np.float32),
    }  # fmt: skip
