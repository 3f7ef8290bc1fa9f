"""Clients' strongly convex quadratics as the lower level of a bilevel problem, with its closed-form answer."""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz

CLIENTS, Q = 4, 3


def lower_data():
    """Heterogeneous strongly convex quadratics, Hessian eigenvalues 1 to 10: h_i(x, y) = 1/2 (y-c_i-x)' A_i (y-c_i-x)."""
    rng = np.random.default_rng(0)
    fixed = []
    for _ in range(CLIENTS):
        basis = np.linalg.qr(rng.normal(size=(Q, Q)))[0]
        fixed.append((basis @ np.diag(rng.uniform(1, 10, Q)) @ basis.T, rng.normal(size=Q)))
    return fz.ClientData([np.zeros((2, 1))] * CLIENTS, fixed=fixed)


DATA = lower_data()


def upper(x, y, batch):
    return 0.5 * jnp.sum((y - 1) ** 2) + 0.05 * jnp.sum(x**2)


def lower(x, y, batch):
    _, (A, c) = batch
    return 0.5 * (y - c - x) @ A @ (y - c - x)


def quadratic(**changes):
    return fz.Bilevel(**{"loss": upper, "lower": lower, "data": DATA, "x0": np.zeros(Q), "y0": np.zeros(Q), **changes})


def exact_y(x):
    A, c = (np.asarray(part) for part in DATA.fixed)
    return np.linalg.solve(A.sum(0), np.einsum("ijk,ik->j", A, c)) + x


def optimum():
    base = exact_y(np.zeros(Q))
    x = (1 - base) / 1.1
    return x, 0.5 * np.sum((base + x - 1) ** 2) + 0.05 * np.sum(x**2)


LOWER = fz.LocalSGD(batch_size="full", rounds=20)
