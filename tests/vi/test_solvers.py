"""Solvers of variational inequalities: against independent solvers, their error bounds, and their constants."""

import itertools

import casadi
import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo import InputError, sets, vi

SOLVERS = [vi.Accelerated(tolerance=1e-9), vi.Extragradient(tolerance=1e-9), vi.Projection(tolerance=1e-9)]
N = 6


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def matrix(asymmetry, seed=0):
    """A positive definite matrix of condition 20, plus a skew part."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(N, N)))[0]
    skew = rng.normal(size=(N, N))
    return q @ np.diag(np.geomspace(0.1, 2.0, N)) @ q.T + asymmetry * (skew - skew.T)


def solve(solver, G, Y, mu, L, y0=None):
    start = jnp.zeros(N) if y0 is None else jnp.asarray(y0)
    return jax.jit(lambda y: solver.solve(G, Y, y, mu, L))(start)


def constants(M):
    return float(np.linalg.eigvalsh((M + M.T) / 2)[0]), float(np.linalg.norm(M, 2))


def boxed_affine(M, q, lo, hi):
    """VI(Box, M y + q), exactly: of the 3^N ways in which bounds may bind, the one whose y and M y + q have the right signs."""
    for at in itertools.product((lo, np.nan, hi), repeat=N):
        y = np.array(at)
        free = np.isnan(y)
        y[free] = 0.0
        y[free] = np.linalg.solve(M[np.ix_(free, free)], -(M @ y + q)[free])
        g = M @ y + q
        if np.all((lo <= y) & (y <= hi)) and np.all(g[y == lo] >= 0) and np.all(g[y == hi] <= 0):
            return y
    raise AssertionError("a positive definite M has a solution")


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("asymmetry", [0.0, 0.2], ids=["symmetric", "asymmetric"])
def test_affine_over_a_box_agrees_with_enumeration(solver, asymmetry):
    M, q = matrix(asymmetry), np.random.default_rng(1).normal(size=N)
    found = solve(solver, lambda y: M @ y + q, sets.Box(-0.5, 0.7), *constants(M))
    expected = boxed_affine(M, q, -0.5, 0.7)
    assert 0 < np.sum((expected > -0.49) & (expected < 0.69)) < N  # some bounds bind, some do not
    np.testing.assert_allclose(found.y, expected, rtol=0, atol=1e-6 * np.linalg.norm(expected))
    assert np.linalg.norm(found.y - expected) <= found.error_bound + 1e-12


POLYHEDRON = (np.random.default_rng(2).normal(size=(4, N)), np.full(4, 0.3))


@pytest.mark.parametrize("kind", ["simplex", "polyhedron"])
def test_symmetric_maps_agree_with_a_quadratic_program(kind):
    M, q = matrix(0.0), np.random.default_rng(1).normal(size=N)
    y = cvxpy.Variable(N)
    A, b = POLYHEDRON
    rows = [y >= 0, cvxpy.sum(y) == 1] if kind == "simplex" else [A @ y <= b]
    Y = sets.Simplex(1.0) if kind == "simplex" else sets.Polyhedron(A, b)
    cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.quad_form(y, cvxpy.psd_wrap(M)) + q @ y), rows).solve(
        solver="OSQP", eps_abs=1e-11, eps_rel=1e-11, max_iter=200_000, polishing=True
    )
    for solver in SOLVERS[:2]:
        found = solve(solver, lambda y: M @ y + q, Y, *constants(M), np.full(N, 1 / N))
        np.testing.assert_allclose(found.y, y.value, rtol=0, atol=1e-6 * np.linalg.norm(y.value))


def ipopt_vi(G, rows, multiplier_signs):
    """Solve a VI's optimality conditions by Ipopt: G(y) + A'u = 0, A y <= b, u >= 0, u'(b - A y) = 0."""
    A, b = rows
    y, u = casadi.SX.sym("y", N), casadi.SX.sym("u", len(b))
    slack = b - casadi.mtimes(casadi.DM(A), y)
    stationary = G(y) + casadi.mtimes(casadi.DM(A).T, u)
    nlp = {
        "x": casadi.vertcat(y, u),
        "f": casadi.dot(u * multiplier_signs, slack * multiplier_signs),
        "g": casadi.vertcat(stationary, slack),
    }
    quiet = {"ipopt.print_level": 0, "print_time": False, "ipopt.tol": 1e-12, "ipopt.acceptable_tol": 1e-12}
    free = np.where(multiplier_signs > 0, 0.0, -np.inf)
    top = np.concatenate([np.zeros(N), np.where(multiplier_signs > 0, np.inf, 0.0)])
    start = np.concatenate([np.full(N, 1 / N), np.ones(len(b))])
    solver = casadi.nlpsol("s", "ipopt", nlp, quiet)
    found = solver(x0=start, lbx=np.concatenate([np.full(N, -np.inf), free]), lbg=np.zeros(N + len(b)), ubg=top)
    assert float(found["f"]) < 1e-10
    return np.array(found["x"]).ravel()[:N]


@pytest.mark.parametrize("kind", ["box", "simplex", "polyhedron"])
@pytest.mark.parametrize(
    "asymmetry",
    [pytest.param(0.0, marks=pytest.mark.slow("compiles a solver for every kind of set")), 0.2],
    ids=["symmetric", "asymmetric"],
)
def test_nonlinear_maps_agree_with_ipopt(kind, asymmetry):
    """G(y) = M y + y^3 + q is strongly monotone, not affine."""
    M, q = matrix(asymmetry), 2 * np.random.default_rng(1).normal(size=N)
    eye = np.eye(N)
    rows, signs, Y = {
        "box": ((np.vstack([eye, -eye]), np.full(2 * N, 0.6)), np.ones(2 * N), sets.Box(-0.6, 0.6)),
        "simplex": (
            (np.vstack([-eye, np.ones((1, N))]), np.r_[np.zeros(N), 1.0]), np.r_[np.ones(N), 0.0], sets.Simplex(1.0),
        ),
        "polyhedron": (POLYHEDRON, np.ones(4), sets.Polyhedron(*POLYHEDRON)),
    }[kind]  # fmt: skip
    expected = ipopt_vi(lambda y: casadi.DM(M) @ y + y**3 + q, rows, signs)
    mu, L = constants(M)
    found = solve(vi.Accelerated(tolerance=1e-9), lambda y: M @ y + y**3 + q, Y, mu, L + 3, np.full(N, 1 / N))
    np.testing.assert_allclose(found.y, expected, rtol=0, atol=1e-6 * max(1, np.linalg.norm(expected)))


def test_an_asymmetric_map_over_a_simplex_solves_its_inequality():
    """Over the corners of a polytope the inequality G(y)'(z - y) >= 0 can be checked outright."""
    M, q = matrix(0.3), np.random.default_rng(3).normal(size=N)
    found = solve(SOLVERS[0], lambda y: M @ y + q, sets.Simplex(2.0), *constants(M))
    G = M @ np.asarray(found.y) + q
    assert (G @ (2 * np.eye(N) - np.asarray(found.y)).T).min() > -1e-8


def test_the_five_firm_equilibrium_of_murphy_sherali_soyster():
    """The published Nash-Cournot equilibrium (GAMS model library, oligomcp), from an independent scalar reduction."""
    c, beta = np.array([10.0, 8, 6, 4, 2]), np.array([1.2, 1.1, 1.0, 0.9, 0.8])

    def conditions(y):
        Q = jnp.sum(y)
        price = (5000 / Q) ** (1 / 1.1)
        return c + (y / 5) ** (1 / beta) - price + y * price / (1.1 * Q)

    found = jax.jit(lambda y: vi.Accelerated(tolerance=1e-9).solve(conditions, sets.Box(1.0, 200.0), y, 0.02, 1.0))(
        jnp.full(5, 10.0)
    )
    np.testing.assert_allclose(found.y, [36.932511, 41.818142, 43.706579, 42.65924, 39.178953], rtol=1e-6)


@pytest.mark.parametrize(
    ("solver", "kind"),
    [
        (vi.Projection(steps=7), "box"),
        pytest.param(vi.Projection(steps=7), "polyhedron", marks=pytest.mark.slow("compiles a solver for every kind of set")),
        (vi.Extragradient(steps=8), "simplex"),
        pytest.param(vi.Accelerated(tolerance=0.05), "box", marks=pytest.mark.slow("compiles a solver for every kind of set")),
        (vi.Accelerated(tolerance=0.05), "reals"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_error_bounds_hold_far_from_the_solution(solver, kind):
    Y = {"box": sets.Box(-0.5, 0.7), "simplex": sets.Simplex(1.0), "polyhedron": sets.Polyhedron(*POLYHEDRON)}.get(
        kind, sets.Reals()
    )
    M, rng = matrix(0.2), np.random.default_rng(4)
    mu, L = constants(M)

    def both(q, y0):
        G = lambda y: M @ y + q  # noqa: E731
        return solver.solve(G, Y, y0, mu, L), SOLVERS[0].solve(G, Y, y0, mu, L)

    rough, accurate = jax.jit(jax.vmap(both))(rng.normal(size=(20, N)), rng.normal(size=(20, N)))
    errors = np.linalg.norm(rough.y - accurate.y, axis=1)
    assert np.all(errors <= rough.error_bound + 1e-8)
    assert errors.max() > 1e-3  # the bound is put to the test away from the solution
    assert np.median(rough.error_bound / np.maximum(errors, 1e-9)) < L / mu  # and is not an empty one


def test_projection_is_algorithm_5_by_hand():
    M, q = matrix(0.1), np.ones(N)
    for k, tau in ((1, 3.0), (7, 2.5)):
        y = np.full(N, 0.1)
        steps = int(np.ceil(tau * np.log(k + 1)))
        for _ in range(steps):
            y = np.clip(y - 0.05 * (M @ y + q), -0.3, 0.3)
        found = vi.Projection(stepsize=0.05, tau=tau).solve(
            lambda y: M @ y + q, sets.Box(-0.3, 0.3), jnp.full(N, 0.1), 0.1, 2.0, k
        )
        np.testing.assert_allclose(found.y, y, rtol=1e-13)
        assert int(found.steps) == steps


def test_defaults_are_the_theorys():
    solver = vi.Projection()
    assert solver.alpha(0.6, 5.6) == 0.6 / 5.6**2
    assert vi.needed_tau(0.6, 5.6) == pytest.approx(86.6, abs=0.05)
    assert int(solver.count(0.6, 5.6, 1)) == int(np.ceil(vi.needed_tau(0.6, 5.6) * np.log(2)))
    assert int(solver.count(1.0, 1.0, 5)) == 1


def cournot(n):
    rng = np.random.default_rng(0)
    c = rng.uniform(0.09, 0.11, n)
    return (lambda y: (c + 0.5) * y - 10 + 0.5 * (1 + jnp.sum(y))), sets.Box(0.0, rng.uniform(2, 4, n)), c


def test_a_thousand_followers_are_solved_in_far_fewer_steps_than_their_condition_number():
    counts = []
    for n in (10, 1000):
        G, Y, c = cournot(n)
        mu, L = c.min() + 0.5, c.max() + 0.5 + 0.5 * n
        found = jax.jit(lambda y, G=G, Y=Y, mu=mu, L=L: vi.Accelerated().solve(G, Y, y, mu, L))(jnp.zeros(n))
        price = (10 - 0.5) / (1 + 0.5 * np.sum(1 / (c + 0.5)))  # no cap binds: y_j = price / (c_j + b)
        np.testing.assert_allclose(found.y, price / (c + 0.5), rtol=0, atol=1e-8)
        counts.append(int(found.steps))
    assert L / mu > 835
    assert found.error_bound <= 1e-8
    assert counts[1] < 835 / 10
    assert counts[1] <= 2 * counts[0]  # so the cost is linear in the followers, since a step's is


def test_a_lipschitz_constant_that_is_too_small_is_made_up_for():
    M, q = matrix(0.2), np.ones(N)
    mu, L = constants(M)
    found = solve(vi.Accelerated(), lambda y: M @ y + q, sets.Box(-1, 1), mu, L / 50)
    assert found.error_bound <= 1e-7
    np.testing.assert_allclose(found.y, boxed_affine(M, q, -1, 1), atol=1e-6)


@pytest.mark.parametrize("n", [5, 100])
def test_constants_of_an_affine_map_are_measured(n):
    rng = np.random.default_rng(0)
    S, K = rng.normal(size=(n, n)), rng.normal(size=(n, n))
    M = S @ S.T / n + 0.1 * np.eye(n) + (K - K.T)
    found = vi.measure(lambda y: M @ y, [jnp.zeros(n)])
    expected = np.linalg.eigvalsh((M + M.T) / 2)[0], np.linalg.norm(M, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vi.Projection(stepsize=-1.0), "solver: stepsize: found -1.0; pass a positive number"),
        (lambda: vi.Projection(tau="20"), "solver: tau: found '20'"),
        (lambda: vi.Projection(steps=1.5), "solver: steps: found 1.5; pass a positive whole number"),
        (lambda: vi.Projection(tau=2.0, tolerance=1e-3), "solver: found more than one of tau, tolerance and steps"),
        (lambda: vi.Extragradient(tolerance=None), "solver: found neither tolerance nor steps"),
        (lambda: vi.Accelerated(tolerance=None), "solver: found None"),
        (
            lambda: vi.Projection().check(-0.1, 1.0),
            "map: not strongly monotone in y (modulus -0.1), so that the solver's usual stepsize mu/L^2 is none",
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_tau_below_the_theorys_is_warned_of():
    with pytest.warns(UserWarning, match=r"tau is 20, the theory needs at least .* = 86.6"):
        vi.Projection(tau=20.0).check(0.6, 5.6)


def test_repr_shows_what_was_chosen():
    assert repr(vi.Projection(stepsize=1e-4, tau=20)) == "Projection(stepsize=0.0001, tau=20)"
    assert repr(vi.Accelerated()) == "Accelerated()"
