"""FedAvg and its schedules, by hand, against closed forms, and with its relatives against scikit-learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import fedrzo as fz
from conformance import OF_VARIANTS, Case, suite
from fedrzo.data import load
from fedrzo.engines.simulation import rounds as simulation
from fedrzo.problems.curvature import StepConstants
from fedrzo.zoo import make, toys

LAMBDA = 0.05
LONG = pytest.mark.slow("thousands of steps over all samples")


def toy(wrap):
    plain = toys.quadratic(clients=4, dim=6)
    return fz.Nonsmooth(wrap(plain.loss_fn), plain.data, np.zeros(6), fz.sets.Box(-5.0, 5.0))


def case(method, **changes):
    least = 0.5 * float(np.mean(np.var(np.asarray(toys.quadratic(4, 6).data.flat), axis=0)) * 6)
    return Case(method, toy, rounds=20, descent=0.2, optimum=least, changes=changes)


test_conformance = suite(case(fz.FedAvg(0.1, 4, batch_size=2), stepsize=0.05, local_steps=3))
# Eight samples each and batches of three: 1.5 passes take four steps.
test_conformance_epochs = pytest.mark.slow("a second program of the same steps")(
    suite(case(fz.FedAvg(0.1, batch_size=3, epochs=1.5), stepsize=0.05, epochs=2.0), OF_VARIANTS)
)
test_conformance_pr_sgd = pytest.mark.slow("a second program of the same steps")(
    suite(case(fz.FedAvg(batch_size=2, schedule="PR-SGD", budget=400), budget=20_000), OF_VARIANTS)
)


def unequal(weights="samples"):
    """Two clients of three and five samples that are all alike, so that no batch is random."""
    data = [np.tile([1.0, 2.0], (3, 1)), np.tile([-2.0, 0.5], (5, 1))]
    return fz.Nonsmooth(toys.squared_distance, fz.ClientData(data), np.array([0.3, -0.1]), weights=weights)


def test_a_round_with_epochs_is_the_listings():
    problem = unequal()
    result = fz.run(fz.FedAvg(0.1, epochs=2, batch_size=2), problem, 1, progress=False)
    ends = []
    for target, steps in (([1.0, 2.0], 3), ([-2.0, 0.5], 5)):  # 2 * 3 / 2 and 2 * 5 / 2 steps
        y = problem.x0.copy()
        for _ in range(steps):
            y = y - 0.1 * (y - target)
        ends.append(y)
    np.testing.assert_allclose(result.x, (3 * ends[0] + 5 * ends[1]) / 8, rtol=1e-13)
    assert result.history.last["gradients"] == 2 * (3 + 5)
    full = fz.run(fz.FedAvg(0.1, epochs=2, batch_size="full"), problem, 1, progress=False)
    assert full.history.last["gradients"] == 2 * (3 + 5)  # two steps over all samples each


def test_weights_are_the_problems():
    ends = [fz.run(fz.FedAvg(0.1, 1), unequal(w), 1, progress=False).x for w in ("samples", "uniform")]
    targets = np.array([[1.0, 2.0], [-2.0, 0.5]])
    for x, weights in zip(ends, ([3 / 8, 5 / 8], [1 / 2, 1 / 2]), strict=True):
        np.testing.assert_allclose(x, 0.9 * np.array([0.3, -0.1]) + 0.1 * np.array(weights) @ targets, rtol=1e-13)


@pytest.mark.parametrize("method", [fz.FedAvg(0.1, 5), fz.FedProx(0.1, local_steps=5), fz.FedMSPP(1.0, 0.1, 5)])
def test_one_vector_each_way_per_client_and_round(method):
    problem = toys.quadratic(3, 4)
    last = fz.run(method, problem, 2, clients_per_round=2, progress=False).history.last
    assert last["upload_bytes"] == last["download_bytes"] == 2 * 2 * 4 * 8
    assert last["gradients"] == 2 * 2 * 5
    assert (last["evaluations"], last["lower_rounds"], last["lower_steps"]) == (0, 0, 0)


def test_many_local_steps_reach_the_mean_of_quadratics_of_one_curvature():
    problem = toys.quadratic()
    result = fz.run(fz.FedAvg(0.1, 5, batch_size="full"), problem, 60, eval_every=60, progress=False)
    np.testing.assert_allclose(result.x, toys.answer(problem), atol=1e-10)


def test_the_minimum_over_a_box_is_met():
    plain = toys.quadratic()
    box = fz.sets.Box(-0.2, 0.1)
    problem = fz.Nonsmooth(plain.loss_fn, plain.data, np.zeros(10), box)
    least = np.clip(toys.answer(plain), -0.2, 0.1)
    assert not np.allclose(least, toys.answer(plain), atol=0.1)
    for method in (fz.FedAvg(0.5, 1, "full"), fz.FedProx(0.5, local_steps=1, batch_size="full")):
        np.testing.assert_allclose(fz.run(method, problem, 60, progress=False).x_feasible, least, atol=1e-10)


CURVATURES, CENTRES = np.array([0.5, 4.0]), np.array([3.0, -1.0])


def bowls():
    """Two quadratics a/2 (x - c)^2 of unequal curvature: several local steps are biased on them."""

    def loss(x, batch):
        return jnp.mean(batch[:, 0] * (x - batch[:, 1]) ** 2) / 2

    data = [np.array([[a, c]]) for a, c in zip(CURVATURES, CENTRES, strict=True)]
    return fz.Nonsmooth(lambda x, batch: loss(x[0], batch), fz.ClientData(data), np.zeros(1))


@pytest.mark.parametrize(
    ("method", "pull"),
    [
        (fz.FedAvg(0.1, 1, "full"), CURVATURES),  # one step: no bias
        (fz.FedAvg(0.1, 7, "full"), 1 - (1 - 0.1 * CURVATURES) ** 7),
        (fz.FedProx(0.1, 2.0, local_steps=300, batch_size="full"), CURVATURES / (CURVATURES + 2.0)),
        (fz.FedMSPP(0.5, 0.1, 300, "full"), CURVATURES / (CURVATURES + 2.0)),
    ],
)
def test_where_clients_differ_the_fixed_point_is_the_known_one(method, pull):
    """Each client moves x by `pull` of the way to its own minimiser; the mean comes to rest where these cancel."""
    result = fz.run(method, bowls(), 300, eval_every=300, progress=False)
    np.testing.assert_allclose(result.x, [pull @ CENTRES / pull.sum()], rtol=1e-10)


def test_schedules_spread_their_budget_as_in_the_table():
    K, m = 4096, 2
    problem = toys.quadratic(m, 3)
    steps = {"PR-SGD": 8 / 2**0.75, "Cooperative SGD": 64 / 2**1.5, "LUPA-SGD": 256 / 2 ** (1 / 3)}
    orders = {
        "PR-SGD": m**0.75 * K**0.75,
        "Cooperative SGD": m**1.5 * K**0.5,
        "LUPA-SGD": m ** (1 / 3) * K ** (1 / 3),
    }
    for name, exact in steps.items():
        rounds = fz.FedAvg(schedule=name, budget=K).rounds_for(problem)
        assert rounds == int(np.ceil(K / np.floor(exact)))
        assert orders[name] <= rounds < 1.25 * orders[name] + 1  # whole steps a round only add to the rounds
    assert fz.FedAvg(schedule="PR-SGD", budget=256).rounds_for(toys.quadratic(1, 3)) == 64  # 256^(1/4) is 4, exactly
    assert fz.FedAvg(schedule="PR-SGD", budget=10).rounds_for(toys.quadratic(5, 3)) == 10  # never less than one step


@pytest.mark.parametrize("name", ["PR-SGD", "Cooperative SGD", "LUPA-SGD"])
def test_two_rounds_of_a_schedule_by_hand(name):
    mu, L, K, m = 0.5, 3.0, 4096, 2
    problem = unequal("uniform")
    method = fz.FedAvg(schedule=name, budget=K, constants=StepConstants(mu, L, m, 2))
    steps = {"PR-SGD": 4, "Cooperative SGD": 22, "LUPA-SGD": 203}[name]
    x, t = problem.x0, 0
    for _ in range(2):
        ends = []
        for target in ([1.0, 2.0], [-2.0, 0.5]):
            y = x
            for k in range(steps):
                length = 4 / (mu * (t + k + 8 * L / mu + steps)) if name == "LUPA-SGD" else np.sqrt(m / K) / L
                y = y - length * (y - target)
            ends.append(y)
        x, t = np.mean(ends, axis=0), t + steps
    np.testing.assert_allclose(fz.run(method, problem, 2, progress=False).x, x, rtol=1e-12)


@pytest.mark.parametrize("name", ["PR-SGD", "Cooperative SGD", "LUPA-SGD"])
def test_a_schedule_run_to_its_end_comes_close(name):
    problem = toys.quadratic(2, 4)
    method = fz.FedAvg(schedule=name, budget=1000)
    rounds = method.rounds_for(problem)
    result = fz.run(method, problem, rounds, eval_every=rounds, progress=False)
    # Steps of gamma = sqrt(m/K) on samples of standard deviation 0.5 leave one of sqrt(gamma / (2 m)) / 2 = 0.05 in each
    # coordinate, decreasing steps leave less: this is five of them.
    np.testing.assert_allclose(result.x, toys.answer(problem), atol=0.25)


def test_a_new_budget_does_not_retrace():
    problem = toys.quadratic(2, 4)
    for name in fz.FedAvg.schedules:
        first = fz.run(fz.FedAvg(schedule=name, budget=500), problem, 2, progress=False)
        before = simulation.TRACES[0]
        second = fz.run(fz.FedAvg(schedule=name, budget=8000), problem, 2, progress=False)
        assert simulation.TRACES[0] == before
        assert second.history["gradients"][-1] > first.history["gradients"][-1]


def test_only_the_schedule_that_uses_strong_convexity_asks_for_it():
    """Warnings are errors here: a saddle is fine for the first two."""

    def saddle(x, batch):
        return 0.5 * x[0] ** 2 - 2.0 * x[1] ** 2 + jnp.mean(batch) * x[0]

    problem = fz.Nonsmooth(saddle, fz.ClientData([np.ones(3), -np.ones(3)]), np.array([1.0, 0.0]))
    for name in ("PR-SGD", "Cooperative SGD"):
        prepared = fz.FedAvg(schedule=name, budget=100).prepare(problem)
        assert prepared.constants.smoothness == pytest.approx(4.0, rel=1e-5)  # of the concave direction
        fz.run(fz.FedAvg(schedule=name, budget=100), problem, 2, progress=False)
    with pytest.warns(UserWarning, match="not strongly convex"):
        fz.FedAvg(schedule="LUPA-SGD", budget=100).prepare(problem)


@pytest.mark.slow("long runs")
def test_as_a_lower_level_it_is_local_sgd():
    problem = make("direct")
    settings = {"stepsize": 0.1, "local_steps": 3, "rounds": 4, "batch_size": 2}
    plain, average, proximal = (
        fz.run(fz.FedRZObl(0.01, 0.05, 2, lower=lower), problem, 2, engine="loop", progress=False)
        for lower in (fz.LocalSGD(**settings), fz.FedAvg(**settings), fz.FedProx(mu=0.0, **settings))
    )
    assert plain.history["loss"][0] != plain.history["loss"][-1]
    for other in (average, proximal):
        assert other.history.last["lower_steps"] == plain.history.last["lower_steps"] > 0
        np.testing.assert_allclose(other.history["loss"], plain.history["loss"], rtol=1e-12)


@pytest.mark.slow("compiles a method inside another")
def test_as_a_lower_level_a_schedule_says_how_many_rounds():
    problem = make("direct")
    lower = fz.FedAvg(schedule="PR-SGD", budget=100, batch_size=2)
    last = fz.run(fz.FedRZObl(0.01, 0.05, 2, lower=lower), problem, 1, progress=False).history.last
    assert last["lower_rounds"] == lower.rounds_for(problem) + 2  # and the two closing ones


@functools.cache
def logistic(identical):
    """l2-regularised logistic regression on four clients: unequal parts of the data, or the whole set each."""

    def loss(x, batch):
        features, labels = batch
        return jnp.mean(jnp.logaddexp(0.0, -labels * (features @ x))) + LAMBDA / 2 * jnp.sum(x**2)

    cancer = load("breast-cancer")
    features, labels = cancer.x_train.astype(float), cancer.y_train.astype(float)
    order = np.argsort(labels, kind="stable")  # sorted by class: clients differ as much as they can
    parts = np.split(order, [60, 150, 300])
    if identical:
        data = fz.ClientData.shared((features, labels), 4)
    else:
        data = fz.ClientData([(features[rows], labels[rows]) for rows in parts])
    model = LogisticRegression(C=1 / (LAMBDA * len(labels)), fit_intercept=False, solver="newton-cg", tol=1e-10)
    answer = model.fit(features, labels).coef_[0]
    return fz.Nonsmooth(loss, data, np.zeros(features.shape[1]), weights="samples"), answer


@pytest.mark.parametrize(
    ("method", "identical"),
    [
        # One full step a round is gradient descent on the mean loss, whatever the clients' differences.
        (fz.FedAvg(local_steps=1, batch_size="full"), False),
        (fz.FedProx(local_steps=1, batch_size="full"), False),
        (fz.FedMSPP(1.0, 0.5, local_steps=1, batch_size="full"), False),
        # Several steps a round end at the optimum where clients are alike.
        (fz.FedAvg(0.5, 10, "full"), True),
        pytest.param(fz.FedProx(0.2, 1.0, local_steps=10, batch_size="full"), True, marks=LONG),
        pytest.param(fz.FedMSPP(5.0, 0.4, local_steps=10, batch_size="full"), True, marks=LONG),
    ],
    ids=lambda value: repr(value),
)
def test_scikit_learns_logistic_regression_is_found(method, identical):
    problem, answer = logistic(identical)
    result = fz.run(method, problem, 600, eval_every=600, progress=False)
    assert np.abs(answer).max() > 0.2
    np.testing.assert_allclose(result.x, answer, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "PR-SGD"}, "budget: found None with schedule 'PR-SGD'; give both, or neither"),
        ({"budget": 10}, "budget: found 10 with schedule None; give both"),
        ({"schedule": "PR-SGD", "budget": 0.5}, "budget: found 0.5; pass a whole number"),
        ({"schedule": "theorem", "budget": 9}, "schedule: found 'theorem'; pass None or \"PR-SGD\""),
        ({"epochs": 1, "local_steps": 2}, "epochs: found 1 beside local_steps or a schedule"),
        ({"epochs": 0}, "epochs: found 0; pass a positive number"),
        ({"epochs": lambda r: 1.0}, "epochs: found a function"),
        ({"stepsize": -1.0}, "stepsize: found -1.0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(fz.InputError, match=message):
        fz.FedAvg(**settings)


def test_a_sampler_has_no_epochs():
    sampler = fz.Sampler(lambda key, client: jax.random.normal(key, (2,)), clients=2)
    problem = fz.Nonsmooth(toys.squared_distance, sampler, np.zeros(2))
    with pytest.raises(fz.InputError, match="epochs: found a number, but a Sampler has no end"):
        fz.run(fz.FedAvg(0.1, epochs=1), problem, 1, progress=False)
    with pytest.raises(fz.InputError, match="schedule: found None; only a schedule"):
        fz.FedAvg(0.1).rounds_for(problem)
