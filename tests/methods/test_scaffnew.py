"""Scaffnew: the coin-per-step listing by hand, its coin and controls, its costs, and sqrt(kappa)."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from test_scaffold import CLIENTS, DIM, SIZES, bottom, bowls, case, distance, pieces

import fedrzo as fz
from conformance import suite
from fedrzo.engines.simulation import engine as simulation
from fedrzo.federation.protocol import Roots, path_key
from fedrzo.problems.curvature import StepConstants, client_smoothness, single_level
from fedrzo.zoo import logistic, make, toys
from quadratics import exact_y, optimum
from quadratics import quadratic as bilevel

ROOT = Path(__file__).resolve().parents[2]

test_conformance = pytest.mark.slow("the suite of a baseline")(suite(case(fz.Scaffnew(0.1, 0.3, batch_size=2), probability=0.5)))


def tosses(method, key, rounds):
    """Return the local steps of each round of a run: round r, call 0."""
    root = Roots.of(jax.random.key(key)).directions
    return [int(method.flips(path_key(root, (r, 0)))) for r in range(rounds)]


def test_it_is_the_listing_with_a_coin_after_every_step():
    """The published loop: a step on every client, a coin, an average on heads, controls after every step; in plain NumPy."""
    problem, gamma, p, rounds = bowls(), 0.07, 0.3, 8
    A, centres, w = pieces(problem)
    method = fz.Scaffnew(gamma, p)
    with problem.precision():
        session = simulation.Simulation().start([method], problem, [jax.random.key(3)], None)
        flips = tosses(method, 3, rounds)
        assert max(flips) > 2 > min(flips)
        x, h = np.zeros((CLIENTS, DIM)), np.zeros((CLIENTS, DIM))
        for tails in flips:
            for heads in [False] * (tails - 1) + [True]:
                hat = np.array([x[i] - gamma * (A[i] @ (x[i] - centres[i]) - h[i]) for i in range(CLIENTS)])
                new = np.tile(w @ hat, (CLIENTS, 1)) if heads else hat
                h_before, h = h, h + p / gamma * (new - hat)
                x = new
            session.advance(1)
            np.testing.assert_allclose(session.carry.state.x, x[0], rtol=1e-12, atol=1e-13)
            sent, controls = (np.asarray(part) for part in session.carry.memory)
            np.testing.assert_allclose(sent, hat, rtol=1e-12, atol=1e-13)
            # A client adds the last average to its control when it hears of it, at the start of the next round.
            np.testing.assert_allclose(controls, h_before, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("batch_size", ["full", 2])
def test_controls_sum_to_zero_and_become_the_gradients_at_the_answer(batch_size):
    problem = bowls()
    A, centres, w = pieces(problem)
    with problem.precision():
        session = simulation.Simulation().start(
            [fz.Scaffnew(0.08, 0.3, batch_size=batch_size)], problem, [jax.random.key(0)], None
        )
        for _ in range(4):
            session.advance(50)
            h = np.asarray(session.carry.memory[1])
            np.testing.assert_allclose(w @ h, 0, atol=1e-11)
            assert np.abs(h).max() > 0.1
    if batch_size == "full":
        x = bottom(problem)
        np.testing.assert_allclose(h, np.einsum("ijk,ik->ij", A, x - centres), atol=1e-9)


@pytest.mark.parametrize("p", [0.01, 0.3, 1.0])
def test_rounds_have_a_geometric_number_of_steps(p):
    """Chi-squared over cells that end at the deciles, from 20,000 rounds; a correct coin fails one time in a thousand."""
    method, root = fz.Scaffnew(0.1, p), Roots.of(jax.random.key(8)).directions
    with jax.enable_x64(True):
        draws = np.asarray(jax.vmap(lambda r: method.flips(path_key(root, (r, 0))))(jnp.arange(20_000)))
    assert draws.min() == 1
    if p == 1.0:
        assert draws.max() == 1
        return
    law = stats.geom(p)
    edges = np.unique(np.append(law.ppf(np.arange(1, 10) / 10), law.ppf(0.999)))
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    expected = np.diff(np.concatenate([[0], law.cdf(edges), [1]])) * len(draws)
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    assert draws.max() > law.ppf(1 - 1 / 2000)  # nothing cuts the tail off


def test_all_clients_take_the_same_number_of_steps_and_send_one_vector():
    problem, rounds = bowls(), 6
    method = fz.Scaffnew(0.05, 0.25)
    last = fz.run(method, problem, rounds, key=2, progress=False).history.last
    assert last["upload_bytes"] == last["download_bytes"] == CLIENTS * rounds * DIM * 8
    with problem.precision():
        assert last["gradients"] == sum(SIZES) * sum(tosses(method, 2, rounds))


@pytest.mark.slow("two more programs")
def test_constants_are_estimated_and_the_worst_clients_curvature_counts():
    problem = bowls()
    A, _, w = pieces(problem)
    with problem.precision():
        assert client_smoothness(problem) == pytest.approx(max(np.linalg.eigvalsh(a)[-1] for a in A), rel=1e-9)
        mean = np.linalg.eigvalsh(np.einsum("i,ijk->jk", w, A))
        ready = fz.Scaffnew().prepare(problem)
        assert ready.constants.modulus == pytest.approx(mean[0], rel=1e-9)
        assert ready.constants.smoothness > 1.1 * mean[-1]
        assert float(ready.p) == pytest.approx(np.sqrt(mean[0] / ready.constants.smoothness), rel=1e-9)
        assert single_level(problem).smoothness == pytest.approx(mean[-1], rel=1e-9)
        assert client_smoothness(fz.Nonsmooth(toys.squared_distance, draws(), np.zeros(2))) == pytest.approx(1.0)
    assert distance(fz.Scaffnew(), problem, 200) < 1e-10
    assert distance(fz.Scaffnew(stepsize=0.05), problem, 300) < 1e-10


def draws():
    return fz.Sampler(lambda key, i: jax.random.normal(key, (2,)) + i, clients=3, evaluation=16)


def test_scikit_learns_logistic_regression_is_met_where_local_steps_alone_settle_elsewhere():
    """Breast-cancer, ten clients sorted by label, default settings: about 15 local steps a round."""
    problem = make("logistic", kappa=100.0)
    answer = logistic.answer(problem)  # scikit-learn's, see tests/zoo/test_logistic.py
    result = fz.run(fz.Scaffnew(), problem, 250, eval_every=250, progress=False)
    assert np.abs(result.x - answer).max() < 1e-4
    steps = round(result.history["gradients"][-1] / 450 / 250)
    assert steps >= 10
    same = fz.LocalSGD(1 / logistic.curvature(problem).worst_client, steps, batch_size="full")
    assert np.abs(fz.run(same, problem, 1000, eval_every=1000, progress=False).x - answer).max() > 1e-2


def ladder(kappa):
    """Quadratics with eigenvalues from 1 to kappa, the same for all clients, whose centres differ."""
    A = np.diag(np.geomspace(1, kappa, 8))
    centres = np.random.default_rng(0).normal(size=(5, 1, 8))
    return fz.Nonsmooth(_ladder, fz.ClientData(list(centres), fixed=[A] * 5), np.full(8, 3.0)), (
        centres.mean(axis=0),
        A,
    )


def _ladder(x, batch):
    centre, A = batch
    return 0.5 * jnp.mean(jnp.sum((x - centre) @ A * (x - centre), axis=-1))


@pytest.mark.slow("long runs")
def test_communications_grow_like_the_root_of_kappa():
    """The reduced form of benchmarks/scaffnew_kappa.py; the slopes' standard errors are below 0.05."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import scaffnew_kappa as bench

    kappas, seeds = (100.0, 1000.0, 5000.0), 4
    rows = [bench.both(bench.watched(*ladder(kappa)), kappa, 1.0, kappa, kappa, seeds, target=1e-8) for kappa in kappas]
    plain = bench.growth(kappas, [row["gd"] for row in rows])
    ours = bench.growth(np.repeat(kappas, seeds), [count for row in rows for count in row["scaffnew"]])
    assert abs(ours["slope"] - 0.5) < 0.1
    assert abs(plain["slope"] - 1.0) < 0.1
    assert max(ours["error"], plain["error"]) < 0.05
    assert min(min(row["gd_r2"], row["scaffnew_r2"]) for row in rows) > 0.95


@pytest.mark.slow("compiles a method inside another")
@pytest.mark.parametrize(("rounds", "precision"), [(None, "float64"), (40, "float32")])
def test_it_serves_as_a_lower_level(rounds, precision):
    method = fz.FedRZObl(0.05, 0.05, 5, lower=fz.Scaffnew(rounds=rounds))
    result = fz.run(method, bilevel(y0=np.zeros(DIM, precision)), 60, eval_every=60, progress=False)
    np.testing.assert_allclose(result.x, optimum()[0], atol=0.02)
    np.testing.assert_allclose(result.y, exact_y(result.x), atol=1e-6)
    assert result.history["lower_error"][-1] < 1e-2
    if rounds:
        assert result.history["lower_rounds"][-1] == 60 * (rounds + 2)


def test_its_plan_is_that_of_the_rate():
    with jax.enable_x64(True):
        method = fz.Scaffnew(constants=StepConstants(1.0, 100.0, 4, 3), tolerance=1e-3)
        assert int(method.plan(0).rounds) == np.ceil(2 * np.log(1e3) * 0.1 / -np.log(0.99))
        assert int(method.plan(9_999).rounds) == np.ceil(10_000 ** (2 / 3))
        given = fz.Scaffnew(0.01, 0.5, rounds=lambda r: 3 + r)
        assert given.plan(2).rounds == 5
    with pytest.raises(fz.InputError, match="constants: Scaffnew needs mu and L here"):
        fz.Scaffnew(0.1).plan(0)


def test_what_it_cannot_do_is_refused_by_name():
    constrained = bilevel(lower_constraint=fz.sets.Box(-1.0, 1.0))
    with pytest.raises(fz.InputError, match=r"lower: Scaffnew cannot project onto Y\(x\); use fz.LocalSGD"):
        fz.run(fz.FedRZObl(0.1, 0.1, lower=fz.Scaffnew()), constrained, 1, progress=False)
    with pytest.raises(fz.InputError, match="constraint: Scaffnew handles no constraints"):
        fz.run(fz.Scaffnew(), toys.boxes(), 1, progress=False)
    with pytest.raises(fz.InputError, match="clients_per_round: found 2; Scaffnew needs all 4 clients"):
        fz.run(fz.Scaffnew(), bowls(), 1, clients_per_round=2, progress=False)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.Scaffnew(0), "stepsize: found 0; pass a positive number"),
        (lambda: fz.Scaffnew(lambda r: 0.1), "stepsize: found a function"),
        (lambda: fz.Scaffnew(0.1, 1.5), "probability: found 1.5; pass a number above 0 and at most 1"),
        (lambda: fz.Scaffnew(0.1, 0), "probability: found 0; pass a positive number"),
        (lambda: fz.Scaffnew(tolerance=-1), "tolerance: found -1"),
        (lambda: fz.Scaffnew(rounds=0), "rounds: found 0"),
    ],
)
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message):
        build()
