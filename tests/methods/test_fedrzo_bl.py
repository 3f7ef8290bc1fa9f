"""FedRZO_bl: Algorithm 2 on problems with closed-form answers, with every lower-level method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fedrzo as fz
from conformance import Case, suite
from fedrzo.federation import directions
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Roots, path_key
from fedrzo.methods.closing import close
from fedrzo.methods.lower import run_lower as solve
from quadratics import CLIENTS, DATA, LOWER, Q, exact_y, optimum, quadratic, upper


def toy(wrap):
    return quadratic(loss=wrap(upper), constraint=[fz.sets.Box(-5.0, 5.0 + i) for i in range(CLIENTS)])


test_conformance = suite(
    Case(
        method=fz.FedRZObl(0.05, 0.1, 3, lower=LOWER),
        problem=toy,
        rounds=30,
        optimum=optimum()[1],
        numpy_loss=lambda x, y, batch: 0.5 * np.sum((y - 1) ** 2) + 0.05 * np.sum(x**2),
        changes={"stepsize": 0.03, "local_steps": 2, "smoothing": 0.2},
    )
)


def test_one_round_is_the_listing_computed_by_hand():
    """Algorithm 2, an exact lower level, three delayed local steps, in plain NumPy from the same keys."""
    problem = quadratic(constraint=fz.sets.Box(-1.0, 0.02))
    method = fz.FedRZObl(0.03, 0.2, 3, lower=fz.LocalSGD(batch_size="full", rounds=400))
    ours = fz.run(method, problem, 1, key=7, progress=False).x
    with problem.precision():
        root = Roots.of(jax.random.key(7)).directions
        v = np.asarray(directions.sphere(path_key(root, (0, 0)), Q, 0.2, jnp.float64))  # round 0, call 0: the server's
        x0 = np.zeros(Q)
        x = x0.copy()
        for _ in range(3):
            value = [0.5 * np.sum((exact_y(x0 + s * v) - 1) ** 2) + 0.05 * np.sum((x + s * v) ** 2) for s in (1, -1)]
            g = Q / (2 * 0.2**2) * (value[0] - value[1]) * v
            x = x - 0.03 * (g + (x - np.clip(x, -1.0, 0.02)) / 0.2)
    np.testing.assert_allclose(ours, x, rtol=1e-9)


METHODS = {
    "default": fz.LocalSGD(batch_size="full"),
    "sampled": fz.LocalSGD(batch_size=1),
    "fedac": fz.FedAC(batch_size="full"),
    "lfd": fz.LFD(batch_size="full", rounds=400),
    "zeroth-order": fz.FedRZOnn(lambda r: 0.3 / (r + 10), 0.01, 5, batch_size="full"),
}


OFTEN = ("sampled",)


@pytest.mark.parametrize(
    "name",
    [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow("a lower level solved in every round")) for n in METHODS],
)
def test_any_method_serves_as_the_lower_level(name):
    # An error of the lower level is multiplied by n / smoothing: a noisy one wants a larger smoothing, which a
    # quadratic does not mind.
    rounds, smoothing = (400, 0.5) if name == "zeroth-order" else (None, 0.05)
    method = fz.FedRZObl(0.05, smoothing, 5, lower=METHODS[name], lower_rounds=rounds)
    result = fz.run(method, quadratic(), 60, eval_every=60, progress=False)
    x, best = optimum()
    start = result.history["loss"][0]
    assert result.history["loss"][-1] - best < 1e-3 * (start - best)
    np.testing.assert_allclose(result.x, x, atol=0.02)
    np.testing.assert_allclose(result.y, exact_y(result.x), atol=1e-6)


def lower_distance(method, r=0, points=1, target=None, **changes):
    """Solve the lower level at x = 0.3 by a method alone, without the closing step; return the distance to y(x)."""

    @fz.method
    class Once(fz.Method):
        lower: object
        solves = (fz.Bilevel,)

        def init(self, problem, key):
            return State(jnp.asarray(problem.x0), jnp.zeros(points * Q))

        def round(self, federation, state, r):
            below = federation.lower(jnp.full((points, Q), 0.3), self.lower)
            return State(state.x, solve(below, self.lower, jnp.zeros(points * Q), r, None))

    from typing import Any, NamedTuple

    from fedrzo.engines.simulation.engine import Simulation
    from fedrzo.problems.curvature import lower_level

    class State(NamedTuple):
        x: Any
        y: Any

    import dataclasses

    problem = quadratic(**changes)
    with problem.precision():
        method = dataclasses.replace(method, constants=lower_level(problem))
        session = Simulation().start([Once(method)], problem, [jax.random.key(0)], None)
        session.round = r
        session.advance(1)
        y = session.states()[0].y.reshape(points, Q)
        target = exact_y(np.full(Q, 0.3)) if target is None else target
        return np.linalg.norm(y - target, axis=1).max(), session.costs()[0]


def test_heterogeneous_quadratics_are_met_by_the_default_and_not_by_algorithm_3():
    assert lower_distance(fz.LocalSGD(batch_size="full"))[0] < 1e-3
    stuck = [lower_distance(fz.LocalSGD(batch_size="full", schedule="algorithm3"), r)[0] for r in (0, 100, 10_000)]
    # Several constant local steps of clients that differ settle elsewhere, however many rounds r allows.
    assert min(stuck) > 1e-2


def bent(x, y, sample):
    return 0.5 * jnp.mean(jnp.sum(sample["curvature"] * (y - sample["shift"] - 0.1 * x) ** 2, -1))


@pytest.mark.parametrize(("kappa", "wanted"), [(4.0, fz.LocalSGD), (29.0, fz.LocalSGD), (31.0, fz.FedAC), (1e3, fz.FedAC)])
def test_the_default_is_accelerated_where_the_lower_level_is_ill_conditioned(kappa, wanted):
    """Clients' curvatures differ, and only their mean has this condition number; y = 5 + x/10 in all of them."""
    curvature = np.geomspace(1.0, kappa, 6)
    samples = [{"curvature": (curvature * share)[None], "shift": np.full((1, 6), 5.0)} for share in (0.5, 1.5)]
    upper = lambda x, y, sample: jnp.sum((y - 5.2) ** 2)  # noqa: E731
    problem = fz.Bilevel(upper, bent, fz.ClientData(samples), np.zeros(6), np.zeros(6))
    method = fz.FedRZObl(0.3, 0.01, 1, "full")
    with problem.precision():
        assert isinstance(method.prepare(problem).lower, wanted)
        assert method.prepare(problem).prepare(problem) == method.prepare(problem)
    result = fz.run(method, problem, 3, progress=False)
    assert result.history["lower_error"][-1] < 1e-3
    np.testing.assert_allclose(result.y, 5 + result.x / 10, atol=1e-6)


@pytest.mark.parametrize("box", [None, fz.sets.Box(-0.2, 0.1)])
def test_a_single_local_step_needs_no_loop(box):
    """Without a number of local steps the program knows that there is one; the same steps are taken."""
    target = np.zeros(Q)
    known, given = (
        lower_distance(fz.LocalSGD(batch_size="full", rounds=6, local_steps=steps), target=target, lower_constraint=box)[0]
        for steps in (None, 1)
    )
    assert known == pytest.approx(given, rel=1e-14)
    several, one = (
        lower_distance(fz.LocalSGD(0.05, batch_size="full", rounds=3, local_steps=k), target=target, lower_constraint=box)[0]
        for k in (4, 1)
    )
    assert abs(several - one) > 1e-3


def test_algorithm_3_is_right_for_identical_clients():
    same = fz.ClientData([np.zeros((2, 1))] * CLIENTS, fixed=[jax.tree.map(lambda a: np.asarray(a)[0], DATA.fixed)] * CLIENTS)
    # Its own last iterate, not the monitor's solution.
    distance, _ = lower_distance(
        fz.LocalSGD(batch_size="full", schedule="algorithm3"),
        2000,
        target=np.asarray(DATA.fixed[1])[0] + 0.3,
        data=same,
    )
    # Steps of 1/(mu a), 2 a ln a of them, shrink a first error by a^-2; here a = 2001.
    assert distance < 2e-6


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        (fz.LocalSGD(schedule="algorithm3"), lambda m, T: m),
        (fz.LocalSGD(schedule="theorem"), lambda m, T: m),
        (fz.FedAC(schedule="theorem"), lambda m, T: np.ceil(m ** (1 / 3))),
        (fz.LFD(schedule="theorem"), lambda m, T: np.ceil((m * T) ** (1 / 3))),
    ],
)
def test_lower_rounds_match_the_theory(method, rounds):
    """Remark 4: m rounds a call for Local SGD, m^(1/3) for FedAC, m^(1/3) T^(1/3) for LFD; T = n (r+1)^(2/3) / m."""
    for r in (0, 30):
        _, cost = lower_distance(method, r)
        T = max(np.ceil(Q * (r + 1) ** (2 / 3) / CLIENTS), CLIENTS)
        assert cost.lower_rounds == rounds(CLIENTS, T)


def test_both_points_share_every_message():
    one, two = (lower_distance(fz.LocalSGD(batch_size="full", rounds=7), points=p)[1] for p in (1, 2))
    assert two.lower_rounds == one.lower_rounds == 7
    assert two.upload_bytes == 2 * one.upload_bytes
    assert two.gradients == 2 * one.gradients


def test_costs_tell_upper_from_lower():
    rounds, lower_rounds, H = 3, 5, 4
    method = fz.FedRZObl(0.01, 0.1, H, lower=fz.LocalSGD(batch_size="full", rounds=lower_rounds))
    last = fz.run(method, quadratic(), rounds, progress=False).history.last
    pair = 2 * Q * 8
    closing_up = 2 * (pair + pair)  # y and gradient, then the projected step and the gradient there
    curvature = 2 * 8  # estimated mu and L, sent with y
    estimating = 2 * 3 * Q * CLIENTS * 2  # two a Hessian product, three points, two samples
    assert last["lower_rounds"] == rounds * (lower_rounds + 2)
    assert last["lower_steps"] == CLIENTS * rounds * (lower_rounds + 1)
    assert last["evaluations"] == CLIENTS * rounds * 2 * H
    assert last["gradients"] == estimating + CLIENTS * rounds * (lower_rounds + 2) * 2 * 2  # two points, two samples
    assert last["upload_bytes"] == CLIENTS * rounds * (lower_rounds * pair + closing_up + Q * 8)
    assert last["download_bytes"] == CLIENTS * rounds * (Q * 8 + 8 + lower_rounds * (pair + curvature) + 2 * pair + pair)


def test_the_closing_exchange_bounds_the_error():
    """From many starts, ||y - y(x)|| is below the bound, and the bound is not vacuous; with an active constraint too."""
    A, _c = (np.asarray(part) for part in DATA.fixed)
    mean = A.mean(0)
    mu, L = np.linalg.eigvalsh(mean)[[0, -1]]
    free = exact_y(np.zeros(Q))
    rng = np.random.default_rng(3)

    class Server:
        """A stand-in for the clients' exact answers, to test the bound itself; y <= cap."""

        def average(self, step, *shared):
            y = np.minimum(shared[0], cap)
            return y, mean @ (y - free)

        def later(self, step, *shared):
            return lambda: self.average(step, *shared)

    for cap in (np.inf, -0.3):
        value = lambda y: 0.5 * (y - free) @ mean @ (y - free)  # noqa: E731
        target = minimize(value, np.full(Q, -1.0), bounds=[(None, cap)] * Q, tol=1e-14).x
        assert (target > cap - 1e-9).any() == np.isfinite(cap)
        ratios = []
        for _ in range(50):
            found = close(Server(), fz.FedRZObl(0.1, 0.1), target + rng.normal(size=Q), (mu, L))
            ratios.append(np.linalg.norm(found.y - target) / (found.error + 1e-12))
        assert max(ratios) <= 1
        assert np.median(ratios) > 0.005


def test_constrained_lower_level_with_clients_that_differ():
    """Y(x) = {y <= x - 0.3} is active; projecting before averaging would be biased here, projecting after is not."""
    problem = quadratic(lower_constraint=lambda x: fz.sets.Box(-np.inf, -0.3 + x), y0=np.full(Q, -0.5))
    method = fz.FedRZObl(1e-9, 1e-6, lower=fz.LocalSGD(batch_size="full", rounds=300), closing=True)
    result = fz.run(method, problem, 1, progress=False)
    assert result.history["lower_error"][-1] < 1e-8
    A, c = (np.asarray(part) for part in DATA.fixed)
    value = lambda y: sum(0.5 * (y - ci) @ Ai @ (y - ci) for Ai, ci in zip(A, c, strict=True))  # noqa: E731
    reference = minimize(value, np.zeros(Q), bounds=[(None, -0.3)] * Q, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
    assert (reference.x > -0.3 - 1e-9).any()
    np.testing.assert_allclose(result.y, reference.x, atol=1e-6)


def test_implicit_lipschitz_constants_of_lemma_2():
    """y(.) is (L_x / mu)-Lipschitz and f(., y(.)) is Lipschitz with L_y L_x / mu + L_fx, on a closed form."""
    B = np.array([[2.0, 0.5], [0.0, 1.0]])
    mu, Lx = 3.0, np.linalg.norm(B, 2)
    a, d = np.array([1.0, -2.0]), np.array([0.3, 0.4])
    problem = fz.Bilevel(
        lambda x, y, b: jnp.abs(jnp.dot(a, y)) + jnp.abs(jnp.dot(d, x)),
        lambda x, y, b: 0.5 * mu * jnp.sum(y**2) - y @ (B @ x),
        fz.ClientData([np.zeros((1, 1))] * 2), np.zeros(2), np.zeros(2), modulus=mu, smoothness=mu,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    bound = np.linalg.norm(a) * Lx / mu + np.linalg.norm(d)
    with problem.precision():
        evaluate = jax.jit(lambda x: (problem.solve_lower(x), problem.evaluate(x)["loss"]))
        ratios = []
        for _ in range(40):
            x = rng.normal(size=(2, 2))
            (y1, f1), (y2, f2) = (evaluate(jnp.asarray(p)) for p in x)
            step = np.linalg.norm(x[0] - x[1])
            ratios.append((np.linalg.norm(y1 - y2) / step / (Lx / mu), abs(float(f1 - f2)) / step / bound))
    assert np.max(ratios) <= 1 + 1e-9
    assert np.max(ratios, axis=0)[0] > 0.8  # the constant of y is attained


def test_number_of_lower_rounds_may_grow_without_recompiling():
    from fedrzo.engines.simulation import rounds as simulation

    problem = quadratic()
    before = simulation.TRACES[0]
    method = fz.FedRZObl(0.01, 0.1, 2, lower=fz.LocalSGD(batch_size="full", rounds=lambda r: 2 + r))
    lower_rounds = fz.run(method, problem, 5, progress=False).history["lower_rounds"]
    assert list(np.diff(lower_rounds)) == [2 + r + 2 for r in range(5)]
    assert simulation.TRACES[0] == before + 1


@pytest.mark.slow("a lower level solved in every round")
def test_a_black_box_lower_level_is_solved_without_gradients():
    def numpy_lower(x, y, batch):
        _, (A, c) = batch
        return 0.5 * (y - c - x) @ A @ (y - c - x)

    problem = quadratic(lower=fz.blackbox(numpy_lower, mean=True), data=DATA)
    zeroth = fz.FedRZOnn(lambda r: 0.15 / (r + 15), 0.01, 1, batch_size=1)
    method = fz.FedRZObl(0.05, 1.0, 5, lower=zeroth, lower_rounds=40, closing=False)
    result = fz.run(method, problem, 12, eval_every=12, progress=False)
    best = optimum()[1]
    assert result.history["loss"][-1] - best < 0.1 * (result.history["loss"][0] - best)
    assert result.history["gradients"][-1] == 0


def test_clients_view_of_the_pair():
    with jax.enable_x64(True):
        level = quadratic().lower_level(jnp.zeros((2, Q)))
        client = Client.of(level, 1)
        assert client.dim == 2 * Q
        assert client.cost("full") == 2 * 2
