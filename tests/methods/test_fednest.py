"""FedNest and LFedNest: by hand, against closed forms, what is biased and what is not, and what a round costs."""

import jax
import numpy as np
import pytest

import coupled
import fedrzo as fz
from conformance import OF_VARIANTS, Case, suite
from fedrzo.engines.loop import LoopSession
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.federation.protocol import Roots, path_key
from fedrzo.zoo import bilevel, minimax

CHANGES = {"stepsize": 0.04, "lower_stepsize": 0.08, "local_steps": 3, "lower_local_steps": 2, "lower_rounds": 3,
           "neumann": 4, "neumann_stepsize": 0.2}  # fmt: skip


test_conformance = pytest.mark.slow("the suite of a baseline")(
    suite(
        Case(
            # Noise enters these quadratics by their linear terms, which cancel in the local corrections: the anchors must sample.
            fz.FedNest(0.05, 0.1, 2, 3, 2, 6, batch_size=2, anchor_batch_size=3, neumann_stepsize=0.3),
            coupled.toy,
            rounds=30,
            descent=0.2,
            optimum=coupled.OPTIMUM,
            changes=CHANGES,
        )
    )
)
# On the toy above LFedNest's bias takes away most of what is to be gained. With one B for all it has little: each client's own
# response to x is then the federation's, whatever its Hessian.
B, H = coupled.PROBLEM.lower_data.fixed
ALIKE = fz.ClientData(
    list(np.asarray(coupled.PROBLEM.lower_data.flat).reshape(coupled.CLIENTS, coupled.SAMPLES, -1)),
    fixed=[(np.asarray(B)[0], h) for h in np.asarray(H)],
)
MILD = coupled.wrapped(coupled.PROBLEM, lower_data=ALIKE)
test_conformance_of_lfednest = pytest.mark.slow("FedNest's suite once more")(
    suite(
        Case(
            fz.LFedNest(0.02, 0.1, 2, 3, 2, 6, batch_size=2, neumann_stepsize=0.3),
            lambda wrap: coupled.wrapped(MILD, wrap),
            rounds=30,
            descent=0.2,
            optimum=coupled.loss_at(MILD, bilevel.coupled_answer(MILD)),
            changes=CHANGES,
        ),
        OF_VARIANTS,
    )
)

ALPHA, BETA, STEP = 0.04, 0.1, 0.3


def fed_inn(x, y, tau):
    q = coupled.mean(lambda i: i.g_y(x, y))

    def local(i):
        yi = y
        for _ in range(tau):
            yi = yi - BETA * (i.g_y(x, yi) - i.g_y(x, y) + q)
        return yi

    return coupled.mean(local)


def fed_out(x, y, p, tau):
    h = coupled.mean(lambda i: i.f_x(x, y) - i.cross(p))

    def local(i):
        xi = x
        for _ in range(tau):
            xi = xi - ALPHA * (i.f_x(xi, y) - i.f_x(x, y) + h)
        return xi

    return coupled.mean(local)


def series(product, slope, terms):
    term = total = STEP * slope
    for _ in range(terms):
        term = term - STEP * product(term)
        total = total + term
    return total


def fednest_by_hand(tau, inner_tau, T, N, rounds, drawn=None):
    """Rounds in NumPy: all clients, full batches; `drawn` gives N' of each round."""
    x, y = np.zeros(coupled.N), np.zeros(coupled.Q)
    H = coupled.mean(lambda i: i.H)
    for r in range(rounds):
        for _ in range(T):
            y = fed_inn(x, y, inner_tau)
        slope = coupled.mean(lambda i, x=x, y=y: i.f_y(x, y))
        if drawn is None:
            p = series(lambda v: H @ v, slope, N)
        else:
            p = N * STEP * np.linalg.matrix_power(np.eye(coupled.Q) - STEP * H, drawn[r]) @ slope
        x = fed_out(x, y, p, tau)
    return x, y


def test_rounds_are_the_listing_computed_by_hand():
    method = fz.FedNest(ALPHA, BETA, 3, 2, 4, 5, "full", neumann_stepsize=STEP)
    x, y = fednest_by_hand(3, 2, 4, 5, rounds=3)
    state, _ = coupled.final(method, 3)
    np.testing.assert_allclose(state.x, x, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(state.y, y, rtol=1e-12, atol=1e-14)


def drawn_terms(rounds, N, key):
    """N' of each round: on the lower view, whose path is (round, 0, 0), calls 0 (FedInn's repeat) and 1 (p_0) come first."""
    root = Roots.of(jax.random.key(key)).directions
    return [int(jax.random.randint(path_key(root, (r, 0, 0, 2)), (), 0, N)) for r in range(rounds)]


def test_the_randomised_series_is_the_listing_and_costs_n_prime():
    method = fz.FedNest(ALPHA, BETA, 3, 2, 4, 5, "full", neumann_stepsize=STEP, randomised=True)
    with coupled.PROBLEM.precision():
        drawn = drawn_terms(6, 5, key=2)
    assert len(set(drawn)) > 2
    x, _ = fednest_by_hand(3, 2, 4, 5, rounds=6, drawn=drawn)
    state, cost = coupled.final(method, 6, key=2)
    np.testing.assert_allclose(state.x, x, rtol=1e-12, atol=1e-14)
    assert cost.lower_rounds == 6 * (2 * 4 + 1) + sum(drawn)


def test_lfednest_rounds_are_the_listing_computed_by_hand():
    method = fz.LFedNest(ALPHA, BETA, 3, 2, 4, 5, "full", neumann_stepsize=STEP)
    x, y = np.zeros(coupled.N), np.zeros(coupled.Q)

    def inner(i):
        yi = y
        for _ in range(2):
            yi = yi - BETA * i.g_y(x, yi)
        return yi

    def outer(i):
        xi = x
        for _ in range(3):
            p = series(i.curved, i.f_y(xi, y), 5)
            xi = xi - ALPHA * (i.f_x(xi, y) - i.cross(p))
        return xi

    for _ in range(3):
        for _ in range(4):
            y = coupled.mean(inner)
        x = coupled.mean(outer)
    state, _ = coupled.final(method, 3)
    np.testing.assert_allclose(state.x, x, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(state.y, y, rtol=1e-12, atol=1e-14)


def test_a_long_series_meets_the_closed_form_hypergradient():
    """One outer step from x, of y solved and 200 terms: its direction is the gradient of the implicit function."""
    state, _ = coupled.final(fz.FedNest(1.0, 0.2, 1, 1, 400, 200, "full"), 1)
    np.testing.assert_allclose(-state.x, coupled.hypergradient(np.zeros(coupled.N)), rtol=1e-10, atol=1e-10)


def test_fednest_is_unbiased_where_lfednest_is_not():
    """Clients with other Hessians: several local steps on both levels leave FedNest at the answer. LFedNest stays off it
    even with single steps, at the point where the mean of the clients' own hypergradients vanishes, computed in NumPy."""
    exact, _ = coupled.final(fz.FedNest(0.05, 0.1, 3, 3, 5, 60, "full"), 400)
    np.testing.assert_allclose(exact.x, coupled.ANSWER, atol=1e-12)

    def local(x):
        y = coupled.lower_solution(x)
        return coupled.mean(lambda i: i.f_x(x, y) - i.cross(np.linalg.solve(i.H, i.f_y(x, y))))

    constant = local(np.zeros(coupled.N))
    slope = np.stack([local(e) - constant for e in np.eye(coupled.N)], axis=1)
    wrong = np.linalg.solve(slope, -constant)
    biased, _ = coupled.final(fz.LFedNest(0.05, 0.1, 1, 1, 5, 80, "full", neumann_stepsize=0.2), 400)
    np.testing.assert_allclose(biased.x, wrong, atol=1e-6)
    assert np.linalg.norm(wrong - coupled.ANSWER) > 0.3


def test_lfednest_is_right_for_clients_that_are_alike():
    def first_client(data):
        samples = jax.tree.map(lambda a: np.asarray(a)[: coupled.SAMPLES], data.flat)
        fixed = jax.tree.map(lambda a: np.asarray(a)[0], data.fixed)
        return fz.ClientData([samples] * 4, fixed=[fixed] * 4)

    p = coupled.PROBLEM
    same = coupled.wrapped(p, data=first_client(p.data), lower_data=first_client(p.lower_data))
    state, _ = coupled.final(fz.LFedNest(0.05, 0.1, 1, 3, 5, 80, "full", neumann_stepsize=0.2), 400, problem=same)
    one = coupled.ALL[0]
    B = one.B
    answer = np.linalg.solve(one.P + B.T @ one.Q @ B, one.P @ one.a + B.T @ one.Q @ (one.b - one.c))
    np.testing.assert_allclose(state.x, answer, atol=1e-6)


def deliveries(method, problem, monkeypatch):
    """Return the steps that clients were asked for in one round of the loop engine, one entry per communication."""
    steps, deliver = [], LoopSession.deliver

    def note(self, message, ids):
        steps.append(message.step)
        return deliver(self, message, ids)

    monkeypatch.setattr(LoopSession, "deliver", note)
    last = fz.run(method, problem, 1, engine="loop", progress=False).history.last
    return steps, last


T, N, TAU, INNER, SIZE = 3, 4, 2, 5, 2
Q, DIM, M = coupled.Q, coupled.N, coupled.CLIENTS


@pytest.mark.slow("another method compiled")
def test_fednest_takes_2t_plus_n_plus_3_communications(monkeypatch):
    method = fz.FedNest(0.01, 0.05, TAU, INNER, T, N, SIZE)
    steps, last = deliveries(method, coupled.PROBLEM, monkeypatch)
    assert len(steps) == 2 * T + N + 3
    assert last["lower_rounds"] == 2 * T + N + 1
    assert last["upload_bytes"] == M * 8 * ((2 * T + N + 1) * Q + 2 * DIM)
    # FedInn and FedIHGP receive as much as they send; FedOut receives y, p and h; x travels once, when the round begins.
    assert last["download_bytes"] == M * 8 * ((2 * T + N + 1) * Q + (2 * Q + DIM) + DIM)
    full = coupled.SAMPLES
    inner, ihgp, out = T * (full + 2 * INNER * SIZE), full + 2 * N * SIZE, 3 * full + 2 * TAU * SIZE
    assert last["gradients"] == M * (inner + ihgp + out)
    assert last["lower_steps"] == M * T * INNER
    assert last["evaluations"] == 0


def test_lfednest_takes_t_plus_1_communications(monkeypatch):
    method = fz.LFedNest(0.01, 0.05, TAU, INNER, T, N, SIZE)
    steps, last = deliveries(method, coupled.PROBLEM, monkeypatch)
    assert len(steps) == T + 1
    assert last["lower_rounds"] == T
    assert last["upload_bytes"] == M * 8 * (T * Q + DIM)
    assert last["download_bytes"] == M * 8 * (T * Q + Q + DIM)
    assert last["gradients"] == M * SIZE * (T * INNER + TAU * (1 + 2 * (N + 1)))
    assert last["lower_steps"] == M * T * INNER


@pytest.mark.slow("two more programs")
def test_a_minimax_problem_needs_no_series(monkeypatch):
    problem = minimax.ncsc(clients=3)
    n, q = problem.dim, len(problem.y0)
    steps, last = deliveries(fz.FedNest(0.01, 0.2, TAU, INNER, T, N, SIZE), problem, monkeypatch)
    assert steps == ["inner_anchor", "inner_steps"] * T + ["outer_anchor", "outer_steps"]
    assert last["lower_rounds"] == 2 * T
    assert last["upload_bytes"] == 3 * 8 * (2 * T * q + 2 * n)
    assert last["download_bytes"] == 3 * 8 * (2 * T * q + q + 2 * n)


@pytest.mark.parametrize(
    "method", [fz.FedNest(0.1, 0.5, 2, 2, 20, batch_size="full"), fz.LFedNest(0.1, 0.5, 1, 1, 20, batch_size="full")]
)
def test_phi_of_a_minimax_problem_is_stationary_at_the_end(method):
    problem = minimax.ncsc(clients=3)
    state, _ = coupled.final(method, 400, problem=problem)
    assert np.linalg.norm(minimax.grad_phi(problem, state.x)) < 1e-10
    assert np.linalg.norm(minimax.grad_phi(problem, np.asarray(problem.x0))) > 0.1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.FedNest(0, 0.1), "stepsize: found 0"),
        (lambda: fz.FedNest(0.1, -1), "lower_stepsize: found -1"),
        (lambda: fz.FedNest(0.1, 0.1, neumann=0), "neumann: found 0"),
        (lambda: fz.FedNest(0.1, 0.1, lower_rounds=0), "lower_rounds: found 0"),
        (lambda: fz.FedNest(0.1, 0.1, neumann_stepsize=0), "neumann_stepsize: found 0"),
        (lambda: fz.FedNest(0.1, 0.1, anchor_batch_size=0), "anchor_batch_size: found 0"),
        (lambda: fz.LFedNest(0.1, 0.1, lower_local_steps=0), "lower_local_steps: found 0"),
    ],
)
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message):
        build()


@pytest.mark.slow("long runs")
def test_a_sampler_needs_a_size_for_the_anchors():
    sampler = fz.Sampler(lambda key, i: jax.random.normal(key, (2,)), clients=2)
    problem = fz.Bilevel(
        lambda x, y, b: ((y - b) ** 2).mean(),
        lambda x, y, b: ((y - x - b) ** 2).mean(),
        sampler,
        np.zeros(2),
        np.zeros(2),
    )
    with pytest.raises(fz.InputError, match='anchor_batch_size: found "full", but a Sampler has no full batch'):
        fz.run(fz.FedNest(0.1, 0.1), problem, 1, progress=False)
    result = fz.run(fz.FedNest(0.1, 0.1, anchor_batch_size=7), problem, 1, progress=False)
    assert np.isfinite(result.x).all()


FIGURE = {"local_steps": 5, "batch_size": "full"}


def squared_distances(method, problem, clients_per_round, rounds=200, every=10):
    """Return |x - x*|^2 along a run on the synthetic minimax problem."""
    answer, found = minimax.answer(problem)[0], []
    with problem.precision():
        session = Simulation().start([method.prepare(problem)], problem, [jax.random.key(0)], clients_per_round)
        for _ in range(rounds // every):
            session.advance(every)
            found.append(np.sum((session.states()[0].x - answer) ** 2))
    return np.array(found)


@pytest.mark.parametrize("s", [1.0, 10.0])
@pytest.mark.slow("long runs")
def test_the_synthetic_minimax_problem_of_the_paper(s):
    """Fig. 4: 1000 clients, 50 take part, lambda = 0.1, 200 rounds. With the mean of the b_i at zero FedNest converges linearly:
    log |x - x*|^2 against the round is a line, down to 1e-12; local descent-ascent plateaus far above."""
    problem = minimax.fednest_minimax(s=s)
    ours = squared_distances(fz.FedNest(0.2, 0.1, lower_local_steps=5, **FIGURE), problem, 50)
    assert ours[-1] < 1e-12
    rounds, logs = np.arange(len(ours)) * 10 + 10, np.log10(ours)
    slope, _ = np.polyfit(rounds, logs, 1)
    assert slope < -0.05
    assert np.corrcoef(rounds, logs)[0, 1] ** 2 > 0.99
    plain = squared_distances(fz.LocalSGDA(0.2, 0.1, **FIGURE), problem, 50)
    assert plain[-5:].min() > 1e-6
    everyone = squared_distances(fz.LocalSGDA(0.2, 0.1, **FIGURE), problem, None)
    assert everyone[-1] > 1e-6  # not for want of clients: local steps on clients that differ settle elsewhere
    assert abs(everyone[-1] / everyone[-3] - 1) < 0.05


@pytest.mark.slow("two long runs")
def test_with_clients_whose_mean_is_not_zero_a_cohort_leaves_noise_in_fednest_too():
    """y* is then not zero, and a cohort's mean of t_i y* is not the federation's: linear with all clients only."""
    problem = minimax.fednest_minimax(s=10.0, centred=False)
    method = fz.FedNest(0.2, 0.1, lower_local_steps=5, **FIGURE)
    assert squared_distances(method, problem, None)[-1] < 1e-12
    assert squared_distances(method, problem, 50)[-5:].min() > 1e-9
