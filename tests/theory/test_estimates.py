"""Estimated constants against known ones, and methods made from them."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo import zoo
from fedrzo.problems.curvature import check_sign, lower_level
from fedrzo.theory import EstimateWarning, estimate
from fedrzo.zoo.toys import squared_distance

pytestmark = pytest.mark.filterwarnings("ignore::fedrzo.theory.EstimateWarning")


def root_mean_square(lengths):
    """Return the largest over clients of the root mean square over samples."""
    return float(np.sqrt((np.asarray(lengths) ** 2).mean(axis=1)).max())


def test_a_linear_loss_has_its_slope():
    problem = zoo.make("boxes", clients=3)
    slopes = np.asarray(problem.data.flat).reshape(3, -1, 3) - 1
    truth = root_mean_square(np.linalg.norm(slopes, axis=2))
    assert estimate(problem).lipschitz == pytest.approx((truth, truth), rel=1e-9)


def test_the_l1_distance_has_the_root_of_the_dimension():
    found = estimate(zoo.make("median", dim=7)).lipschitz
    assert found == pytest.approx((math.sqrt(7), math.sqrt(7)), rel=1e-9)


@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
def test_a_quadratic_in_a_ball(radius):
    problem = zoo.make("quadratic", dim=6)
    point = np.full(6, 0.5)
    samples = np.asarray(problem.data.flat).reshape(5, -1, 6)
    truth = root_mean_square(np.linalg.norm(point - samples, axis=2) + radius)  # uphill from the centre
    found = estimate(problem, point, radius)
    assert found.lipschitz.low == pytest.approx(truth, rel=1e-9)
    assert truth <= found.lipschitz.high * (1 + 1e-9)
    assert found.lipschitz.high <= 2 * truth


def test_a_black_box_is_differenced():
    loss = fz.blackbox(lambda x, batch: float(0.5 * np.mean(np.sum((x - batch) ** 2, axis=-1))))
    data = fz.ClientData([np.zeros((2, 3)), np.ones((2, 3))])
    seen, blind = (estimate(fz.Nonsmooth(f, data, np.zeros(3))).lipschitz for f in (squared_distance, loss))
    truth = math.sqrt(3) + 1
    assert seen.low == pytest.approx(truth)
    assert truth / 2 <= blind.low <= truth * (1 + 1e-6)  # no uphill point: a factor 2 at most is lost
    assert blind.high <= 2 * truth


def noisy_slope(x, batch):
    return jnp.mean(batch @ x)


@pytest.mark.parametrize("key", range(5))
def test_drawn_samples_bring_noise_that_the_interval_takes_in(key):
    problem = fz.Nonsmooth(noisy_slope, fz.Sampler(lambda k, i: jax.random.normal(k, (4,)), 3), np.zeros(4))
    found = estimate(problem, key=key).lipschitz
    assert found.low <= 2.0 <= found.high  # the root of E||xi||^2 = 4
    assert found.high - found.low < 0.8


def test_the_sets_of_boxes_have_b2_equal_to_the_root_of_m():
    b1, b2 = estimate(zoo.make("boxes", clients=4)).dissimilarity
    assert b1 == pytest.approx((0.0, 0.0), abs=1e-6)
    assert b2 == pytest.approx((2.0, 2.0), rel=1e-6)


def test_identical_or_no_sets_are_known_exactly():
    assert estimate(zoo.make("median")).dissimilarity == ((0.0, 0.0), (0.0, 0.0))
    data = fz.ClientData([np.zeros((2, 3)), np.ones((2, 3))])
    problem = fz.Nonsmooth(squared_distance, data, np.zeros(3), fz.sets.Box(-1, 1))
    assert estimate(problem).dissimilarity == ((0.0, 0.0), (1.0, 1.0))


def test_sets_apart_need_b1_and_the_inequality_holds_at_new_points():
    sets = [fz.sets.Box(-1, 0), fz.sets.Box(-1, 1), fz.sets.Ball(np.full(2, -0.5), 0.6)]
    data = fz.ClientData([np.zeros((2, 2))] * 3)
    problem = fz.Nonsmooth(squared_distance, data, np.zeros(2), sets)
    b1, b2 = estimate(problem).dissimilarity
    assert b1.high > 0
    points = np.random.default_rng(7).normal(size=(200, 2)) * 3
    for x in points:
        steps = x - np.stack([np.asarray(member.project(x)) for member in sets])
        left, right = (steps**2).sum(axis=1).mean(), (steps.mean(axis=0) ** 2).sum()
        assert left <= b1.high**2 + b2.high**2 * right + 1e-9


def test_a_bilevel_problem_with_affine_solutions():
    problem = zoo.make("direct")
    found = estimate(problem)
    matrices, strengths = (np.asarray(part) for part in problem.lower_data.fixed)
    shares = strengths / strengths.sum()
    B = np.tensordot(shares, matrices, 1)
    slope = np.linalg.norm(B, 2)
    assert found.solution_lipschitz == pytest.approx((slope, slope), rel=1e-5)
    assert found.modulus == found.smoothness == pytest.approx((2.5, 2.5))
    # The implicit loss of a sample is (|x - a|^2 + |B x + c - b|^2) / 2: its gradient at x0 = 0 is -a + B'(c - b), from where
    # it can grow by at most the radius times the largest curvature.
    a, b = (np.asarray(part) for part in problem.data.flat)
    shifts = np.asarray(problem.lower_data.flat).reshape(4, -1, 3).mean(axis=1)
    at_start = np.linalg.norm(-a + (shares @ shifts - b) @ B, axis=1).reshape(4, -1)
    least, most = root_mean_square(at_start), root_mean_square(at_start + 1 + slope**2)
    assert least * (1 - 1e-6) <= found.lipschitz.low <= most
    assert most / 2 <= found.lipschitz.high <= 2 * most
    at_start = np.linalg.norm(shares @ shifts - b, axis=1).reshape(4, -1)
    assert root_mean_square(at_start) * (1 - 1e-6) <= found.lipschitz_y.low <= root_mean_square(at_start + slope)


def test_moduli_that_nobody_gave_are_measured():
    given = zoo.make("direct")
    problem = fz.Bilevel(given.loss_fn, given.lower_fn, given.data, given.x0, given.y0, lower_data=given.lower_data)
    found = estimate(problem, points=4)
    assert found.modulus == pytest.approx((2.5, 2.5))
    assert found.smoothness == pytest.approx((2.5, 2.5))


WIDE = np.full(300, 0.1)


@pytest.mark.parametrize(
    ("lower", "given", "refused"),
    [
        (lambda x, y, b: -jnp.sum(y**2), {}, True),
        (lambda x, y, b: 0.5 * y[0] ** 2 - jnp.sum(y[1:] ** 2), {}, True),
        (lambda x, y, b: -jnp.sum(y**2), {"modulus": 1.0, "smoothness": 1.0}, False),
        (lambda x, y, b: jnp.sum(x * y), {}, False),
        (lambda x, y, b: y[0] ** 2 - 0.2 * y[1] ** 2, {}, False),
        (lambda x, y, b: jnp.sum(y**3), {}, False),
    ],
    ids=["concave", "mostly concave", "vouched for", "linear", "a little both ways", "convex at y0 alone"],
)
def test_a_lower_loss_that_bends_the_wrong_way_is_refused(lower, given, refused):
    problem = fz.Bilevel(lambda x, y, b: jnp.sum(x), lower, fz.ClientData([np.ones(2)]), np.ones(2), np.ones(2), **given)
    with problem.precision():
        if not refused:
            check_sign(problem)
            return
        with pytest.raises(fz.InputError, match=r"^lower: not convex in y \(measured modulus -2\); check its sign"):
            check_sign(problem)
    with pytest.raises(fz.InputError, match=r"^lower: not convex in y"):
        fz.FedRZObl.from_theory(problem, 100)  # before anything is estimated, which would end in NaN


def test_a_long_y_is_looked_at_where_constants_are_needed():
    wrong = fz.Minimax(lambda x, y, b: jnp.sum((x - y) ** 2), fz.ClientData([np.ones(2)]), WIDE, WIDE)
    with wrong.precision(), pytest.raises(fz.InputError, match=r"^loss: not concave in y \(measured modulus -2\)"):
        lower_level(wrong)


def test_a_two_stage_problem():
    problem = zoo.make("cournot")
    found = estimate(problem, points=3)
    assert found.modulus == pytest.approx((problem.modulus, problem.modulus), rel=1e-6)
    assert found.smoothness == pytest.approx((problem.smoothness, problem.smoothness), rel=1e-6)
    assert found.distance.low > 0
    assert found.solution_lipschitz is None
    # At x = 0 the profit is x (a - b (x + sum y)) with its slope the price, below 12.5; around 0 the slope changes slowly.
    assert 0.5 < found.lipschitz.low < found.lipschitz.high < 12.5


def test_estimates_say_once_what_they_are():
    with pytest.warns(EstimateWarning, match="estimates from below") as said:
        estimate(zoo.make("median"))
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate(zoo.make("median"), warn=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"radius": 0.0}, "radius: found 0.0"),
        ({"points": 0}, "points: found 0"),
        ({"point": np.zeros(4)}, "point: "),
        ({"point": np.full(3, np.nan)}, "point: found"),
        ({"point": {"a": np.zeros(3)}}, "point: found PyTreeDef"),
        ({"key": -1}, "key: found -1"),
        ({"radius": lambda r: 1.0}, "radius: found a function"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(fz.InputError, match=message):
        estimate(zoo.make("median"), **given)


def descend(cls, name, budget, **options):
    problem = zoo.make(name, **options)
    method = cls.from_theory(problem, budget)
    rounds = math.ceil(budget / method.local_steps)
    return method, fz.run(method, problem, rounds, eval_every=rounds, progress=False)


@pytest.mark.parametrize("name", ["quadratic", "median"])
def test_fedrzo_nn_from_theory_descends(name):
    method, result = descend(fz.FedRZOnn, name, 5_000)
    assert method.local_steps == 3  # (5000 / 125)^(1/4) = 2.5
    assert result.history["loss"][-1] < 0.97 * result.history["loss"][0]


def test_fedrzo_nn_from_theory_descends_with_sets():
    _, result = descend(fz.FedRZOnn, "boxes", 5_000)
    assert result.history["loss"][-1] < -0.5
    assert result.history["feasibility"][-1] < 0.5


@pytest.mark.slow("a run of FedRZO_bl")
def test_fedrzo_bl_from_theory_descends():
    _, result = descend(fz.FedRZObl, "direct", 1_000)
    assert result.history["loss"][-1] < 0.97 * result.history["loss"][0]


@pytest.mark.slow("400 rounds of a two-stage problem")
def test_fedrzo_2s_from_theory_descends():
    _, result = descend(fz.FedRZO2s, "cournot", 400)
    assert result.history["loss"][-1] < result.history["loss"][0] - 0.1


def test_known_constants_are_used_and_nothing_is_estimated():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method = fz.FedRZOnn.from_theory(
            zoo.make("median"), 10_000, 0.5, {"lipschitz": math.sqrt(3)}, batch_size="full", directions=2
        )
    plan = fz.theory.nonsmooth(5, 3, 0.5, math.sqrt(3), budget=10_000)
    assert (method.stepsize, method.local_steps) == (plan.stepsize, plan.local_steps)
    assert (method.batch_size, method.directions) == ("full", 2)


def test_careful_ends_are_used():
    problem = zoo.make("quadratic")
    found, plan = estimate(problem), fz.theory.for_problem(problem, budget=1_000)
    assert plan.constants["L0"] == found.lipschitz.high > found.lipschitz.low


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fz.FedRZOnn.from_theory(zoo.make("direct"), 100), "problem: found Bilevel; FedRZOnn solves Nonsmooth"),
        (lambda: fz.FedRZObl.from_theory(zoo.make("median"), 100), "problem: found Nonsmooth"),
        (lambda: fz.FedRZOnn.from_theory(zoo.make("median"), 0, constants={"lipschitz": 1.0}), "budget: found 0"),
        (lambda: fz.FedRZOnn.from_theory(zoo.make("median"), 9, constants={"lipshitz": 1}), "did you mean 'lipschitz'"),
        (lambda: fz.FedRZOnn.from_theory(zoo.make("median"), 9, constants=[1.0]), "constants: found list"),
        (lambda: fz.FedRZOnn.from_theory(zoo.make("median"), 9, stepsize=0.1), "stepsize: found among"),
        (lambda: fz.FedRZOnn.from_theory(foo=1), "problem: FedRZOnn.from_theory needs it, and it was not passed"),
        (lambda: fz.FedRZOnn.from_theory(zoo.make("median"), 9, foo=1), "foo: FedRZOnn has no such argument; known:"),
        (lambda: fz.ZSOL.from_theory(zoo.make("cournot"), 9), "from_theory: ZSOL takes one local step a round"),
        (lambda: fz.theory.for_problem("median", budget=9), "problem: found str"),
        (lambda: estimate("median"), "problem: found str"),
    ],
)
def test_what_from_theory_refuses(call, message):
    with pytest.raises(fz.InputError, match=message):
        call()
