"""What methods with hypergradients share: a client's derivatives, and the problems they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coupled
import fedrzo as fz
from fedrzo.federation.client import Client
from fedrzo.methods.hypergradient import Oracles, Point, into_ball
from fedrzo.zoo import bilevel

METHODS = [
    fz.FedNest(0.1, 0.1), fz.LFedNest(0.1, 0.1), fz.SimFBO(0.1, 0.1), fz.FedBiOAcc(0.1, 0.1), fz.MemFBO(0.1, 0.1),
]  # fmt: skip
RNG = np.random.default_rng(5)
X, Y, V = RNG.normal(size=coupled.N), RNG.normal(size=coupled.Q), RNG.normal(size=coupled.Q)


@pytest.mark.parametrize("nested", [pytest.param(False, marks=pytest.mark.slow("compiles them once more")), True])
def test_a_clients_derivatives_are_the_closed_forms(nested):
    """Whether the client looks at the upper level or through the lower view, with full batches."""
    with jax.enable_x64(True):
        for i, exact in enumerate(coupled.ALL):
            level = coupled.PROBLEM.lower_level(jnp.asarray(X)) if nested else coupled.PROBLEM
            oracles = Oracles.of(Client.of(level, i))
            upper, lower = oracles.draw(jax.random.key(0), "full")
            products = oracles.products(X, Y, V, lower)
            directions = oracles.directions(Point(X, Y, V), (upper, lower))
            found = (
                *oracles.upper_gradients(X, Y, upper), *oracles.lower_gradients(X, Y, lower), *products,
                jnp.concatenate(directions),
            )  # fmt: skip
            wanted = (
                exact.f_x(X, Y), exact.f_y(X, Y), exact.g_x(X, Y), exact.g_y(X, Y), exact.g_y(X, Y), exact.cross(V),
                exact.curved(V), exact.directions(X, Y, V),
            )  # fmt: skip
            for ours, theirs in zip(found, wanted, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


def test_the_mean_of_exact_parts_is_the_gradient_of_the_implicit_function():
    """grad_x f - (d2_xy g) v at (x, y(x)) with v from an exact solve: the closed form, and differences of the loss."""
    with jax.enable_x64(True):
        y = coupled.lower_solution(X)
        hessian, slope = np.zeros((coupled.Q, coupled.Q)), np.zeros(coupled.Q)
        oracles = [Oracles.of(Client.of(coupled.PROBLEM, i)) for i in range(coupled.CLIENTS)]
        batches = [each.draw(jax.random.key(0), "full") for each in oracles]
        for each, (upper, lower) in zip(oracles, batches, strict=True):
            hessian += np.stack([each.products(X, y, e, lower).curved for e in np.eye(coupled.Q)]) / coupled.CLIENTS
            slope += np.asarray(each.upper_gradients(X, y, upper)[1]) / coupled.CLIENTS
        v = np.linalg.solve(hessian, slope)
        ours = np.mean([each.directions(Point(X, y, v), pair).x for each, pair in zip(oracles, batches, strict=True)], axis=0)
        np.testing.assert_allclose(ours, coupled.hypergradient(X), rtol=1e-10, atol=1e-10)
        loss = jax.jit(lambda x: coupled.PROBLEM.evaluate(x)["loss"])
        numeric = [(loss(X + 1e-3 * e) - loss(X - 1e-3 * e)) / 2e-3 for e in np.eye(coupled.N)]  # exact for a quadratic
        np.testing.assert_allclose(ours, numeric, rtol=1e-6)


def test_full_batches_of_unequal_clients():
    """The full batch of a client of unusual size is walked through in chunks; the derivatives are the same means."""
    sizes = (3, 7, 5)
    samples = [RNG.normal(size=(size, 2)) for size in sizes]
    problem = fz.Bilevel(
        lambda x, y, b: jnp.mean(jnp.sin(b @ x) * (b @ y)), lambda x, y, b: jnp.mean((b @ (y - x)) ** 4),
        fz.ClientData(samples), np.ones(2), np.zeros(2),
    )  # fmt: skip
    with problem.precision():
        for i, rows in enumerate(samples):
            oracles = Oracles.of(Client.of(problem, i))
            upper, lower = oracles.draw(jax.random.key(0), "full")
            assert (upper, lower) == ("full", "full")
            x, y, v = X[:2], Y[:2], V[:2]
            f_x, f_y = oracles.upper_gradients(x, y, upper)
            found = oracles.products(x, y, v, lower)
            along = rows @ (y - x)
            np.testing.assert_allclose(f_x, np.mean((np.cos(rows @ x) * (rows @ y))[:, None] * rows, axis=0), rtol=1e-12)
            np.testing.assert_allclose(f_y, np.mean(np.sin(rows @ x)[:, None] * rows, axis=0), rtol=1e-12)
            np.testing.assert_allclose(found.gradient, np.mean(4 * along[:, None] ** 3 * rows, axis=0), rtol=1e-12)
            curved = np.mean((12 * along**2 * (rows @ v))[:, None] * rows, axis=0)
            np.testing.assert_allclose(found.curved, curved, rtol=1e-12)
            np.testing.assert_allclose(found.cross, -curved, rtol=1e-12)
            assert int(oracles.cost(1, 2, "full")) == 3 * len(rows)


def test_batches_of_the_two_levels_are_private_and_drawn_from_each_levels_data():
    data, below = (fz.ClientData([np.arange(1000.0) + start] * 2) for start in (0.0, 5000.0))
    problem = fz.Bilevel(lambda x, y, b: 0.0, lambda x, y, b: 0.0, data, np.zeros(1), np.zeros(1), lower_data=below)
    drawn = [Oracles.of(Client.of(problem, i)).draw(jax.random.key(3), 20) for i in (0, 1)]
    for upper, lower in drawn:
        assert np.all(np.asarray(upper) < 1000)
        assert np.all(np.asarray(lower) >= 5000)
        assert not np.array_equal(upper, np.asarray(lower) - 5000)
    assert not np.array_equal(drawn[0][0], drawn[1][0])  # the same key, other clients


def test_into_ball():
    v = jnp.array([3.0, 4.0])
    np.testing.assert_allclose(into_ball(v, 1.0), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(into_ball(v, 6.0), v)
    np.testing.assert_array_equal(into_ball(0 * v, 1.0), 0 * v)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower_constraint": fz.sets.Box(-1, 1)}, "lower_constraint: {} needs an unconstrained lower level; use fz.FedRZObl"),
        ({"lower_constraint": lambda x: fz.sets.Box(-1, 1)}, "lower_constraint: {} needs an unconstrained lower level"),
        ({"lower_domain": fz.sets.Box(-1, 1)}, "lower_domain: {} solves the lower level at x itself; use fz.FedRZObl"),
        ({"constraint": fz.sets.Box(-1, 1)}, "constraint: {} handles no constraints; use fz.FedRZObl"),
        ({"loss": fz.blackbox(lambda x, y, b: 0.0)}, "loss: {} needs gradients, a black box has none; use fz.FedRZObl"),
        ({"lower": fz.blackbox(lambda x, y, b: 0.0)}, "lower: {} needs gradients, a black box has none; use fz.FedRZObl"),
    ],
)  # fmt: skip
def test_problems_outside_the_assumptions_are_refused(method, changes, message):
    with pytest.raises(fz.InputError, match=message.format(type(method).__name__)):
        fz.run(method, coupled.wrapped(coupled.PROBLEM, **changes), 1, progress=False)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_single_level_problems_are_refused(method):
    problem = fz.Nonsmooth(lambda x, b: jnp.sum(x**2), fz.ClientData([np.zeros(1)]), np.zeros(1))
    with pytest.raises(fz.InputError, match=f"problem: found Nonsmooth; {type(method).__name__} solves Bilevel"):
        fz.run(method, problem, 1, progress=False)


@pytest.mark.filterwarnings("ignore:lower. its slope in y is the same")
def test_a_lower_level_that_diverges_is_told():
    """x takes part in nothing, y runs away: the run stops instead of going on with infinities."""
    problem = fz.Bilevel(
        lambda x, y, b: jnp.sum(x**2), lambda x, y, b: jnp.sum(y**2), fz.ClientData([np.zeros((1, 1))] * 2), np.ones(1),
        np.ones(1),
    )  # fmt: skip
    with pytest.raises(fz.DivergedError, match="stopped after round"):
        fz.run(fz.SimFBO(0.1, 50.0), problem, 400, eval_every=400, progress=False)


def test_the_zoos_answer_is_where_the_hypergradient_vanishes():
    np.testing.assert_allclose(coupled.hypergradient(coupled.ANSWER), 0, atol=1e-12)
    for option in ("clients", "dim", "lower_dim", "samples"):
        with pytest.raises(fz.InputError, match=f"{option}: found 0; pass a whole number of at least 1"):
            bilevel.coupled(**{option: 0})
    with pytest.raises(fz.InputError, match=r"condition: found 0.5; pass a number of at least 1"):
        bilevel.coupled(condition=0.5)
