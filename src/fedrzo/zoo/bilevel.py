"""The paper's Section 5.2, hyper-parameter learning, and a bilevel problem with a closed-form answer.

Client i has an l2 weight x_i >= floor. The model y minimises, over all clients, the mean logistic loss on training data plus
x_i |y|^2 / 2; x minimises the mean logistic loss on validation data. The paper prints sums over local data. Since all clients
share y, only the mean of the x_i matters, and since f sees x through y alone, local steps with a delayed y are one longer step:
`direct` is there to tell them apart.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import data as datasets
from fedrzo import sets
from fedrzo.data.client_data import ClientData
from fedrzo.errors import InputError
from fedrzo.problems.bilevel import Bilevel
from fedrzo.support.numbers import check_counts
from fedrzo.zoo.samples import known_signs, knows, on_dataset, split_rows


@jax.custom_jvp
def softplus(z: jax.Array) -> jax.Array:
    """ln(1 + exp(z)). Its derivative is taken as one sigmoid; JAX's own way there takes two exponentials and a logarithm."""
    return jnp.logaddexp(0.0, z)


@softplus.defjvp
def _slope(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0]


def logistic(y: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean logistic loss of a linear model."""
    return jnp.mean(softplus(-labels * (images @ y)))


@knows(known_signs)
def validation_loss(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """Section 5.2's upper loss; x enters through y alone."""
    return logistic(y, *batch)


@knows(known_signs)
def training_loss(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """Section 5.2's lower loss; a batch carries the client's index, which says whose weight to use."""
    samples, client = batch
    return logistic(y, *samples) + x[client] / 2 * jnp.sum(y**2)


def linear_accuracy(x: jax.Array, y: jax.Array, test: Any) -> jax.Array:
    """The share of test images whose sign is right."""
    images, labels = test
    return jnp.mean(jnp.sign(images @ y) == labels)


def hyper_parameters(
    name: str, clients: int = 5, floor: float = 0.01, start: float = 0.3, training: int = 20, validation: float = 0.25,
    split: str = "dirichlet", alpha: float = 0.5, seed: int = 0, data: str | None = None,
) -> Bilevel:  # fmt: skip
    """Return Section 5.2's problem on a data set of ten classes. None of these numbers is in the paper.

    Args:
        name: of the data set.
        clients: how many there are, hence also how many weights.
        floor: X = {x >= floor}. It is the lower level's modulus; at 0.01 its condition number is some hundreds.
        start: all weights at the start, well above the best ones so that there is something to learn.
        training: samples that each client trains on at most; with all of the digits, the best weight is below any usable floor.
        validation: the share of each client's samples that is kept for the upper level.
        split: how samples are dealt out, `"dirichlet"` (clients differ in classes) or `"iid"`.
        alpha: of the Dirichlet split.
        seed: of the splits.
        data: the folder where the data are, if not in the usual places.
    """
    if not floor > 0:
        raise InputError(f"floor: found {floor!r}; pass a positive number, or the lower level is not strongly convex")
    if not start >= floor:
        raise InputError(f"start: found {start!r}, below the floor {floor!r}; start inside X")
    loaded = datasets.load(name, root=data)
    labels = datasets.even_odd(loaded.y_train)
    parts = split_rows(split, loaded.y_train, clients, alpha, seed)
    held, used = _hold_out(parts, validation, training, seed)
    upper, lower = ([(loaded.x_train[rows], labels[rows]) for rows in group] for group in (held, used))
    domain = sets.Box(floor, np.inf)
    return Bilevel(
        validation_loss, training_loss, ClientData(upper), np.full(clients, float(start)), np.zeros(loaded.x_train.shape[1]),
        constraint=domain, lower_data=ClientData(lower, fixed=[np.int32(i) for i in range(clients)]),
        # x+v and x-v leave X: without this some client's loss could lose its strong convexity there.
        lower_domain=domain, modulus=floor, smoothness=logistic_smoothness(*(images for images, _ in lower)) + start,
        test=(loaded.x_test, datasets.even_odd(loaded.y_test)), metrics={"test_accuracy": linear_accuracy},
        name=f"hyper-{name}",
    )  # fmt: skip


ABOUT = "One l2 weight per client, learnt on validation data: {}, even against odd."
hyper_digits = on_dataset(hyper_parameters, "digits", ABOUT.format("scikit-learn's digits"))
hyper_mnist = on_dataset(hyper_parameters, "mnist", ABOUT.format("MNIST"))


def logistic_smoothness(*parts: np.ndarray) -> float:
    """Return the smoothness of the mean logistic loss: a quarter of the largest eigenvalue of the second moments."""
    moments = np.mean([part.T.astype(float, copy=False) @ part / len(part) for part in parts], axis=0)
    return float(np.linalg.eigvalsh(moments)[-1]) / 4


def _hold_out(parts: list[np.ndarray], share: float, most: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split each client's samples at random into those held out and at most so many of the others."""
    if not 0 < share < 1:
        raise InputError(f"validation: found {share!r}; pass a share between 0 and 1")
    check_counts(training=most)
    rng = np.random.default_rng(seed)
    held, used = [], []
    for i, rows in enumerate(parts):
        if len(rows) < 2:
            raise InputError(f"clients: client {i} of {len(parts)} has one sample for two levels; use fewer, or a larger alpha")
        rows = rng.permutation(rows)
        cut = min(max(1, round(share * len(rows))), len(rows) - 1)
        held.append(np.sort(rows[:cut]))
        used.append(np.sort(rows[cut : cut + most]))
    return held, used


def nearness(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """The upper loss of `direct`: both x and y should be near the samples."""
    a, b = batch
    return 0.5 * jnp.mean(jnp.sum((x - a) ** 2, axis=-1) + jnp.sum((y - b) ** 2, axis=-1))


def following(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """The lower loss of `direct`: y follows a linear image of x, each client's by its own matrix and strength."""
    shift, (B, strength) = batch
    return 0.5 * strength * jnp.mean(jnp.sum((y - B @ x - shift) ** 2, axis=-1))


def direct(clients: int = 4, dim: int = 5, lower_dim: int = 3, samples: int = 8, seed: int = 0) -> Bilevel:
    """A loss that depends on x directly and through y: the minimiser solves a linear system, see `direct_answer`."""
    check_counts(clients=clients, dim=dim, lower_dim=lower_dim, samples=samples)
    rng = np.random.default_rng(seed)
    upper, lower, fixed = [], [], []
    for i in range(clients):  # clients differ in centres, matrices and strengths
        a, b, shift = (rng.normal(size=n) + 0.5 * rng.normal(size=(samples, n)) for n in (dim, lower_dim, lower_dim))
        upper.append((a, b))
        lower.append(shift)
        fixed.append((rng.normal(size=(lower_dim, dim)), 1.0 + i))
    strength = float(np.mean([k for _, k in fixed]))
    return Bilevel(
        nearness, following, ClientData(upper), np.zeros(dim), np.zeros(lower_dim),
        lower_data=ClientData(lower, fixed=fixed), modulus=strength, smoothness=strength, name="direct",
    )  # fmt: skip


def direct_answer(problem: Bilevel) -> np.ndarray:
    """Return the minimiser of a `direct` problem: y(x) = B x + c is affine, so (I + B'B) x = a + B'(b - c)."""
    a, b = (np.asarray(part).mean(axis=0) for part in problem.data.flat)  # type: ignore[union-attr]
    matrices, strengths = (np.asarray(part) for part in problem.lower_data.fixed)  # type: ignore[union-attr]
    shares = strengths / strengths.sum()
    B = np.tensordot(shares, matrices, 1)
    shifts = np.asarray(problem.lower_data.flat).reshape(problem.clients, -1, len(b)).mean(axis=1)  # type: ignore[union-attr]
    return np.linalg.solve(np.eye(len(a)) + B.T @ B, a + B.T @ (b - shares @ shifts))


def quadratic_upper(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """The upper loss of `coupled`: both x and y should be near the samples, by each client's own norms."""
    (a, b), (P, Q) = batch
    return 0.5 * jnp.mean(_form(P, x - a) + _form(Q, y - b))


def quadratic_lower(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """The lower loss of `coupled`: y follows a linear image of x, by each client's own norm."""
    shift, (B, H) = batch
    return 0.5 * jnp.mean(_form(H, y - B @ x - shift))


def _form(matrix: jax.Array, rows: jax.Array) -> jax.Array:
    return jnp.sum((rows @ matrix) * rows, axis=-1)


def coupled(
    clients: int = 4, dim: int = 4, lower_dim: int = 3, samples: int = 6, condition: float = 4.0, seed: int = 0
) -> Bilevel:
    """Quadratics whose Hessians differ from client to client, in both levels: the answer is `coupled_answer`.

    An average of the clients' own hypergradients is not the hypergradient here, so that local methods are seen to be biased.
    Hessians have eigenvalues between 1 and `condition`.
    """
    check_counts(clients=clients, dim=dim, lower_dim=lower_dim, samples=samples)
    if not condition >= 1:
        raise InputError(f"condition: found {condition!r}; pass a number of at least 1")
    rng = np.random.default_rng(seed)

    def hessian(n: int) -> np.ndarray:
        basis = np.linalg.qr(rng.normal(size=(n, n)))[0]
        return basis @ np.diag(rng.uniform(1, condition, n)) @ basis.T

    upper, lower, upper_fixed, lower_fixed = [], [], [], []
    for _ in range(clients):
        a, b, shift = (rng.normal(size=n) + 0.5 * rng.normal(size=(samples, n)) for n in (dim, lower_dim, lower_dim))
        upper.append((a, b))
        lower.append(shift)
        upper_fixed.append((hessian(dim), hessian(lower_dim)))
        lower_fixed.append((rng.normal(size=(lower_dim, dim)), hessian(lower_dim)))
    modulus, smoothness = np.linalg.eigvalsh(np.mean([H for _, H in lower_fixed], axis=0))[[0, -1]]
    return Bilevel(
        quadratic_upper, quadratic_lower, ClientData(upper, fixed=upper_fixed), np.zeros(dim), np.zeros(lower_dim),
        lower_data=ClientData(lower, fixed=lower_fixed), modulus=float(modulus), smoothness=float(smoothness), name="coupled",
    )  # fmt: skip


def coupled_answer(problem: Bilevel) -> np.ndarray:
    """Return the minimiser of a `coupled` problem: y(x) = B x + c is affine, so (P + B'QB) x = p + B'(q - Q c)."""
    m, upper, lower = problem.clients, problem.data, problem.lower_data
    means = (np.asarray(part).reshape(m, -1, np.shape(part)[-1]).mean(axis=1) for part in (*upper.flat, lower.flat))  # type: ignore[union-attr]
    (P, Q), (B, H) = ([np.asarray(part) for part in data.fixed] for data in (upper, lower))  # type: ignore[union-attr]
    p, q, h = (np.einsum("ijk,ik->j", M, z) / m for M, z in zip((P, Q, H), means, strict=True))
    P, Q, H, HB = P.mean(0), Q.mean(0), H.mean(0), (H @ B).mean(0)
    B, c = np.linalg.solve(H, HB), np.linalg.solve(H, h)
    return np.linalg.solve(P + B.T @ Q @ B, p + B.T @ (q - Q @ c))
