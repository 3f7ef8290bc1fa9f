"""Local SGDA and its momentum version, against closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from conformance import OF_VARIANTS, Case, suite
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.zoo import minimax

OPTIMUM = -3.9023248  # of the toy
MOMENTUM = {"momentum": 3.0, "ascent_momentum": 2.0, "damping": 0.2}


def toy(wrap):
    plain = minimax.ncsc(clients=4)
    return fz.Minimax(
        wrap(minimax.wavy),
        plain.data,
        plain.x0,
        plain.y0,
        constraint=fz.sets.Box(-4.0, 4.0),
        lower_constraint=fz.sets.Box(-1.5, 1.5),
    )


def case(**momentum):
    method = fz.LocalSGDA(0.05, 0.1, 4, batch_size=2, **momentum)
    changes = {"stepsize": 0.03, "ascent": 0.2, "local_steps": 3}
    if momentum:
        changes |= {"momentum": 2.5, "damping": 0.25}
    return Case(method, toy, rounds=80, descent=0.1, optimum=OPTIMUM, changes=changes)


test_conformance = pytest.mark.slow("the suite of a baseline")(suite(case()))
test_conformance_with_momentum = pytest.mark.slow("long runs")(suite(case(**MOMENTUM), OF_VARIANTS))


def test_the_optimum_used_above_is_the_toys():
    """Projected gradient descent on its Phi in NumPy: with |y_i| <= 3/2, the maximum over y is Huber's function."""
    plain = minimax.ncsc(clients=4)
    A, b = (np.asarray(part).mean(0) for part in plain.data.fixed)
    x = np.asarray(plain.x0)
    for _ in range(3000):
        x = np.clip(x - 0.1 * (-np.sin(x) + A.T @ np.clip(A @ x + b, -1.5, 1.5)), -4, 4)
    y = np.clip(A @ x + b, -1.5, 1.5)
    np.testing.assert_allclose(np.sum(np.cos(x)) + y @ (A @ x + b) - y @ y / 2, OPTIMUM, atol=1e-5)


def final_state(method, problem, rounds):
    """Return the server's own state, y included, and the costs."""
    with problem.precision():
        session = Simulation().start([method], problem, [jax.random.key(0)], None)
        session.advance(rounds)
        return session.states()[0], session.costs()[0]


def by_hand(problem, rounds, steps, down, up, lo, hi, momentum=None):
    """Rounds of full-batch local steps, in NumPy, client by client; y in a box, x in another."""
    As, bs = (np.asarray(part) for part in problem.data.fixed)
    x, y = np.asarray(problem.x0, float), np.asarray(problem.y0, float)
    dx, dy = np.zeros_like(x), np.zeros_like(y)
    for _ in range(rounds):
        ends = []
        for A, b in zip(As, bs, strict=True):
            xi, yi, dxi, dyi = x, y, dx, dy
            for _ in range(steps):
                xi, yi = np.clip(xi, lo, hi), np.clip(yi, -0.5, 0.5)
                if momentum is None:
                    gx, gy = -np.sin(xi) + A.T @ yi, A @ xi + b - yi
                    xi, yi = xi - down * gx, yi + up * gy
                    continue
                beta_x, beta_y, alpha = momentum
                xi, yi = xi - alpha * down * dxi, yi + alpha * up * dyi
                px, py = np.clip(xi, lo, hi), np.clip(yi, -0.5, 0.5)
                gx, gy = -np.sin(px) + A.T @ py, A @ px + b - py
                dxi = (1 - beta_x * alpha) * dxi + beta_x * alpha * gx
                dyi = (1 - beta_y * alpha) * dyi + beta_y * alpha * gy
            ends.append((xi, yi, dxi, dyi))
        x, y, dx, dy = (np.mean(part, axis=0) for part in zip(*ends, strict=True))
    return x, y, dx, dy


@pytest.mark.parametrize("momentum", [None, (3.0, 2.0, 0.2)])
def test_rounds_are_the_listing_computed_by_hand(momentum):
    """Three rounds of five steps, both projections active."""
    plain = minimax.ncsc(clients=3)
    problem = fz.Minimax(
        minimax.wavy,
        plain.data,
        plain.x0,
        plain.y0,
        constraint=fz.sets.Box(-0.2, 0.55),
        lower_constraint=fz.sets.Box(-0.5, 0.5),
    )
    x, y, dx, dy = by_hand(plain, 3, 5, 0.2, 0.9, -0.2, 0.55, momentum)
    assert np.any(x > 0.55)
    assert np.any(np.abs(y) > 0.5)
    method = fz.LocalSGDA(0.2, 0.9, 5, batch_size="full", **({} if momentum is None else MOMENTUM))
    state, _ = final_state(method, problem, 3)
    np.testing.assert_allclose(state.x, x, rtol=1e-12)
    np.testing.assert_allclose(state.y, y, rtol=1e-12)
    if momentum is None:
        assert state.dx is None
    else:
        np.testing.assert_allclose(state.dx, dx, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(state.dy, dy, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("momentum", "vectors"), [({}, 1), (MOMENTUM, 2)])
def test_costs_are_those_of_the_one_page_table(momentum, vectors):
    """n + q floats each way per client and round, 2 (n + q) with momentum; one backward pass per sample."""
    n, q, clients, rounds, steps, size = 6, 4, 5, 3, 7, 2
    problem = minimax.ncsc(clients, n, q)
    last = fz.run(
        fz.LocalSGDA(0.01, 0.01, steps, size, **momentum), problem, rounds, eval_every=rounds, progress=False
    ).history.last
    assert last["upload_bytes"] == last["download_bytes"] == clients * rounds * vectors * (n + q) * 8
    assert last["gradients"] == clients * rounds * steps * size
    assert last["lower_steps"] == clients * rounds * steps
    assert last["evaluations"] == last["lower_rounds"] == 0


@pytest.mark.parametrize(
    ("method", "heterogeneity"),
    [
        (fz.LocalSGDA(0.05, 0.1, 10, batch_size="full"), 0.0),
        (fz.LocalSGDA(0.1, 0.2, 1, batch_size="full"), 0.5),
        (fz.LocalSGDA(0.1, 0.2, 10, batch_size="full", momentum=3.0, damping=0.2), 0.0),
    ],
    ids=["clients alike", "one step a round", "momentum, clients alike"],
)
def test_a_stationary_point_of_phi_is_met(method, heterogeneity):
    problem = minimax.ncsc(heterogeneity=heterogeneity)
    state, _ = final_state(method, problem, 500)
    assert np.linalg.norm(minimax.grad_phi(problem, state.x)) < 1e-9
    np.testing.assert_allclose(state.y, minimax.best_y(problem, state.x), atol=1e-9)
    # It is a minimum, not the maximum of the cosines that gradient descent would never leave by itself.
    A = np.asarray(problem.data.fixed[0]).mean(0)
    assert np.linalg.eigvalsh(A.T @ A - np.diag(np.cos(state.x))).min() > 0


def test_several_local_steps_leave_a_plateau_that_halves_with_the_stepsizes():
    """With heterogeneity 0.5 and ten steps a round: 0.229, 0.128, 0.067 at eta_x = 0.05, 0.025, 0.0125."""
    problem = minimax.ncsc(heterogeneity=0.5)
    ends = []
    for eta in (0.05, 0.025, 0.0125):
        history = fz.run(fz.LocalSGDA(eta, 2 * eta, 10, batch_size="full"), problem, 800, eval_every=400, progress=False).history[
            "stationarity"
        ]
        np.testing.assert_allclose(history[-1], history[-2], rtol=1e-6)  # it is a plateau
        ends.append(history[-1])
    np.testing.assert_allclose(ends, [0.2293, 0.1276, 0.0671], rtol=2e-3)
    assert all(1.7 < a / b < 2 for a, b in itertools.pairwise(ends))


def test_decreasing_steps_leave_no_plateau():
    problem = minimax.ncsc(heterogeneity=0.5)
    method = fz.LocalSGDA(lambda r: 0.05 / (1 + r / 20), lambda r: 0.1 / (1 + r / 20), 10, batch_size="full")
    history = fz.run(method, problem, 4000, eval_every=1000, progress=False).history["stationarity"]
    assert history[-1] < 2e-3  # 150 times less than a constant 0.05 reaches
    np.testing.assert_allclose(history[1:] * [1, 2, 3, 4], history[1], rtol=0.03)  # like 1 / r, as its steps


@pytest.mark.slow("long runs")
def test_fednests_minimax_problem_plateaus_in_proportion_to_its_spread():
    """FedNest's Fig. 4: local steps stop short of the saddle point, ten times further off where s is ten times larger."""
    ends = {}
    for s in (1.0, 10.0):
        problem = minimax.fednest_minimax(s=s)
        x, _ = minimax.answer(problem)
        result = fz.run(fz.LocalSGDA(0.1, 0.1, 50, batch_size="full"), problem, 400, eval_every=400, progress=False)
        ends[s] = np.linalg.norm(result.x - x)
    assert 0.01 < ends[1.0] < 0.05
    np.testing.assert_allclose(ends[10.0] / ends[1.0], 10, rtol=1e-6)
    # One step a round has no bias: the distance is that of the slowest mode of its linear iteration.
    state, _ = final_state(fz.LocalSGDA(1.0, 1.0, batch_size="full"), minimax.fednest_minimax(s=10.0), 400)
    assert np.linalg.norm(state.x) < 1e-12


def test_y_stays_in_a_set_that_moves_with_x():
    """Y(x) = {y <= x - 1}: the answer y is on its boundary at the client's x, and nothing breaks it."""
    problem = fz.Minimax(
        lambda x, y, b: 0.5 * jnp.sum(x**2) + jnp.sum(y) - 0.05 * jnp.sum(y**2),
        fz.ClientData([np.zeros((1, 1))] * 2), np.ones(2), -np.ones(2),
        lower_constraint=lambda x: fz.sets.Box(-np.inf, x - 1),
    )  # fmt: skip
    state, _ = final_state(fz.LocalSGDA(0.1, 0.1, 5), problem, 200)
    np.testing.assert_allclose(state.x, 0, atol=1e-9)
    # What is sent is one unprojected step of length 0.1 (1 + 0.1) beyond the boundary at -1.
    np.testing.assert_allclose(state.y, -1 + 0.1 * 1.1, atol=1e-9)


def separate(x, y, batch):
    return 0.5 * jnp.sum(x**2) - 0.5 * jnp.sum(y**2)


def test_an_ascent_that_runs_away_is_told_by_name():
    problem = fz.Minimax(separate, fz.ClientData([np.zeros((1, 1))] * 2), np.ones(2), np.ones(2))
    with pytest.raises(fz.DivergedError, match="y is no longer finite; use a smaller ascent, or check that the loss"):
        fz.run(fz.LocalSGDA(0.1, 3.0), problem, 1200, eval_every=1200, progress=False)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.LocalSGDA(0.1, 0), "ascent: found 0; pass a positive number"),
        (lambda: fz.LocalSGDA(-1, 0.1), "stepsize: found -1"),
        (lambda: fz.LocalSGDA(0.1, 0.1, 0), "local_steps: found 0"),
        (lambda: fz.LocalSGDA(0.1, 0.1, momentum=3.0, damping=0.5), "momentum: found 3 with damping 0.5; their product"),
        (lambda: fz.LocalSGDA(0.1, 0.1, momentum=lambda r: 1.0), "momentum: found a function"),
        (lambda: fz.LocalSGDA(0.1, 0.1, ascent_momentum=1.0), "ascent_momentum: found 1.0 without momentum"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message):
        build()


def test_other_problems_are_refused():
    data = fz.ClientData([np.zeros((1, 1))] * 2)
    bilevel = fz.Bilevel(separate, separate, data, np.ones(2), np.ones(2))
    with pytest.raises(fz.InputError, match="problem: found Bilevel; LocalSGDA solves Minimax"):
        fz.run(fz.LocalSGDA(0.1, 0.1), bilevel, 1, progress=False)
    blackbox = fz.Minimax(fz.blackbox(lambda x, y, b: 0.0), data, np.ones(2), np.ones(2))
    with pytest.raises(fz.InputError, match=r"loss: LocalSGDA needs gradients, a black box has none; use fz.FedRZObl"):
        fz.run(fz.LocalSGDA(0.1, 0.1), blackbox, 1, progress=False)
