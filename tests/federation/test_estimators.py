"""The two-point estimator against closed forms, its variance against the paper's bound, and its rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import fedrzo as fz
from fedrzo.federation import directions
from fedrzo.federation.client import Client
from fedrzo.federation.estimators import estimate_two_sided, measure_noise
from fedrzo.problems.inputs import one_sample
from fedrzo.problems.start import check_start

N, ETA = 5, 0.3
A = np.array([0.5, -1.0, 2.0, 0.3, 0.8])
X = np.array([0.1, 0.2, -0.05, 0.3, 0.0])


def client_of(loss, x0=X):
    return Client.of(fz.Nonsmooth(loss, fz.ClientData([np.zeros((1, 1))]), x0), 0)


def draws(loss, count=40_000, x=X, eta=ETA):
    with jax.enable_x64(True):
        client = client_of(loss, x)
        keys = jax.random.split(jax.random.key(1), count)
        batch = client.sample(keys[0], 1)
        return np.asarray(jax.vmap(lambda k: estimate_two_sided(client, k[None], jnp.asarray(x), batch, eta)[0])(keys))


def slab_probability(t, n=N):
    """P(u_1 <= t) for u uniform in the unit BALL of R^n: the marginal density is proportional to (1 - t^2)^((n-1)/2)."""
    density = lambda s: (1 - s * s) ** ((n - 1) / 2)  # noqa: E731
    whole = integrate.quad(density, -1, 1)[0]
    return integrate.quad(density, -1, np.clip(t, -1, 1))[0] / whole


def absolute(x, batch):
    return jnp.abs(jnp.dot(A, x))


def hinge(x, batch):
    return jnp.maximum(0.0, 1 - jnp.dot(A, x))


def smoothed_gradient_of_absolute(x):
    # d/dx E|a'(x + eta u)| = a (2 P(a'(x + eta u) > 0) - 1), u in the ball.
    return A * (1 - 2 * slab_probability(-A @ x / (ETA * np.linalg.norm(A))))


def smoothed_gradient_of_hinge(x):
    return -A * slab_probability((1 - A @ x) / (ETA * np.linalg.norm(A)))


Q = np.diag([1.0, 2.0, 3.0, 4.0, 5.0])
CLOSED = {
    "linear": (lambda x, b: jnp.dot(A, x), lambda x: A),
    "quadratic": (lambda x, b: 0.5 * x @ Q @ x, lambda x: Q @ x),
    "absolute": (absolute, smoothed_gradient_of_absolute),
    "hinge": (hinge, smoothed_gradient_of_hinge),
}


@pytest.mark.parametrize("name", CLOSED)
def test_mean_is_the_gradient_of_the_smoothed_loss(name):
    """Each coordinate within 4.5 standard errors: a false alarm has probability below 4e-5."""
    loss, gradient = CLOSED[name]
    x = X if name != "hinge" else X + 0.35  # near the kink, where smoothing matters
    found = draws(loss, x=x)
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - gradient(x)) < 4.5 * error + 1e-12)
    assert np.all(error < 0.05 * np.linalg.norm(A) + 0.01)


@pytest.mark.parametrize("n", [2, 20, 200])
def test_second_moment_is_within_the_papers_bound(n):
    """E||g||^2 <= 16 sqrt(2 pi) L0^2 n for an L0-Lipschitz loss, here |a'x| with L0 = ||a||, at its kink."""
    a = np.ones(n) / np.sqrt(n)
    found = draws(lambda x, b: jnp.abs(jnp.dot(a, x)) + 0.5 * jnp.sum(a * x), count=4000, x=np.zeros(n))
    second = np.mean(np.sum(found**2, axis=1))
    assert 0.05 * n < second < 16 * np.sqrt(2 * np.pi) * 1.5**2 * n


def test_several_directions_average():
    with jax.enable_x64(True):
        client = client_of(CLOSED["quadratic"][0])
        key, x = jax.random.key(2), jnp.asarray(X)
        batch = client.sample(key, 1)
        singles = []
        for j in range(3):
            v = directions.sphere(jax.random.fold_in(key, j), N, ETA, jnp.float64)
            singles.append(N / (2 * ETA**2) * client.difference(x, v, batch) * v)
        keys = jnp.stack([jax.random.fold_in(key, j) for j in range(3)])
        found = estimate_two_sided(client, keys, x, batch, ETA)[0]
        np.testing.assert_allclose(found, np.mean(singles, axis=0), rtol=1e-12)


def test_directions_are_uniform_on_the_sphere():
    """Radius exact; mean, covariance and a projection's distribution right, each at 99.9 % confidence or more."""
    n, count = 6, 20_000
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), count)
        v = np.asarray(jax.vmap(lambda k: directions.sphere(k, n, 0.7, jnp.float64))(keys)) / 0.7
    np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1.0, rtol=1e-12)
    assert np.all(np.abs(v.mean(axis=0)) < 4.5 / np.sqrt(n * count))
    covariance = v.T @ v / count
    assert np.abs(covariance - np.eye(n) / n).max() < 4.5 * np.sqrt(2) / (n * np.sqrt(count))
    # A squared coordinate of a uniform direction is Beta(1/2, (n-1)/2), along any axis.
    axis = np.ones(n) / np.sqrt(n)
    assert stats.kstest((v @ axis) ** 2, stats.beta(0.5, (n - 1) / 2).cdf).pvalue > 1e-3


def network_problem(neurons, pixels, dtype=np.float32, offset=0.0):
    """The paper's CIFAR-sized network on one made-up image."""
    rng = np.random.default_rng(0)
    image = rng.uniform(0, 1, (1, pixels)).astype(dtype)

    def loss(x, batch):
        outputs = jnp.maximum(batch @ x["Z"].T, 0) @ x["w"]
        return offset + 0.5 * jnp.mean((1 - outputs) ** 2) + 0.005 * (jnp.sum(x["Z"] ** 2) + jnp.sum(x["w"] ** 2))

    x0 = {
        "Z": rng.normal(0, 1 / np.sqrt(pixels), (neurons, pixels)).astype(dtype),
        "w": rng.normal(0, 1 / np.sqrt(neurons), neurons).astype(dtype),
    }
    return fz.Nonsmooth(loss, fz.ClientData([image]), x0)


def test_rounding_stays_below_the_statistical_noise_at_the_papers_largest_network():
    """n = 307,300, eta = 1e-3, float32."""
    problem = network_problem(100, 3072)
    assert problem.dim == 307_300
    noise = measure_noise(problem, one_sample(problem.data), problem.x0, 1e-3)
    assert 0 < noise.rounding < noise.statistical


def test_the_user_is_told_where_rounding_wins():
    problem = network_problem(100, 3072, offset=1e5)  # a large constant eats the digits
    method = fz.FedRZOnn(1e-5, 1e-3)
    noise = measure_noise(problem, one_sample(problem.data), problem.x0, 1e-3)
    assert noise.rounding >= noise.statistical
    with pytest.warns(UserWarning, match=r"smoothing: at 0.001 the rounding noise .* exceeds its statistical noise"):
        check_start(problem, method)


def test_measured_rounding_is_the_spread_of_repeated_estimates():
    """Independent check of the measurement: float32 against float64 differences over fresh directions."""
    problem = network_problem(4, 200, offset=3.0)
    eta = 1e-3
    noise = measure_noise(problem, one_sample(problem.data), problem.x0, eta, draws=64)
    rng = np.random.default_rng(5)
    image = np.asarray(problem.data.flat)
    errors = []
    for _ in range(64):
        v = rng.standard_normal(problem.dim)
        v *= eta / np.linalg.norm(v)
        sides = {}
        for dtype in (np.float32, np.float64):
            with jax.enable_x64(dtype == np.float64):
                x, step = problem.x0.astype(dtype), v.astype(dtype)
                f = [float(problem.value(jnp.asarray(p), jnp.asarray(image.astype(dtype)))) for p in (x + step, x - step)]
            sides[dtype] = f[0] - f[1]
        errors.append(sides[np.float32] - sides[np.float64])
    spread = problem.dim / (2 * eta) * np.sqrt(np.mean(np.square(errors)))
    assert 0.6 < noise.rounding / spread < 1.6
