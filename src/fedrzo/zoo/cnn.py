"""A small convolutional network on MNIST, ten classes: the network that DeComFL's authors train (28,938 parameters).

Two convolutions (16 and 32 kernels of 5 x 5, the size of the image kept), each followed by a ReLU and the largest of every
2 x 2 pixels; then one dense layer. Images are standardised by the mean and deviation of all training pixels. Weights start
uniform within 1/sqrt(inputs) of zero.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import data as datasets
from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.zoo.samples import knows, split_rows

SIDE = 28
CLASSES = 10
KERNEL = 5
CHANNELS = (16, 32)
# Images looked at together: a full batch would take 50 kB for each in the first layer alone.
AT_A_TIME = 256

Parameters = dict[str, jax.Array]


def network(x: Parameters, images: jax.Array) -> jax.Array:
    """Return ten logits for each image; large batches are walked through in parts."""
    if images.shape[0] <= AT_A_TIME:
        return _logits(x, images)
    return jax.lax.map(lambda image: _logits(x, image[None])[0], images, batch_size=AT_A_TIME)


def _logits(x: Parameters, images: jax.Array) -> jax.Array:
    maps = images.reshape(-1, SIDE, SIDE, 1)
    for layer in ("1", "2"):
        maps = jnp.maximum(_largest(_convolved(maps, x["kernel" + layer])) + x["bias" + layer], 0)
    return _times(maps.reshape(maps.shape[0], -1), x["dense"]) + x["bias3"]


def _convolved(maps: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve, the size kept, as one matrix product for each row of the kernel.

    Clients and perturbed points each have kernels of their own; libraries are slow at that, but fast at products.
    """
    side, margin = maps.shape[1], KERNEL // 2
    padded = jnp.pad(maps, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    shifted = jnp.concatenate([padded[:, :, j : j + side] for j in range(KERNEL)], axis=-1)
    rows = kernel.reshape(KERNEL, -1, kernel.shape[-1])
    return sum((_times(shifted[:, i : i + side], rows[i]) for i in range(1, KERNEL)), _times(shifted[:, :side], rows[0]))


def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    # Accelerators otherwise round float32 products to fewer bits, which differences of losses cannot afford.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _largest(maps: jax.Array) -> jax.Array:
    """Keep the largest of every 2 x 2 pixels."""
    images, side, _, channels = maps.shape
    return jnp.max(maps.reshape(images, side // 2, 2, side // 2, 2, channels), axis=(2, 4))


@knows(lambda x, samples: (samples[1], np.arange(CLASSES)))
def cross_entropy(x: Parameters, batch: Any) -> jax.Array:
    """The mean cross-entropy of a batch of images and labels."""
    images, labels = batch
    scores = jax.nn.log_softmax(network(x, images))
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


def accuracy(x: Parameters, test: Any) -> jax.Array:
    """The share of test images whose class has the largest logit."""
    images, labels = test
    return jnp.mean(jnp.argmax(network(x, images), axis=1) == labels)


def cnn_mnist(
    clients: int = 10, split: str = "iid", alpha: float = 1.0, seed: int = 0, samples: int | None = None,
    test_samples: int | None = None, data: str | None = None,
) -> Nonsmooth:  # fmt: skip
    """A convolutional network on MNIST, ten classes (n = 28,938).

    Args:
        clients: how many share the training images.
        split: how they are dealt out, `"iid"` or `"dirichlet"` (clients differ in classes).
        alpha: of the Dirichlet split.
        seed: of the split and of the first weights.
        samples: use only the first so many of the 60,000 training images, which also makes monitoring cheap.
        test_samples: monitor only the first so many of the 10,000 test images.
        data: the folder with the files, if they are not in the usual places.
    """
    loaded = datasets.load("mnist", root=data)
    images, labels = _first(loaded.x_train, loaded.y_train, samples, "samples")
    mean, deviation = images.mean(dtype=np.float64), images.std(dtype=np.float64)
    parts = split_rows(split, labels, clients, alpha, seed)
    held = [(_standardised(images[rows], mean, deviation), labels[rows]) for rows in parts]
    tested, test_labels = _first(loaded.x_test, loaded.y_test, test_samples, "test_samples")
    return Nonsmooth(
        cross_entropy, ClientData(held), initial_weights(seed), test=(_standardised(tested, mean, deviation), test_labels),
        metrics={"test_accuracy": accuracy}, name="cnn-mnist",
    )  # fmt: skip


def initial_weights(seed: int) -> dict[str, np.ndarray]:
    """Return random first weights and biases, in float32."""
    rng = np.random.default_rng(seed)
    first, second = CHANNELS
    pixels = second * (SIDE // 4) ** 2
    shapes = {"1": (KERNEL, KERNEL, 1, first), "2": (KERNEL, KERNEL, first, second), "3": (pixels, CLASSES)}
    weights = {}
    for layer, shape in shapes.items():
        bound = 1 / np.sqrt(np.prod(shape[:-1]))
        weights["dense" if layer == "3" else "kernel" + layer] = rng.uniform(-bound, bound, shape).astype(np.float32)
        weights["bias" + layer] = rng.uniform(-bound, bound, shape[-1]).astype(np.float32)
    return weights


def _first(images: np.ndarray, labels: np.ndarray, number: int | None, argument: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the first so many images and labels, or all."""
    if number is None:
        return images, labels
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(images):
        raise InputError(f"{argument}: found {number!r}; pass a whole number from 1 to {len(images)}, or None for all")
    return images[:number], labels[:number]


def _standardised(images: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    return ((images - mean) / deviation).astype(np.float32)
