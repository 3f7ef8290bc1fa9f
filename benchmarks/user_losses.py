"""Losses that users write, with data of their shape: what `benchmarks/losses.py` measures. The library knows none of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz

SAMPLES = 64  # of each client
DRAWN = 64  # samples of each client over which a sampler's loss is monitored


class Row(NamedTuple):
    """A problem as its user states it, and what the plain version needs to know of it."""

    name: str
    loss: Callable[[Any, Any], jax.Array]  # the mean over a batch
    x0: Any
    clients: int
    batch_size: int
    data: Any = None  # arrays with clients and samples in front
    sampler: Callable[[jax.Array, Any], Any] | None = None  # in place of data
    sets: Any = None  # what `constraint` is given
    project: Callable[[jax.Array, Any], jax.Array] | None = None  # the plain version's own projection, for a client

    @property
    def dim(self) -> int:
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self.x0))

    def problem(self) -> fz.Nonsmooth:
        if self.sampler is not None:
            data = fz.Sampler(self.sampler, clients=self.clients, evaluation=DRAWN)
        else:
            data = fz.ClientData([jax.tree.map(lambda leaf, i=i: leaf[i], self.data) for i in range(self.clients)])
        return fz.Nonsmooth(self.loss, data, self.x0, self.sets)


def linear_data(n: int, clients: int, seed: int = 0, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Features of unit variance, and targets that a sparse vector explains, with noise of heavy tails."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(clients, SAMPLES, n))
    truth = rng.normal(size=n) * (rng.random(n) < 0.2) / np.sqrt(n)
    targets = features @ truth + 0.1 * rng.standard_t(3, (clients, SAMPLES)) + 0.1 * rng.normal(size=(clients, 1))
    return features.astype(dtype), targets.astype(dtype)


def quantile(x: jax.Array, batch: Any) -> jax.Array:
    features, targets = batch
    rest = targets - features @ x
    return jnp.mean(jnp.maximum(0.8 * rest, -0.2 * rest))


def quantile_row(n: int, clients: int, batch: int) -> Row:
    box = fz.sets.Box(-1.0, 1.0)
    data = linear_data(n, clients)
    return Row("quantile in a box", quantile, np.zeros(n), clients, batch, data, None, box, lambda x, i: jnp.clip(x, -1, 1))


def quantile_drawn(n: int, clients: int, batch: int) -> Row:
    def sample(key: jax.Array, client: Any) -> Any:
        first, second = jax.random.split(key)
        features = jax.random.normal(first, (n,))
        return features, jnp.sum(features[:3]) + client / clients + 0.1 * jax.random.normal(second)

    return Row("quantile, drawn on demand", quantile, np.zeros(n), clients, batch, sampler=sample)


def logistic(x: jax.Array, batch: Any) -> jax.Array:
    features, targets = batch
    return jnp.mean(jnp.logaddexp(0.0, -jnp.sign(targets) * (features @ x))) + 0.01 * jnp.sum(jnp.abs(x))


def logistic_row(n: int, clients: int, batch: int) -> Row:
    return Row("logistic with l1", logistic, np.zeros(n, np.float32), clients, batch, linear_data(n, clients, 1, np.float32))


def huber(x: jax.Array, batch: Any) -> jax.Array:
    features, targets = batch
    rest = jnp.abs(targets - features @ x)
    return jnp.mean(jnp.where(rest < 0.2, rest**2 / 0.4, rest - 0.1))


def huber_row(n: int, clients: int, batch: int) -> Row:
    """Every client has a ball of its own."""
    centres = np.random.default_rng(3).normal(size=(clients, n)) * 0.1 / np.sqrt(n)

    def project(x: jax.Array, i: Any) -> jax.Array:
        away = x - jnp.asarray(centres)[i]
        return jnp.asarray(centres)[i] + away * jnp.minimum(1.0, 0.5 / jnp.linalg.norm(away))

    balls = [fz.sets.Ball(centre, 0.5) for centre in centres]
    return Row("Huber, private balls", huber, np.zeros(n), clients, batch, linear_data(n, clients, 2), None, balls, project)


def hinge(x: Any, batch: Any) -> jax.Array:
    features, targets = batch
    margin = jnp.sign(targets) * (features @ x["w"] + x["b"])
    return jnp.mean(jnp.maximum(0.0, 1.0 - margin)) + 0.01 * jnp.sum(x["w"] ** 2)


def hinge_row(n: int, clients: int, batch: int) -> Row:
    x0 = {"w": np.zeros(n - 1, np.float32), "b": np.float32(0)}
    return Row("SVM's hinge", hinge, x0, clients, batch, linear_data(n - 1, clients, 4, np.float32))


def factorisation(x: Any, batch: Any) -> jax.Array:
    user, item, rating = batch
    return jnp.mean(jnp.abs(rating - jnp.sum(x["users"][user] * x["items"][item], axis=-1)))


def factorisation_row(users: int, items: int, rank: int, clients: int, batch: int) -> Row:
    rng = np.random.default_rng(5)
    shape = (clients, SAMPLES)
    data = rng.integers(users, size=shape), rng.integers(items, size=shape), rng.normal(size=shape).astype(np.float32)
    x0 = {name: rng.normal(0, 0.3, (size, rank)).astype(np.float32) for name, size in (("users", users), ("items", items))}
    return Row("matrix factorisation", factorisation, x0, clients, batch, data)


def dense(rng: np.random.Generator, *sizes: int) -> list[dict[str, np.ndarray]]:
    """Weights and biases of a network with layers of such sizes."""
    return [
        {"w": rng.normal(0, 1 / np.sqrt(a), (a, b)).astype(np.float32), "b": np.zeros(b, np.float32)}
        for a, b in itertools.pairwise(sizes)
    ]


def network(activation: Callable) -> Callable:
    """The absolute error of a network of dense layers."""

    def loss(x: Any, batch: Any) -> jax.Array:
        values, targets = batch
        for layer in x[:-1]:
            values = activation(values @ layer["w"] + layer["b"])
        return jnp.mean(jnp.abs((values @ x[-1]["w"] + x[-1]["b"])[:, 0] - targets))

    return loss


RELU, GELU = network(jax.nn.relu), network(jax.nn.gelu)


def network_row(name: str, loss: Callable, sizes: tuple[int, ...], clients: int, batch: int) -> Row:
    data = linear_data(sizes[0], clients, 6, np.float32)
    return Row(name, loss, dense(np.random.default_rng(7), *sizes, 1), clients, batch, data)


def convolution(x: Any, batch: Any) -> jax.Array:
    images, labels = batch
    values = jax.lax.conv_general_dilated(images[..., None], x["k"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    logits = jnp.reshape(jax.nn.relu(values), (images.shape[0], -1)) @ x["w"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))


def convolution_row(side: int, channels: int, clients: int, batch: int) -> Row:
    rng = np.random.default_rng(8)
    images = rng.normal(size=(clients, SAMPLES, side, side)).astype(np.float32)
    inside = channels * ((side + 1) // 2) ** 2
    x0 = {
        "k": rng.normal(0, 0.3, (3, 3, 1, channels)).astype(np.float32),
        "w": rng.normal(0, 1 / np.sqrt(inside), (inside, 10)).astype(np.float32),
    }
    labels = rng.integers(10, size=(clients, SAMPLES))
    return Row("a small convolution", convolution, x0, clients, batch, (images, labels))


def rows() -> list[Callable[[], Row]]:
    """Return the list, as functions: data of all rows at once would be gigabytes."""
    return [
        *(lambda a=a: quantile_row(*a) for a in [(3, 5, 8), (100, 20, 8), (1000, 20, 16), (10_000, 10, 16)]),
        *(lambda a=a: quantile_drawn(*a) for a in [(3, 5, 8), (100, 20, 8), (2000, 20, 8)]),
        *(lambda a=a: logistic_row(*a) for a in [(10, 10, 16), (300, 20, 32), (5000, 20, 16), (30_000, 5, 16)]),
        *(lambda a=a: huber_row(*a) for a in [(5, 10, 4), (200, 20, 16), (5000, 10, 16)]),
        *(lambda a=a: hinge_row(*a) for a in [(4, 50, 8), (500, 10, 16), (20_000, 10, 8)]),
        *(lambda a=a: factorisation_row(*a) for a in [(20, 10, 2, 10, 16), (500, 250, 4, 10, 32), (5000, 5000, 10, 5, 64)]),
        *(
            lambda a=a: network_row("ReLU network", RELU, *a)
            for a in [((10, 8), 5, 8), ((784, 4), 5, 1), ((784, 4), 5, 32), ((784, 40), 10, 32), ((784, 384), 5, 32)]
        ),
        *(
            lambda a=a: network_row("GELU network", GELU, *a)
            for a in [((8, 16, 16), 10, 16), ((64, 96, 64), 10, 32), ((128, 256, 256), 5, 32)]
        ),
        *(lambda a=a: convolution_row(*a) for a in [(8, 4, 5, 8), (14, 8, 10, 16), (28, 32, 5, 16)]),
    ]


def crowded_rows() -> list[Callable[[], Row]]:
    """Return rows with many clients, as GPUs are for: minutes a row on two cores."""
    return [
        lambda: quantile_row(1000, 1000, 16),
        lambda: logistic_row(300, 5000, 32),
        lambda: huber_row(200, 2000, 16),
        lambda: factorisation_row(500, 250, 4, 1000, 32),
        *(lambda b=b: network_row("ReLU network", RELU, (784, 4), 5000, b) for b in (1, 32)),
        lambda: network_row("ReLU network", RELU, (784, 384), 100, 32),
        *(lambda m=m: network_row("GELU network", GELU, (128, 256, 256), m, 32) for m in (100, 1000)),
        lambda: convolution_row(14, 8, 1000, 16),
    ]
