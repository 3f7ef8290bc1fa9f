"""QuasiNewton: exact answers of problems with kinks and with private sets, its line search, and what it refuses."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize, minimize_scalar

import fedrzo as fz
import quadratics
from conformance import OF_VARIANTS, Case, suite
from fedrzo.engines.loop import Loop, LoopSession
from fedrzo.methods import descent
from fedrzo.sets import Ball, Box, Halfspace, Simplex
from quadratics import optimum, quadratic

RNG = np.random.default_rng(5)
SIZES = (5, 9, 7)


def regression(n=4, scale=1.0, constraint=None, dtype=float, sizes=SIZES):
    """Return the mean pinball loss of clients that differ in size and data."""
    rng = np.random.default_rng(n)
    w = rng.normal(size=n)
    data = []
    for i, size in enumerate(sizes):
        a = rng.normal(size=(size * n, n)) * (1 + i)
        data.append({"a": a.astype(dtype), "y": (scale * (a @ w + rng.laplace(size=len(a)))).astype(dtype)})

    def loss(x, batch):
        r = batch["y"] - batch["a"] @ x
        return jnp.mean(jnp.maximum(0.3 * r, -0.7 * r))

    return fz.Nonsmooth(loss, fz.ClientData(data), np.zeros(n, dtype), constraint)


def by_linear_program(problem, lo=None, hi=None, row=None):
    data = problem.data
    parts = [jax.tree.map(np.asarray, data.everything_of(i)) if data.equal_size else None for i in range(data.clients)]
    if None in parts:
        starts = np.cumsum([0, *data.sizes])
        parts = [{k: np.asarray(v)[s:e] for k, v in data.flat.items()} for s, e in itertools.pairwise(starts)]
    A, y = (np.concatenate([part[name] for part in parts]) for name in ("a", "y"))
    weights = np.concatenate([np.full(len(part["y"]), 1 / len(parts) / len(part["y"])) for part in parts])
    m, n = A.shape
    rows = {} if row is None else {"A_ub": np.concatenate([row[0], np.zeros(2 * m)])[None], "b_ub": [row[1]]}
    found = linprog(
        np.concatenate([np.zeros(n), 0.3 * weights, 0.7 * weights]),
        A_eq=np.hstack([A, np.eye(m), -np.eye(m)]), b_eq=y, bounds=[(lo, hi)] * n + [(0, None)] * (2 * m), **rows,
    )  # fmt: skip
    return found.fun


CASE = Case(
    method=fz.QuasiNewton(0.3, 0.1, directions=2),
    problem=lambda wrap: _toy(wrap),
    rounds=30,
    descent=0.5,
    optimum=0.4,
    changes={"stepsize": 0.2, "smoothing": 0.3},
)


def _toy(wrap):
    @wrap
    def loss(x, batch):
        return jnp.mean(jnp.abs(batch - x[: batch.shape[-1]])) + 0.1 * x @ x

    data = fz.ClientData([np.random.default_rng(i).normal(size=(6, 3)) + 3 * i for i in range(3)])
    return fz.Nonsmooth(loss, data, np.full(3, -8.0), [Box(-20.0, 1.0), Ball(0.0, 15.0), Box(-20.0, 2.0)])


test_conformance = suite(CASE)


def own_upper(x, y, batch):
    return 0.5 * jnp.sum((y - 1 + 0.1 * batch[1][1]) ** 2) + 0.05 * jnp.sum(x**2)


test_conformance_of_a_bilevel_problem = suite(
    Case(
        method=fz.QuasiNewton(0.3),
        problem=lambda wrap: quadratic(loss=wrap(own_upper), lower=wrap(quadratics.lower), lower_constraint=Ball(0.0, 2.0)),
        rounds=15,
        descent=0.5,
    ),
    OF_VARIANTS,
)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_regression_with_kinks_reaches_its_linear_program(scale):
    problem = regression(scale=scale)
    result = fz.run(fz.QuasiNewton(0.3 * scale), problem, 300, progress=False)
    wanted, start = by_linear_program(problem), result.history["loss"][0]
    assert wanted * (1 - 1e-9) <= result.history["loss"][-1] <= wanted + 1e-5 * (start - wanted)


def test_private_sets_that_differ_in_kind_are_met_to_many_digits():
    """The same by SciPy, which knows all of the sets."""
    n, a = 6, np.random.default_rng(1).normal(size=6)
    target = 3 * np.random.default_rng(2).normal(size=(3, n))
    sets = [Box(-1.0, 1.0), Ball(0.0, 1.5), Halfspace(a, -1.0)]
    data, x0 = fz.ClientData([row[None] for row in target]), -a / (a @ a)
    problem = fz.Nonsmooth(lambda x, b: 0.5 * jnp.mean(jnp.sum((b - x) ** 2, -1)), data, x0, sets)
    result = fz.run(fz.QuasiNewton(0.5), problem, 200, progress=False)
    rules = [{"type": "ineq", "fun": lambda x: 1.5**2 - x @ x}, {"type": "ineq", "fun": lambda x: -1.0 - a @ x}]
    wanted = minimize(lambda x: 0.5 * np.mean(np.sum((target - x) ** 2, 1)), np.zeros(n), bounds=[(-1, 1)] * n, constraints=rules)
    np.testing.assert_allclose(result.x, wanted.x, atol=2e-6)
    assert result.history["feasibility"][-1] < 1e-6
    outside = fz.run(fz.QuasiNewton(0.5, moreau=0.1, multipliers=0), problem, 60, progress=False)
    assert 1e-2 < outside.history["feasibility"][-1] < 1.0  # the Moreau term alone: outside by the parameter times the slope


@pytest.mark.parametrize("thin", [1e-6, 1e-2])
def test_thin_sets_and_kinks_at_their_edge(thin):
    problem = regression(3, constraint=[Box(-0.1, 0.1), Box(0.1 - thin, 5.0), Box(-5.0, 5.0)]).moved_to(np.full(3, 0.1))
    result = fz.run(fz.QuasiNewton(0.3), problem, 300, progress=False)
    wanted = by_linear_program(problem, 0.1 - thin, 0.1)
    assert abs(result.loss_feasible - wanted) <= 1e-5 * (1 + abs(wanted))


LOWER_SETS = {
    "free": {},
    "box": {"lower_constraint": Box(-0.3, 0.4)},
    "moving ball": {"lower_constraint": lambda x: Ball(0.1 * x, 0.5)},
    "moving box": {"lower_constraint": lambda x: Box(x - 0.2, x + 0.5)},
    "simplex": {"lower_constraint": Simplex(1.0), "y0": np.full(3, 1 / 3)},
    "private sets above": {
        "lower_constraint": Box(-0.3, 0.4), "constraint": [Box(-1.0, 0.2), Ball(0.0, 0.3), Box(-0.1, 1.0), Box(-2.0, 2.0)],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LOWER_SETS)
def test_hypergradients_through_a_constrained_lower_level_lead_to_the_optimum(name):
    """The optimum by SciPy, which searches along the implicit function without gradients."""
    problem = quadratic(**LOWER_SETS[name])
    result = fz.run(fz.QuasiNewton(0.3), problem, 150, eval_every=50, progress=False)
    if name == "free":
        np.testing.assert_allclose(result.x, optimum()[0], atol=1e-7)

    def implicit(x):
        x = np.asarray(problem.project(jnp.asarray(x)))
        [y] = problem.lower_solutions(x[None])
        return 0.5 * np.sum((y - 1) ** 2) + 0.05 * np.sum(x**2)

    with problem.precision():
        near = np.asarray(result.x_feasible)
        ours = implicit(near)
        around = near + 0.05 * np.random.default_rng(0).normal(size=(40, 3))
        assert min(map(implicit, around)) >= ours - 1e-7
        found = minimize(implicit, near + 0.1, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-10, "maxiter": 400})
    assert ours <= found.fun + 1e-7
    assert result.history["feasibility"][-1] < 1e-6


def game():
    """A leader and two followers with capacities, in demands that differ among clients of two and three scenarios."""
    cost = np.array([0.5, 1.5])
    return fz.TwoStage(
        lambda x, y, a: 0.5 * x[0] ** 2 - x[0] * (a - x[0] - 0.5 * jnp.sum(y)),
        lambda x, y, a: cost * (1 + y) - a + x[0] + 0.5 * (y + jnp.sum(y)),
        fz.ClientData([np.array([4.0, 5.0]), np.array([3.0, 4.5, 6.0])]),
        np.zeros(1), np.zeros(2), Box(0.0, 10.0), Box(0.0, 1.2), weights="samples",
    )  # fmt: skip


def test_equilibria_in_scenarios():
    """The leader's optimum by a scalar search, the followers' equilibria by projected steps, all in NumPy."""
    problem, cost = game(), np.array([0.5, 1.5])

    def loss(x):
        total = 0.0
        for a in (4.0, 5.0, 3.0, 4.5, 6.0):
            y = np.zeros(2)
            for _ in range(400):
                y = np.clip(y - 0.3 * (cost * (1 + y) - a + x + 0.5 * (y + y.sum())), 0.0, 1.2)
            total += 0.5 * x**2 - x * (a - x - 0.5 * y.sum())
        return total / 5

    found = minimize_scalar(loss, bounds=(0.0, 10.0), method="bounded", options={"xatol": 1e-9})
    result = fz.run(fz.QuasiNewton(0.5), problem, 30, eval_every=30, progress=False)
    assert result.loss_feasible == pytest.approx(found.fun, abs=1e-8)
    assert result.history["lower_steps"][-1] > 0
    [plain] = fz.run(fz.QuasiNewton(0.5), problem, 4, engine="loop", eval_every=4, progress=False).x
    np.testing.assert_allclose(plain, fz.run(fz.QuasiNewton(0.5), problem, 4, eval_every=4, progress=False).x[0], rtol=1e-9)


def test_a_lower_level_that_newton_cannot_solve_is_said():
    """A kink has no Hessian, so that the lower solution is not known to many digits."""

    def lower(x, y, batch):
        return jnp.sum(jnp.abs(y - x)) + 0.05 * jnp.sum((y - 2) ** 2)

    with pytest.raises((fz.DivergedError, fz.InputError), match="lower level"):
        fz.run(fz.QuasiNewton(0.3), quadratic(lower=lower, x0=np.full(3, 0.3)), 3, progress=False)


def test_many_variables_take_pairs_instead_of_a_matrix(monkeypatch):
    monkeypatch.setattr(descent, "DENSE", 3)
    rng = np.random.default_rng(3)
    basis, targets = rng.normal(size=(12, 12)), rng.normal(size=(2, 5, 12))
    data = fz.ClientData(list(targets))
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.sum(((b - x) @ basis) ** 2, -1)), data, np.zeros(12))
    result = fz.run(fz.QuasiNewton(0.5), problem, 120, progress=False)
    np.testing.assert_allclose(result.x, targets.mean((0, 1)), atol=1e-5)


def test_rosenbrocks_valley_with_absolute_values():
    """Nesterov's variant, nonsmooth and nonconvex: BFGS follows its bent valley."""
    data = fz.ClientData([np.zeros((1, 1))])
    problem = fz.Nonsmooth(lambda x, b: 0.25 * (x[0] - 1) ** 2 + jnp.abs(x[1] - 2 * x[0] ** 2 + 1), data, np.array([-1.0, 1.0]))
    result = fz.run(fz.QuasiNewton(0.5), problem, 400, progress=False)
    assert result.history["loss"][0] == 1.0 > 1e-6 > result.history["loss"][-1]


def test_a_descent_that_ends_in_a_shallow_valley_goes_on_from_scattered_points():
    data = fz.ClientData([np.zeros((1, 1))])

    def loss(x, batch):
        return jnp.minimum(jnp.sum((x - 2) ** 2) + 1.0, jnp.sum(jnp.abs(x)))

    problem = fz.Nonsmooth(loss, data, np.array([2.5, 2.0]))
    near, far = (fz.run(fz.QuasiNewton(radius), problem, 100, progress=False).history["loss"][-1] for radius in (0.1, 4.0))
    assert near == pytest.approx(1.0)
    assert far < 1e-6


def test_an_accepted_step_fits_the_weak_wolfe_conditions():
    x = jnp.array([2.0, -1.0, 0.5])
    with jax.enable_x64(True):
        x = x.astype(float)
        slope = lambda x: 2 * jnp.array([1.0, 10.0, 100.0]) * x  # noqa: E731
        value = lambda x: jnp.sum(jnp.array([1.0, 10.0, 100.0]) * x**2)  # noqa: E731
        d, key, taken = descent.begin(x, 0.1, 1.0), jax.random.key(0), 0
        for r in range(60):
            z = descent.trials(d, jax.random.fold_in(key, r))
            new = descent.after(d, z, jax.vmap(value)(z), jax.vmap(slope)(z), jnp.zeros(6), 0.1, False)
            if int(d.phase) == descent.SEARCH and not bool(jnp.array_equal(new.z, d.z)) and int(new.phase) == descent.SEARCH:
                along = d.direction @ d.gradient
                length = (new.z - d.z) @ d.direction / (d.direction @ d.direction)
                assert new.value <= d.value + descent.DECREASE * length * along * (1 - 1e-9)
                assert new.gradient @ d.direction >= descent.FLATTER * along * (1 + 1e-9)
                taken += 1
            d = new
        assert taken >= 8
        np.testing.assert_allclose(d.x, 0, atol=1e-8)


class Absent(LoopSession):
    """A real session whose second client misses every third message."""

    delivered = 0

    def deliver(self, message, ids):
        type(self).delivered += 1
        return super().deliver(message, [i for i in ids if i != 1] if self.delivered % 3 == 0 else ids)


class Unreliable(Loop):
    def start(self, methods, problem, keys, clients_per_round):
        return Absent(self.only(methods), problem, keys[0], clients_per_round)


def test_a_look_that_a_client_missed_is_asked_for_again():
    sets = [Box(-1.0, 0.3), Ball(0.0, 0.9), Box(-0.2, 1.0)]
    problem = regression(2, constraint=sets, sizes=(3, 4, 2))
    whole = fz.run(fz.QuasiNewton(0.3), problem, 20, engine="loop", progress=False)
    partly = fz.run(fz.QuasiNewton(0.3), problem, 30, engine=Unreliable(), progress=False)
    np.testing.assert_allclose(partly.x, whole.x, rtol=1e-12)


def test_float32_and_nested_variables():
    data = fz.ClientData([RNG.normal(size=(8, 2)).astype(np.float32) for _ in range(2)])
    x0 = {"a": np.zeros(2, np.float32), "b": [np.ones((), np.float32)]}

    def loss(x, batch):
        return jnp.mean(jnp.abs(batch - x["a"])) + jnp.abs(x["b"][0] - 3)

    result = fz.run(fz.QuasiNewton(0.3), fz.Nonsmooth(loss, data, x0), 60, progress=False)
    assert result.x["a"].dtype == np.float32
    assert abs(float(result.x["b"][0]) - 3) < 1e-3
    pooled = np.concatenate([np.asarray(data.everything_of(i)) for i in range(2)])
    best = np.mean(np.abs(pooled - np.median(pooled, axis=0)))
    assert result.history["loss"][-1] <= best + 1e-3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: fz.run(fz.QuasiNewton(0.1), regression(), 3, clients_per_round=2), "clients_per_round: found 2"),
        (lambda: fz.QuasiNewton(0.1, multipliers=2), "multipliers: found 2; pass 1, or 0"),
        (lambda: fz.QuasiNewton(0.1, privacy=None), "privacy"),
        (
            lambda: fz.run(
                fz.QuasiNewton(0.1),
                fz.Nonsmooth(lambda x, b: jnp.sum(x), fz.Sampler(lambda k, i: jnp.zeros(2), 2), np.zeros(2)),
                3,
            ),
            "data: QuasiNewton compares losses over all samples",
        ),
        (
            lambda: fz.run(fz.QuasiNewton(0.1), blackbox(), 3),
            "loss: QuasiNewton needs gradients, a black box has none",
        ),
    ],
    ids=["cohort", "multipliers", "privacy", "sampler", "blackbox"],
)
def test_what_it_cannot_do_is_said_in_one_line(given, said):
    with pytest.raises(fz.InputError, match=said):
        given()


def blackbox():
    return fz.Nonsmooth(fz.blackbox(lambda x, b: float(np.sum(x))), fz.ClientData([np.zeros((2, 2))]), np.zeros(2))
