"""Units of x (`scale=`) and domains: the same problem in other coordinates, and losses that end at an edge."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.errors import CheckpointError
from fedrzo.problems.start import feasible_start

S = fz.sets
UNITS = np.array([1e3, 1e-2])
DATA = fz.ClientData([np.array([0.5, 1.0, 2.5]), np.array([1.0, 2.0])])


def loss(x, batch):
    return jnp.mean((x[0] / 1e3 - 1) ** 2 + jnp.abs(100 * x[1] - batch))


def unit_loss(z, batch):
    return loss(z * UNITS, batch)


METHOD = fz.FedRZOnn(0.05, 0.1, local_steps=2, batch_size=2)
SETS = {
    "box": (S.Box([-np.inf, 0.0], [500.0, 0.01]), S.Box([-np.inf, 0.0], [0.5, 1.0])),
    "halfspace": (S.Halfspace([1e-3, 100.0], 1.0), S.Halfspace([1.0, 1.0], 1.0)),
}


@pytest.mark.parametrize("name", SETS)
def test_a_problem_with_units_is_the_one_in_those_coordinates(name):
    given, meant = SETS[name]
    scaled = fz.Nonsmooth(loss, DATA, np.zeros(2), given, scale=UNITS)
    plain = fz.Nonsmooth(unit_loss, DATA, np.zeros(2), meant)
    ours, theirs = (fz.run(METHOD, problem, 20, progress=False) for problem in (scaled, plain))
    np.testing.assert_allclose(ours.x, theirs.x * UNITS, rtol=1e-9)
    np.testing.assert_allclose(ours.x_feasible, theirs.x_feasible * UNITS, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-9)
    away = float(np.linalg.norm(ours.x - ours.x_feasible))
    assert ours.history.last["feasibility"] == pytest.approx(away, rel=1e-6, abs=1e-12)  # in the units of the user


def test_a_ball_in_units_is_an_ellipsoid():
    problem = fz.Nonsmooth(loss, DATA, np.array([900.0, 0.0]), S.Ball(0.0, 800.0), scale=UNITS)
    nearest = problem.layout.plain(np.asarray(problem.project(jnp.asarray(problem.x0))))
    np.testing.assert_allclose(nearest, [800.0, 0.0], rtol=1e-6)


def test_units_reach_points_starts_and_certificates():
    problem = fz.Nonsmooth(loss, DATA, np.array([500.0, 0.0]), scale=UNITS)
    np.testing.assert_allclose(problem.x0, [0.5, 0.0])
    again = problem.scaled_by(2 * UNITS)
    np.testing.assert_allclose(again.x0, [0.25, 0.0])
    np.testing.assert_allclose(again.layout.unravel(again.x0), [500.0, 0.0])


@pytest.mark.parametrize(
    ("scale", "wanted"),
    [
        (np.ones(3), "scale: found 3 numbers, x0 has 2"),
        (np.array([1.0, 0.0]), "scale: found 0; pass positive numbers"),
        (np.array([1.0, np.nan]), "scale: found nan"),
        ("large", "scale: found"),
    ],
)
def test_units_that_are_none_are_refused(scale, wanted):
    with pytest.raises(fz.InputError, match=wanted):
        fz.Nonsmooth(loss, DATA, np.zeros(2), scale=scale)


def ends(x, batch):
    """Not a number below zero."""
    return jnp.mean(x[0] - batch * jnp.log(x[0])) + jnp.sqrt(x[1])


def test_units_do_not_round_a_point_out_of_its_domain():
    rng = np.random.default_rng(0)
    low, units = rng.uniform(-1, 1, 50), rng.uniform(0.1, 10, 50)
    problem = fz.Nonsmooth(lambda x, b: jnp.sum(x), DATA, low + 0.5, domain=S.Box(low, low + 1), scale=units)
    with problem.precision():
        for way in (-1e3, 1e3):
            [x] = problem.trees(jnp.asarray(problem.x0) + way)
            np.testing.assert_array_equal(x, np.clip(way, low, low + 1))


def test_a_loss_that_ends_at_its_domain_is_taken_at_the_projection():
    inside = S.Box([0.1, 0.0], np.inf)
    problem = fz.Nonsmooth(ends, DATA, np.array([0.2, 0.3]), domain=inside)
    result = fz.run(fz.FedRZOnn(0.02, 0.05, batch_size="full"), problem, 400, progress=False)
    np.testing.assert_allclose(result.x_feasible, [1.4167, 0.0], atol=0.1)  # of both clients the mean of their means
    assert np.isfinite(result.loss_feasible)
    without = fz.Nonsmooth(ends, DATA, np.array([0.2, 0.03]), inside)
    with pytest.raises(fz.DivergedError, match="the loss is not finite"):
        fz.run(fz.FedRZOnn(0.02, 0.05, batch_size="full"), without, 100, progress=False)


def below(x, y, batch):
    return jnp.mean(batch) * (0.5 * y[0] ** 2 - y[0] + x[0])


def above(x, y, batch):
    return jnp.mean(batch) * (0.5 * (y[0] - 2) ** 2 + 0.5 * (y[0] - x[0] + 2) ** 2)


def test_where_the_lower_set_is_not_empty_is_said_once():
    shares = fz.ClientData([np.array([0.5]), np.array([1.5])])
    problem = fz.Bilevel(
        above, below, shares, np.array([1.0]), np.zeros(1), lower_constraint=lambda x: S.Box(0.0, x),
        lower_domain=S.Box(0.0, np.inf), modulus=1.0, smoothness=1.0,
    )  # fmt: skip
    np.testing.assert_array_equal(problem.project(jnp.array([-1.0])), 0.0)  # so that no result is outside
    boxes = [S.Box(0.5, np.inf), S.Box(-np.inf, 4.0)]
    kept = fz.Bilevel(
        above, below, shares, np.array([1.0]), np.zeros(1), boxes, lower_constraint=lambda x: S.Box(0.0, x),
        lower_domain=S.Box(0.0, np.inf), modulus=1.0, smoothness=1.0,
    )  # fmt: skip
    assert not kept.sets.identical  # sets that keep to the domain together stay as they are, each with its client


def test_a_start_outside_is_measured_without_units():
    problem = fz.Nonsmooth(lambda x, b: jnp.sum(x**2), DATA, np.array([1000.5]), S.Box(0.0, 1000.0), scale=np.array([0.01]))
    with pytest.warns(UserWarning, match="x0: found a point 0.5 outside"):
        moved = feasible_start(problem)
    np.testing.assert_allclose(moved.layout.unravel(moved.x0), 1000.0)


def test_a_checkpoint_of_other_units_is_refused(tmp_path):
    run = functools.partial(fz.run, METHOD, rounds=2, progress=False, checkpoint=tmp_path / "kept")
    run(fz.Nonsmooth(loss, DATA, np.zeros(2), scale=UNITS))
    run(fz.Nonsmooth(loss, DATA, np.zeros(2), scale=UNITS), resume=True)
    with pytest.raises(CheckpointError, match="scale"):
        run(fz.Nonsmooth(loss, DATA, np.zeros(2)), resume=True)


@pytest.mark.slow("three more programs")
def test_a_domain_holds_for_the_lower_set_and_is_no_secret():
    shares = fz.ClientData([np.array([0.5]), np.array([1.5])])
    problem = fz.Bilevel(
        above, below, shares, np.array([0.15]), np.zeros(1), lower_constraint=lambda x: S.Box(0.0, jnp.sqrt(x[0])),
        domain=S.Box(0.1, np.inf), modulus=1.0, smoothness=1.0,
    )  # fmt: skip
    assert np.isfinite(float(problem.evaluate(jnp.array([-1.0]))["loss"]))  # where the root is not a number
    result = fz.run(fz.FedRZObl(0.05, 0.2, communication="scalars"), problem, 5, progress=False)
    assert np.isfinite(result.loss_feasible)
    assert any("outside of its domain" in note for note in result.notes)
