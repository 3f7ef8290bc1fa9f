"""FedProx: its step by hand, that it is FedAvg without its term, and its stragglers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest, chisquare
from test_fedavg import case, unequal

import fedrzo as fz
from conformance import suite
from fedrzo.federation.client import Client
from fedrzo.zoo import toys

test_conformance = pytest.mark.slow("the suite of a baseline")(
    suite(case(fz.FedProx(0.1, 0.5, local_steps=4, batch_size=2), stepsize=0.05, mu=2.0, local_steps=3, stragglers=0.9))
)
SLOW = pytest.mark.slow("three more programs of the same steps")


def test_a_round_is_the_listings():
    problem = unequal()
    result = fz.run(fz.FedProx(0.1, 0.7, local_steps=4), problem, 1, progress=False)
    ends = []
    for target in ([1.0, 2.0], [-2.0, 0.5]):
        w = problem.x0.copy()
        for _ in range(4):
            w = w - 0.1 * ((w - target) + 0.7 * (w - problem.x0))
        ends.append(w)
    np.testing.assert_allclose(result.x, (3 * ends[0] + 5 * ends[1]) / 8, rtol=1e-13)


@pytest.mark.slow("two more programs")
@pytest.mark.parametrize(
    "settings",
    [
        {"local_steps": 4},
        pytest.param({"epochs": 3}, marks=SLOW),
        pytest.param({"schedule": "PR-SGD", "budget": 500}, marks=SLOW),
    ],
)
def test_without_its_term_it_is_fedavg_to_the_last_bit(settings):
    settings = {"batch_size": 2, **settings} | ({} if "schedule" in settings else {"stepsize": 0.1})
    problem = toys.quadratic()
    ends = [
        fz.run(method, problem, 7, clients_per_round=3, progress=False)
        for method in (fz.FedAvg(**settings), fz.FedProx(mu=0.0, **settings), fz.FedProx(mu=0.5, **settings))
    ]
    assert ends[0].x.tobytes() == ends[1].x.tobytes()
    assert ends[0].history["loss"].tolist() == ends[1].history["loss"].tolist()
    assert ends[0].history["loss"][-1] != ends[2].history["loss"][-1]


def test_the_term_holds_clients_back():
    """After many steps a client is at its proximal point, (target + mu x0) / (1 + mu)."""
    problem = unequal("uniform")
    for mu in (0.0, 1.0, 9.0):
        result = fz.run(fz.FedProx(0.05, mu, local_steps=1000), problem, 1, progress=False)
        np.testing.assert_allclose(result.x, (np.array([-0.5, 1.25]) + mu * problem.x0) / (1 + mu), rtol=1e-12)


def test_a_step_made_from_constants_allows_for_the_term():
    problem = toys.quadratic(3, 4)
    plain = fz.FedAvg(batch_size="full").prepare(problem)
    proximal = fz.FedProx(mu=3.0, batch_size="full").prepare(problem)
    assert float(plain.step_length(0, 0, 1)) == pytest.approx(1.0)  # 2 / (mu + L), both being 1
    assert float(proximal.step_length(0, 0, 1)) == pytest.approx(2 / (1 + 3 + 1 + 3))


def work(method, clients=4000):
    """Return the steps of many clients of one round."""
    problem = toys.quadratic(1, 2)
    keys = jax.random.split(jax.random.key(5), clients)
    with problem.precision():
        return np.asarray(jax.vmap(lambda key: method.work(Client.of(problem, 0), key)[0] + jnp.int32(0))(keys))


def test_stragglers_do_any_smaller_amount_of_work_as_likely_as_any_other():
    method = fz.FedProx(0.1, local_steps=6, stragglers=0.3)
    steps = work(method)
    assert set(steps) == {1, 2, 3, 4, 5, 6}
    late = steps[steps < 6]
    # Two tests, each of which a right program fails with probability 1e-4.
    assert binomtest(len(late), len(steps), 0.3).pvalue > 1e-4
    assert chisquare(np.bincount(late)[1:]).pvalue > 1e-4
    assert set(work(dataclasses.replace(method, stragglers=0.0))) == {6}
    assert set(work(dataclasses.replace(method, stragglers=1.0))) == {1, 2, 3, 4, 5}
    assert set(work(dataclasses.replace(method, stragglers=1.0, local_steps=1))) == {1}


@pytest.mark.slow("compiles with callbacks, for both engines")
def test_what_stragglers_did_is_kept_and_their_gradients_are_counted():
    """A loss of slope -1: a client that took k steps of 1 has moved by k, so the mean tells the work."""
    seen = []

    def slope(x, batch):
        jax.debug.callback(lambda _: seen.append(len(batch)), x[0])
        return -jnp.sum(x) + 0.0 * jnp.sum(batch)

    problem = fz.Nonsmooth(slope, fz.ClientData([np.zeros((3, 1))] * 6), np.zeros(1))
    method = fz.FedProx(1.0, 0.0, local_steps=9, stragglers=0.8, batch_size=2)
    plain = fz.run(method, problem, 1, engine="loop", progress=False)  # client by client, so that no lane runs idle
    jax.effects_barrier()
    steps = seen.count(2)  # other sizes are the check of the loss and the monitor
    assert 6 < steps < 54
    np.testing.assert_allclose(plain.x, [steps / 6], rtol=1e-12)
    assert plain.history.last["gradients"] == 2 * steps
    fast = fz.run(method, problem, 1, progress=False)
    np.testing.assert_allclose(fast.x, plain.x, rtol=1e-12)
    assert fast.history.last["gradients"] == 2 * steps


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mu": -1.0}, "mu: found -1.0; pass a number of zero or more"),
        ({"mu": float("nan")}, "mu: found nan"),
        ({"mu": "much"}, "mu: found 'much'"),
        ({"stragglers": 1.5}, "stragglers: found 1.5; pass a probability from 0 to 1"),
        ({"stragglers": True}, "stragglers: found True"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(fz.InputError, match=message):
        fz.FedProx(0.1, **settings)
