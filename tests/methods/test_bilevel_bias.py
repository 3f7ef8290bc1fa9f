"""The in-round bias of FedRZO_bl for H > 1 (docs/bilevel.md), on a quadratic where it has a closed form."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz

N = 4
A = np.diag([1.0, 2.0, 3.0, 4.0])
B = np.arange(12.0).reshape(3, N) / 10
b = np.array([1.0, -1.0, 0.5])
X0 = np.array([0.4, -0.3, 0.2, 0.5])
GAMMA, ETA = 0.02, 0.3


def problem():
    """f(x, y) = 1/2 x'Ax + b'y with y(x) = Bx, met exactly by one lower step."""
    return fz.Bilevel(
        lambda x, y, batch: 0.5 * x @ A @ x + jnp.dot(b, y),
        lambda x, y, batch: 0.5 * jnp.sum((y - B @ x) ** 2),
        fz.ClientData([np.zeros((1, 1))] * 2), X0, np.zeros(3), modulus=1.0, smoothness=1.0,
    )  # fmt: skip


@pytest.mark.slow("4,000 seeds")
def test_second_local_step_is_biased_as_the_closed_form_says():
    """All local steps share v, so x after one step depends on it: E g_1 = s - gamma n/(n+2) (2A + tr(A) I) s, where the
    gradient at the mean of x_1 would be s - gamma A s. Each coordinate within 4.5 standard errors over 4,000 seeds."""
    method = fz.FedRZObl(GAMMA, ETA, 2, lower=fz.LocalSGD(batch_size="full", rounds=1), closing=False)
    sweep = fz.sweep(method, problem(), 1, seeds=4000, progress=False)
    steps = np.array([result.x for result in sweep.results[0]]) - X0
    mean, error = steps.mean(axis=0), steps.std(axis=0, ddof=1) / np.sqrt(len(steps))
    s = A @ X0 + B.T @ b
    biased = -GAMMA * (2 * s - GAMMA * N / (N + 2) * (2 * A + np.trace(A) * np.eye(N)) @ s)
    unbiased = -GAMMA * (2 * s - GAMMA * A @ s)
    assert np.all(np.abs(mean - biased) < 4.5 * error)
    assert np.any(np.abs(mean - unbiased) > 4.5 * error)


@pytest.mark.slow("thousands of estimates")
def test_first_local_step_is_unbiased():
    method = fz.FedRZObl(GAMMA, ETA, 1, lower=fz.LocalSGD(batch_size="full", rounds=1), closing=False)
    sweep = fz.sweep(method, problem(), 1, seeds=1000, progress=False)
    steps = np.array([result.x for result in sweep.results[0]]) - X0
    mean, error = steps.mean(axis=0), steps.std(axis=0, ddof=1) / np.sqrt(len(steps))
    assert np.all(np.abs(mean + GAMMA * (A @ X0 + B.T @ b)) < 4.5 * error)
