"""DeComFL: seeds down, scalars up, and clients that rebuild what they missed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from conformance import OF_VARIANTS, Case, suite
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.engines.simulation.rounds import cohort
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Roots, path_key
from fedrzo.methods.decomfl import direction
from fedrzo.zoo import toys


def toy(wrap):
    plain = toys.quadratic(clients=4, dim=30)
    return fz.Nonsmooth(wrap(plain.loss_fn), plain.data, np.zeros(30))


def case(method, changes):
    return Case(
        method=method,
        problem=toy,
        numpy_loss=lambda x, batch: 0.5 * np.mean(np.sum((x - batch) ** 2, axis=-1)),
        rounds=60,
        optimum=0.5 * float(np.mean(np.var(np.asarray(toys.quadratic(4, 30).data.flat), axis=0)) * 30),
        changes=changes,
    )


test_conformance = pytest.mark.slow("the suite of a baseline")(
    suite(
        case(
            fz.DeComFL(stepsize=0.02, local_steps=3, directions=4, batch_size=2),
            {"stepsize": 0.03, "momentum": 0.5, "smoothing": 1e-8},  # rounding tells radii apart on a quadratic
        )
    )
)
# Two records only, so that with two of four clients a round some are sent x, and a schedule that replay must follow.
test_conformance_with_momentum_forward_and_few_records = pytest.mark.slow("a second program of the same steps")(
    suite(
        case(
            fz.DeComFL(lambda r: 0.05 / (r + 10), 0.01, 2, 3, 2, momentum=0.8, forward=True, records=2),
            {"momentum": 0.5, "smoothing": 1e-8},
        ),
        OF_VARIANTS,
    )
)


@pytest.mark.parametrize("forward", [False, True])
def test_two_rounds_computed_by_hand(forward):
    """Two clients, H = 2, P = 3, momentum: the server's x in plain NumPy from the same keys."""
    n, mu, eta, H, P, beta = 4, 0.1, 0.03, 2, 3, 0.6
    problem = toys.quadratic(clients=2, dim=n)
    ours = fz.run(fz.DeComFL(eta, mu, H, P, 2, beta, forward), problem, 2, key=5, progress=False).x
    with problem.precision():
        roots = Roots.of(jax.random.key(5))
        x, velocity = np.zeros(n), np.zeros(n)
        for r in range(2):
            seeds = jax.random.bits(path_key(roots.directions, (r, 0)), (H,), jnp.uint32)
            z = np.array([[np.asarray(direction(seed, p, jnp.zeros(n))) for p in range(P)] for seed in seeds])
            slopes = np.zeros((2, H, P))
            for i in range(2):
                key = path_key(roots.directions, (r, 1, i))
                y, v = x, velocity
                for k in range(H):
                    samples = np.asarray(Client.of(problem, i, roots).sample(jax.random.fold_in(key, k), 2))
                    loss = lambda x: 0.5 * np.mean(np.sum((x - samples) ** 2, axis=1))  # noqa: B023, E731
                    for p in range(P):
                        plus, minus = loss(y + mu * z[k, p]), loss(y) if forward else loss(y - mu * z[k, p])
                        slopes[i, k, p] = (plus - minus) / (mu if forward else 2 * mu)
                    v = beta * v + slopes[i, k] @ z[k] / P
                    y = y - eta * v
            mean = slopes.mean(axis=0)
            for k in range(H):
                velocity = beta * velocity + mean[k] @ z[k] / P
                x = x - eta * velocity
    np.testing.assert_allclose(ours, x, rtol=1e-12)


def cohorts(problem, key, rounds, size):
    return [np.asarray(cohort(problem, jax.random.key(key), r, size)[0]) for r in range(rounds)]


@pytest.mark.parametrize("engine", ["simulation", pytest.param("loop", marks=pytest.mark.slow("the same by messages"))])
def test_bytes_at_one_step_and_twenty_directions_in_float32(engine):
    """80 bytes up; 4 down for the seed and 84 for every round missed, as long as that is less than x."""
    size, problem = 2, toys.quadratic(clients=5, dim=2000, dtype="float32")
    method = fz.DeComFL(1e-5, 0.1, directions=20)
    rounds = 4 if engine == "loop" else 12
    history = fz.run(method, problem, rounds, key=3, engine=engine, clients_per_round=size, progress=False).history
    first, up, down, missed = np.zeros(5, int), [], [], []
    for r, ids in enumerate(cohorts(problem, 3, rounds, size)):
        missed += list(r - first[ids])
        up.append(80 * len(ids))
        down.append(sum(4 + 84 * (r - first[i]) for i in ids))
        first[ids] = r
    assert list(np.diff(history["upload_bytes"])) == up
    assert list(np.diff(history["download_bytes"])) == down
    assert max(missed) > 1
    assert list(np.diff(history["evaluations"])) == [40 * size] * rounds


@pytest.mark.slow("compiles a method several times")
def test_x_is_sent_where_records_are_gone_or_larger():
    """Down: H seeds now, and per missed round H seeds and H P floats, or x and the velocity."""
    H, P, n, rounds, size = 2, 3, 12, 40, 1
    problem = toys.quadratic(clients=4, dim=n, dtype="float32")
    record, fresh = 4 * H + 4 * H * P, 2 * 4 * n
    for records in (2, 1024):
        method = fz.DeComFL(1e-3, 0.1, H, P, records=records)
        history = fz.run(method, problem, rounds, clients_per_round=size, progress=False).history
        first, down, kinds = np.zeros(4, int), [], set()
        for r, (i,) in enumerate(cohorts(problem, 0, rounds, size)):
            gap = r - first[i]
            renewed = gap > records or gap * record >= fresh
            kinds.add((renewed, gap > records))
            down.append(4 * H + (fresh if renewed else gap * record))
            first[i] = r
        assert list(np.diff(history["download_bytes"])) == down
        # Both kinds of message occur, and each of the two reasons in one of the runs.
        assert kinds == ({(False, False), (True, True)} if records == 2 else {(False, False), (True, False)})


@pytest.mark.parametrize(("records", "stepsize"), [(1024, 0.01), (3, lambda r: 0.1 / (r + 10))])
def test_what_a_client_rebuilds_is_what_the_server_has(records, stepsize):
    """After round r, who took part holds the server's x and velocity from before it."""
    problem = toys.quadratic(clients=5, dim=40)
    method = fz.DeComFL(stepsize, local_steps=2, directions=2, momentum=0.9, records=records)
    with problem.precision():
        key = jax.random.key(7)
        session = Simulation().start([method], problem, [key], 2)
        for r in range(15):
            before = jax.tree.map(np.asarray, session.carry.state)
            ids = np.asarray(cohort(problem, key, r, 2)[0])
            session.advance(1)
            memory = jax.tree.map(np.asarray, session.carry.memory)
            for i in ids:
                np.testing.assert_allclose(memory.x[i], before.x, rtol=0, atol=1e-12)
                np.testing.assert_allclose(memory.velocity[i], before.velocity, rtol=1e-12, atol=1e-12)
        assert np.linalg.norm(before.x) > 0.1


def test_local_steps_are_not_kept():
    """Slopes of the second step are taken where the client's own first step led, the server moves by the mean of all."""
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.array([[1.0]]), np.array([[-3.0]])]), np.zeros(1))
    with problem.precision():
        method = fz.DeComFL(0.1, local_steps=2)
        session = Simulation().start([method], problem, [jax.random.key(0)], None)
        session.advance(1)
        np.testing.assert_array_equal(session.carry.memory.x, np.zeros((2, 1)))  # round 0 starts at x0, and is not kept
        session.advance(1)
        np.testing.assert_allclose(session.carry.memory.x[0], session.carry.memory.x[1], rtol=1e-12)


@pytest.mark.parametrize(("forward", "accuracy"), [(False, 1e-8), (True, 1e-3)])
def test_reaches_the_minimiser_of_a_quadratic(forward, accuracy):
    """Directions are shared, so at the minimiser all slopes average to zero: full batches converge at a constant step.

    One-sided slopes are off by mu |z|^2 / 2, which is 5e-4 here.
    """
    problem = toys.quadratic()
    method = fz.DeComFL(0.3, 1e-4, 1, 10, batch_size="full", forward=forward)
    x = fz.run(method, problem, 200, eval_every=200, progress=False).x
    assert np.linalg.norm(toys.answer(problem)) > 1.3
    assert np.linalg.norm(x - toys.answer(problem)) < accuracy


@pytest.mark.slow("compiles a method several times")
def test_forward_costs_one_evaluation_more_than_directions():
    problem = toys.quadratic(clients=3, dim=30)
    for forward, points in ((False, 2 * 5), (True, 5 + 1)):
        method = fz.DeComFL(1e-3, 0.1, 2, 5, 4, forward=forward)
        assert fz.run(method, problem, 1, progress=False).history.last["evaluations"] == 3 * 2 * points * 4


def test_constraints_are_refused():
    with pytest.raises(fz.InputError, match="constraint: DeComFL handles no constraints"):
        fz.run(fz.DeComFL(0.1), toys.boxes(), 1, progress=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_steps": lambda r: 1 + r}, "local_steps: found a function; pass a whole number"),
        ({"momentum": 1.0}, "momentum: found 1.0; pass a number of at least 0 and below 1"),
        ({"momentum": "a"}, "momentum: found 'a'; pass a number of at least 0 and below 1"),
        ({"records": 0}, "records: found 0; pass a whole number of at least 1"),
        ({"directions": 1.5}, "directions: found 1.5; pass a whole number of at least 1"),
        ({"forward": "yes"}, "forward: found 'yes'; pass True or False"),
        ({"smoothing": 0.0}, "smoothing: found 0.0; pass a positive number"),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(fz.InputError, match=message):
        fz.DeComFL(**{"stepsize": 0.1, **fields})
