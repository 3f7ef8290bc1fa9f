"""What a promise would not hold for is refused before anything starts, in one line that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz

RNG = np.random.default_rng(0)
RECORDS = [RNG.normal(size=(6, 2)), RNG.normal(size=(9, 2))]
DATA = fz.ClientData(RECORDS)


def loss(x, batch):
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1))


def upper(x, y, batch):
    return jnp.mean(jnp.sum((y - batch) ** 2, axis=-1)) + jnp.sum(x**2)


def lower(x, y, batch):
    return jnp.sum((y - x) ** 2) + 0.0 * jnp.sum(batch)


def scenario_loss(x, y, xi):
    return jnp.sum((x - xi) ** 2) + jnp.sum(y**2)


def scenario_map(x, y, xi):
    return 2 * y - x - xi


def nonsmooth(loss=loss, data=DATA, **options):
    return fz.Nonsmooth(loss, data, np.zeros(2), **options)


def bilevel(**options):
    return fz.Bilevel(upper, lower, DATA, np.zeros(2), np.zeros(2), modulus=2.0, smoothness=2.0, **options)


def privacy(**options):
    return fz.Privacy(**{"noise": 0.04, "clip": 1.0, "delta": 1e-3, **options})


def method(kind=fz.FedRZOnn, stepsize=0.1, smoothing=0.1, promise=None, **options):
    return kind(stepsize, smoothing, privacy=privacy() if promise is None else promise, **options)


def refused(match, chosen, problem, rounds=1, **options):
    with pytest.raises(fz.InputError, match=match) as error:
        fz.run(chosen, problem, rounds, progress=False, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({}, r"Privacy: found neither epsilon nor noise; pass epsilon=2\.0"),
        ({"epsilon": 0.0}, r"epsilon: found 0\.0"),
        ({"epsilon": "two"}, r"epsilon: found 'two'"),
        ({"epsilon": float("nan")}, r"epsilon: found nan"),
        ({"noise": -1.0}, r"noise: found -1\.0"),
        ({"epsilon": 1.0, "delta": 1.0}, r"delta: found 1\.0; pass a number between 0 and 1"),
        ({"epsilon": 1.0, "delta": 0.0}, r"delta: found 0\.0"),
        ({"epsilon": 1.0, "clip": "median"}, r"clip: found 'median'; pass a positive number, or \"auto\""),
        ({"epsilon": 1.0, "clip": 0.0}, r"clip: found 0\.0"),
        ({"epsilon": 1.0, "simulation": 1}, r"simulation: found 1; pass True or False"),
        ({"epsilon": 1.0, "public_lower_data": "yes"}, r"public_lower_data: found 'yes'; pass True or False"),
    ],
)
def test_each_field_refuses_values_that_mean_nothing(fields, match):
    with pytest.raises(fz.InputError, match=match):
        fz.Privacy(**fields)


def test_a_misspelt_field_is_refused_by_name():
    with pytest.raises(fz.InputError, match="epsilom"):
        fz.Privacy(epsilom=1.0)


def test_only_a_promise_is_one():
    with pytest.raises(fz.InputError, match=r"privacy: found 2\.0; pass fz\.Privacy"):
        fz.FedRZOnn(0.1, 0.1, privacy=2.0)


def test_a_sampler_has_no_records():
    sampler = fz.Sampler(lambda key, client: jax.random.normal(key, (2,)), clients=2)
    refused(r"found a Sampler, which has no records to protect; pass fz\.ClientData", method(), nonsmooth(data=sampler))


def test_records_that_all_clients_share_are_refused():
    refused("give each client its own", method(), nonsmooth(data=fz.ClientData.shared(RECORDS[0], 3)))


@pytest.mark.parametrize("kind", [fz.FedRZOnn, fz.FedRZO2s])
def test_gradients_are_not_protected(kind):
    problem = nonsmooth() if kind is fz.FedRZOnn else two_stage()
    refused(r'has oracle="gradients"; only slopes .* use "values"', method(kind, oracle="gradients"), problem)


@pytest.mark.parametrize("kind", [fz.FedRZOnn, fz.DeComFL])
def test_a_search_for_a_stepsize_looks_at_losses(kind):
    refused(r'found stepsize="auto", whose search looks at losses; pass a number', method(kind, "auto"), nonsmooth())


def two_stage(**options):
    known = {"modulus": 2.0, "smoothness": 2.0, **options}
    return fz.TwoStage(scenario_loss, scenario_map, DATA, np.zeros(2), np.zeros(2), **known)


@pytest.mark.parametrize("missing", ["modulus", "smoothness"])
@pytest.mark.filterwarnings("ignore")
def test_constants_of_scenarios_have_to_be_given(missing):
    refused("pass both to TwoStage", method(fz.FedRZO2s), two_stage(**{missing: None}))


def test_a_lower_level_on_the_same_records_is_refused():
    refused("pass other, public ones as lower_data", method(fz.FedRZObl), bilevel())


def test_lower_data_have_to_be_declared_public():
    other = fz.ClientData([np.zeros((1, 2))] * 2)
    match = r"if those are public, pass fz\.Privacy\(\.\.\., public_lower_data=True\)"
    refused(match, method(fz.FedRZObl), bilevel(lower_data=other))


def test_a_zero_sum_lower_level_is_refused():
    problem = fz.Minimax(lambda x, y, b: jnp.sum(x * y) - jnp.sum(y**2) + jnp.mean(b), DATA, np.zeros(2), np.zeros(2))
    refused("privacy: Minimax is not offered", method(fz.FedRZObl), problem)


def test_a_promise_of_the_lower_method_is_refused():
    with pytest.raises(fz.InputError, match=r"lower: found privacy=; give it to the upper level's method"):
        fz.FedRZObl(0.1, 0.1, lower=fz.FedRZOnn(0.1, 0.1, privacy=privacy()), lower_rounds=3)


def test_a_delta_that_gives_a_record_away_is_refused():
    refused(r"delta = 0\.2 with 9 records .* pass well below 0\.11", method(promise=privacy(delta=0.2)), nonsmooth())


def normalised(x, batch):
    return jnp.mean(((batch - jnp.mean(batch, axis=0)) / (1e-3 + jnp.std(batch, axis=0)) @ x - 1) ** 2)


def tail(x, batch):
    """The mean over the worst quarter of a batch."""
    return jnp.mean(jnp.sort(jnp.sum((x - batch) ** 2, axis=-1))[-max(1, batch.shape[0] // 4) :])


def total(x, batch):
    return jnp.sum(jnp.abs(x - batch))


@pytest.mark.parametrize("mixing", [normalised, tail, total])
def test_a_loss_that_mixes_the_records_of_a_batch_is_refused(mixing):
    refused(r"the loss of a batch has to be the mean of its records' own losses", method(), nonsmooth(mixing))


def test_a_black_box_that_fails_on_one_record_is_refused():
    def needs_two(x, batch):
        if len(batch) < 2:
            raise ValueError("too few")
        return float(np.mean(np.abs(x - batch)))

    match = r"cannot be asked for one record at a time .*; let it take a batch of one"
    refused(match, method(), nonsmooth(fz.blackbox(needs_two)))


def test_checks_before_a_run_see_no_private_record():
    """All of them lie beyond a hundred, and those that are made up do not."""
    seen = []

    def far(x, batch):
        seen.append(float(np.abs(batch).max()))
        return float(np.mean(np.abs(x - batch)))

    problem = nonsmooth(fz.blackbox(far), fz.ClientData([np.full((4, 2), 1e3), np.full((5, 2), 1e3)]))
    fz.run(method(), problem, 0, progress=False)
    assert seen
    assert max(seen) < 100


def test_a_sweep_is_refused_unless_it_is_a_simulation():
    with pytest.raises(fz.InputError, match=r"a sweep runs on the same records many times.*simulation=True"):
        fz.sweep(method(), nonsmooth(), 1, seeds=2, progress=False)


def test_constants_are_not_estimated_from_private_records():
    options = {"budget": 10, "smoothing": 0.1, "privacy": privacy()}
    with pytest.raises(fz.InputError, match="privacy: estimating constants looks at the records of a private run"):
        fz.FedRZOnn.from_theory(nonsmooth(), **options)
    assert fz.FedRZOnn.from_theory(nonsmooth(), constants={"lipschitz": 1.5}, **options).privacy is not None


def test_an_epsilon_that_no_noise_reaches_is_refused():
    chosen = method(promise=fz.Privacy(epsilon=1e-7, delta=1e-12, clip=1.0), batch_size="full")
    match = r"no noise brings 3 releases .* use a smaller batch_size, fewer rounds or local_steps, or a larger epsilon"
    refused(match, chosen, nonsmooth(), 3)


def test_what_looks_at_losses_is_refused_of_a_private_runs_problem():
    result = fz.run(method(), nonsmooth(), 1, progress=False)
    for name, look in {
        "fz.certify": lambda problem: fz.certify(problem, result.x, 0.1),
        "fz.check": lambda problem: fz.check(problem),
        "fz.solve": lambda problem: fz.solve(problem, seconds=5.0),
    }.items():
        with pytest.raises(fz.InputError, match=f"privacy: {name} looks at the records of a private run"):
            look(result.problem)


def test_a_private_run_cannot_be_stopped_by_certificates():
    stop = fz.certified(epsilon=0.1, every=1)
    refused(r"privacy: stop=fz\.certified looks at the records", method(), nonsmooth(), 2, stop=stop)


def test_a_check_of_a_private_method_is_refused_unless_it_is_a_simulation():
    with pytest.raises(fz.InputError, match=r"privacy: fz\.check looks at the records"):
        fz.check(nonsmooth(), method())
    report = fz.check(nonsmooth(), method(promise=privacy(simulation=True)), rounds=4)
    assert report.ok, report


def test_a_schedule_that_falls_below_one_is_refused_and_not_counted_backwards():
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(b @ x - 1)), fz.ClientData([np.ones((50, 2))]), np.zeros(2))
    method = fz.FedRZOnn(0.1, 0.1, local_steps=lambda r: 5 - r, privacy=fz.Privacy(epsilon=1.0, delta=1e-3))
    with pytest.raises(fz.InputError, match="local_steps: its value in round 5 is 0"):
        fz.run(method, problem, 11, progress=False)


def test_a_vectorised_black_box_is_refused():
    box = fz.blackbox(lambda x, batch: np.zeros(len(x)), vectorized=True)
    problem = fz.Nonsmooth(box, fz.ClientData([np.ones((50, 2))]), np.zeros(2))
    with pytest.raises(fz.InputError, match="many records in one call"):
        fz.run(fz.FedRZOnn(0.1, 0.1, privacy=fz.Privacy(epsilon=1.0, delta=1e-3)), problem, 1, progress=False)


def test_a_black_box_that_fails_for_a_record_does_not_say_so(capfd):
    """A server that could see it fail would know that the record is there."""

    @fz.blackbox
    def loss(x, batch):
        if batch.max() > 5:
            raise ValueError("this one")
        return float(np.abs(x - batch).sum(axis=1).mean())

    records = np.zeros((40, 2))
    records[3] = 9.0
    problem = fz.Nonsmooth(loss, fz.ClientData([records]), np.zeros(2))
    method = fz.FedRZOnn(0.01, 0.1, batch_size="full", privacy=fz.Privacy(noise=1.0, delta=1e-3, clip=1.0))
    found = fz.run(method, problem, 2, progress=False)
    assert np.isfinite(np.asarray(found.x)).all()
    assert capfd.readouterr().err.count("this one") == 1  # its own log


def test_a_stop_that_asks_for_the_loss_is_told_that_there_is_none():
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(b @ x - 1)), fz.ClientData([np.ones((50, 2))]), np.zeros(2))
    method = fz.FedRZOnn(0.1, 0.1, batch_size=25, privacy=fz.Privacy(noise=2.0, delta=1e-3))
    with pytest.raises(fz.InputError, match="stop: it asks for the column 'loss'"):
        fz.run(method, problem, 3, progress=False, stop=lambda row: row["loss"] < 1)


def test_noise_that_spends_the_budget_in_the_first_round_is_refused():
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(b @ x - 1)), fz.ClientData([np.ones((50, 2))]), np.zeros(2))
    method = fz.FedRZOnn(0.1, 0.1, batch_size=25, privacy=fz.Privacy(noise=0.5, epsilon=0.1, delta=1e-3))
    with pytest.raises(fz.InputError, match="does not allow a single round"):
        fz.run(method, problem, 3, progress=False)
