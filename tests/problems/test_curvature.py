"""StepConstants of a lower level: of all clients, where x goes, what they cost, and bounds that bound."""

import copy
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.checks.parts import steepness
from fedrzo.problems.curvature import StepConstants
from fedrzo.problems.solver_trial import left_by
from fedrzo.support.pytrees import fingerprint


def squares(x, y, xi):
    return jnp.sum((y - xi[1]) ** 2)


def pull(x, y, xi):
    return xi[0] * (y - x)


def market(*clients, **options):
    """Scenarios (a, t) of each client: the map a (y - x), whose solution is x, and the loss (y - t)^2."""
    return fz.TwoStage(squares, pull, fz.ClientData([np.array(c, float) for c in clients]), np.zeros(1), np.zeros(1), **options)


@pytest.mark.parametrize("a", [(10, 0.05, 0.05), (0.05, 0.05, 10)], ids=["steep first", "steep last"])
def test_every_client_of_a_two_stage_problem_solves_by_its_own_constants(a):
    problem = market(*([[rate, target]] for rate, target in zip(a, (0, 3, 3), strict=True)))
    np.testing.assert_allclose(problem.client_constants, [a, a])
    assert (problem.modulus, problem.smoothness) == pytest.approx((0.05, 10))
    result = fz.run(fz.FedRZO2s(0.25, 0.1, 2), problem, 20)
    assert result.x == pytest.approx(2, abs=1e-5)  # the mean target; the last client's constants for all gave 0.035 and 1.5
    assert result.history["lower_error"][-1] < 1e-8


def test_check_tells_the_condition_of_all_clients():
    found = steepness(market([[10, 0]], [[0.05, 3]]), 0)
    assert "condition number 200" in next(f.text for f in found if f.about == "lower")


def test_a_node_measures_its_own_scenarios():
    problem = market([[10, 0]], [[0.05, 3], [0.2, 3]], [[1, 1]])
    np.testing.assert_allclose(problem.part([1]).client_constants, [[0.05], [0.2]])
    alone = copy.copy(problem)
    alone.data = fz.ClientData([np.array([[7.0, 0.0]])])
    np.testing.assert_allclose(alone.moved_to(alone.x0).client_constants, [[7], [7]])
    given = market([[10, 0]], [[0.05, 3]], modulus=0.05, smoothness=10.0)
    np.testing.assert_allclose(given.client_constants, [[0.05, 0.05], [10, 10]])
    assert not given.estimated


@pytest.mark.slow("a run and its certificate")
def test_a_certificate_bounds_the_worst_scenario():
    """200 steps of Algorithm 5 leave the flat scenario of the first client far from its solution."""
    scenarios = [[[10, 0], [0.05, 1]], [[0.05, 3], [0.1, 2], [1, 1]], [[0.05, 3]]]
    problem = market(*scenarios)
    x, steps, truth = 2.0, 200, 0.0
    for client in np.array(scenarios, object):
        rates = np.array([a for a, _ in client])
        left = (1 - rates.min() / rates.max() ** 2 * rates) ** steps  # of the first error, |y0 - x|
        truth = max(truth, float(left.max()) * x)
    found = fz.certify(problem, np.array([x]), 0.1, lower=fz.vi.Projection(steps=steps))
    assert truth > 1.9
    assert truth <= found.lower.error <= 20 * truth
    assert any("estimated near x" in note for note in found.notes)


def test_a_bound_uses_the_modulus_where_x_is():
    """The map (1 + x) y - 1 is a hundred times flatter at x = -0.99 than at x0 = 0."""
    data = fz.ClientData([np.zeros((1, 1))])
    problem = fz.TwoStage(
        lambda x, y, xi: jnp.sum(y), lambda x, y, xi: (1 + x) * y - 1.0, data, np.zeros(1), np.zeros(1),
        monitor=fz.vi.Projection(stepsize=0.1, steps=50),
    )  # fmt: skip
    with problem.precision():
        row = {name: float(value) for name, value in problem.evaluate(jnp.array([-0.99])).items()}
    assert row["lower_error"] >= 100 - row["loss"] > 90  # y(x) = 100


def test_shared_data_have_the_same_loss_as_repeated_data():
    samples = np.array([[10, 0], [0.05, 1.0]])
    shared = fz.TwoStage(squares, pull, fz.ClientData.shared(samples, 4), np.full(1, 3.0), np.zeros(1))
    repeated = market(samples, samples, samples, samples)
    with shared.precision():
        one, other = (problem.evaluate(jnp.array([3.0]))["loss"] for problem in (shared, repeated))
    assert one == pytest.approx(other) == pytest.approx((9 + 4) / 2)


def steepening(x, y, batch):
    """The Hessian is diag(1 + x, 1 + x / 10); y(x) = (3, 2 / (1 + x / 10))."""
    a, b = 1 + x[0], 1 + 0.1 * x[0]
    return 0.5 * (a * y[0] ** 2 + b * y[1] ** 2) - 3 * a * y[0] - 2 * y[1] + 0 * jnp.sum(batch)


def upper(x, y, batch):
    return (x[0] - 6) ** 2 + (y[0] - 3) ** 2 + 0 * jnp.sum(batch)


@pytest.fixture(scope="module")
def steep():
    data = fz.ClientData([np.zeros((2, 1)), np.zeros((3, 1))])
    problem = fz.Bilevel(upper, steepening, data, np.zeros(1), np.zeros(2))
    return problem, fz.run(fz.FedRZObl(0.05, 0.1, 2), problem, 60)


def test_a_bilevel_run_follows_the_curvature_to_where_x_goes(steep):
    """At x = 6 the lower level is seven times as steep as at x0, where steps of length 1 were right."""
    _, result = steep
    assert result.x == pytest.approx(6, abs=0.01)
    assert result.history["lower_error"][-1] < 1e-3


@pytest.mark.slow("client by client")
def test_engines_correct_curvature_alike(steep):
    problem, result = steep
    loop = fz.run(fz.FedRZObl(0.05, 0.1, 2), problem, 4, engine="loop")
    for column in ("loss", "lower_error", "gradients", "upload_bytes", "download_bytes", "lower_rounds"):
        np.testing.assert_allclose(loop.history[column], result.history[column][:5], rtol=1e-9, atol=1e-12)


@pytest.mark.slow("several methods")
def test_estimating_constants_is_charged_in_row_0(steep):
    problem, result = steep
    assert result.history["gradients"][0] == 2 * 3 * 2 * 5  # two a product, three points, two unknowns, five samples
    given = fz.Bilevel(upper, steepening, problem.data, problem.x0, problem.y0, modulus=1.0, smoothness=8.0)
    assert fz.run(fz.FedRZObl(0.05, 0.1, 2), given, 0).history["gradients"][0] == 0
    scenarios = market([[10, 0], [1, 1]], [[0.05, 3]])
    assert fz.run(fz.FedRZO2s(0.25, 0.1, 2), scenarios, 0).history["gradients"][0] == 2 * 3 * 1 * 3


@pytest.mark.filterwarnings("ignore:lower. its slope in y is the same")
def test_a_lower_level_that_stays_unsolved_stops_the_run():
    """Steps of a length that the user insists on neither converge nor blow up: the lower level oscillates for ever."""
    data = fz.ClientData([np.zeros((1, 1))])
    problem = fz.Bilevel(
        lambda x, y, b: jnp.sum((x - y) ** 2), lambda x, y, b: jnp.sum((y - 3) ** 2), data, np.zeros(1), np.zeros(1),
        modulus=2.0, smoothness=2.0,
    )  # fmt: skip
    method = fz.FedRZObl(1e-3, 0.01, lower=fz.LocalSGD(stepsize=1.0, rounds=1, batch_size="full"), closing=True)
    with pytest.raises(fz.DivergedError, match=r"the lower level is not solved: .* smoothing is 0.01; give"):
        fz.run(dataclasses.replace(method, warm_start=False, constants=StepConstants(2e-3, 2e3, 1, 1)), problem, 30)


def test_a_solver_that_leaves_y_where_it_was_is_doubted_at_the_end():
    problem = market([[10, 0]], [[0.05, 3]], [[0.05, 3]], modulus=0.05, smoothness=10.0)
    with pytest.warns(UserWarning, match=r"solver: at the end Projection\(steps=20\) .* 100 % of the way from y0, .* use fz"):
        result = fz.run(fz.FedRZO2s(0.25, 0.1, solver=fz.vi.Projection(steps=20)), problem, 3)
    assert any(note.startswith("solver: at the end") for note in result.notes)


def test_constants_of_a_long_y_are_those_of_the_worst_client():
    """Maps that are multiples of the identity leave nothing to a power iteration; the flattest client is found all the same."""
    data = fz.ClientData([np.array([[a]]) for a in (10.0, 0.05, 2.0)])
    problem = fz.TwoStage(lambda x, y, xi: jnp.sum(y), lambda x, y, xi: xi * (y - x[0]), data, np.zeros(1), np.zeros(65))
    np.testing.assert_allclose(problem.client_constants, [[0.05] * 3, [10.0] * 3], rtol=1e-6)


def test_the_solver_is_looked_at_where_its_own_steps_are_slowest():
    """Two clients are solved in one step each; the third, neither the flattest nor the steepest, mixes both."""
    problem = market([[10, 2]], [[0.05, 2]], [[0.06, 2], [9.9, 2]])
    assert problem.hardest() == pytest.approx((0.06, 9.9))
    with problem.precision():
        left = left_by(problem, fz.vi.Projection(steps=20), np.ones(1), 1000)
    assert left.share > 0.9
    assert left_by(problem, fz.vi.Accelerated(), np.ones(1), 1000).error < 1e-6


def test_a_bound_looks_at_y_inside_its_set():
    """The map y^3 - 8 is flat at y0 = 0, which lies outside Y = [1, 5], and has a modulus of 3 or more in it."""
    problem = fz.TwoStage(
        lambda x, y, xi: jnp.sum(y), lambda x, y, xi: y**3 - 8 - x, fz.ClientData([np.zeros((1, 1))]), np.zeros(1), np.zeros(1),
        lower_constraint=fz.sets.Box(1.0, 5.0),
    )  # fmt: skip
    with problem.precision():
        row = {name: float(value) for name, value in problem.evaluate(jnp.array([0.0])).items()}
    assert row["loss"] == pytest.approx(2)
    assert row["lower_error"] < 1e-9


def test_what_is_measured_is_no_part_of_a_checkpoints_identity():
    problem = market([[10, 0]], [[0.05, 3]])
    other = copy.copy(problem)
    other.client_constants = fz.vi.Constants(*(np.asarray(c) * (1 + 1e-15) for c in problem.client_constants))
    assert fingerprint(problem.as_stated()) == fingerprint(other.as_stated())


def test_a_lower_methods_own_constants_are_kept():
    data = fz.ClientData([np.zeros((1, 1))])
    problem = fz.Bilevel(lambda x, y, b: jnp.sum((x - y) ** 2), lambda x, y, b: jnp.sum((y - x) ** 2), data, *np.ones((2, 1)))
    own = fz.FedRZObl(0.1, 0.1, lower=fz.LocalSGD(batch_size="full", constants=StepConstants(0.5, 100.0, 1, 1)))
    with problem.precision():
        np.testing.assert_allclose(own.prepare(problem).init(problem, None).curvature, [0.5, 100.0])
        given = fz.FedRZObl(
            0.1, 0.1, lower=fz.LocalSGD(0.5, batch_size="full", rounds=2), constants=StepConstants(2.0, 2.0, 1, 1)
        )
        assert given.lower.knowing(given.prepare(problem).init(problem, None).curvature) is given.lower
