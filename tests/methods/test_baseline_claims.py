"""What the papers of the restated baselines prove, on quadratics: fixed points, rates and variances, against NumPy.

All of these methods are linear there, so that what they should do is known exactly, noise included. The coordinates of x (and y)
are problems of their own, alike and each with noise of its own: their mean square is the mean of so many independent runs. It
must agree with what is known at a confidence of 99.9 %. Nothing runs on an engine here: a round is a method's own, over clients
that all take part, and new noise is new data.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedrzo as fz
from fedrzo.federation.client import Client
from fedrzo.methods.fedbioacc import AccState
from fedrzo.methods.hypergradient import Point
from fedrzo.methods.local_sgda import SGDAState
from fedrzo.methods.memfbo import MemState
from fedrzo.problems.curvature import StepConstants

CLIENTS, RUNS = 3, 1000
INTERVAL = stats.chi2.ppf([0.0005, 0.9995], RUNS) / RUNS  # of a mean square: 0.86 to 1.15 of what is expected


class Everyone:
    """All clients in one round, and the mean of what they send."""

    def __init__(self, problem, r):
        self.problem, self.r = problem, r

    def average(self, step, *shared):
        def one(i):
            return step(Client.of(self.problem, i, round=self.r), jax.random.key(0), None, *shared).value

        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.vmap(one)(jnp.arange(CLIENTS)))


@jax.jit
def _advance(method, problem, state, first, last):
    return jax.lax.fori_loop(first, last, lambda r, state: method.round(Everyone(problem, r), state, r), state)


def calm(method, problem, rounds, state=None):
    """Return the server's state after some rounds without noise."""
    with problem.precision():
        state = method.init(problem, None) if state is None else jax.tree.map(jnp.asarray, state)
        return jax.tree.map(np.asarray, _advance(method, problem, state, 0, rounds))


def noisy(method, make, rounds, state=None, first=0):
    """Return the server's state after some rounds, each on clients' samples of its own: `make(rng)`."""
    rng, problem = np.random.default_rng(0), make(None)
    with problem.precision():
        state = method.init(problem, None) if state is None else jax.tree.map(jnp.asarray, state)
        for r in range(first, first + rounds):
            state = _advance(method, make(rng), state, r, r + 1)
        return jax.tree.map(np.asarray, state)


def draw(rng, centres):
    """One sample of each client, around its centre; the centre itself without noise."""
    noise = 0.0 if rng is None else rng.normal(size=(CLIENTS, 1, RUNS))
    return np.broadcast_to(centres[:, None, None] + noise, (CLIENTS, 1, RUNS))


def agrees(values, variance):
    """The mean square over runs is a variance, at a confidence of 99.9 %."""
    low, high = INTERVAL * variance
    assert low < np.mean(values**2) < high


# One level: client i has the loss a_i |x - z|^2 / 2 at a sample z around its c_i.

CENTRES = np.array([1.0, -2.0, 3.0])
CURVATURES, ALIKE = np.array([1.0, 4.0, 2.0]), np.ones(CLIENTS)
SOLUTION = CURVATURES @ CENTRES / CURVATURES.sum()
MIDDLE = CENTRES.mean()


def bowl(x, batch):
    samples, curvature = batch
    return 0.5 * curvature * jnp.sum((x - samples[0]) ** 2)


def bowls(rng, curvatures=ALIKE):
    data = fz.ClientData(list(draw(rng, CENTRES)), fixed=list(curvatures))
    return fz.Nonsmooth(bowl, data, np.zeros(RUNS))


DIFFERING = bowls(None, CURVATURES)


def lfd(modulus, smoothness):
    constants = StepConstants(modulus, smoothness, float(CLIENTS), float(RUNS))
    return fz.LFD(local_steps=3, batch_size="full", constants=constants)


def test_lfd_comes_to_the_solution_where_clients_differ_like_one_over_its_steps():
    """Its theorem: local steps of decreasing length leave no error, though clients differ; steps of equal length do."""
    errors = [abs(calm(lfd(1.0, 4.0), DIFFERING, rounds).x[0] - SOLUTION) for rounds in (200, 800)]
    assert 3.8 < errors[0] / errors[1] < 4.2
    assert errors[1] < 0.005


def test_lfds_error_is_of_the_order_of_one_over_clients_times_steps():
    """Its theorem, of E f - f* with noise in T local steps: 1 / (m T)."""
    found = {}
    for rounds in (40, 160):
        start, variance = -MIDDLE, 0.0
        for r in range(rounds):
            kept = np.prod([1 - 4 / (t + 8 + 3) for t in range(3 * r, 3 * r + 3)])
            start, variance = kept * start, kept**2 * variance + (1 - kept) ** 2 / CLIENTS
        agrees(noisy(lfd(1.0, 1.0), bowls, rounds).x - MIDDLE - start, variance)
        found[rounds] = variance + start**2
    np.testing.assert_allclose(found[40] / found[160], 4, rtol=0.1)


def mspp(eta, curvature):
    return fz.FedMSPP(eta, 1 / (curvature + 1 / eta), 60, batch_size="full")


def test_fedmspp_minimises_the_mean_of_moreau_envelopes_however_clients_differ():
    """Its theorem assumes no likeness of clients: what is left is an error of eta alone, which falls with it."""
    errors = []
    for eta in (0.1, 0.05):
        pull = CURVATURES / (1 + eta * CURVATURES)  # the curvatures of the envelopes
        found = calm(mspp(eta, CURVATURES.max()), DIFFERING, 200).x[0]
        np.testing.assert_allclose(found, pull @ CENTRES / pull.sum(), atol=1e-9)
        errors.append(abs(found - SOLUTION))
    assert 1.7 < errors[0] / errors[1] < 2.1


def test_fedmspps_noise_is_averaged_over_clients():
    """The linear speedup of its theorem, in the clients: each draws a minibatch of its own."""
    kept = 1 / (1 + 0.5)
    agrees(noisy(mspp(0.5, 1.0), bowls, 40).x - MIDDLE, (1 - kept) / (1 + kept) / CLIENTS)


# Two levels, coordinate by coordinate: f_i = p (x-a)^2/2 + q (y-b)^2/2 and g_i = h (y-wx-c)^2/2, with a, b, c sampled.

P, Q, W, H = np.array([[1.0, 3.0, 2.0], [2.0, 1.0, 4.0], [1.0, -0.5, 0.7], [1.0, 2.0, 4.0]])
A_C, B_C, C_C = np.array([[1.0, -1.0, 2.0], [0.5, 2.0, -1.0], [-1.0, 0.0, 2.0]])
NIL = np.zeros(CLIENTS)


def upper(x, y, batch):
    (a, b), (p, q) = batch
    return 0.5 * jnp.sum(p * (x - a[0]) ** 2 + q * (y - b[0]) ** 2)


def lower(x, y, batch):
    c, (w, h) = batch
    return 0.5 * h * jnp.sum((y - w * x - c[0]) ** 2)


def coupled(rng):
    a, b, c = (draw(rng, centres) for centres in (A_C, B_C, C_C))
    data = fz.ClientData(list(zip(a, b, strict=True)), fixed=list(zip(P, Q, strict=True)))
    below = fz.ClientData(list(c), fixed=list(zip(W, H, strict=True)))
    zero = np.zeros(RUNS)
    return fz.Bilevel(upper, lower, data, zero, zero, lower_data=below, modulus=H.mean(), smoothness=H.mean())


class System:
    """The mean direction M z - k at z = (x, y, v), and the variance of k where all clients' samples are drawn anew."""

    def __init__(self, rows, on_samples):
        self.M = np.array(rows).mean(axis=2)
        factors = np.array(on_samples)  # of a, b and c in each row of k, by client
        self.k = np.einsum("rsi,si->r", factors, np.array([A_C, B_C, C_C])) / CLIENTS
        self.variance = np.sum(factors**2, axis=(1, 2)) / CLIENTS**2
        self.solution = np.linalg.solve(self.M, self.k)

    def error(self, z):
        """Where a state is, less the solution, as rows x, y, v."""
        return np.array(z[:3]) - self.solution[:, None]

    def state(self, kind):
        return kind(*(np.full(RUNS, value) for value in self.solution))


SIMFBO = System(
    [[P, NIL, H * W], [-H * W, H, NIL], [NIL, -Q, H]],
    [[P, NIL, NIL], [NIL, NIL, H], [NIL, -Q, NIL]],
)


def memfbo_system(lam):
    """Of x, y and z in f(x, y) + lam (g(x, y) - g(x, z))."""
    return System(
        [[P, -lam * H * W, lam * H * W], [-lam * H * W, Q + lam * H, NIL], [-H * W, NIL, H]],
        [[P, NIL, NIL], [NIL, Q, lam * H], [NIL, NIL, H]],
    )


MEMFBO = memfbo_system(5.0)
SHIFT, SLOPE = H @ C_C / H.sum(), H @ W / H.sum()  # y(x) = SHIFT + SLOPE x
ANSWER = (P @ A_C + SLOPE * (Q @ B_C - Q.sum() * SHIFT)) / (P.sum() + SLOPE**2 * Q.sum())


def simfbo(steps=1, local=0.05):
    server = {"server_stepsize": 0.05, "server_lower_stepsize": 0.1, "server_system_stepsize": 0.1}
    return fz.SimFBO(local, 2 * local, local_steps=steps, batch_size="full", **server)


def memfbo(lam=5.0):
    return fz.MemFBO(0.05, 0.1, lam, 0.1 / lam, 1, "full")


LENGTHS, MEMFBO_LENGTHS = np.array([[0.05, 0.1, 0.1], [0.05, 0.02, 0.1]])[:, :, None]
SINGLE_LOOP = pytest.mark.parametrize(
    ("method", "kind", "system", "lengths"),
    [(simfbo(), Point, SIMFBO, LENGTHS), (memfbo(), MemState, MEMFBO, MEMFBO_LENGTHS)],
    ids=["SimFBO", "MemFBO"],
)


@SINGLE_LOOP
def test_single_loop_methods_rest_at_their_solution_and_come_to_it_linearly(method, kind, system, lengths):
    """With one local step, however clients differ; the rate is the spectral radius of the mean's linear iteration."""
    problem, iteration = coupled(None), np.eye(3) - lengths * system.M
    np.testing.assert_allclose(system.error(calm(method, problem, 10, system.state(kind))), 0, atol=1e-13)
    assert np.abs(np.linalg.eigvals(iteration)).max() < 0.99
    start = system.error(calm(method, problem, 0))[:, 0]
    found = system.error(calm(method, problem, 100))[:, 0]
    np.testing.assert_allclose(found, np.linalg.matrix_power(iteration, 100) @ start, rtol=1e-6)


@SINGLE_LOOP
def test_single_loop_methods_average_the_noise_over_clients(method, kind, system, lengths):
    """The linear speedup of their theorems: one round from the solution, whose directions are noise alone."""
    moved = system.error(noisy(method, coupled, 1, system.state(kind))) / lengths
    for found, variance in zip(moved, system.variance, strict=True):
        agrees(found, variance)


def test_simfbo_solves_the_problem_itself_but_for_the_length_of_several_local_steps():
    """The server's own steps do not enter that error, so that a theorem can have long ones."""
    np.testing.assert_allclose(SIMFBO.solution[0], ANSWER, rtol=1e-12)
    errors = [abs(calm(simfbo(4, local), coupled(None), 400).x[0] - ANSWER) for local in (0.002, 0.001)]
    assert 1.9 < errors[0] / errors[1] < 2.1


def test_memfbo_solves_the_problem_but_for_one_over_its_multiplier():
    errors = []
    for lam in (20.0, 40.0):
        found = calm(memfbo(lam), coupled(None), 1000).x[0]
        np.testing.assert_allclose(found, memfbo_system(lam).solution[0], rtol=1e-8)
        errors.append(abs(found - ANSWER))
    assert 1.8 < errors[0] / errors[1] < 2.2


FEDBIOACC = fz.FedBiOAcc(0.1, 0.2, batch_size="full", momentum=2.0, offset=8.0)


def test_fedbioacc_solves_the_problem_itself():
    errors = [np.abs(SIMFBO.error(calm(FEDBIOACC, coupled(None), rounds))).max() for rounds in (0, 300)]
    assert errors[1] < 1e-2 * errors[0]


def test_fedbioaccs_momenta_lose_their_noise_as_the_steps_shrink():
    """STORM: the error of a momentum is (1 - c a^2) times the last one plus c a^2 noise, so that its variance falls like a_t^2,
    which is t^(-2/3); that of a plain direction does not fall at all."""
    share = [2.0 / (8.0 + t) ** (2 / 3) for t in range(129)]
    factor = np.zeros(130)
    for t in range(1, 129):
        factor[t + 1] = (1 - share[t]) ** 2 * factor[t] + share[t] ** 2
    # From round 1 on, with exact momenta: round 0 begins with each client's own first direction.
    zero = np.zeros((3, RUNS))
    start = AccState(*zero, Point(*(zero - SIMFBO.k[:, None])))
    for rounds in (16, 128):
        state = noisy(FEDBIOACC, coupled, rounds, start, first=1)
        error = np.array(state.momentum) - (SIMFBO.M @ np.array(state[:3]) - SIMFBO.k[:, None])
        for found, variance in zip(error, SIMFBO.variance, strict=True):
            agrees(found, factor[rounds + 1] * variance)
    np.testing.assert_allclose(factor[129] / factor[17], (136 / 24) ** (-2 / 3), rtol=0.2)


# Minimax, coordinate by coordinate: client i has the loss x^2/2 + y (t x + b) - y^2/2, with b sampled.

T = np.array([0.5, 1.0, 1.8])


def saddle(x, y, batch):
    samples, t = batch
    return jnp.sum(0.5 * x**2 + y * (t * x + samples[0]) - 0.5 * y**2)


def saddles(rng):
    data = fz.ClientData(list(draw(rng, CENTRES)), fixed=list(T))
    return fz.Minimax(saddle, data, np.full(RUNS, 3.0), np.zeros(RUNS), modulus=1.0, smoothness=1.0)


def sgda(stepsize, ascent, steps=1):
    return fz.LocalSGDA(stepsize, ascent, steps, "full", momentum=3.0, ascent_momentum=2.0, damping=0.2)


def test_momentum_sgda_rests_at_the_saddle_point_and_comes_to_it_linearly():
    """As the plain method does; the rate is the spectral radius of the iteration in (x, y, dx, dy)."""
    problem, t, alpha, down, up = saddles(None), T.mean(), 0.2, 0.3, 0.6
    y = MIDDLE / (1 + t**2)
    point = np.array([-t * y, y, 0.0, 0.0])
    at_rest = SGDAState(*(np.full(RUNS, value) for value in point))
    np.testing.assert_allclose(calm(sgda(down, up), problem, 10, at_rest), np.array(at_rest), atol=1e-14)
    move = np.array([[1, 0, -alpha * down, 0], [0, 1, 0, alpha * up]])
    gradients = np.array([[1, t], [t, -1]]) @ move  # at the new point
    new, kept = np.diag([3 * alpha, 2 * alpha]), np.diag([1 - 3 * alpha, 1 - 2 * alpha])
    iteration = np.vstack([move, new @ gradients + kept @ np.eye(4)[2:]])
    assert np.abs(np.linalg.eigvals(iteration)).max() < 0.99
    expected = np.linalg.matrix_power(iteration, 100) @ (np.array([3.0, 0.0, 0.0, 0.0]) - point)
    np.testing.assert_allclose(np.array(calm(sgda(down, up), problem, 100))[:, 0] - point, expected, rtol=1e-6)


def test_momentum_sgdas_directions_average_the_noise_over_time_and_clients():
    """At a point that all but stays, dy has the gradient as its mean, and beta alpha / (2 - beta alpha) of its variance."""
    rounds, share = 40, 2.0 * 0.2
    state = noisy(sgda(1e-9, 1e-9), saddles, rounds)
    left = (1 - share) ** rounds
    agrees(state.dy - (1 - left) * (T.mean() * 3.0 + MIDDLE), share / (2 - share) * (1 - left**2) / CLIENTS)
    np.testing.assert_allclose(state.dx, (1 - (1 - 3.0 * 0.2) ** rounds) * 3.0, rtol=1e-7)
