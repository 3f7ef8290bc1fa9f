"""`fz.solve`: no hyper-parameter, on problems that nobody tuned anything for."""

import time
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.paper.published import entries
from fedrzo.solving import solve as module  # noqa: F401 - that the folder does not hide the function
from fedrzo.solving.judging import JUDGED, thinned
from fedrzo.solving.setup import batch_for, prepare
from fedrzo.solving.stages import Search

S = fz.sets
RNG = np.random.default_rng(0)
SHARES = [1.0, 2.0, 0.5]  # clients differ in what they measure, in how much, and in how many samples they have


def test_the_note_has_the_smoothing_of_the_stage_that_found_x():
    """The search may have begun another descent since, with a large smoothing."""
    first, last = (SimpleNamespace(method=fz.FedRZOnn(0.1, smoothing)) for smoothing in (0.3, 4.6e-6))
    first.scales = SimpleNamespace(smoothing=0.3)
    search = SimpleNamespace(setup=first, best=last, stages=9, smoothing=0.3)
    expected = "FedRZOnn by values, 9 stages of 6 step sizes, smoothing 0.3 in the first stage"
    assert Search.how.fget(search) == f"{expected}, 4.6e-06 in the stage that found x"
    last.method = None
    assert Search.how.fget(search) == expected


def quantile(x, batch):
    off = batch["y"] - batch["A"] @ x
    return jnp.mean(jnp.maximum(0.7 * off, -0.3 * off))


def regression(scale=1.0, **more):
    rng = np.random.default_rng(1)
    truth, parts = np.array([1.0, -2.0, 0.5]) * scale, []
    for share, count in zip(SHARES, (12, 7, 20), strict=True):
        A = share * rng.normal(size=(count, 3))
        parts.append({"A": A, "y": A @ truth + 0.1 * scale * rng.normal(size=count)})
    return fz.Nonsmooth(quantile, fz.ClientData(parts), np.zeros(3), **more)


def by_linear_program(problem, low=-np.inf, high=np.inf):
    """The least mean quantile loss over a box, as a linear program."""
    from scipy.optimize import linprog

    A, y = (np.asarray(problem.data.flat[name]) for name in ("A", "y"))
    sizes = np.asarray(problem.data.sizes)
    weights = np.repeat(1 / (len(sizes) * sizes), sizes)
    count, n = A.shape
    cost = np.concatenate([np.zeros(n), 0.7 * weights, 0.3 * weights])
    bounds = [(low, high)] * n + [(0, None)] * (2 * count)
    return linprog(cost, A_eq=np.hstack([A, np.eye(count), -np.eye(count)]), b_eq=y, bounds=bounds).fun


SLOW = pytest.mark.slow("another solve")
CASES = [(scale, boxed) for scale in (1e-3, 1.0, 1e3) for boxed in (False, True)]
SCALES = [case if case == (1.0, False) else pytest.param(*case, marks=SLOW) for case in CASES]


@pytest.mark.parametrize(("scale", "boxed"), SCALES)
def test_a_regression_of_any_scale_reaches_its_linear_program(scale, boxed):
    sets = [S.Box(-scale, scale), S.Box(-2 * scale, 0.4 * scale), S.Reals()] if boxed else None
    problem = regression(scale, constraint=sets)
    result = fz.solve(problem, progress=False)
    wanted = by_linear_program(problem, *((-scale, 0.4 * scale) if boxed else ()))
    start = result.history["loss"][0]
    assert wanted - 1e-6 * scale <= result.loss_feasible <= wanted + 1e-5 * (start - wanted)
    assert float(problem.worst_distance(jnp.asarray(result.x_feasible))) <= 1e-6 * scale
    last = result.history.last
    assert last["loss"] == result.loss_feasible
    if scale == 1.0:
        costs_are_those_of_everything_that_was_tried(problem, result.history)


def costs_are_those_of_everything_that_was_tried(problem, history):
    samples = problem.data.samples
    rounds, evaluations, gradients = (np.diff(history[name]) for name in ("round", "evaluations", "gradients"))
    assert history["evaluations"][0] >= 17 * samples  # a look around the start
    assert gradients[0] == 6 * rounds[0] * samples  # six points a round
    assert evaluations[0] == samples  # where they end
    assert np.all(np.diff(history["loss"]) <= 1e-6 * history["loss"][0])
    assert np.all(gradients >= 0)


@SLOW
def test_equal_keys_give_equal_runs_and_the_call_that_is_named_repeats_the_last_gain():
    problem = regression()
    first, second = (fz.solve(problem, key=3, progress=False) for _ in range(2))
    np.testing.assert_array_equal(first.x, second.x)
    for name in first.history:
        if name != "seconds":
            np.testing.assert_array_equal(first.history[name], second.history[name])
    again = eval(first.spec["call"], {"fz": fz, "np": np, "problem": problem, "result": first})
    np.testing.assert_allclose(again.x, first.x, atol=1e-6)


def test_a_start_that_is_the_answer_is_returned_with_a_word():
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(x - b)), fz.ClientData([np.ones(3), np.ones(2)]), np.ones(1))
    result = fz.solve(problem, progress=False)
    np.testing.assert_array_equal(result.x, 1.0)
    assert any("nothing that was tried is better than the start" in note for note in result.notes)


def test_a_black_box_is_solved_from_values_within_the_time_limit():
    calls = []

    def simulator(x, batch):
        calls.append(1)
        time.sleep(1e-4)
        return np.float64(np.abs(x - batch).mean() + 0.1 * abs(x[0]))

    data = fz.ClientData([RNG.normal(1.0, 0.1, size=(3, 2)), RNG.normal(-0.5, 0.1, size=(5, 2))])
    begun = time.perf_counter()
    result = fz.solve(fz.Nonsmooth(fz.blackbox(simulator), data, np.zeros(2) + 2.0), seconds=8, progress=False)
    assert time.perf_counter() - begun <= 1.2 * 8
    assert "values" in result.notes[0]
    assert result.loss_feasible < 0.6 * result.history["loss"][0]


def score(x, batch):
    """One minus a score that is zero unless x is large; no mean over samples."""
    return 1 - float(np.median(batch @ x > 9)) + 1e-3 * np.sum(x**2)


@pytest.mark.parametrize(
    ("loss", "stated", "batch", "words"),
    [
        (score, {}, "full", "the loss is the same for each of the few samples that were tried; if it is the mean over its batch"),
        (lambda x, batch: float(np.median(np.abs(batch - x))), {}, "full", "the loss is no mean over a batch"),
        (score, {"mean": True}, 16, ""),
        (lambda x, batch: float(np.mean(np.abs(batch - x))), {}, 16, ""),
    ],
    ids=["score", "median", "stated", "mean"],
)
def test_a_black_box_that_may_be_no_mean_gets_all_samples_of_a_client(loss, stated, batch, words):
    """Small batches of anything else would be another objective."""
    data = fz.ClientData([RNG.normal(size=(size, 2)) for size in (90, 70)])
    problem = fz.Nonsmooth(fz.blackbox(loss, **stated), data, np.full(2, 0.5))
    with problem.precision():
        setup = prepare(problem, 0)
    assert setup.method.batch_size == batch
    assert words in setup.remark
    assert bool(setup.remark) == bool(words)


@SLOW
def test_a_result_says_why_steps_take_all_samples_of_a_client():
    data = fz.ClientData([RNG.normal(size=(size, 2)) for size in (90, 70)])
    result = fz.solve(fz.Nonsmooth(fz.blackbox(score), data, np.full(2, 0.5)), seconds=10, progress=False)
    assert result.notes[1].startswith("each step takes all samples of a client: the loss is the same for each of the few samples")


REFUSED = {
    "constant": (lambda x, b: 0.0 * jnp.sum(x) + jnp.mean(b), {}, {}, "loss: found the same value"),
    "unbounded": (lambda x, b: jnp.mean(b) * jnp.sum(x), {}, {}, "loss: it falls without end"),
    "empty": (lambda x, b: jnp.sum(x**2), {"constraint": [S.Box(0, 1), S.Box(2, 3)]}, {}, "constraint: found"),
    "no time": (lambda x, b: jnp.sum(x**2), {}, {"seconds": 1e-3}, "seconds: found 0.001"),
    "negative time": (lambda x, b: jnp.sum(x**2), {}, {"seconds": -1.0}, "seconds: "),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_solved_is_said_in_one_line(what):
    loss, stated, asked, wanted = REFUSED[what]
    data = fz.ClientData([np.ones(3), np.ones(2)])
    with pytest.raises(fz.InputError, match=wanted) as caught:
        fz.solve(fz.Nonsmooth(loss, data, np.zeros(2), **stated), **asked, progress=False)
    assert "\n" not in str(caught.value)


@SLOW
def test_an_engine_that_takes_one_run_at_a_time_does_the_same_work():
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(x - b)), fz.ClientData([np.ones(3), np.zeros(2)]), np.full(1, 3.0))
    result = fz.solve(problem, seconds=20, engine="loop", progress=False)
    assert result.loss_feasible <= 0.55
    assert result.spec["engine"] == "loop"


PUBLISHED = {entry.name: entry for entry in entries()}
TRIED = ("bard1", "stackelberg1", "paper_minimax", "nash1")


@pytest.mark.slow("a solve of each")
@pytest.mark.filterwarnings("ignore:x0. found a point")
@pytest.mark.parametrize("name", TRIED)
def test_published_problems_are_solved_without_a_word(name):
    entry = PUBLISHED[name]
    result = fz.solve(entry.make(), progress=False)
    assert abs(result.loss_feasible - entry.published) <= 0.01 * max(1, abs(entry.published))


def game(followers, scenarios, clients=4):
    """A leader and many followers whose costs differ, each client with its own number of demands."""
    rng = np.random.default_rng(7)
    cost, slope = rng.uniform(0.5, 2.0, followers), 1.0 / followers
    parts = np.split(rng.uniform(4.0, 6.0, scenarios), np.sort(rng.choice(scenarios - 1, clients - 1, replace=False)) + 1)
    return fz.TwoStage(
        lambda x, y, a: 0.5 * x[0] ** 2 - x[0] * (a - x[0] - slope * jnp.sum(y)),
        lambda x, y, a: cost * (1 + y) - a + x[0] + slope * (y + jnp.sum(y)),
        fz.ClientData(parts), np.zeros(1), np.zeros(followers), S.Box(0.0, 10.0), S.Box(0.0, 3.0), weights="samples",
    )  # fmt: skip


def test_many_scenarios_are_judged_by_some_of_each_client():
    problem = game(100, 6000)
    some = thinned(problem)
    assert some.data.samples * 100 <= 2 * JUDGED < 6000 * 100
    assert np.asarray(some.data.sizes).min() >= 1
    np.testing.assert_array_equal(some.client_weights, problem.client_weights)
    first = np.asarray(problem.data.flat)[np.asarray(problem.data.offsets)]
    np.testing.assert_array_equal(np.asarray(some.data.flat)[np.asarray(some.data.offsets)], first)
    assert thinned(small := game(10, 50)) is small
    assert isinstance(batch_for(problem), int)
    assert batch_for(small) == "full"


@pytest.mark.slow("a large game")
def test_a_game_of_many_scenarios_is_settled_by_all_of_them():
    problem = game(100, 6000)
    result = fz.solve(problem, seconds=40, progress=False)
    with problem.precision():
        by_all = float(problem.evaluate(jnp.asarray(result.x_feasible))["loss"])
    assert result.loss_feasible == pytest.approx(by_all, rel=1e-9)  # how near to the optimum, benchmarks/mpec.py measures
    assert result.loss_feasible < result.history["loss"][0]


@SLOW
@pytest.mark.parametrize("ball", [False, True])
def test_entries_of_different_size_are_found_out(ball):
    data = fz.ClientData([np.array([0.5, 1.5]), np.array([0.0, 1.0, 2.0])])
    loss = lambda x, b: jnp.mean((x[0] / 1e3 - 1) ** 2 + (100 * x[1] - b) ** 2)  # noqa: E731
    result = fz.solve(fz.Nonsmooth(loss, data, np.zeros(2), S.Ball(0.0, 800.0) if ball else None), progress=False)
    np.testing.assert_allclose(result.x_feasible, [800.0 if ball else 1000.0, 0.01], rtol=1e-2)
    assert "x in units from" in result.notes[0]


@SLOW
def test_an_entry_in_a_box_stays_near_it():
    def loss(x, b):  # so flat along the second entry that probing gave it a unit a hundred times as wide as its box
        return jnp.mean(4 * jnp.abs(x[0] - b)) + 0.002 * jnp.abs(x[1] - 0.66) + 0.008 * (x[1] - 0.66) ** 2

    box = S.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 1.136]))
    result = fz.solve(fz.Nonsmooth(loss, fz.ClientData([np.ones(1)]), np.zeros(2), box), progress=False)
    np.testing.assert_allclose(result.x_feasible, [1.0, 0.66], atol=2e-3)
    assert result.history["feasibility"].max() <= 1.136


@pytest.mark.slow("two methods, one after the other")
def test_a_lower_level_with_kinks_is_left_to_the_paper_s_method_and_all_costs_count():
    """Newton needs Hessians, which a kink has not: the first evaluation fails, and its cost is part of the result's."""

    def lower(x, y, batch):
        return 5 * jnp.sum(jnp.abs(y - x)) + 0.5 * jnp.sum((y - 2 - 0.1 * x) ** 2)  # least at y = x

    data = fz.ClientData([np.zeros((2, 1))] * 2)
    problem = fz.Bilevel(lambda x, y, b: jnp.sum((y - 1) ** 2) + x @ x, lower, data, np.full(2, 0.3), np.full(2, -3.0),
                         modulus=1.0, smoothness=50.0)  # fmt: skip
    result = fz.solve(problem, seconds=30, progress=False)
    assert result.spec["method"] == "FedRZObl"
    assert result.history["lower_rounds"][0] > 0
    assert result.loss_feasible <= result.history["loss"][0]
