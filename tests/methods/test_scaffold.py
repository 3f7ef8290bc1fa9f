"""SCAFFOLD: the listing by hand, its controls, its costs, and answers known in closed form or from scikit-learn."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from conformance import Case, everyone_descends_alike_on_both_engines_and_counts_what_is_computed, suite
from fedrzo.engines.simulation import engine as simulation
from fedrzo.zoo import logistic, make, toys
from quadratics import exact_y, optimum
from quadratics import quadratic as bilevel

CLIENTS, DIM, SIZES = 4, 3, (2, 3, 2, 5)


def bowl(x, batch):
    shifts, A = batch
    return 0.5 * jnp.mean(jnp.sum((x - shifts) @ A * (x - shifts), axis=-1))


@functools.cache
def bowls(dtype="float64"):
    """Quadratics whose curvature, centre, size and weight differ between clients."""
    rng = np.random.default_rng(1)
    fixed, samples = [], []
    for size in SIZES:
        basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
        fixed.append(basis @ np.diag(rng.uniform(1, 10, DIM)) @ basis.T)
        samples.append(rng.normal(size=DIM) + rng.normal(size=(size, DIM)))
    if dtype == "float32":
        fixed, samples = ([a.astype(dtype) for a in part] for part in (fixed, samples))
    return fz.Nonsmooth(bowl, fz.ClientData(samples, fixed=fixed), np.zeros(DIM, dtype), weights="samples")


def pieces(problem):
    """Return each client's matrix, centre and weight."""
    offsets = np.append(problem.data.offsets, problem.data.samples)
    centres = [problem.data.flat[a:b].mean(axis=0) for a, b in itertools.pairwise(offsets)]
    return np.asarray(problem.data.fixed), np.array(centres), np.asarray(problem.client_weights)


def bottom(problem):
    A, c, w = pieces(problem)
    return np.linalg.solve(np.einsum("i,ijk->jk", w, A), np.einsum("i,ijk,ik->j", w, A, c))


def distance(method, problem, rounds, **options):
    return np.abs(fz.run(method, problem, rounds, eval_every=rounds, progress=False, **options).x - bottom(problem)).max()


def toy(wrap):
    plain = toys.quadratic(clients=4, dim=6)
    return fz.Nonsmooth(wrap(plain.loss_fn), plain.data, np.zeros(6))


def least():
    return 0.5 * float(np.var(np.asarray(toys.quadratic(4, 6).data.flat), axis=0).sum())


def case(method, **changes):
    return Case(method, toy, rounds=20, descent=0.2, optimum=least(), changes={"stepsize": 0.05, **changes})


test_conformance = suite(case(fz.Scaffold(0.1, 4, batch_size=2), local_steps=3, server_stepsize=0.5))


def test_the_gradients_of_option_1_are_those_that_happen():
    everyone_descends_alike_on_both_engines_and_counts_what_is_computed(case(fz.Scaffold(0.1, 4, batch_size=2, option=1)), None)


@pytest.mark.parametrize("option", [1, 2])
def test_three_rounds_are_the_listing_computed_by_hand(option):
    problem, eta, H, server = bowls(), 0.04, 3, 0.8
    A, centres, w = pieces(problem)
    x, c, controls = np.zeros(DIM), np.zeros(DIM), np.zeros((CLIENTS, DIM))
    for _ in range(3):
        moves, changes = [], []
        for i in range(CLIENTS):
            y = x.copy()
            for _ in range(H):
                y = y - eta * (A[i] @ (y - centres[i]) - controls[i] + c)
            new = A[i] @ (x - centres[i]) if option == 1 else controls[i] - c + (x - y) / (H * eta)
            moves.append(y - x)
            changes.append(new - controls[i])
            controls[i] = new
        x, c = x + server * (w @ moves), c + w @ changes
    method = fz.Scaffold(eta, H, batch_size="full", server_stepsize=server, option=option)
    np.testing.assert_allclose(fz.run(method, problem, 3, progress=False).x, x, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("option", [1, 2])
def test_the_servers_control_is_the_mean_of_all_clients_whoever_takes_part(option):
    problem = bowls()
    with problem.precision():
        method = fz.Scaffold(0.03, 4, batch_size=2, option=option)
        session = simulation.Simulation().start([method], problem, [jax.random.key(5)], 2)
        weights, moved = np.asarray(problem.client_weights), []
        for _ in range(12):
            before = np.asarray(session.carry.memory)
            session.advance(1)
            controls = np.asarray(session.carry.memory)
            moved.append(np.flatnonzero((controls != before).any(axis=1)))
            np.testing.assert_allclose(session.carry.state.c, weights @ controls, atol=1e-12)
        assert all(len(who) == 2 for who in moved)  # the others keep what they had
        assert len(np.unique(np.concatenate(moved))) == CLIENTS
        assert np.abs(session.carry.state.c).max() > 1e-3


@pytest.mark.parametrize("option", [1, 2])
def test_two_vectors_each_way_and_the_gradients_of_the_listing(option):
    rounds, H, b, some = 3, 5, 2, 2
    method = fz.Scaffold(0.01, H, batch_size=b, option=option)
    last = fz.run(method, bowls(), rounds, clients_per_round=some, progress=False).history.last
    assert last["upload_bytes"] == last["download_bytes"] == some * rounds * 2 * DIM * 8
    assert last["gradients"] == some * rounds * b * (H + (option == 1))
    assert last["evaluations"] == 0


def test_the_bottom_of_clients_that_differ_is_met_where_local_steps_alone_stay_off_it():
    problem = bowls()
    assert distance(fz.Scaffold(0.03, 10, batch_size="full"), problem, 300) < 1e-10
    assert distance(fz.Scaffold(0.03, 10, batch_size="full", option=1), problem, 300, clients_per_round=2) < 1e-10
    assert distance(fz.LocalSGD(0.03, 10, batch_size="full"), problem, 300) > 0.05


@pytest.mark.slow("two more programs")
def test_decreasing_steps_and_single_precision():
    assert distance(fz.Scaffold(lambda r: 0.3 / (r + 10), lambda r: 2 + r % 3, batch_size="full"), bowls(), 600) < 1e-4
    result = fz.run(fz.Scaffold(0.03, 10, batch_size="full"), bowls("float32"), 300, eval_every=300, progress=False)
    assert result.x.dtype == np.float32
    np.testing.assert_allclose(result.x, bottom(bowls()), atol=1e-5)


@pytest.mark.slow("1,500 rounds on real data")
def test_scikit_learns_logistic_regression_is_met_where_fedavg_settles_elsewhere():
    """Breast-cancer, ten clients sorted by label, ten local steps: the same steps without controls end 100 times farther off."""
    problem = make("logistic", kappa=100.0)
    step, H = 1 / logistic.curvature(problem).worst_client, 10
    answer = logistic.answer(problem)  # scikit-learn's, see tests/zoo/test_logistic.py
    ours = fz.run(fz.Scaffold(step, H, batch_size="full"), problem, 1500, eval_every=1500, progress=False).x
    assert np.abs(ours - answer).max() < 1e-4
    once, twice = (
        fz.run(fz.LocalSGD(step, H, batch_size="full"), problem, rounds, eval_every=rounds, progress=False).x
        for rounds in (1500, 3000)
    )
    assert np.abs(once - twice).max() < 1e-8  # it is at rest,
    assert np.abs(twice - answer).max() > 1e-2  # but not at the answer


@pytest.mark.slow("another lower level compiled")
def test_it_serves_as_a_lower_level():
    method = fz.FedRZObl(0.05, 0.05, 5, lower=fz.Scaffold(0.05, 5, batch_size="full"), lower_rounds=60)
    result = fz.run(method, bilevel(), 60, eval_every=60, progress=False)
    np.testing.assert_allclose(result.x, optimum()[0], atol=0.02)
    np.testing.assert_allclose(result.y, exact_y(result.x), atol=1e-6)
    assert result.history["lower_error"][-1] < 1e-6


def test_what_it_cannot_do_is_refused_by_name():
    constrained = bilevel(lower_constraint=fz.sets.Box(-1.0, 1.0))
    lower = fz.Scaffold(0.1, 2)
    with pytest.raises(fz.InputError, match=r"lower: Scaffold cannot project onto Y\(x\); use fz.LocalSGD"):
        fz.run(fz.FedRZObl(0.1, 0.1, lower=lower, lower_rounds=3), constrained, 1, progress=False)
    with pytest.raises(fz.InputError, match="lower_rounds: Scaffold has no plan of its own"):
        fz.FedRZObl(0.1, 0.1, lower=lower)
    with pytest.raises(fz.InputError, match="constraint: Scaffold handles no constraints"):
        fz.run(lower, toys.boxes(), 1, progress=False)
    blackbox = fz.Nonsmooth(fz.blackbox(lambda x, b: 0.0), fz.ClientData([np.ones(1)]), np.zeros(1))
    with pytest.raises(fz.InputError, match="loss: Scaffold needs gradients"):
        fz.run(lower, blackbox, 1, progress=False)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.Scaffold(0, 1), "stepsize: found 0; pass a positive number"),
        (lambda: fz.Scaffold(0.1, 0), "local_steps: found 0; pass a whole number"),
        (lambda: fz.Scaffold(0.1, 1, option=3), "option: found 3; pass 1"),
        (lambda: fz.Scaffold(0.1, 1, server_stepsize=-1), "server_stepsize: found -1; pass a positive number"),
        (lambda: fz.Scaffold(0.1, 1, server_stepsize=lambda r: 1.0), "server_stepsize: found a function"),
        (lambda: fz.Scaffold(0.1, 1, batch_size=0), "batch_size: found 0"),
    ],
)
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message):
        build()
