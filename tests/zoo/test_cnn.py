"""The convolutional network, against a plain computation and on the real images."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate

import fedrzo as fz
from fedrzo import zoo
from fedrzo.zoo import cnn

DATA = Path(__file__).resolve().parents[2].parent / "shared/data"
real = pytest.mark.skipif(not (DATA / "mnist").exists(), reason="needs the MNIST files beside the checkout")


def by_hand(x, image):
    """The network on one image, by SciPy, in float64."""
    maps = image.reshape(28, 28, 1).astype(float)
    for layer in ("1", "2"):
        kernel = x[f"kernel{layer}"].astype(float)
        channels = []
        for out in range(kernel.shape[-1]):
            padded = np.pad(maps, ((2, 2), (2, 2), (0, 0)))
            channels.append(correlate(padded, kernel[..., out], mode="valid")[..., 0] + x[f"bias{layer}"][out])
        maps = np.maximum(np.stack(channels, axis=-1), 0)
        half = maps.shape[0] // 2
        maps = maps.reshape(half, 2, half, 2, -1).max(axis=(1, 3))
    return maps.ravel() @ x["dense"].astype(float) + x["bias3"]


def test_the_network_is_the_one_described():
    x = cnn.initial_weights(0)
    assert sum(leaf.size for leaf in x.values()) == 28_938
    assert {leaf.dtype for leaf in x.values()} == {np.dtype(np.float32)}
    images = np.random.default_rng(1).normal(size=(3, 784)).astype(np.float32)
    expected = np.stack([by_hand(x, image) for image in images])
    np.testing.assert_allclose(cnn.network(x, images), expected, atol=1e-5)
    labels = np.array([3, 1, 9])
    scores = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(cnn.cross_entropy(x, (images, labels)), -scores[range(3), labels].mean(), rtol=1e-5)
    right = (expected.argmax(axis=1) == labels).mean()
    assert float(cnn.accuracy(x, (images, labels))) == pytest.approx(right)


def test_large_batches_in_parts_give_the_same():
    x = cnn.initial_weights(0)
    images = np.random.default_rng(1).normal(size=(cnn.AT_A_TIME + 3, 784)).astype(np.float32)
    whole = jax.jit(cnn.network)(x, images)
    parts = [jax.jit(cnn.network)(x, jnp.asarray(images[i : i + 1])) for i in (0, 100, len(images) - 1)]
    np.testing.assert_allclose(whole[np.array([0, 100, -1])], np.concatenate(parts), atol=1e-5)


@real
@pytest.mark.slow("trains a network")
def test_mnist_is_split_standardised_and_learnt():
    problem = zoo.make("cnn-mnist", clients=4, samples=400, test_samples=100, data=str(DATA))
    assert (problem.dim, problem.clients) == (28_938, 4)
    images, labels = (np.asarray(column) for column in problem.data.flat)
    assert images.shape == (400, 784)
    np.testing.assert_allclose([images.mean(), images.std()], [0, 1], atol=1e-5)
    assert problem.test[0].shape == (100, 784)
    assert set(labels) == set(range(10))
    history = fz.run(fz.LocalSGD(0.1, 5, batch_size=16), problem, 8, eval_every=8, progress=False).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["test_accuracy"][-1] > 0.6  # ten classes: 0.1 by chance


@real
def test_a_dirichlet_split_differs_in_classes():
    problem = zoo.make("cnn-mnist", clients=3, split="dirichlet", alpha=0.1, samples=300, data=str(DATA))
    assert problem.test[0].shape == (10_000, 784)
    assert problem.data.samples == 300
    labels = np.asarray(problem.data.flat[1])
    counts = [np.bincount(labels[o : o + s], minlength=10) for o, s in zip(problem.data.offsets, problem.data.sizes, strict=True)]
    assert np.min(counts) == 0


@real
@pytest.mark.parametrize("option", ["samples", "test_samples"])
def test_bad_options(option):
    with pytest.raises(fz.InputError, match=f"{option}: found 70000; pass a whole number from 1 to"):
        zoo.make("cnn-mnist", data=str(DATA), **{option: 70_000})
