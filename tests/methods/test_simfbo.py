"""SimFBO and ShroFBO: by hand, against the closed form, and what one round costs."""

import numpy as np
import pytest

import coupled
import fedrzo as fz
from conformance import Case, suite

test_conformance = pytest.mark.slow("the suite of a baseline")(
    suite(
        Case(
            fz.SimFBO(0.03, 0.1, 0.1, 3, batch_size=2, server_stepsize=0.03, radius=5.0),
            coupled.toy,
            rounds=60,
            descent=0.2,
            optimum=coupled.OPTIMUM,
            changes={"stepsize": 0.02, "system_stepsize": 0.05, "server_stepsize": 0.02, "radius": 0.01, "local_steps": 2},
        )
    )
)


def by_hand(steps, eta, gamma, radius, rounds, normalised=False):
    """Rounds in NumPy: all clients, full batches."""
    parts = [np.full(n, 1.0) for n in (coupled.N, coupled.Q, coupled.Q)]
    eta, gamma = (np.concatenate([s * p for s, p in zip(sizes, parts, strict=True)]) for sizes in (eta, gamma))
    z = np.zeros(coupled.N + 2 * coupled.Q)
    for _ in range(rounds):
        sums = []
        for client, tau in zip(coupled.ALL, steps, strict=True):
            here, total = z, np.zeros_like(z)
            for _ in range(tau):
                d = client.directions(*coupled.split(here))  # of the old iterates, for all three
                here, total = here - eta * d, total + d
            sums.append(total / tau if normalised else total)
        z = z - gamma * np.mean(sums, axis=0) * (np.mean(steps) if normalised else 1)
        x, y, v = coupled.split(z)
        z = np.concatenate([x, y, v * min(1.0, radius / np.linalg.norm(v))])
    return z


@pytest.mark.parametrize("radius", [1e3, 0.2])
def test_rounds_are_the_listing_computed_by_hand(radius):
    method = fz.SimFBO(
        0.02, 0.1, 0.05, 3, "full", server_stepsize=0.03, server_lower_stepsize=0.07, server_system_stepsize=0.06,
        radius=radius,
    )  # fmt: skip
    state, _ = coupled.final(method, 4)
    expected = by_hand([3] * 4, (0.02, 0.1, 0.05), (0.03, 0.07, 0.06), radius, 4)
    np.testing.assert_allclose(np.concatenate(state), expected, rtol=1e-12, atol=1e-14)
    if radius == 0.2:  # the ball is active
        np.testing.assert_allclose(np.linalg.norm(state.v), 0.2, rtol=1e-12)


@pytest.mark.parametrize("normalised", [False, True])
def test_clients_may_take_different_numbers_of_steps(normalised):
    steps = (1, 2, 5, 3)
    method = fz.SimFBO(0.02, 0.1, local_steps=steps, batch_size="full", normalised=normalised)
    state, cost = coupled.final(method, 3)
    expected = by_hand(steps, (0.02, 0.1, 0.1), (0.02, 0.1, 0.1), 1e3, 3, normalised)
    np.testing.assert_allclose(np.concatenate(state), expected, rtol=1e-12, atol=1e-14)
    assert cost.lower_steps == 3 * sum(steps)


@pytest.mark.slow("two more programs")
def test_by_default_the_server_averages_the_clients_last_points():
    given = {"server_stepsize": 0.02, "server_lower_stepsize": 0.1, "server_system_stepsize": 0.05}
    one, other = (coupled.final(fz.SimFBO(0.02, 0.1, 0.05, 3, **more), 5)[0] for more in ({}, given))
    np.testing.assert_array_equal(np.concatenate(one), np.concatenate(other))


def test_the_closed_form_answer_is_reached():
    state, _ = coupled.final(fz.SimFBO(0.05, 0.1, batch_size="full"), 1500)
    np.testing.assert_allclose(state.x, coupled.ANSWER, atol=1e-12)
    np.testing.assert_allclose(state.y, coupled.lower_solution(coupled.ANSWER), atol=1e-12)


@pytest.mark.slow("long runs")
def test_unequal_work_changes_simfbos_limit_and_not_shrofbos():
    """What is left of ShroFBO's error is the drift of local steps, which a tenth of the step size brings down tenfold."""
    steps = (8, 1, 1, 1)

    def error(scale, normalised):
        method = fz.SimFBO(0.02 * scale, 0.04 * scale, local_steps=steps, batch_size="full", normalised=normalised)
        return np.linalg.norm(coupled.final(method, int(1200 / scale))[0].x - coupled.ANSWER)

    plain, shro, shro_small = error(1.0, False), error(1.0, True), error(0.1, True)
    assert plain > 0.1
    assert shro < 0.5 * plain
    assert 7 < shro / shro_small < 14


def test_one_round_is_one_communication_of_n_plus_2q_floats_each_way():
    # Per step and sample: one gradient of f, and grad_y g with both products in one pass, which is worth two.
    coupled.check_costs(fz.SimFBO(0.02, 0.1, local_steps=3, batch_size=2), floats=coupled.N + 2 * coupled.Q, gradients=3 * 2 * 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.SimFBO(0, 0.1), "stepsize: found 0"),
        (lambda: fz.SimFBO(0.1, -1), "lower_stepsize: found -1"),
        (lambda: fz.SimFBO(0.1, 0.1, 0.0), "system_stepsize: found 0.0"),
        (lambda: fz.SimFBO(0.1, 0.1, radius=0), "radius: found 0"),
        (lambda: fz.SimFBO(0.1, 0.1, local_steps=(1, 0, 1, 1)), "local_steps: found 0"),
        (lambda: fz.run(fz.SimFBO(0.1, 0.1, local_steps=(1, 2)), coupled.PROBLEM, 1), "local_steps: found 2 numbers for 4"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message):
        build()
