"""Certificates: right coverage, no bias, what is said of sets and lower levels, exact costs, and the rule that stops a run."""

import math

import numpy as np
import pytest

import certificates as tools
import fedrzo as fz
from fedrzo.certify.interval import BLOCKS, adaptive, drive, estimate
from fedrzo.zoo import bilevel, cournot, minimax, toys

ETA = 0.1
REPETITIONS = 2000
MAKE = {"boxes": lambda: toys.boxes(5), "boxed": lambda: tools.boxed_quadratic(10)}


def point(problem, shift):
    """A point so far from where the smoothed problem is stationary, and the squared norm of the gradient there."""
    x = tools.stationary(problem, ETA) + shift * np.random.default_rng(0).normal(size=problem.dim)
    gradient = tools.gradient(problem, x, ETA)
    return x, float(gradient @ gradient)


@pytest.mark.parametrize(
    ("name", "shift"), [("boxes", 0.0), ("boxes", 0.05), ("boxes", 0.3), ("boxed", 0.0), ("boxed", 0.3)]
)
def test_intervals_cover_the_truth_as_often_as_they_say(name, shift):
    problem = MAKE[name]()
    x, truth = point(problem, shift)
    found = tools.fixed(problem, x, ETA, 8, REPETITIONS, seed=1)
    assert 0.935 <= tools.coverage(found, truth) <= 0.965


def test_estimates_are_unbiased_though_the_square_of_the_mean_is_not():
    problem = MAKE["boxes"]()
    x, truth = point(problem, 0.05)
    means = tools.sample(problem, x, ETA, [4] * REPETITIONS, seed=2)
    values = np.array([estimate(one, 4, 0.95).value for one in means])
    squares = np.sum(means.mean(axis=1) ** 2, axis=1)

    def off(sample):
        return (sample.mean() - truth) / (sample.std() / math.sqrt(REPETITIONS))

    assert abs(off(values)) < 3.3  # one seed in a thousand
    assert off(squares) > 20


@pytest.mark.parametrize("batch_size", [1, 4])
def test_sampled_batches_keep_coverage_at_the_minimiser(batch_size):
    problem = toys.quadratic(3, 6)
    found = tools.fixed(problem, toys.answer(problem), ETA, 8, REPETITIONS, 3, batch_size)
    assert 0.935 <= tools.coverage(found, 0.0) <= 0.965


def test_the_adaptive_rule_keeps_coverage_at_a_stationary_point():
    problem = MAKE["boxes"]()
    outcomes = tools.adapted(problem, tools.stationary(problem, ETA), ETA, 0.2, REPETITIONS, seed=4)
    found = [outcome.estimate for outcome in outcomes]
    assert 0.935 <= tools.coverage(found, 0.0) <= 0.965
    assert all(one.width <= 0.2 for one in found)


def test_the_adaptive_rule_grows_its_pilots_and_says_when_the_cap_is_hit():
    rng = np.random.default_rng(0)
    sizes = []

    def sample(size, stage):
        sizes.append(size)
        return 1 + rng.normal(size=(BLOCKS, 3)) * 30 / math.sqrt(size)

    assert drive(adaptive(4000.0, 10**6, 0.95), sample).decided == "narrow"
    narrow = drive(adaptive(5.0, 10**6, 0.95), sample)
    assert narrow.decided == "narrow"
    assert narrow.estimate.width <= 5.0
    assert narrow.directions > narrow.estimate.directions  # pilots are paid for, and not used
    sizes.clear()
    capped = drive(adaptive(1e-3, 6400, 0.95), sample)
    assert capped.decided == "capped"
    assert sizes == [4, 16, 64, 100]
    assert drive(adaptive(1e-3, 6400, 0.95, threshold=-1e9), sample).decided == "pilot"


def test_the_certificate_of_private_boxes_has_distances_and_says_why_there_is_no_pair():
    problem = toys.boxes(5)
    x = np.array([1.3, 1.4, 0.0, 0.0, 0.0])
    found = fz.certify(problem, x, ETA, directions=512)
    np.testing.assert_allclose(found.distances, [0.3, 0.4, 0, 0, 0], atol=1e-12)
    assert found.distance == pytest.approx(0.5, abs=1e-5)
    assert found.delta is None
    assert found.epsilon is None
    assert "sets differ" in found.meaning
    truth = tools.gradient(problem, x, ETA)
    assert found.interval[0] <= truth @ truth <= found.interval[1]


def test_the_nearest_point_of_sets_at_an_angle_is_found_by_averages_alone():
    halves = [fz.sets.Halfspace(np.array([1.0, 0.0]), 0.0), fz.sets.Halfspace(np.array([1.0, 1.0]), 0.0)]
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.zeros((2, 2))] * 2), np.zeros(2), halves)
    assert fz.certify(problem, np.array([1.0, 2.0]), ETA, directions=512).distance == pytest.approx(
        math.sqrt(4.5), abs=1e-5
    )
    assert fz.certify(problem, np.array([2.0, 0.5]), ETA, directions=512).distance == pytest.approx(
        float(np.linalg.norm(np.array([2.0, 0.5]) - np.asarray(problem.project(np.array([2.0, 0.5]))))), abs=1e-5
    )


def test_identical_sets_give_the_pair():
    problem = tools.boxed_quadratic(4)
    x = np.array([0.2, 0.2, 0.5, -0.3])
    found = fz.certify(problem, x, ETA, directions=512)
    assert found.delta == pytest.approx(0.3)
    assert found.epsilon == found.norm_interval[1]
    assert fz.certify(problem, np.zeros(4), ETA, directions=512).delta == ETA


def test_costs_are_counted_by_the_federation():
    problem = toys.quadratic(3, 4, samples=8)
    found = fz.certify(problem, np.zeros(4), ETA, directions=640)
    messages, clients, floats = 10, 3, 8
    assert found.directions == 640
    assert found.cost.evaluations == clients * 8 * (2 * 640 + 1)
    assert found.cost.upload_bytes == clients * floats * (640 + 1 + 4 + 1)  # gaps, distance, pull, loss
    assert found.cost.download_bytes == clients * (messages * (4 * floats + 8) + 3 * 4 * floats)
    assert found.cost.gradients == found.cost.lower_rounds == 0


@pytest.mark.parametrize("make", [lambda: toys.boxes(3), lambda: bilevel.direct(2, 2, 2, 3)], ids=["boxes", "direct"])
def test_engines_agree(make):
    problem = make()
    x = np.full(problem.dim, 1.2)
    one, other = (fz.certify(problem, x, ETA, directions=512, engine=engine) for engine in ("simulation", "loop"))
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
    assert found.upper == found.norm_interval[1] + found.lower.effect
    assert "|y - y(x)|" in repr(found)


def test_a_poor_lower_solve_is_seen_in_the_certificate():
    problem = bilevel.coupled()
    x = bilevel.coupled_answer(problem)
    poor = fz.certify(problem, x, ETA, directions=512, lower=fz.LocalSGD(batch_size="full", rounds=2))
    good = fz.certify(problem, x, ETA, directions=512)
    assert poor.lower.error > 1e3 * good.lower.error
    # With the right y the gradient is zero here, so whatever is measured beyond the noise is the lower level's doing.
    assert good.norm < 1e-9
    assert good.norm + poor.lower.effect > poor.norm > 1e3 * good.norm


def test_minimax_and_two_stage_points_have_certificates():
    problem = minimax.ncsc()
    x = np.asarray(problem.x0) + 0.5
    found = fz.certify(problem, x, 0.01, directions=2048)
    truth = minimax.grad_phi(problem, x)
    assert found.interval[0] <= truth @ truth <= found.interval[1]

    market = cournot.cournot(10, scenarios=4, clients=2)
    best, _ = cournot.optimum(market)
    found = fz.certify(market, np.array([best]), ETA, directions=512)
    assert found.norm_interval[1] < 1e-6  # one unknown and a quadratic loss: nothing is random
    assert found.lower.error < 1e-9
    assert found.cost.lower_steps > 0


def test_a_black_box_upper_loss_has_no_bound_on_the_lower_levels_effect():
    plain = bilevel.direct(2, 2, 2, 3)
    loss = fz.blackbox(lambda x, y, batch: float(0.5 * np.mean(np.sum((x - batch[0]) ** 2, -1))))
    problem = fz.Bilevel(loss, plain.lower_fn, plain.data, plain.x0, plain.y0, lower_data=plain.lower_data,
                         modulus=plain.modulus, smoothness=plain.smoothness)  # fmt: skip
    found = fz.certify(problem, np.zeros(2), ETA, directions=512)
    assert found.lower.effect is None
    assert found.upper == math.inf
    assert any("black box" in note for note in found.notes)


def test_a_certificate_is_readable_and_plain():
    found = fz.certify(toys.median(), np.zeros(3), ETA, width=1e-9, max_directions=512)
    assert found.narrow is False
    assert any("max_directions" in note for note in found.notes)
    assert len(repr(found).splitlines()) <= 8
    assert found.to_dict()["cost"]["evaluations"] == found.cost.evaluations
    assert found == fz.certify(toys.median(), np.zeros(3), ETA, width=1e-9, max_directions=512)
    assert found != fz.certify(toys.median(), np.zeros(3), ETA, 1, width=1e-9, max_directions=512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros(3)}, "x: found shapes"),
        ({"x": np.full(4, np.nan)}, "x: found a value that is not finite"),
        ({"smoothing": 0}, "smoothing: found 0"),
        ({"width": -1.0}, "width: found -1.0"),
        ({"directions": 0}, "directions: found 0"),
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


METHOD = fz.FedRZOnn(0.02, ETA, 3)


def go(rounds=60, stop=None, **options):
    return fz.run(METHOD, toys.quadratic(3, 4), rounds, progress=False, stop=stop or fz.certified(0.1, 10), **options)


def test_a_run_stops_when_its_point_is_certified():
    result = go(400)
    history = result.history
    assert history["round"][-1] < 400
    assert history["round"][-1] % 10 == 0
    assert history["certificate_upper"][-1] <= 0.1 < history["certificate_upper"][-2]
    assert np.linalg.norm(result.x - toys.answer(toys.quadratic(3, 4))) <= 0.1
    plain = fz.run(METHOD, toys.quadratic(3, 4), int(history["round"][-1]), progress=False).history
    np.testing.assert_array_equal(plain["evaluations"], history["evaluations"])  # charged apart
    assert np.isnan(history["certificate_norm"][0])
    assert history["certificate_evaluations"][9] == 0 < history["certificate_evaluations"][10]
    assert np.all(np.diff(history["certificate_upload_bytes"]) >= 0)


def test_a_certified_run_resumes_as_if_it_had_never_stopped(tmp_path):
    straight = go(400).history
    go(25, checkpoint=tmp_path)
    resumed = go(400, checkpoint=tmp_path, resume=True).history
    again = go(400, checkpoint=tmp_path, resume=True).history  # certified already: nothing more is done
    for name in straight:
        if name != "seconds":
            np.testing.assert_array_equal(straight[name], resumed[name])
            np.testing.assert_array_equal(straight[name], again[name])
    with pytest.raises(fz.CheckpointError, match="stop"):
        fz.run(METHOD, toys.quadratic(3, 4), 400, progress=False, checkpoint=tmp_path, resume=True)


def test_rules_that_cannot_work_are_refused_before_the_run():
    with pytest.raises(fz.InputError, match="every: found 10 with eval_every=4"):
        go(20, eval_every=4)
    with pytest.raises(fz.InputError, match="epsilon: found 0"):
        fz.certified(0)
    with pytest.raises(fz.InputError, match="smoothing: FedAvg has none"):
        fz.run(fz.FedAvg(0.1), toys.quadratic(3, 4), 5, progress=False, stop=fz.certified(0.1))
