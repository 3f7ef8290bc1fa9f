import dataclasses
import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo import zoo
from fedrzo.cli.main import main
from fedrzo.engines import Simulation
from fedrzo.engines.base import Engine
from fedrzo.engines.simulation import rounds as simulation
from fedrzo.results.result import Tuning
from fedrzo.running import search, tuning
from fedrzo.running.search import Search

METHOD = fz.FedRZOnn("auto", 0.01, 3)
ROUNDS = 40


def _benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "stepsizes.py"
    spec = importlib.util.spec_from_file_location("stepsizes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STEPSIZES = _benchmark()


@pytest.fixture(scope="module")
def problem():
    return zoo.make("quadratic", clients=3, dim=4, samples=6)


@pytest.fixture(scope="module")
def result(problem):
    return run(problem)


def run(problem, method=METHOD, rounds=ROUNDS, **options):
    return fz.run(method, problem, rounds, progress=False, **options)


def search_for(problem, method=METHOD, rounds=ROUNDS, key=0, size=None, engine=None):
    with problem.precision():
        return tuning.tune(method, problem, jax.random.key(key), rounds, size, engine or Simulation())


def tune(*given, **options):
    return search_for(*given, **options)[0]


def test_the_run_is_that_of_the_number_found_from_where_the_best_trial_ended(problem, result):
    """Row 0 is x0, at no cost; row 1 is what the search reached and cost; then come the run's own."""
    found, x = search_for(problem)
    given = run(problem.moved_to(x), dataclasses.replace(METHOD, stepsize=found.stepsize))
    assert result.x.tobytes() == given.x.tobytes()
    assert list(result.history["round"][:3]) == [0, 0, 1]
    assert list(result.history["loss"][1:]) == list(given.history["loss"])
    assert result.history["loss"][0] == run(problem, dataclasses.replace(METHOD, stepsize=1.0), rounds=0).history["loss"][0]
    for name, spent in result.tuning.cost._asdict().items():
        assert result.history[name][0] == 0
        assert set(result.history[name][1:] - given.history[name]) == {spent}, name
    assert result.spec["method"] == given.spec["method"]
    assert given.tuning is None
    assert result.tuning.reached == pytest.approx(result.history["loss"][1], rel=1e-9)
    assert result.tuning.reached <= min(trial.loss for trial in result.tuning.trials)


@pytest.mark.parametrize("scale", [1.0, *(pytest.param(scale, marks=pytest.mark.slow("once more")) for scale in (1e-3, 1e3))])
def test_what_the_trials_found_is_not_lost(scale):
    """Where steps for all rounds are much shorter than those of trials, a run from x0 would end behind its own trials."""
    spread = np.random.default_rng(0).normal(size=(4, 8, 12))
    curved = scale * np.logspace(0, -3, 12)  # directions that short steps hardly move along
    data = fz.ClientData([3 + samples for samples in spread])
    loss = lambda x, a: jnp.mean(jnp.sum(curved * jnp.abs(x - a), axis=-1))  # noqa: E731
    result = run(fz.Nonsmooth(loss, data, np.zeros(12)), fz.FedRZOnn("auto", 0.01, 5), 60)
    losses = result.history["loss"]
    assert losses[1] < losses[0]
    assert losses[-1] <= losses[1] + 0.01 * (losses[0] - losses[1])
    assert result.notes == ()


@pytest.mark.parametrize("enough", [lambda row: row["loss"] < 0.78, lambda row: row["evaluations"] > 500])
def test_stop_is_asked_during_the_search(problem, result, enough):
    asked = []

    def stop(row):
        asked.append(dict(row))
        return enough(row)

    assert not enough({name: column[0] for name, column in result.history.to_dict().items()})
    ended = run(problem, rounds=4000, stop=stop)
    assert ended.history.last["round"] == 0
    assert len(ended.history) == 2
    assert enough(ended.history.last)
    assert ended.tuning.cost.evaluations < 0.25 * 4000 * 3 * 3 * 2  # of one run: clients, local steps, values
    assert set(asked[0]) == set(ended.history.last)
    assert not any(map(enough, asked[:-2]))  # asked while it searched, and of the row that ends the run
    with problem.precision():
        np.testing.assert_allclose(ended.history["loss"][1], float(problem.evaluate(jnp.asarray(ended.x))["loss"]), rtol=1e-12)


def test_equal_keys_find_equal_stepsizes(problem, result):
    assert tune(problem) == result.tuning
    assert tune(problem, key=1).stepsize != result.tuning.stepsize


def test_what_is_charged_is_what_was_computed_and_sent(problem):
    """Samples are counted where losses are computed; bytes by hand: x goes down, x or one number per point comes up."""
    seen = []

    def loss(x, batch):
        seen.append(len(batch))
        return 0.5 * np.mean(np.sum((x - batch) ** 2, axis=-1))

    box = fz.Nonsmooth(fz.blackbox(loss), problem.data, problem.x0)
    found = tune(box, rounds=8)
    jax.effects_barrier()
    assert found.cost.evaluations == sum(seen)
    clients, x, runs, looks = 3, 4 * 8, 0, tuning.horizons(8)
    assert looks == [4]
    for trial in found.trials:
        runs += 1
        assert trial.rounds == 4
    points = 1 + 2 * search.PROBES
    # The judge is told its points and the round, four bytes.
    assert found.cost.download_bytes == clients * (runs * 4 * x + points * x + 4 + runs * (x + 4))
    assert found.cost.upload_bytes == clients * (runs * 4 * x + points * 8 + runs * 8)
    assert (found.cost.gradients, found.cost.lower_steps, found.cost.lower_rounds) == (0, 0, 0)


def test_all_candidates_share_one_compiled_program():
    problem = zoo.make("quadratic", clients=3, dim=7, samples=6)  # a shape that no other test has compiled
    before = simulation.TRACES[0]
    found = tune(problem)
    assert simulation.TRACES[0] == before + 1
    assert {trial.rounds for trial in found.trials} == set(tuning.horizons(ROUNDS))
    assert len(found.trials) >= search.LANES + len(search.NEAR)
    tune(problem, dataclasses.replace(METHOD, smoothing=0.02), rounds=55, key=3)
    assert simulation.TRACES[0] == before + 1


def test_x0_is_judged_by_the_loss_over_all_data(problem, result):
    assert result.tuning.loss == pytest.approx(result.history["loss"][0], rel=1e-12)


@pytest.mark.slow("a search once more")
def test_x0_and_all_looks_are_judged_on_the_same_samples():
    """Fresh noise in every loss value; steps of 1e-30 leave x where it was."""
    data = fz.Sampler(lambda key, i: jax.random.normal(key, (2,)), clients=2)
    noisy = fz.Nonsmooth(lambda x, a: jnp.mean(jnp.sum((x - a) ** 2, axis=-1)), data, np.ones(2))
    with noisy.precision():
        trying = Search(METHOD, noisy, jax.random.key(0), None, Simulation())
        trying.start(ROUNDS)
        trying.unit = 1e-30
        for rounds in (4, 7):
            trying.stage(rounds, 0, walk=False)
    assert [trial.loss for trial in trying.trials] == pytest.approx([trying.loss] * 6, rel=1e-5)


@pytest.mark.parametrize("unit", [1e-9, 1e-4, 1e5])
def test_the_first_stage_finds_the_scale_from_far_too_short_and_far_too_long_steps(problem, unit):
    with problem.precision():
        trying = Search(METHOD, problem, jax.random.key(0), None, Simulation())
        trying.start(ROUNDS)
        trying.unit = unit
        stepsize = trying.stepsize(trying.first_stage(ROUNDS)[0])
    assert 1e-3 < stepsize < 0.3


def test_candidates_that_are_lost_never_win(problem):
    with problem.precision():
        trying = Search(METHOD, problem, jax.random.key(0), None, Simulation())
        trying.start(ROUNDS)
        trying.unit = 1e-2
        trying.stage(ROUNDS, 4 * 202, walk=False)  # steps of 1e200 and less, whose losses overflow
        trying.stage(ROUNDS, 4 * 15, walk=False)  # of 1e13: x is far away, but finite
        trying.stage(ROUNDS, 0, walk=False)
    lost = [trial for trial in trying.trials if trial.stepsize > 1]
    assert all(trial.loss > trying.loss for trial in lost)
    assert np.isinf([trial.loss for trial in lost]).any()


@pytest.mark.parametrize(("clients", "constraint"), [(1, None), (4, fz.sets.Box(-5, 5))])
def test_it_starts_from_what_the_theory_prescribes(clients, constraint):
    """In one dimension two values show the slope of |3 x| exactly, so the constant is the true one."""
    data = fz.ClientData([np.full((2, 1), 3.0)] * clients)
    problem = fz.Nonsmooth(lambda x, a: jnp.mean(jnp.abs(a @ x)), data, np.array([2.0]), constraint)
    plan = fz.theory.nonsmooth(
        clients, 1, 0.01, 3.0, dissimilarity=(0.0, 0.0 if constraint is None else 1.0), budget=3 * ROUNDS, local_steps=3
    )
    assert tune(problem).theory == pytest.approx(plan.stepsize, rel=1e-5)


def test_where_nothing_is_better_than_x0_it_ends_with_short_steps():
    """At the optimum no step gains: the search must neither go on for ever nor take a long one."""
    data = fz.ClientData([np.zeros((1, 4))])
    flat = fz.Nonsmooth(lambda x, a: jnp.mean(jnp.sum(jnp.abs(x - a), axis=-1)), data, np.zeros(4))
    found = tune(flat)
    assert found.stepsize <= 10 * found.theory
    assert len(found.trials) <= search.LANES * search.BATCHES + 4 * len(search.NEAR)


def test_looks_take_a_share_of_the_rounds():
    assert tuning.horizons(320) == [10, 27, 54]
    assert tuning.horizons(16) == [4]
    assert tuning.horizons(2) == [2]
    assert tuning.horizons(0) == []


def test_stepsizes_fall_the_less_the_more_there_is_still_to_gain():
    assert tuning.falling([10], [1.0]) == 0.5
    assert tuning.falling([5, 10, 20], [0.5, 1.0, 1.0]) == tuning.SETTLED
    assert tuning.falling([5, 10, 20], [0.5, 1.0, 0.9]) == tuning.SETTLED
    assert tuning.falling([10, 20], [1.0, 2**0.25]) == pytest.approx(tuning.SETTLED - tuning.GROWING / 4)
    assert tuning.falling([10, 20], [1.0, 2.0]) == 0
    assert tuning.falling([10, 20], [-1.0, 1.0]) == tuning.falling([10, 20], [1.0, 0.0]) == 0


def test_a_run_of_no_rounds_takes_the_theory(problem):
    found = run(problem, rounds=0).tuning
    assert found.stepsize == found.theory
    assert found.trials == ()


def test_resuming_searches_no_more(problem, tmp_path, monkeypatch):
    first = run(problem, rounds=10, checkpoint=tmp_path)
    monkeypatch.setattr(tuning, "tune", None)
    longer = run(problem, rounds=20, checkpoint=tmp_path, resume=True)
    assert longer.tuning == first.tuning
    monkeypatch.undo()
    _, x = search_for(problem, rounds=10)
    given = run(problem.moved_to(x), dataclasses.replace(METHOD, stepsize=first.tuning.stepsize), rounds=20)
    assert longer.x.tobytes() == given.x.tobytes()
    spent = longer.history["evaluations"][1:] - given.history["evaluations"]
    assert set(spent) == {first.tuning.cost.evaluations}
    with pytest.raises(fz.CheckpointError, match="key"):
        run(problem, rounds=20, checkpoint=tmp_path, resume=True, key=5)
    with pytest.raises(fz.CheckpointError, match="method"):
        run(problem, fz.FedRZOnn(0.1, 0.01, 3), rounds=20, checkpoint=tmp_path, resume=True)


@pytest.mark.slow("four searches")
def test_a_sweep_searches_for_each_seed_and_setting(problem, result):
    swept = fz.sweep(METHOD, problem, ROUNDS, seeds=2, progress=False, smoothing=[0.01, 0.1])
    assert swept.results[0][0].tuning == result.tuning
    found = {result.tuning.stepsize for results in swept.results for result in results}
    assert len(found) == 4
    np.testing.assert_allclose(swept.results[0][0].x, result.x, rtol=1e-12)


@pytest.mark.slow("two searches")
def test_the_loop_engine_runs_with_what_the_simulation_found(problem):
    fast, plain = run(problem, rounds=6), run(problem, rounds=6, engine="loop")
    assert fast.tuning == plain.tuning
    np.testing.assert_allclose(fast.x, plain.x, rtol=1e-9)
    assert list(fast.history["evaluations"]) == list(plain.history["evaluations"])


def test_an_engine_without_the_data_is_refused(problem):
    class Elsewhere(Engine):
        name = "elsewhere"
        data_at_hand = False

        def start(self, *given):
            raise AssertionError("it must be refused before")

    with pytest.raises(fz.InputError, match="stepsize: found \"auto\", but the engine 'elsewhere' has no data"):
        run(problem, engine=Elsewhere())


def test_other_words_are_refused():
    with pytest.raises(fz.InputError, match="stepsize: found 'atuo'; pass a positive number, or \"auto\""):
        fz.FedRZOnn("atuo", 0.01)
    with pytest.raises(fz.InputError, match="lower: found stepsize"):
        fz.FedRZObl(0.1, 0.1, lower=fz.FedRZOnn("auto", 0.01), lower_rounds=3, closing=False)
    with pytest.raises(fz.InputError, match="stepsize: found 'auto'"):
        fz.FedAvg("auto")


@pytest.mark.slow("two searches")
def test_cohorts_are_those_of_the_run(problem):
    some, all_ = tune(problem, size=1, rounds=8), tune(problem, rounds=8)
    per_trial = [found.cost.upload_bytes / len(found.trials) for found in (some, all_)]
    assert per_trial[0] < 0.6 * per_trial[1]


def test_what_was_found_is_kept_with_the_result(result, tmp_path):
    result.save(tmp_path / "run")
    assert fz.Result.load(tmp_path / "run").tuning == result.tuning
    assert Tuning.from_dict(json.loads(json.dumps(result.tuning.to_dict()))) == result.tuning


@pytest.mark.slow("a search from a cold start")
def test_the_command_line_takes_the_word(capsys):
    arguments = ["run", "quadratic", "--set", "method.stepsize=auto", "--set", "problem.dim=4", "--rounds", "6"]
    assert main([*arguments, "--json", "--quiet"]) == 0
    history = json.loads(capsys.readouterr().out)["history"]
    assert history["evaluations"][0] == 0
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.slow("a search over many stepsizes")
@pytest.mark.parametrize("name", ["direct", "ncsc"])
def test_a_lower_level_is_searched_and_charged_too(name):
    problem = zoo.make(name)
    result = run(problem, fz.FedRZObl("auto", 0.1, 2, 4), rounds=12)
    assert result.tuning.loss == pytest.approx(result.history["loss"][0], rel=1e-6)
    assert result.tuning.cost.lower_rounds > 0
    assert result.tuning.cost.gradients > 0
    assert result.history["loss"][-1] < result.history["loss"][0]


@pytest.mark.slow("a search over many stepsizes")
def test_two_stages_are_searched_and_charged_too():
    problem = zoo.make("cournot", followers=3, scenarios=6)
    result = run(problem, fz.FedRZO2s("auto", 0.5, 3, 2, fz.vi.Accelerated()), rounds=10)
    assert result.tuning.loss == pytest.approx(result.history["loss"][0], abs=1e-6)
    assert result.tuning.cost.lower_steps > 0
    assert result.history["loss"][-1] < result.history["loss"][0]


# Without those that take long, which `python benchmarks/stepsizes.py` measures, and without ncsc, whose minima lie 0 to 1.8
# above the least: which is met is luck.
LONG = (
    "quadratic, 1000 rounds",
    "median",
    "jr1",
    "relu-digits",
    "synthetic",
    "hyper-digits",
    "cournot",
    "logistic",
    "qpec1",
    "desilva",
    "direct",
    "fednest-minimax",
)
CHEAP = [name for name in STEPSIZES.CASES if name not in (*LONG, "ncsc")]


@pytest.mark.slow("eight searches and thirteen runs of every problem")
@pytest.mark.parametrize("name", CHEAP)
@pytest.mark.filterwarnings("ignore:x0")
def test_it_lands_within_a_factor_of_two_of_a_fine_grid(name):
    """Final gaps over the seeds 0 to 7, each with a search of its own, against the best of 13 stepsizes.

    Medians are within a factor of two. A single seed may find a step at the edge of what is stable: means are within four.
    """
    row = STEPSIZES.measure(STEPSIZES.CASES[name](), list(range(8)))
    assert row.cost < 4
    assert row.inside
    assert row.typical < 2
    assert row.ratio < 4
