"""oracle="gradients": the same smoothed problem from gradients near x; against closed forms and finite differences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.federation import directions
from fedrzo.federation.client import Client
from fedrzo.federation.estimators import estimate_in_ball, estimate_two_sided
from fedrzo.federation.protocol import Roots, path_key

S = fz.sets
N, BELOW, CLIENTS = 4, 5, 3
ROWS = np.random.default_rng(0).normal(size=(3, BELOW))


def quantile(x, batch):
    off = batch["y"] - batch["A"] @ x
    return jnp.mean(jnp.maximum(0.8 * off, -0.2 * off)) + 0.1 * jnp.sum(jnp.abs(x))


def quantile_problem(n=6, clients=3, **more):
    rng = np.random.default_rng(0)
    data = [{"A": rng.normal(size=(7, n)), "y": rng.normal(size=7)} for _ in range(clients)]
    return fz.Nonsmooth(quantile, fz.ClientData(data), np.zeros(n), **more)


def test_the_ball_is_filled_evenly():
    """The distance from the middle has the distribution function t^n (Kolmogorov's test, level 1e-6)."""
    n, count = 3, 4000
    keys = jax.random.split(jax.random.key(1), count)
    v = np.asarray(jax.vmap(lambda key: directions.ball(key, n, 2.0, jnp.float32))(keys))
    shares = np.sort((np.linalg.norm(v, axis=1) / 2) ** n)
    assert np.max(np.abs(shares - np.arange(count) / count)) < 2.7 / np.sqrt(count)
    # Each coordinate has variance eta^2/(n+2); the mean of 4,000 is within 5 of its standard deviations.
    assert np.max(np.abs(v.mean(0))) < 5 * 2 / np.sqrt((n + 2) * count)


def test_both_oracles_estimate_one_gradient_and_the_second_with_a_variance_that_does_not_grow_with_n():
    n, count, eta = 60, 4000, 0.5
    problem = quantile_problem(n)
    client, x = Client.of(problem, 0), jnp.full(n, 0.05)
    batch = client.sample(jax.random.key(0), "full")
    keys = jax.random.split(jax.random.key(2), count)
    means, spreads = [], []
    for estimate in (estimate_two_sided, estimate_in_ball):
        found = np.asarray(jax.vmap(lambda key, f=estimate: f(client, key[None], x, batch, eta)[0])(keys))
        means.append(found.mean(0))
        spreads.append(found.var(0).sum())
    # 5 standard deviations of the difference of means, in each of 60 coordinates.
    assert np.linalg.norm(means[0] - means[1]) < 2 * np.sqrt(sum(spreads) / count)
    assert spreads[1] < spreads[0] / 20


def test_one_round_is_the_listing_computed_by_hand():
    problem = quantile_problem(constraint=[S.Box(-0.1, 0.02 + 0.1 * i) for i in range(3)])
    eta, gamma, H = 0.3, 0.05, 3
    result = fz.run(fz.FedRZOnn(gamma, eta, H, "full", oracle="gradients"), problem, 1, key=5, progress=False)
    with problem.precision():
        ends = by_hand(problem, Roots.of(jax.random.key(5)).directions, eta, gamma, H)
    np.testing.assert_allclose(result.x, np.mean(ends, 0), rtol=1e-12)
    last = result.history.last
    assert last["evaluations"] == 0
    assert last["gradients"] == 3 * H * 7


def by_hand(problem, root, eta, gamma, H):
    ends = []
    for i in range(3):
        A, y = (np.asarray(problem.data.everything_of(i)[name], float) for name in ("A", "y"))
        x = np.zeros(6)
        call = jax.random.fold_in(path_key(root, (0, 0)), i)
        for k in range(H):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(call, k), 0), 1)
            z = x + np.asarray(directions.ball(key, 6, eta, jnp.float64))
            off = y - A @ z
            g = -A.T @ np.where(off > 0, 0.8, -0.2) / 7 + 0.1 * np.sign(z)
            x = x - gamma * (g + (x - np.clip(x, -0.1, 0.02 + 0.1 * i)) / eta)
        ends.append(x)
    return ends


@pytest.mark.slow("compiles a method twice")
def test_scalars_carry_slopes_of_the_gradient_and_clients_rebuild_x():
    problem = quantile_problem(n=400)
    method = fz.FedRZOnn(3e-4, 0.2, 2, "full", directions=30, communication="scalars", oracle="gradients")
    result = fz.run(method, problem, 60, progress=False, eval_every=60)
    last = result.history.last
    assert last["upload_bytes"] == 60 * CLIENTS * 2 * 30 * 8  # rounds, clients, steps, slopes, bytes
    assert last["gradients"] == 60 * CLIENTS * 2 * 7
    assert result.history["loss"][-1] < 0.9 * result.history["loss"][0]


# Lower levels -----------------------------------------------------------------------------------------------------------------

LOWER_SETS = {
    "free": None,
    "box": S.Box(-0.3, 0.2),
    "ball": S.Ball(0.0, 0.5),
    "simplex": S.Simplex(1.0),
    "polyhedron": S.Polyhedron(ROWS, 0.1),
    "box and ball": S.Intersection(S.Box(-0.3, 0.2), S.Ball(0.0, 0.4)),
    "moving box": lambda x, *xi: S.Box(-0.3 + 0.1 * x[0], 0.2 + 0.2 * x[1]),
    "moving polyhedron": lambda x, *xi: S.Polyhedron(ROWS, 0.1 + 0.3 * x[:3]),
    "moving ball": lambda x, *xi: S.Ball(0.1 * x[0], 0.5 + 0.1 * x[1]),
}


def samples(rng, symmetric=True):
    found = []
    for _ in range(CLIENTS):
        Q = rng.normal(size=(BELOW, BELOW))
        bent = Q @ Q.T / 3 + 0.3 * np.eye(BELOW) + (0 if symmetric else Q - Q.T)
        found.append({"Q": bent[None], "B": rng.normal(size=(1, BELOW, N)), "c": rng.normal(size=(2, 1, BELOW))})
    return fz.ClientData([{"Q": s["Q"], "B": s["B"], "c": s["c"][0], "t": s["c"][1]} for s in found])


def lower(x, y, b):
    each = jax.vmap(lambda Q, B, c: 0.5 * y @ Q @ y - y @ (B @ x + c) + 0.1 * jnp.cos(x[0]) * jnp.sum(y**2))
    return jnp.mean(each(b["Q"], b["B"], b["c"]))


def upper(x, y, b):
    return jnp.mean(jnp.sum(jnp.sqrt(1 + (y - b["t"]) ** 2), -1)) + 0.3 * jnp.sum(x**2) + x[0] * y[1]


def one_scenario(x, y, xi):
    return jnp.sum(jnp.sqrt(1 + (y - xi["t"]) ** 2)) + 0.3 * jnp.sum(x**2) + x[0] * y[1]


def field(x, y, xi):
    return xi["Q"] @ y - xi["B"] @ x - xi["c"] + 0.2 * jnp.cos(x[0]) * y


def start_below(name):
    return np.full(BELOW, 1 / BELOW) if name == "simplex" else np.zeros(BELOW)


def finite_differences(problem, h=1e-5):
    x0 = np.asarray(problem.x0, float)
    with problem.precision():
        value = jax.jit(lambda x: problem.evaluate(x)["loss"])
        return np.array([(float(value(x0 + h * e)) - float(value(x0 - h * e))) / (2 * h) for e in np.eye(x0.size)])


def first_gradient(problem, method):
    """Return what one step of a method with a tiny smoothing goes along, and the last row of its history."""
    result = fz.run(method, problem, 1, progress=False)
    return (np.asarray(problem.x0) - result.x) / method.stepsize, result.history.last


SLOW = pytest.mark.slow("another set")
OFTEN = ("moving box",)
KINDS = [name if name in OFTEN else pytest.param(name, marks=SLOW) for name in LOWER_SETS]


@pytest.mark.parametrize("name", KINDS)
def test_the_gradient_of_a_bilevel_problem_is_that_of_finite_differences(name):
    rng = np.random.default_rng(3)
    problem = fz.Bilevel(
        upper, lower, samples(rng), rng.uniform(0.1, 0.4, N), start_below(name), lower_constraint=LOWER_SETS[name]
    )
    solver = fz.LocalSGD(batch_size="full", rounds=400, tolerance=1e-3)  # by which the adjoint is brought to its square
    found, last = first_gradient(problem, fz.FedRZObl(0.1, 1e-7, 1, "full", oracle="gradients", lower=solver))
    wanted = finite_differences(problem)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    assert 0 <= last["adjoint_error"] < 1e-3


@pytest.mark.parametrize("symmetric", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize("name", KINDS)
def test_the_gradient_of_a_two_stage_problem_is_that_of_finite_differences(name, symmetric):
    rng = np.random.default_rng(4)
    data = samples(rng, symmetric)
    problem = fz.TwoStage(
        one_scenario, field, data, rng.uniform(0.1, 0.4, N), start_below(name), lower_constraint=LOWER_SETS[name]
    )
    method = fz.FedRZO2s(0.1, 1e-7, 1, "full", solver=fz.vi.Accelerated(1e-11), oracle="gradients")
    found, last = first_gradient(problem, method)
    wanted = finite_differences(problem)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    assert last["gradients"] == CLIENTS + problem.measured_gradients
    assert last["evaluations"] == 0


def concave(x, y, b):
    return jnp.mean(jnp.sum(b["c"] * y, -1)) + x @ (y[:N] - 0.1 * y[1]) - 0.6 * jnp.sum(y**2) + 0.1 * jnp.sum(x**2)


@pytest.mark.parametrize(
    "name", ["moving box", *(pytest.param(n, marks=SLOW) for n in ("free", "box", "ball", "moving polyhedron"))]
)
def test_the_gradient_of_a_minimax_problem_is_danskins_and_takes_no_rounds(name):
    rng = np.random.default_rng(5)
    problem = fz.Minimax(concave, samples(rng), rng.uniform(0.1, 0.4, N), np.zeros(BELOW), lower_constraint=LOWER_SETS[name])
    method = fz.FedRZObl(0.1, 1e-7, 1, "full", oracle="gradients", lower_rounds=100)
    found, last = first_gradient(problem, method)
    wanted = finite_differences(problem)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert last["lower_rounds"] == 100 + 3  # those of the lower method, of the closing step, and of the slope in y
    assert "adjoint_error" not in last


@pytest.mark.slow("two more programs")
def test_a_cohort_takes_the_adjoint_of_all_clients():
    """f_i = c_i x y - y^2/2 with c = 1 and -1: y is 0 and so is the gradient, whoever takes part; a cohort's own slope is not."""
    data = fz.ClientData([np.array([[1.0]]), np.array([[-1.0]])])
    problem = fz.Minimax(lambda x, y, c: jnp.mean(c) * x[0] * y[0] - 0.5 * y[0] ** 2, data, np.ones(1), np.zeros(1))
    method = fz.FedRZObl(0.1, 1e-8, 1, "full", oracle="gradients")
    x = fz.run(method, problem, 1, clients_per_round=1, progress=False).x
    np.testing.assert_allclose(x, 1.0, atol=1e-7)


@pytest.mark.slow("a large lower level")
def test_an_adjoint_of_many_variables_is_solved_by_products():
    """A market of 100 firms whose quantities are bounded: the derivative of the projected equation is not symmetric."""
    firms, rng = 100, np.random.default_rng(6)

    def market(x, y, xi):
        return xi["cost"] * y + 0.01 * (jnp.sum(y) + xi["skew"] * jnp.cumsum(y)) - xi["price"] + x[0] + x[1] * jnp.sin(y)

    def welfare(x, y, xi):
        return (jnp.mean(y) - 0.5) ** 2 + 0.1 * jnp.sum(x**2)

    data = [
        {"cost": rng.uniform(1, 3, (2, firms)), "skew": rng.uniform(0, 0.2, 2), "price": rng.uniform(1, 2, 2)} for _ in range(2)
    ]
    problem = fz.TwoStage(
        welfare, market, fz.ClientData(data), np.array([0.1, 0.2]), np.zeros(firms), lower_constraint=S.Box(0.0, 0.3)
    )
    method = fz.FedRZO2s(0.1, 1e-7, 1, "full", solver=fz.vi.Accelerated(1e-11), oracle="gradients")
    found, _ = first_gradient(problem, method)
    np.testing.assert_allclose(found, finite_differences(problem), rtol=1e-4)


def test_local_steps_see_the_lower_level_of_the_rounds_start():
    """With f = x'Ax/2 + |y|^2/2 and y = Bx, step two goes along A x1 + B'B x0: late by B'B (x1 - x0), and by nothing else."""
    rng = np.random.default_rng(7)
    B, A, x0, gamma = rng.normal(size=(BELOW, N)), np.diag([1.0, 2.0, 0.5, 1.5]), rng.normal(size=N), 0.05
    data = fz.ClientData([{"B": B[None] * share} for share in (0.5, 1.5)])
    late = fz.Bilevel(
        lambda x, y, b: 0.5 * x @ A @ x + 0.5 * jnp.sum(y**2),
        lambda x, y, b: 0.5 * jnp.mean(jnp.sum((y - b["B"] @ x) ** 2, -1)),
        data, x0, np.zeros(BELOW),
    )  # fmt: skip
    x = fz.run(fz.FedRZObl(gamma, 1e-8, 2, "full", oracle="gradients"), late, 1, progress=False).x
    x1 = x0 - gamma * (A + B.T @ B) @ x0
    np.testing.assert_allclose(x, x1 - gamma * (A @ x1 + B.T @ B @ x0), rtol=1e-6)


@pytest.mark.slow("several runs")
def test_several_rounds_and_seeds_lead_where_values_lead():
    """On a bilevel problem with a box, runs by gradients end at least as low as runs by values of equal rounds."""
    rng = np.random.default_rng(8)
    problem = fz.Bilevel(upper, lower, samples(rng), np.full(N, 0.3), np.zeros(BELOW), lower_constraint=S.Box(-0.3, 0.2))
    losses = {}
    for oracle in ("values", "gradients"):
        runs = [
            fz.run(fz.FedRZObl(0.1, 0.05, 2, "full", oracle=oracle), problem, 40, key=key, progress=False, eval_every=40)
            for key in range(3)
        ]
        losses[oracle] = [run.history["loss"][-1] for run in runs]
        assert max(losses[oracle]) < runs[0].history["loss"][0]
    assert max(losses["gradients"]) <= min(losses["values"]) + 1e-3


@pytest.mark.slow("two more programs")
def test_a_bilevel_round_by_scalars_is_that_of_vectors_but_for_the_slopes_noise():
    """The mean of n/eta^2 <g, v> v over P directions is off by about sqrt(n/P) |g|, here a twentieth; six times that is fine."""
    rng = np.random.default_rng(3)
    problem = fz.Bilevel(upper, lower, samples(rng), rng.uniform(0.1, 0.4, N), np.zeros(BELOW), lower_constraint=S.Box(-0.3, 0.2))
    method = fz.FedRZObl(0.1, 1e-4, 2, "full", oracle="gradients", lower=fz.LocalSGD(batch_size="full", rounds=200))
    by_vectors, plain = first_gradient(problem, method)
    method = dataclasses.replace(method, communication="scalars", directions=1600)
    found, last = first_gradient(problem, method)
    assert 0 < np.linalg.norm(found - by_vectors) < 0.3 * np.linalg.norm(by_vectors)
    sent = last["upload_bytes"] - plain["upload_bytes"]
    assert sent == CLIENTS * 8 * (2 * 1600 - N)  # steps by slopes, in place of x
    assert last["gradients"] == plain["gradients"]


@SLOW
def test_directions_of_a_two_stage_estimate_are_averaged():
    rng = np.random.default_rng(4)
    problem = fz.TwoStage(one_scenario, field, samples(rng), rng.uniform(0.1, 0.4, N), np.zeros(BELOW))
    method = fz.FedRZO2s(0.1, 0.1, directions=3)
    with problem.precision():
        client, x = Client.of(problem, 1), problem.start
        batch, keys = client.sample(jax.random.key(0), 1), jax.random.split(jax.random.key(1), 3)
        g, slopes, taken = method.estimate(client, keys, x, batch, 1)
        alone = [method.estimate(client, key[None], x, batch, 1) for key in keys]
    np.testing.assert_allclose(g, np.mean([one[0] for one in alone], axis=0), rtol=1e-6)
    np.testing.assert_allclose(slopes, np.concatenate([one[1] for one in alone]), rtol=1e-6)
    assert float(taken) == pytest.approx(sum(float(one[2]) for one in alone))
    last = fz.run(method, problem, 1, progress=False).history.last
    assert last["evaluations"] == CLIENTS * 2 * 3
