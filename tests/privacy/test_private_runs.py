"""Runs that promise privacy: what they are charged, where they stop, how they go on, and what they keep to themselves."""

import functools
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines.simulation.rounds import cohort
from fedrzo.privacy.accounting import Release, epsilon

SIZES, DELTA = (8, 20, 20), 1e-3
RNG = np.random.default_rng(0)
RECORDS = [RNG.normal(size=(size, 2)) for size in SIZES]


def loss(x, batch):
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1))


PROBLEM = fz.Nonsmooth(loss, fz.ClientData(RECORDS), np.zeros(2))
EQUAL = fz.Nonsmooth(loss, fz.ClientData([RECORDS[0], -RECORDS[0]]), np.zeros(2))  # one rate: less to account for


def method(local_steps=2, batch_size=5, **options):
    privacy = fz.Privacy(**{"noise": 3.0, "clip": 1.0, "delta": DELTA, **options})
    return fz.FedRZOnn(0.05, 0.1, local_steps, batch_size=batch_size, privacy=privacy)


def run(chosen, rounds=6, problem=PROBLEM, **options):
    return fz.run(chosen, problem, rounds, progress=False, **options)


def spent(size, noise, count, batch_size=5):
    return epsilon({Release(min(1.0, batch_size / size), noise): count}, DELTA)


@functools.cache
def plain():
    return run(method())


def test_the_epsilon_column_is_the_worst_clients_and_never_falls():
    """The smallest client's, whose rate is the highest: with the same noise it is charged most."""
    column = plain().history["epsilon"]
    assert column[0] == 0
    assert (np.diff(column) >= 0).all()
    for r in range(7):
        assert column[r] == pytest.approx(max(spent(size, 3.0, 2 * r) for size in SIZES), rel=1e-12)
    assert column[-1] == pytest.approx(spent(8, 3.0, 12), rel=1e-12)


def test_a_long_runs_column_is_rounded_up_but_for_its_end_which_is_exact():
    result = run(method(local_steps=1), 45, EQUAL, eval_every=1)
    column = result.history["epsilon"]
    exact = np.array([spent(8, 3.0, r) for r in range(46)])
    assert (np.diff(column) >= 0).all()
    assert (column >= exact - 1e-12).all()
    assert (column <= 1.15 * exact).all()
    assert column[-1] == result.spec["privacy"]["epsilon"] == exact[-1]


def test_the_noise_found_for_an_epsilon_spends_it_and_no_more():
    result = run(method(noise=None, epsilon=2.0), 6)
    assert 0.99 * 2 < result.history["epsilon"][-1] <= 2.0
    noises = result.spec["privacy"]["noises"]
    assert noises == sorted(noises)  # one for each sampling rate, in their order
    rates = sorted({5 / size for size in SIZES})
    found = [epsilon({Release(rate, noise): 12}, DELTA) for rate, noise in zip(rates, noises, strict=True)]
    assert all(1.98 < each <= 2 for each in found)


@pytest.mark.parametrize("rounds", [23, 60])
def test_a_run_with_a_given_noise_stops_where_its_budget_is_spent(rounds):
    with pytest.warns(UserWarning, match=rf"privacy: epsilon = 1\.5 is spent after \d+ of {rounds} rounds, where the run stops"):
        result = run(method(epsilon=1.5, local_steps=1), rounds, EQUAL)
    last = result.history["round"][-1]
    assert spent(8, 3.0, last) <= 1.5 < spent(8, 3.0, last + 1)
    assert result.history["epsilon"][-1] <= 1.5
    assert result.spec["privacy"]["epsilon"] == result.history["epsilon"][-1]
    assert result.spec["privacy"]["rounds"] == result.spec["rounds"] == last


def test_a_schedule_of_local_steps_is_charged_as_it_is():
    result = run(method(local_steps=lambda r: 1 + 2 * r), 4, EQUAL)
    wanted = [spent(8, 3.0, count) for count in (0, 1, 4, 9, 16)]
    np.testing.assert_allclose(result.history["epsilon"], wanted, rtol=1e-12)
    assert result.spec["privacy"]["releases"] == 16


def test_clients_are_charged_for_the_rounds_in_which_they_take_part():
    """Of three clients one takes part in each round; who did is drawn from the run's key."""
    rounds, key = 8, 3
    result = run(method(), rounds, key=key, clients_per_round=1)
    with PROBLEM.precision():
        chosen = [int(cohort(PROBLEM, jax.random.key(key), r, 1)[0][0]) for r in range(rounds)]
    assert set(chosen) == {0, 1, 2}
    for r in range(rounds + 1):
        times = np.bincount(chosen[:r], minlength=3)
        wanted = max(spent(size, 3.0, 2 * int(count)) for size, count in zip(SIZES, times, strict=True))
        assert result.history["epsilon"][r] == pytest.approx(wanted, rel=1e-12)
    assert result.spec["privacy"]["releases"] == 2 * np.bincount(chosen).max()


def test_only_clients_that_take_part_are_asked_for_anything():
    """A black box sees records that were made up for checks, and those of the clients of each round; no others."""
    seen = set()

    def owned(x, batch):
        seen.update(np.asarray(batch)[:, 1].tolist())
        return float(np.mean(np.abs(x[0] - batch[:, 0])))

    rng = np.random.default_rng(5)
    data = fz.ClientData([np.stack([rng.normal(size=6), np.full(6, 100.0 + i)], axis=1) for i in range(4)])
    problem = fz.Nonsmooth(fz.blackbox(owned), data, np.zeros(1))
    result = fz.run(method(batch_size=3), problem, 2, key=1, clients_per_round=1, progress=False)
    with problem.precision():
        chosen = {int(cohort(problem, jax.random.key(1), r, 1)[0][0]) for r in range(2)}
    assert len(chosen) < 4
    assert {value - 100 for value in seen if value >= 100} <= chosen
    assert "loss" not in result.history.to_dict()


STRAIGHT = {"rounds": 12, "eval_every": 1}


@pytest.mark.parametrize(("simulation", "clients"), [(True, 2), (False, None)])
def test_a_resumed_run_neither_forgets_nor_pays_twice(tmp_path, simulation, clients):
    chosen = method(simulation=simulation)
    straight = run(chosen, **STRAIGHT, clients_per_round=clients)
    run(chosen, 5, eval_every=1, clients_per_round=clients, checkpoint=tmp_path)
    resumed = run(chosen, **STRAIGHT, clients_per_round=clients, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.history["epsilon"], straight.history["epsilon"])
    if simulation:
        np.testing.assert_array_equal(resumed.x, straight.x)
    again = run(chosen, **STRAIGHT, clients_per_round=clients, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(again.history["epsilon"], straight.history["epsilon"])
    np.testing.assert_array_equal(again.x, resumed.x)


def test_a_resumed_longer_run_keeps_its_noise_and_stops_at_the_budget(tmp_path):
    """Its noise was found for four rounds: they have spent the epsilon, and no later one is run."""
    chosen = method(noise=None, epsilon=2.0)
    first = run(chosen, 4, EQUAL, checkpoint=tmp_path)
    with pytest.warns(UserWarning, match="epsilon = 2 is spent after 4 of 9 rounds"):
        second = run(chosen, 9, EQUAL, checkpoint=tmp_path, resume=True)
    assert second.history["round"][-1] == 4
    assert second.spec["privacy"]["noises"] == first.spec["privacy"]["noises"]
    np.testing.assert_array_equal(second.history["epsilon"], first.history["epsilon"])
    np.testing.assert_array_equal(second.x, first.x)


def test_a_resumed_sweep_keeps_the_noise_of_each_run(tmp_path):
    chosen = method(noise=None, epsilon=1.0, simulation=True)
    grid = {"local_steps": [1, 3]}
    options = {"seeds": 1, "progress": False, "checkpoint": tmp_path, **grid}
    first = fz.sweep(chosen, EQUAL, 2, **options)
    second = fz.sweep(chosen, EQUAL, 3, resume=True, **options)
    noises = [[each[0].spec["privacy"]["noises"] for each in sweep.results] for sweep in (first, second)]
    assert noises[0] == noises[1]
    assert noises[0][0][-1] < noises[0][1][-1]


def test_a_promise_is_kept_by_save_and_load(tmp_path):
    result = plain()
    path = tmp_path / "result"
    result.save(path)
    loaded = fz.Result.load(path)
    assert loaded.spec["privacy"] == result.spec["privacy"]
    assert loaded.privacy == result.privacy
    np.testing.assert_array_equal(loaded.history["epsilon"], result.history["epsilon"])


def test_a_promise_in_words_says_what_it_is_and_what_it_is_not():
    facts = plain().spec["privacy"]
    assert json.loads(json.dumps(facts)) == facts
    words = plain().privacy
    shown = float(re.search(r"\(([\d.]+), 0.001\)-differential privacy", words).group(1))
    assert facts["epsilon"] <= shown < facts["epsilon"] + 2e-4  # never rounded down
    assert f"factor of more than {math.exp(shown):.4g}" in words
    assert "at most 12 releases" in words
    assert "Not covered" in words
    assert "SIMULATION" not in words
    assert "THIS WAS A SIMULATION" in run(method(simulation=True), 1).privacy
    assert fz.run(fz.FedRZOnn(0.05, 0.1), PROBLEM, 1, progress=False).privacy is None


def test_losses_are_shown_of_simulations_only():
    private = plain()
    assert not {"loss", "loss_feasible", "test_loss"} & set(private.history.to_dict())
    assert private.loss_feasible is None
    assert "loss" in run(method(simulation=True), 1).history.to_dict()


def test_counted_evaluations_do_not_tell_how_many_records_were_drawn():
    """Two runs draw other samples; both count what was planned."""
    first, second = plain().history["evaluations"], run(method(), key=9).history["evaluations"]
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, [r * 2 * 2 * 5 * 3 for r in range(7)])


def test_noise_that_drowns_a_whole_sample_is_warned_of():
    with pytest.warns(UserWarning, match=r"noise of client 0, 20 clips, exceeds what a whole sample of about 5 records"):
        run(method(noise=20.0), 1)
