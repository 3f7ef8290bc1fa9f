"""`benchmarks/theory.py`: closed forms, traces, fits, and the whole of it on a small budget."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
import theory
from helpers import averaging, moments, scaling, traces
from helpers.command import main

SIGMAS = 5.0  # a chance of less than one in a million for each number compared


@pytest.mark.slow("thousands of estimates")
@pytest.mark.parametrize(("known", "x"), [
    (traces.l1(4, 4, 0.5), [0.3, -0.1, 0.05, 0.6]), (traces.l1(2, 1, 0.5), [0.2]), (traces.boxes(3, 0.5), [0.2, 1.3, 2.0]),
])  # fmt: skip
def test_closed_form_gradients_are_means_of_estimates(known, x):
    x, problem, eta, n = np.array(x), known.problem, known.smoothing, len(x)
    rng = np.random.default_rng(0)
    v = rng.normal(size=(200_000, n))
    v *= eta / np.linalg.norm(v, axis=1)[:, None]
    with problem.precision():
        batch = jnp.asarray(problem.data.flat)
        value = jax.vmap(lambda x: problem.value(x, batch))
        differences = np.asarray(value(jnp.asarray(x + v)) - value(jnp.asarray(x - v)))
        found = np.asarray(traces.gradient_of(known.gradient, problem, jnp.asarray(known.table), eta, jnp.asarray(x)))
        away = [np.asarray(x - problem.sets.project(i, jnp.asarray(x))) for i in range(problem.clients)]
    estimates = n / (2 * eta**2) * differences[:, None] * v + np.mean(away, axis=0) / eta
    error = estimates.std(axis=0) / math.sqrt(len(v))
    np.testing.assert_array_less(np.abs(estimates.mean(axis=0) - found), SIGMAS * error + 1e-6)


def test_the_gap_of_boxes():
    known = traces.boxes(3, 0.5)
    x = np.full(3, 1 + 3 * 0.5)  # where the smoothed problem is stationary
    with known.problem.precision():
        gradient = traces.gradient_of("linear", known.problem, None, 0.5, jnp.asarray(x))
        away = sum(float(known.problem.sets.distance(i, jnp.asarray(x))) ** 2 for i in range(3))
    np.testing.assert_allclose(gradient, 0, atol=1e-12)
    assert known.gap == pytest.approx(0 - (-x.sum() + away / (2 * 0.5 * 3)))


@pytest.mark.slow("compiles a method once more")
def test_a_trace_takes_the_steps_of_the_method():
    # One client, all samples, in one dimension: a direction is +1 or -1, and both give the same step.
    known = traces.l1(1, 1, 0.5)
    problem = fz.Nonsmooth(traces.scaled_distance, fz.ClientData([np.zeros((1, 1))]), np.full(1, 2.0))
    known = traces.Known(problem, 0.5, 1.0, (0.0, 0.0), 2.5, "l1", known.table)
    found = traces.trace(known, 0.1, 3, 40, [0, 1])
    x, squares = 2.0, []
    for _ in range(41):
        slope = (abs(x + 0.5) - abs(x - 0.5)) / (2 * 0.5)  # of |x|, smoothed over [x - 1/2, x + 1/2]
        squares.append(slope**2)
        x -= 0.1 * slope
    np.testing.assert_allclose(found.squared, np.mean(squares), rtol=1e-6)
    np.testing.assert_array_equal(found.consensus, 0)


def test_clients_agree_when_a_round_begins_and_drift_apart_in_it():
    known = traces.l1(4, 4, 0.5)
    found = traces.trace(known, 0.01, 5, 200, [0, 1, 2])
    apart = found.consensus.mean(axis=0)
    assert apart[0] == pytest.approx(0, abs=1e-30)
    assert np.all(np.diff(apart[:5]) > 0)
    assert np.all(apart[5:] == 0)
    # Independent steps of variance s^2 in each client: (1 - 1/m) k gamma^2 s^2 after k of them, s^2 at most n L0^2 = 4.
    assert apart[4] < 4 * 0.01**2 * 4


@pytest.mark.slow("several programs")
def test_inactive_clients_have_no_say():
    few, many = (traces.trace(traces.l1(m, 2, 0.5), 0.01, 2, 50, [3], 2) for m in (2, 5))
    np.testing.assert_allclose(few.squared, many.squared, rtol=1e-12)


def test_crossings_of_a_power_law_are_exact():
    iterations = [10, 40, 160]
    squared = 3.0 / np.sqrt(iterations)
    assert scaling.crossing(iterations, squared, 0.5) == pytest.approx(36)
    assert scaling.crossing(iterations, squared, 0.1) == math.inf
    assert scaling.crossing(iterations, squared, 2.0) == 10


def test_slopes_of_power_laws_are_found_with_their_uncertainty():
    rng = np.random.default_rng(0)
    curves = []
    for m in (1, 2, 4, 8):
        iterations = [round(f * 1000 / m) for f in (0.25, 0.5, 1.0, 2.0)]
        exact = np.sqrt(100 / (m * np.array(iterations)))
        curves.append(scaling.Curve(iterations, exact[:, None] * np.exp(0.05 * rng.normal(size=(4, 12)))))
    found = scaling.slope([1, 2, 4, 8], curves, 0.3)
    assert found["low"] <= -1 <= found["high"]
    assert 0.01 < found["high"] - found["low"] < 0.2
    assert found["slope"] == pytest.approx(-1, abs=0.1)
    assert math.isnan(scaling.slope([1, 2, 4, 8], curves, 1e-3)["slope"])


def test_second_moments_on_a_sphere_and_with_normal_directions():
    """By hand: n and n + 2 with two sides of a linear loss, n^2 and n (n + 2) with one side of a norm at its tip."""
    n = 50
    for kind, case, wanted in (
        ("sphere", "two sides", n),
        ("normal", "two sides", n + 2),
        ("sphere", "one side", n**2),
        ("normal", "one side", n * (n + 2)),
    ):
        drawn = moments.squares(kind, case, n, 4000)
        assert abs(drawn.mean() - wanted) < 4 * drawn.std() / math.sqrt(drawn.size) + 1e-9 * wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["median"], "problem: found 'median'"),
        (["--budget", "5"], "--budget: found 5"),
        (["--seeds", "1"], "--seeds: found 1"),
    ],
)
def test_what_is_refused(options, message, fails):
    assert message in fails(theory, *options)


@pytest.mark.slow("runs a whole benchmark")
def test_a_shared_direction_is_not_averaged_away():
    found = averaging.directions([1, 8], 200)
    assert found["own"]["low"] <= -1 <= found["own"]["high"]
    # Identical clients that share a direction all return the same estimate.
    assert found["shared"]["variance"][1] == pytest.approx(found["shared"]["variance"][0], rel=1e-9)


@pytest.mark.slow("runs a whole benchmark")
def test_the_whole_bench(tmp_path, capsys):
    assert main(theory, ["--quick", "--seeds", "8", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(row["holds"] and row["slack"] > 1 for row in found["bound"])
    assert all(row["holds"] for row in found["consensus"])
    assert found["clients"]["at"] == [1, 2, 4, 8, 16]
    assert not found["clients"]["cut_off"]
    assert found["clients"]["slope"] == pytest.approx(-1, abs=0.1)
    assert found["dimension"]["low"] <= 1.5
    assert all(row["rounds"] <= row["bound"] for row in found["rounds"])
    held = [claim["holds"] for claim in found["claims"]]
    assert held[:2] == [True, True]
    assert held[5:7] == [
        True,
        False,
    ]  # a sphere's second moment is n, but with two sides that of normal directions is, too
    assert not held[-1]  # a shared direction: measured, and said so
    assert {"theory.json", "table.csv", "figure.png", "figure.svg"} <= {path.name for path in tmp_path.iterdir()}
    assert theory.table(found)[0] == ["claim", "found", "holds"]
