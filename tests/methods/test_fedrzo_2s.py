"""FedRZO_2s: Algorithms 4 and 5 on problems with known answers, and what is refused."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from conformance import Case, suite
from fedrzo.federation import directions
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Roots, path_key
from fedrzo.problems.questions import BY_CLIENTS
from fedrzo.results.history import History

A = np.array([[2.0, 0.5], [-0.3, 1.5]])


def upper(x, y, xi):
    return 0.5 * jnp.sum((x - 1) ** 2) + 0.5 * jnp.sum(y**2) + xi[0] * jnp.sum(x)


def lower(x, y, xi):
    return A @ y - x - xi


def scenarios(clients=4, samples=3):
    rng = np.random.default_rng(0)
    return fz.ClientData([rng.normal(0, 0.3, (samples, 1)) for _ in range(clients)])


# Compiles faster than the default, and is as accurate on a map of condition 1.4.
MONITOR = fz.vi.Projection(steps=60)


def toy(wrap=lambda loss: loss, x0=0.0, monitor=MONITOR, **more):
    return fz.TwoStage(
        wrap(upper), lower, scenarios(), np.full(2, x0), np.zeros(2), fz.sets.Box(-2.0, 2.0), fz.sets.Box(0.0, 1.0),
        monitor=monitor, **more,
    )  # fmt: skip


def numpy_upper(x, y, xi):
    return 0.5 * np.sum((x - 1) ** 2) + 0.5 * np.sum(y**2) + xi[0] * np.sum(x)


def implicit(x, xi):
    """The toy's loss at a point, its lower level by brute force over which bounds of the box bind."""
    best, y_best = np.inf, None
    for kinds in np.ndindex(3, 3):
        free = [j for j in range(2) if kinds[j] == 1]
        y = np.array([0.0, 0.0, 1.0])[list(kinds)]
        if free:
            fixed = [j for j in range(2) if j not in free]
            y[free] = np.linalg.solve(A[np.ix_(free, free)], (x + xi)[free] - A[np.ix_(free, fixed)] @ y[fixed])
        gap = np.linalg.norm(y - np.clip(y - (A @ y - x - xi), 0, 1))
        best, y_best = (gap, y) if gap < best else (best, y_best)
    assert best < 1e-12
    return numpy_upper(x, y_best, xi)


def mean_loss(x):
    return np.mean([implicit(x, xi) for xi in np.asarray(scenarios().flat)])


def least_loss():
    from scipy.optimize import minimize

    return minimize(mean_loss, np.ones(2), method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-8}).fun


test_conformance = suite(
    Case(
        method=fz.FedRZO2s(0.05, 0.1, 5, batch_size=2, solver=fz.vi.Projection()),
        problem=toy,
        numpy_loss=numpy_upper,
        rounds=40,
        optimum=least_loss(),
        changes={"stepsize": 0.03, "local_steps": 3, "smoothing": 0.2},
    )
)


def test_one_round_is_the_listing_computed_by_hand():
    """Algorithms 4 and 5, four clients, three local steps in round 1, in plain NumPy from the same keys."""
    problem, eta, gamma, tau, alpha = toy(modulus=1.0, smoothness=2.5), 0.2, 0.03, 9.0, 0.1
    method = fz.FedRZO2s(gamma, eta, 3, solver=fz.vi.Projection(alpha, tau=tau))
    ours = [fz.run(method, problem, rounds, key=5, progress=False) for rounds in (1, 2)]
    start, taken = np.asarray(ours[0].x), 0
    with problem.precision():
        roots = Roots.of(jax.random.key(5))
        ends = []
        for i in range(4):
            key = path_key(roots.directions, (1, 0, i))  # round 1, call 0, client i
            client, x = Client.of(problem, i, roots), start
            for j in range(3):
                step = jax.random.fold_in(key, j)
                xi = np.asarray(client.sample(step, 1))[0]
                v = np.asarray(directions.sphere(jax.random.fold_in(step, 0), 2, eta, jnp.float64))
                steps = int(np.ceil(tau * np.log(3 + j + 1 + 1)))  # k = T_1 + j, and Algorithm 5 gets k + 1
                values = []
                for point in (x + v, x - v):
                    y = np.zeros(2)
                    for _ in range(steps):
                        y = np.clip(y - alpha * (A @ y - point - xi), 0, 1)
                    values.append(numpy_upper(point, y, xi))
                    taken += steps
                g = 2 / (2 * eta**2) * (values[0] - values[1]) * v
                x = x - gamma * (g + (x - np.clip(x, -2, 2)) / eta)
            ends.append(x)
    np.testing.assert_allclose(ours[1].x, np.mean(ends, axis=0), rtol=1e-12)
    assert ours[1].history["lower_steps"][-1] - ours[0].history["lower_steps"][-1] == taken


def test_monitored_loss_is_the_implicit_loss():
    problem, x = toy(monitor=None), np.array([0.7, 0.2])
    with problem.precision():
        row = problem.evaluate(jnp.asarray(x))
    assert float(row["loss"]) == pytest.approx(mean_loss(x), rel=1e-8)
    assert float(row["lower_error"]) < 1e-8


@pytest.mark.slow("a solver for every scenario")
def test_scenarios_of_unequal_clients_and_fixed_values_are_weighted_and_walked_through():
    rng = np.random.default_rng(1)
    data = [rng.normal(size=(size, 1)) for size in (2, 5)]
    problem = fz.TwoStage(
        lambda x, y, xi: xi[1] * (x[0] - xi[0][0]) ** 2 + y[0], lambda x, y, xi: y - x, fz.ClientData(data, fixed=[1.0, 3.0]),
        np.zeros(1), np.zeros(1),
    )  # fmt: skip
    with problem.precision():
        loss = float(problem.evaluate(jnp.asarray([0.5]))["loss"])
    expected = np.mean([w * np.mean((0.5 - d) ** 2) + 0.5 for w, d in zip((1.0, 3.0), data, strict=True)])
    assert loss == pytest.approx(expected, rel=1e-12)
    method = fz.FedRZO2s(0.1, 0.1, 2, "full", fz.vi.Projection(steps=12, stepsize=0.5))
    history = fz.run(method, problem, 3, eval_every=3, progress=False).history
    assert history["evaluations"][-1] == 3 * 2 * 2 * 7
    assert history["lower_steps"][-1] == 3 * 2 * 2 * 7 * 12


def test_local_steps_may_change_and_nothing_but_x_travels():
    method = fz.FedRZO2s(0.01, 0.1, lambda r: 1 + r % 3, solver=fz.vi.Projection(0.1, tau=4.0))
    history = fz.run(method, toy(), 4, progress=False).history
    counts = [int(np.ceil(4.0 * np.log(k + 2))) for k in range(7)]  # local steps 1, 2, 3, 1
    expected = np.cumsum([sum(counts[:1]), sum(counts[1:3]), sum(counts[3:6]), counts[6]]) * 2 * 4
    np.testing.assert_array_equal(history["lower_steps"][1:], expected)
    np.testing.assert_array_equal(np.diff(history["upload_bytes"]), 4 * 2 * 8)
    np.testing.assert_array_equal(np.diff(history["download_bytes"]), 4 * 2 * 8)


def test_constants_are_measured_where_none_are_given():
    problem = toy()
    assert problem.modulus == pytest.approx(np.linalg.eigvalsh((A + A.T) / 2)[0])
    assert problem.smoothness == pytest.approx(np.linalg.norm(A, 2))


@pytest.mark.slow("compiles FedRZO_2s once more")
def test_lower_solutions_are_given_for_a_scenario(tmp_path):
    problem = toy()
    y = problem.lower(np.array([0.9, 0.4]), np.array([0.1]))
    np.testing.assert_allclose(y, np.linalg.solve(A, [1.0, 0.5]), rtol=1e-7)
    result = fz.run(fz.FedRZO2s(0.05, 0.1, 2, solver=fz.vi.Accelerated()), problem, 2, progress=False)
    np.testing.assert_array_equal(result.lower(np.array([0.1]), at="x"), problem.lower(result.x, np.array([0.1])))
    result.save(tmp_path)
    with pytest.raises(fz.InputError, match="lower: only the result of a run on a TwoStage problem"):
        fz.Result.load(tmp_path).lower(np.array([0.1]))


def test_the_lower_level_of_a_result_is_solved_at_the_feasible_x_unless_x_is_named():
    problem = types.SimpleNamespace(lower_solved_by=BY_CLIENTS, lower=lambda x, xi: x + xi)
    result = fz.Result(1.0, 2.0, 3.0, 0, History({}), {}, problem=problem)
    assert (result.lower(0.5), result.lower(0.5, at="x_feasible"), result.lower(0.5, at="x")) == (2.5, 2.5, 1.5)
    with pytest.raises(fz.InputError, match=r"^at: found 'y'; pass 'x_feasible' or 'x'$"):
        result.lower(0.5, at="y")


def small(map=lambda x, y, xi: y - x, lower_constraint=None, lower_domain=None, x0=0.0, **more):
    return fz.TwoStage(
        lambda x, y, xi: jnp.sum(x**2) + jnp.sum(y), map, fz.ClientData([np.zeros((1, 1))]), np.array([x0]), np.zeros(1),
        None, lower_constraint, lower_domain, **more,
    )  # fmt: skip


METHOD = fz.FedRZO2s(0.1, 0.1, 1, solver=fz.vi.Projection(stepsize=0.5, steps=20))


def go(problem, solver=METHOD.solver, rounds=1):
    return fz.run(dataclasses.replace(METHOD, solver=solver), problem, rounds, progress=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: small(lambda x, y, xi: jnp.append(y, 0.0)),
            "map: found (2,) for a y of (1,); it must return one number",
        ),
        (lambda: small(lambda x, y: y), "map: calling map(x, y, xi) failed"),
        (lambda: small(lambda x, y, xi: jnp.asarray(float(y[0]))), "map: it uses NumPy or Python control flow"),
        (lambda: small(modulus=-1.0), "modulus: found -1.0"),
        (lambda: small(monitor="accurate"), "monitor: found str; pass a solver"),
        (
            lambda: go(small(lower_constraint=lambda x, xi: fz.sets.Box(1.0 + x, 0.5 + x))),
            "lower_constraint: Y is empty",
        ),
        (
            lambda: go(small(lambda x, y, xi: -y, fz.sets.Box(0.0, np.inf)), fz.vi.Projection(1e-3, steps=2)),
            "map: not strongly monotone in y (measured modulus -1), and Y is unbounded, so that there may be no lower solution; "
            "check the sign of the map first",
        ),
        (
            lambda: go(toy(x0=1.0), fz.vi.Projection(stepsize=3.0, steps=5)),
            "solver: Projection(stepsize=3, steps=5) does not converge at x0",
        ),
        (
            lambda: go(toy(x0=1.0), fz.vi.Extragradient(stepsize=2.0, max_steps=5000)),
            "solver: Extragradient(stepsize=2, max_steps=5000) stopped after 5000 steps at x0 with residual",
        ),
        (lambda: fz.FedRZO2s(0.1, 0.1, solver="fast"), "solver: found str; pass a solver such as fz.vi.Projection()"),
        (lambda: fz.FedRZO2s(0.1, lambda r: 0.1), "smoothing: found a function"),
        (
            lambda: fz.run(METHOD, fz.zoo.toys.quadratic(), 1, progress=False),
            "problem: found Nonsmooth; FedRZO2s solves TwoStage",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(make, message):
    with pytest.raises(fz.InputError) as error:
        make()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_stepsize_that_diverges_names_the_bound_it_breaks():
    problem = toy(x0=1.0)
    limit = 2 * problem.modulus / problem.smoothness**2
    with pytest.raises(fz.InputError, match=rf"its stepsize must be below 2 mu/L\^2 = {limit:.3g}"):
        go(problem, fz.vi.Projection(stepsize=3.0, steps=5))


def test_a_map_that_is_not_strongly_monotone_is_warned_of():
    problem = small(lambda x, y, xi: -0.5 * y - x, fz.sets.Box(-1.0, 1.0))
    with pytest.warns(UserWarning, match="map: not strongly monotone on samples .measured modulus -0.5"):
        result = go(problem, fz.vi.Projection(stepsize=0.1, steps=3))
    assert result.history["lower_error"][-1] == np.inf


def test_a_modulus_that_is_too_large_is_warned_of():
    with pytest.warns(UserWarning, match="modulus: found 3, but measured 1 on samples"):
        go(small(modulus=3.0, smoothness=3.0))


@pytest.mark.slow("a solver for every scenario")
def test_an_empty_set_met_on_the_way_stops_the_run_and_names_x():
    """Y(x) = [0, 1 - x] is empty beyond x = 1, where minus x drives the leader."""
    problem = fz.TwoStage(
        lambda x, y, xi: y[0] - 5 * x[0], lambda x, y, xi: y, fz.ClientData([np.zeros((1, 1))]), np.zeros(1), np.zeros(1),
        None, lambda x, xi: fz.sets.Box(0.0, 1 - x),
    )  # fmt: skip
    method = fz.FedRZO2s(0.05, 0.01, 1, solver=fz.vi.Accelerated())
    with pytest.raises(fz.DivergedError, match=r"after round .*: x is no longer finite after x = \[1"):
        fz.run(method, problem, 40, progress=False)
    problem.lower_domain = fz.sets.Box(0.0, 1.0)
    assert fz.run(method, problem, 20, progress=False).x[0] == pytest.approx(5.0)


def test_a_tolerance_that_is_missed_by_little_is_warned_of():
    with pytest.warns(UserWarning, match=r"solver: Extragradient\(max_steps=60\) comes within .* of y at x0, no closer"):
        go(toy(x0=1.0), fz.vi.Extragradient(max_steps=60))


@pytest.mark.slow("two precisions")
def test_the_default_solver_is_accurate_as_far_as_single_precision_allows():
    """Warnings are errors here: none is due."""
    data = fz.ClientData([np.full((2, 1), value, np.float32) for value in (0.1, -0.2)])
    problem = fz.TwoStage(upper, lower, data, np.ones(2, np.float32), np.zeros(2, np.float32), None, fz.sets.Box(0.0, 1.0))
    result = fz.run(fz.FedRZO2s(0.05, 0.1), problem, 2, progress=False)
    assert result.history["lower_error"].max() < 1e-4


def test_the_theory_names_algorithm_5():
    with pytest.warns(UserWarning, match="constants of TwoStage are estimated"):
        prescribed = fz.FedRZO2s.from_theory(toy(modulus=1.0, smoothness=2.5), 1000)
    assert prescribed.solver == fz.vi.Projection()
    assert fz.FedRZO2s(0.1, 0.1).solver == fz.vi.Accelerated()


def test_repr_reads_like_the_call():
    assert repr(fz.FedRZO2s(1e-3, 0.1, 20)) == "FedRZO2s(stepsize=0.001, smoothing=0.1, local_steps=20)"
