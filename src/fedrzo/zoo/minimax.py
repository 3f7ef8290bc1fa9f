"""Minimax problems with closed-form answers: a nonconvex-strongly-concave toy, and FedNest's synthetic one.

`fednest-minimax` is Fig. 4 of D. A. Tarzanagh, M. Li, C. Thrampoulidis, S. Oymak: "FedNest: Federated Bilevel, Minimax, and
Compositional Optimization", ICML 2022, as its formula says.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.problems.minimax import Minimax
from fedrzo.support.numbers import check_counts

WAVE = 1.0  # amplitude of the nonconvex part of `ncsc`


def wavy(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """The loss of `ncsc`: cosines in x, and y coupled to an affine image of x; samples shift the image."""
    noise, (A, b) = batch
    return WAVE * jnp.sum(jnp.cos(x)) + y @ (A @ x + b + jnp.mean(noise, axis=0)) - 0.5 * jnp.sum(y**2)


def stationarity(x: jax.Array, y: jax.Array, test: Any) -> jax.Array:
    """The length of the gradient of Phi(x) = max_y f(x, y), which is that of f in x at the best y."""
    return jnp.linalg.norm(jax.grad(wavy)(x, y, test))


def ncsc(
    clients: int = 5, dim: int = 6, lower_dim: int = 4, samples: int = 8, heterogeneity: float = 0.5, noise: float = 0.1,
    seed: int = 0,
) -> Minimax:  # fmt: skip
    """Nonconvex in x, strongly concave in y: Phi(x) = sum cos(x) + |A x + b|^2 / 2 with the clients' mean A and b.

    Args:
        clients: how many there are.
        dim: of x.
        lower_dim: of y; below `dim`, so that Phi keeps directions in which it is not convex.
        samples: per client.
        heterogeneity: how much the clients' A_i and b_i differ; 0 for clients that are alike.
        noise: of the samples; its mean over a client is zero.
        seed: of all draws.
    """
    check_counts(clients=clients, dim=dim, lower_dim=lower_dim, samples=samples)
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(lower_dim, dim)) / np.sqrt(dim), rng.normal(size=lower_dim)
    As = A + heterogeneity * _centred(rng.normal(size=(clients, lower_dim, dim))) / np.sqrt(dim)
    bs = b + heterogeneity * _centred(rng.normal(size=(clients, lower_dim)))
    shifts = noise * rng.normal(size=(clients, samples, lower_dim))
    shifts -= shifts.mean(axis=1, keepdims=True)
    return Minimax(
        wavy, ClientData(list(shifts), fixed=list(zip(As, bs, strict=True))), np.full(dim, 0.5), np.zeros(lower_dim),
        modulus=1.0, smoothness=1.0, test=(np.zeros((1, lower_dim)), (A, b)), metrics={"stationarity": stationarity},
        name="ncsc",
    )  # fmt: skip


def best_y(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Return the maximiser of `ncsc` at x."""
    A, b = _means(problem)
    return A @ x + b


def phi(problem: Problem, x: np.ndarray) -> float:
    """Return Phi of `ncsc`."""
    return WAVE * float(np.sum(np.cos(x))) + 0.5 * float(np.sum(best_y(problem, x) ** 2))


def grad_phi(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Return the gradient of Phi of `ncsc`."""
    return -WAVE * np.sin(x) + _means(problem)[0].T @ best_y(problem, x)


@dataclass(frozen=True)
class Coupled:
    """FedNest's minimax loss; equal settings compare equal, so that compiled code is shared."""

    regularisation: float

    def __call__(self, x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
        """Return -|y|^2/2 - b'y + t y'x + lambda/2 |x|^2; there is nothing to sample."""
        _, (t, b) = batch
        return -0.5 * jnp.sum(y**2) - b @ y + t * (y @ x) + self.regularisation / 2 * jnp.sum(x**2)


def fednest_minimax(
    clients: int = 1000, dim: int = 10, s: float = 1.0, regularisation: float = 0.1, centred: bool = True, seed: int = 0
) -> Minimax:
    """FedNest's synthetic minimax problem, a thousand clients by default: `answer` gives its saddle point.

    b_i ~ N(0, s_i^2 I) with s_i ~ U(0, 2 s), A_i = t_i I with t_i ~ U(0, 0.1), x and y start at 10. Each client has a single
    sample: what is random is who takes part. The authors' notebook subtracts from each b_i the mean of its own entries, and
    measures the distance to zero.

    Args:
        clients: how many there are.
        dim: of x and of y.
        s: the spread of the b_i; 1 and 10 in the figure.
        regularisation: lambda; 0.1 in one cell of the notebook, 10 in a comment of another.
        centred: subtract from each b_i the mean over clients, whereupon the saddle point is zero.
        seed: of all draws.
    """
    check_counts(clients=clients, dim=dim)
    for option, value in (("s", s), ("regularisation", regularisation)):
        if not value > 0:
            raise InputError(f"{option}: found {value!r}; pass a positive number")
    rng = np.random.default_rng(seed)
    b = rng.uniform(0, 2 * s, size=(clients, 1)) * rng.normal(size=(clients, dim))
    b = _centred(b) if centred else b
    t = rng.uniform(0, 0.1, size=clients)
    return Minimax(
        Coupled(float(regularisation)), ClientData([np.zeros((1, 1))] * clients, fixed=list(zip(t, b, strict=True))),
        np.full(dim, 10.0), np.full(dim, 10.0), modulus=1.0, smoothness=1.0, name="fednest-minimax",
    )  # fmt: skip


def answer(problem: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the saddle point (x, y) of `fednest-minimax`, with A = t I and b the means over clients.

    y = t x - b maximises, and t y + lambda x = 0, hence x = t b / (t^2 + lambda).
    """
    if problem.name != "fednest-minimax":
        raise InputError(f"problem: {problem.name!r} has no closed-form answer here; see phi and grad_phi for ncsc")
    t, b = _means(problem)
    x = t * b / (t**2 + problem.loss_fn.regularisation)
    return x, t * x - b


def _means(problem: Any) -> tuple[np.ndarray, ...]:
    """Return the means over clients of what is fixed for each."""
    return tuple(np.mean(np.asarray(part, float), axis=0) for part in problem.data.fixed)


def _centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean(axis=0)
