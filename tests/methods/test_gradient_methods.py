"""Local SGD, FedAC and LFD as single-level methods, against closed forms and on real data."""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from conformance import OF_VARIANTS, Case, suite
from fedrzo.problems.curvature import StepConstants
from fedrzo.zoo import toys

ROOT = Path(__file__).resolve().parents[2]


def toy(wrap):
    plain = toys.quadratic(clients=4, dim=6)
    return fz.Nonsmooth(wrap(plain.loss_fn), plain.data, np.zeros(6), fz.sets.Box(-5.0, 5.0))


def case(method, **changes):
    least = 0.5 * float(np.mean(np.var(np.asarray(toys.quadratic(4, 6).data.flat), axis=0)) * 6)
    return Case(method, toy, rounds=20, descent=0.2, optimum=least, changes={"stepsize": 0.05, "local_steps": 3, **changes})


test_local_sgd_conformance = suite(case(fz.LocalSGD(0.1, 4, batch_size=2)))
test_fedac_conformance = suite(case(fz.FedAC(0.1, 4, batch_size=2, constants=StepConstants(1.0, 1.0, 4, 6))))
test_lfd_conformance = pytest.mark.slow("long runs on real data")(
    suite(case(fz.LFD(0.1, 4, batch_size=2)), OF_VARIANTS)
)  # the steps of LocalSGD


@pytest.mark.parametrize("method", [fz.LocalSGD(batch_size="full"), fz.FedAC(batch_size="full"), fz.LFD(batch_size="full")])
def test_constants_are_estimated_and_the_minimum_is_met(method):
    problem = toys.quadratic()
    result = fz.run(method, problem, 300, eval_every=300, progress=False)
    np.testing.assert_allclose(result.x, toys.answer(problem), atol=1e-3)


def test_step_lengths_go_on_falling_where_local_steps_depend_on_the_round():
    """One client at distance d: steps 1/(L + mu t / 2) multiply it by 1 - that, t counting all steps since the start."""
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.array([[2.0], [2.0]])]), np.zeros(1))
    method = fz.LocalSGD(local_steps=lambda r: jnp.where(r == 0, 5, 2), constants=StepConstants(0.5, 2.0, 1, 1))
    left = np.prod([1 - 1 / (2.0 + 0.5 * t / 2) for t in range(9)])
    np.testing.assert_allclose(fz.run(method, problem, 3, progress=False).x, [2 - 2 * left], rtol=1e-12)


def test_fedac_step_is_the_papers():
    """One client, two steps, by hand, with both couplings."""
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.array([[2.0]])]), np.zeros(1))
    for variant in ("I", "II"):
        mu, eta, K = 0.5, 0.1, 2
        method = fz.FedAC(eta, K, batch_size="full", variant=variant, constants=StepConstants(mu, 1.0, 1, 1))
        gamma = max(eta, np.sqrt(eta / (mu * K)))
        alpha = 1 / (gamma * mu) if variant == "I" else 1.5 / (gamma * mu) - 0.5
        beta = alpha + 1 if variant == "I" else (2 * alpha**2 - 1) / (alpha - 1)
        w = x = 0.0
        for _ in range(K):
            middle = w / beta + (1 - 1 / beta) * x
            gradient = middle - 2.0
            x, w = middle - eta * gradient, (1 - 1 / alpha) * w + middle / alpha - gamma * gradient
        np.testing.assert_allclose(fz.run(method, problem, 1, progress=False).x, [x], rtol=1e-12)


@pytest.mark.parametrize("variant", ["I", "II"])
def test_fedac_couplings_cancel_the_gradient_in_the_analysis(variant):
    """F(x) - F* + c mu |w - w*|^2 falls by the factor 1 - theta per step if the terms linear in the gradient cancel.

    Strong convexity leaves middle - (1 - theta) x - theta w*. The distance, multiplied by 1 + theta in variant II for the
    clients' drift, leaves 2 c mu gamma (1 + theta) times (1 - 1/alpha) w + middle/alpha - w*.
    """
    mu, rng = 0.5, np.random.default_rng(0)
    for eta, K in ((0.1, 2), (0.5, 1), (0.9, 3)):
        method = fz.FedAC(eta, K, variant=variant, constants=StepConstants(mu, 1.0, 1, 1))
        gamma, alpha, beta = (float(part) for part in method.coupling(eta, K))
        theta, c, drift = (1 / alpha, 1 / 2, 0.0) if variant == "I" else (1 / (2 * alpha), 1 / 6, 1 / (2 * alpha))
        w, x, answer = rng.normal(size=3)
        middle = w / beta + (1 - 1 / beta) * x
        convex = middle - (1 - theta) * x - theta * answer
        distance = 2 * c * mu * gamma * (1 + drift) * ((1 - 1 / alpha) * w + middle / alpha - answer)
        assert convex == pytest.approx(distance, rel=1e-5)
        assert (1 + drift) * (1 - 1 / alpha) <= 1 - theta  # and the distance falls as fast


def bent_loss(x, batch):
    target, curvature = jnp.split(batch, 2, axis=1)
    return 0.5 * jnp.mean(jnp.sum(curvature * (x - target) ** 2, axis=1))


def bent(kappa):
    """Two clients that differ, and curvatures between 1 and kappa; the minimum is at 2."""
    curvatures = np.geomspace(1.0, kappa, 6)
    data = [np.concatenate([np.full(6, target), curvatures])[None] for target in (-1.0, 5.0)]
    return fz.Nonsmooth(bent_loss, fz.ClientData(data), np.zeros(6))


@pytest.mark.parametrize("variant", ["I", "II"])
def test_a_plan_of_fedac_is_kept_and_is_accelerated(variant):
    """Without noise, on quadratics: so many rounds bring the error down by the tolerance, and are few for a large kappa."""
    for kappa in (1.0, 1.5, 30.0, 3e3):
        known = StepConstants(1.0, kappa, 2, 6)
        method = fz.FedAC(batch_size="full", variant=variant, constants=known)
        rounds = int(method.plan(0).rounds)
        x = fz.run(method, bent(kappa), rounds, eval_every=rounds, progress=False).x
        assert np.max(np.abs(x - 2.0)) <= 2.0 * method.tolerance
        plain = int(fz.LocalSGD(batch_size="full", tolerance=method.tolerance**0.5, constants=known).plan(0).rounds)
        assert rounds <= 5 + 25 * kappa**0.5
        assert kappa < 100 or rounds < plain / 10


@pytest.mark.parametrize("method", [fz.FedAC, fz.LocalSGD])
def test_where_all_curvatures_are_equal_one_step_is_enough(method):
    solver = method(batch_size="full", constants=StepConstants(3.0, 3.0, 2, 6))
    assert [int(solver.plan(r).rounds) for r in (0, 10, 10_000)] == [1, 1, 1]


@pytest.mark.slow("three programs")
def test_fedac_sends_two_vectors_and_local_sgd_one():
    problem = toys.quadratic(3, 4)
    vector = 3 * 4 * 8
    for method, vectors in ((fz.LocalSGD(0.1), 1), (fz.FedAC(0.1), 2), (fz.LFD(0.1), 1)):
        last = fz.run(method, problem, 2, progress=False).history.last
        assert last["upload_bytes"] == last["download_bytes"] == 2 * vectors * vector
        assert last["lower_steps"] == 0


def test_a_schedule_beside_a_stepsize_still_gets_its_constants():
    problem = toys.quadratic(3, 4)
    result = fz.run(fz.LocalSGD(0.1, batch_size="full", schedule="algorithm3"), problem, 20, progress=False)
    assert result.history["loss"][-1] < result.history["loss"][0]


def test_black_boxes_have_no_gradients_to_give():
    problem = fz.Nonsmooth(fz.blackbox(lambda x, b: 0.0), fz.ClientData([np.ones(1)]), np.zeros(1))
    with pytest.raises(fz.InputError, match="loss: LocalSGD needs gradients, a black box has none"):
        fz.run(fz.LocalSGD(0.1), problem, 1, progress=False)


@pytest.mark.skipif(not (ROOT.parent / "shared/data/libsvm").exists(), reason="needs the a9a data beside the checkout")
@pytest.mark.slow("long runs on real data")
def test_fedac_beats_fedavg_on_a9a_with_many_local_steps():
    """The reduced form of benchmarks/fedac_a9a.py: 32 workers, 512 steps, 64 local steps a round."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import fedac_a9a

    task = fedac_a9a.problem(32, ROOT.parent / "shared/data")
    found = fedac_a9a.compare(task, 64, 512)
    start = fz.run(fz.LocalSGD(0.1), task, 0, progress=False).history["loss"][0]
    assert found["fedac"] < found["fedavg"] - 0.01
    assert found["fedavg"] < 0.6 * start
