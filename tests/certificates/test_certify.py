"""Certificates: what is said of sets and lower levels, what leaves a client, exact costs, and what is refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import certificate_trials as tools
import fedrzo as fz
from fedrzo.certificates.examine import _lower_notes
from fedrzo.certificates.inspection import Inspection, Nearest
from fedrzo.certificates.interval import estimate_square, least_for
from fedrzo.certificates.sampling import sampling_program
from fedrzo.engines.simulation import rounds as simulation
from fedrzo.engines.simulation.compiled import SimulatedFederation
from fedrzo.engines.simulation.spread import Spread
from fedrzo.zoo import bilevel, cournot, minimax, toys

ETA = 0.1


@pytest.mark.slow("another certificate")
def test_the_certificate_of_private_boxes_has_distances_and_says_why_there_is_no_pair():
    problem = toys.boxes(3)
    x = np.array([1.3, 1.4, 0.0])
    found = fz.certify(problem, x, ETA)
    np.testing.assert_allclose(found.distances, [0.3, 0.4, 0], atol=1e-12)
    assert found.distance == pytest.approx(0.5, abs=1e-5)
    assert found.delta is None
    assert found.epsilon is None
    assert "sets differ" in found.meaning
    truth = tools.gradient(problem, x, ETA)
    assert found.interval[0] <= truth @ truth <= found.interval[1]


def test_intervals_cover_at_high_confidence_too():
    """Where a gradient vanishes the estimate is a centred sum of squares: in two dimensions no normal quantile fits its tail.

    2,000 repetitions at each of two points; two misses are expected at each, and five standard deviations more let pass.
    """
    rng = np.random.default_rng(0)
    for square in (0.0, 0.01):
        means = rng.normal(size=(2000, 64, 2)) / 4 + [math.sqrt(square), 0]
        found = [estimate_square(one, 16, 0.999) for one in means]
        assert sum(not one.lower <= square <= one.upper for one in found) <= 9
        assert sum(one.upper < square for one in found) <= 6  # this end's share is one half


def test_an_interval_without_noise_is_a_point():
    found = estimate_square(np.full((64, 1), 2.0), 16, 0.999)
    assert found.lower == pytest.approx(4)
    assert found.upper == pytest.approx(4)


@pytest.mark.slow("thousands of averages")
def test_the_nearest_point_of_sets_at_an_angle_is_found_by_averages_alone():
    halves = [fz.sets.Halfspace(np.array([1.0, 0.0]), 0.0), fz.sets.Halfspace(np.array([1.0, 1.0]), 0.0)]
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.zeros((2, 2))] * 2), np.zeros(2), halves)
    assert fz.certify(problem, np.array([1.0, 2.0]), ETA).distance == pytest.approx(math.sqrt(4.5), abs=1e-5)
    assert fz.certify(problem, np.array([2.0, 0.5]), ETA).distance == pytest.approx(
        float(np.linalg.norm(np.array([2.0, 0.5]) - np.asarray(problem.project(np.array([2.0, 0.5]))))), abs=1e-5
    )


def test_sets_without_a_common_point_have_no_distance():
    halves = [fz.sets.Halfspace(np.array([1.0, 0.0]), 0.0), fz.sets.Halfspace(np.array([-1.0, 0.0]), -1.0)]
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.zeros((2, 2))] * 2), np.zeros(2), halves)
    found = fz.certify(problem, np.array([3.0, 2.0]), ETA)
    np.testing.assert_allclose(found.distances, [3, 0], atol=1e-12)
    assert found.distance is None
    assert "no common point" in found.notes[0]
    assert "unknown" in repr(found)


def line(loss):
    """A problem with one unknown."""
    return fz.Nonsmooth(loss, fz.ClientData([np.array([0.0, 1.0]), np.array([0.5, 3.0, 2.0])]), np.zeros(1))


def test_in_one_dimension_nothing_is_left_to_chance():
    """The derivative of the smoothed loss is a difference of two losses, whichever direction is drawn."""
    distance = lambda x, batch: abs(x[0] - batch).mean()  # noqa: E731
    for loss in (distance, fz.blackbox(distance)):
        problem = line(loss)
        found = fz.certify(problem, np.array([0.8]), 0.5)
        values = [np.mean([np.abs(0.8 + v - np.array(own)).mean() for own in ([0.0, 1.0], [0.5, 3.0, 2.0])]) for v in (0.5, -0.5)]
        square = (values[0] - values[1]) ** 2
        assert found.squared_norm == pytest.approx(square, rel=1e-12)
        assert found.interval[0] <= square <= found.interval[1]
        assert found.interval[1] - found.interval[0] < 1e-12
        assert (found.directions, found.drawn) == (1, 8)
        assert found.cost.evaluations == 5 * (2 * 8 + 1)
    assert loss.calls < 60
    assert "from 1 direction\n" in repr(found)


def test_a_black_box_with_noise_is_sampled_in_one_dimension_too():
    noise = np.random.default_rng(0)
    noisy = fz.blackbox(lambda x, batch: float(np.mean((x[0] - batch) ** 2) + 0.01 * noise.normal()))
    found = fz.certify(line(noisy), np.array([2.0]), 0.5)
    assert found.directions == 256
    truth = (2 * (2.0 - 0.5 * (0.5 + 5.5 / 3))) ** 2
    assert found.interval[0] <= truth <= found.interval[1]
    assert found.interval[1] - found.interval[0] > 1e-4


def test_as_many_directions_as_the_dimension_needs_unless_samples_are_drawn():
    assert [least_for(n) * 64 for n in (2, 3, 5, 20, 1000)] == [256, 448, 640, 896, 1024]
    problem = toys.quadratic(3, 2, samples=8)
    assert fz.certify(problem, np.zeros(2), ETA).directions == 256
    assert fz.certify(problem, np.zeros(2), ETA, directions=300).directions == 320
    assert fz.certify(problem, np.zeros(2), ETA, batch_size=4).directions == 1024


def test_identical_sets_give_the_pair():
    problem = tools.boxed_quadratic(4)
    x = np.array([0.2, 0.2, 0.5, -0.3])
    found = fz.certify(problem, x, ETA)
    assert found.delta == pytest.approx(0.3)
    assert found.epsilon == found.norm_interval[1]
    assert fz.certify(problem, np.zeros(4), ETA).delta == ETA


def test_costs_are_counted_by_the_federation():
    problem = toys.quadratic(3, 4, samples=8)
    found = fz.certify(problem, np.zeros(4), ETA, directions=1280)
    assert "cost      30.86 kB up, 2.688 kB down, 61,464 evaluations" in repr(found)
    messages, clients, floats = 20, 3, 8
    assert found.directions == 1280
    assert found.cost.evaluations == clients * 8 * (2 * 1280 + 1)
    assert found.cost.upload_bytes == clients * floats * (1280 + 1 + 4 + 1)  # gaps, distance, pull, loss
    assert found.cost.download_bytes == clients * (messages * (4 * floats + 8) + 3 * 4 * floats)
    assert found.cost.gradients == found.cost.lower_rounds == 0


@pytest.mark.parametrize(
    "make",
    [lambda: toys.boxes(7), lambda: bilevel.direct(3, 7, 7, 3), lambda: cournot.cournot(7, scenarios=4, clients=2)],
)
def test_what_leaves_a_client_by_itself_is_a_few_numbers(make, monkeypatch):
    """All programs are traced, and every reply that is not averaged is looked at: its size is not the problem's."""
    problem, alone = make(), {}
    gather = SimulatedFederation.gather

    def watched(self, step, *shared):
        found = gather(self, step, *shared)
        alone[step.__name__] = found.values.shape[1:]
        return found

    monkeypatch.setattr(SimulatedFederation, "gather", watched)
    monkeypatch.setattr(SimulatedFederation, "average", lambda *call: gather(*call).mean())
    with problem.precision():
        keys = simulation.keys_of(jax.random.key(0), clients=problem.clients)
        p = sampling_program(problem, ETA, None, None)
        for program in (p, Inspection(p.smoothing, p.batch_size, p.lower, p.constants), Nearest()):
            start = jax.eval_shape(lambda program=program: simulation.start(program, problem, jax.random.key(0), many=False))
            jax.eval_shape(
                lambda carry, program=program: simulation.rounds(
                    program, problem, keys, carry, simulation.Span(0, 1), size=None, spread=Spread(), many=False
                ),
                start,
            )
    assert alone.pop("distance") == ()
    assert sum(np.prod(shape) for shape in alone.values()) == {"TwoStage": 5, "Bilevel": 2}.get(type(problem).__name__, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: toys.boxes(3),
        pytest.param(lambda: bilevel.direct(2, 2, 2, 3), marks=pytest.mark.slow("compiles a lower level at many points")),
    ],
    ids=["boxes", "direct"],
)
def test_engines_agree(make):
    problem = make()
    x = np.full(problem.dim, 1.2)
    one, other = (fz.certify(problem, x, ETA, engine=engine) for engine in ("simulation", "loop"))
    np.testing.assert_allclose(one.interval, other.interval, rtol=1e-9)
    assert one.cost == other.cost


def test_a_bilevel_point_has_a_lower_level_bound_that_holds():
    problem = bilevel.direct()
    x = bilevel.direct_answer(problem) + 0.3
    found = fz.certify(problem, x, ETA, width=0.5)
    matrices, strengths = (np.asarray(part) for part in problem.lower_data.fixed)
    B = np.tensordot(strengths / strengths.sum(), matrices, 1)
    truth = (np.eye(5) + B.T @ B) @ np.full(5, 0.3)
    assert found.interval[0] <= truth @ truth <= found.interval[1]
    assert found.narrow
    assert 0 < found.lower.error < 1e-9
    assert found.lower.effect == pytest.approx(5 / ETA * found.lower.slope * found.lower.error)
    assert found.upper == found.epsilon == found.norm_interval[1] + found.lower.effect
    assert found.lower.residual == pytest.approx(found.lower.error * problem.modulus)  # of one and the same solve
    assert "|y - y(x)|" in repr(found)


@pytest.mark.slow("compiles a lower level at many points")
def test_a_poor_lower_solve_is_seen_in_the_certificate():
    problem = bilevel.coupled()
    x = bilevel.coupled_answer(problem)
    poor = fz.certify(problem, x, ETA, lower=fz.LocalSGD(batch_size="full", rounds=2))
    good = fz.certify(problem, x, ETA)
    assert poor.lower.error > 1e3 * good.lower.error
    # With the right y the gradient is zero here, so whatever is measured beyond the noise is the lower level's doing.
    assert good.norm < 1e-9
    assert good.norm + poor.lower.effect > poor.norm > 1e3 * good.norm


@pytest.mark.slow("compiles a lower level at many points")
def test_a_minimax_point_has_a_certificate():
    problem = minimax.ncsc()
    x = np.asarray(problem.x0) + 0.5
    found = fz.certify(problem, x, 0.01)
    truth = minimax.grad_phi(problem, x)
    assert found.interval[0] <= truth @ truth <= found.interval[1]


@pytest.mark.slow("compiles a lower level at many points")
def test_a_two_stage_point_has_a_certificate():
    market = cournot.cournot(10, scenarios=4, clients=2)
    best, _ = cournot.optimum(market)
    found = fz.certify(market, np.array([best]), ETA)
    assert found.norm_interval[1] < 1e-6  # one unknown and a quadratic loss: nothing is random
    assert found.lower.error < 1e-9
    assert found.cost.lower_steps > 0


@pytest.mark.slow("compiles a lower level at many points")
def test_a_black_box_upper_loss_has_no_bound_on_the_lower_levels_effect():
    plain = bilevel.direct(2, 2, 2, 3)
    loss = fz.blackbox(lambda x, y, batch: float(0.5 * np.mean(np.sum((x - batch[0]) ** 2, -1))))
    problem = fz.Bilevel(loss, plain.lower_fn, plain.data, plain.x0, plain.y0, lower_data=plain.lower_data,
                         modulus=plain.modulus, smoothness=plain.smoothness)  # fmt: skip
    found = fz.certify(problem, np.zeros(2), ETA)
    assert found.lower.effect is None
    assert found.upper == math.inf
    assert any("black box" in note for note in found.notes)


@pytest.mark.slow("two more programs")
def test_an_empty_lower_set_beside_x_is_refused():
    plain = bilevel.direct(2, 2, 2, 3)
    problem = fz.Bilevel(plain.loss_fn, plain.lower_fn, plain.data, plain.x0, plain.y0, lower_data=plain.lower_data,
                         lower_constraint=lambda x: fz.sets.Box(-1.0, x[0]), modulus=1.0, smoothness=2.0)  # fmt: skip
    with pytest.raises(fz.InputError, match=r"x: the loss, or the lower level, .* lower_domain"):
        fz.certify(problem, np.array([-0.99, 0.0]), ETA)


def test_estimated_constants_are_said_to_be():
    plain = bilevel.direct(2, 2, 2, 3)
    problem = fz.Bilevel(plain.loss_fn, plain.lower_fn, plain.data, plain.x0, plain.y0, lower_data=plain.lower_data)
    assert "estimated" in _lower_notes(problem, None)[0]
    assert _lower_notes(plain, None) == []


@pytest.mark.slow("two runs and their certificates")
def test_rounding_is_part_of_what_narrow_means():
    """A large constant in float32: the sample alone would be narrow enough."""
    data = fz.ClientData([np.zeros((2, 2), np.float32)] * 2)
    problem = fz.Nonsmooth(lambda x, batch: 1e4 + 0 * jnp.sum(x) + 0 * jnp.sum(batch), data, np.zeros(2, np.float32))
    with pytest.warns(UserWarning, match="rounding noise"):
        found = fz.certify(problem, np.zeros(2, np.float32), 0.01, width=1e-6)
    assert found.narrow is False
    assert "rounding" in found.notes[0]


def test_a_certificate_is_readable_and_plain():
    problem = toys.quadratic(3, 4, samples=8)
    found = fz.certify(problem, np.zeros(4), ETA, width=1e-9, max_directions=1024)
    assert found.narrow is False
    assert any("max_directions" in note for note in found.notes)
    assert len(repr(found).splitlines()) <= 8
    assert found.to_dict()["cost"]["evaluations"] == found.cost.evaluations
    assert found == fz.certify(problem, np.zeros(4), ETA, width=1e-9, max_directions=1024)
    assert found != fz.certify(problem, np.zeros(4), ETA, 1, width=1e-9, max_directions=1024)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros(3)}, "x: found shapes"),
        ({"x": np.full(4, np.nan)}, "x: found a value that is not finite"),
        ({"smoothing": 0}, "smoothing: found 0"),
        ({"width": -1.0}, "width: found -1.0"),
        ({"directions": 0}, "directions: found 0"),
        ({"directions": lambda r: 600}, "directions: found a function"),
        ({"threshold": 1.0}, "threshold: found one without a width"),
        ({"threshold": 0.0, "width": 1.0}, "threshold: found 0"),
        ({"confidence": 1.5}, "confidence: found 1.5"),
        ({"problem": 3}, "problem: found int"),
        ({"lower": fz.LocalSGD()}, "lower: found one"),
        ({"batch_size": 0}, "batch_size: found 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(change, message):
    arguments = {"problem": toys.quadratic(3, 4), "x": np.zeros(4), "smoothing": ETA} | change
    with pytest.raises(fz.InputError, match=message):
        fz.certify(**arguments)


@pytest.mark.slow("two certificates")
def test_a_certificate_from_gradients_agrees_with_one_from_values_and_is_narrower():
    """A linear loss has one gradient everywhere: nothing is left to chance, and rounding is all that the interval holds."""
    problem, wide = toys.boxes(5), fz.certify(toys.boxes(5), np.zeros(5), ETA)
    found = fz.certify(problem, np.zeros(5), ETA, oracle="gradients")
    assert found.interval[0] <= found.squared_norm <= found.interval[1]
    assert wide.interval[0] <= found.squared_norm <= wide.interval[1]
    assert 0 < found.interval[1] - found.interval[0] < 1e-9
    assert found.cost.evaluations < wide.cost.evaluations
    for wrong in (
        bilevel.direct(3, 7, 7, 3),
        fz.Nonsmooth(fz.blackbox(lambda x, batch: np.float64(0)), problem.data, np.zeros(5)),
    ):
        with pytest.raises(fz.InputError, match="oracle: found"):
            fz.certify(wrong, wrong.x0, ETA, oracle="gradients")


def stiff(x, y, batch):
    """Bends a thousand times more along the first entry of y than along the last."""
    return jnp.sum(jnp.array([1, 0.1, 1e-3]) * (y**2 / 2 + jnp.logaddexp(0.0, 4 * y - jnp.mean(batch)) - y * jnp.sum(x)))


def test_an_ill_conditioned_lower_level_leaves_rounding_alone():
    """Newton steps that end at a relative residual of 1e-9 would leave an error of 3e-5 here, and an effect of 1.9."""
    data = fz.ClientData([np.full((4, 1), i) for i in (1.0, 2.0)])
    problem = fz.Bilevel(lambda x, y, b: jnp.sum((y - 1) ** 2) + jnp.sum(x**2), stiff, data, np.array([1.0, 2.0]), np.zeros(3))
    found = fz.certify(problem, problem.x0, 1e-4, directions=64).lower
    assert found.error < 1e-11
    assert found.share < 1e-5
    assert sampling_program(problem, 1e-4, None, None).newton
