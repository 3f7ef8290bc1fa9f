"""MemFBO: by hand, against the closed form of its surrogate, how far that is off, and what one round costs."""

import numpy as np
import pytest

import coupled
import fedrzo as fz
from conformance import Case, suite

test_conformance = pytest.mark.slow("the suite of a baseline")(suite(
    Case(
        fz.MemFBO(0.03, 0.1, 20.0, 0.005, 3, batch_size=2, server_stepsize=0.03),
        coupled.toy,
        rounds=80,
        descent=0.2,
        optimum=coupled.OPTIMUM,
        changes={
            "stepsize": 0.02, "lower_stepsize": 0.08, "multiplier": 10.0, "penalised_stepsize": 0.0045, "local_steps": 2,
            "server_stepsize": 0.02,
        },
    )
))  # fmt: skip


def by_hand(eta, gamma, lam, steps, rounds):
    """Rounds in NumPy: all clients, full batches; the three numbers of eta and gamma are of x, y and z."""
    parts = (coupled.N, coupled.Q, coupled.Q)
    eta, gamma = (np.repeat(np.array(numbers), parts) for numbers in (eta, gamma))
    point = np.zeros(sum(parts))
    for _ in range(rounds):
        sums = []
        for i in coupled.ALL:
            here, total = point, np.zeros_like(point)
            for _ in range(steps):
                x, y, z = coupled.split(here)
                d = np.concatenate(
                    [i.f_x(x, y) + lam * (i.g_x(x, y) - i.g_x(x, z)), i.f_y(x, y) + lam * i.g_y(x, y), i.g_y(x, z)]
                )
                here, total = here - eta * d, total + d
            sums.append(total)
        point = point - gamma * np.mean(sums, axis=0)
    return point


def test_rounds_are_the_listing_computed_by_hand():
    method = fz.MemFBO(
        0.02, 0.1, 20.0, 0.004, 3, "full", server_stepsize=0.03, server_lower_stepsize=0.07,
        server_penalised_stepsize=0.003,
    )  # fmt: skip
    expected = by_hand((0.02, 0.004, 0.1), (0.03, 0.003, 0.07), 20.0, 3, 4)
    np.testing.assert_allclose(np.concatenate(coupled.final(method, 4)[0]), expected, rtol=1e-12, atol=1e-14)


def test_by_default_y_steps_are_those_of_z_over_the_multiplier_and_the_server_averages():
    expected = by_hand((0.02, 0.1 / 8, 0.1), (0.02, 0.1 / 8, 0.1), 8.0, 2, 3)
    state, _ = coupled.final(fz.MemFBO(0.02, 0.1, 8.0, local_steps=2, batch_size="full"), 3)
    np.testing.assert_allclose(np.concatenate(state), expected, rtol=1e-12, atol=1e-14)


def surrogate_answer(lam):
    """Return the stationary x of f(x, y) + lam (g(x, y) - g(x, z)), from the linear system in (x, y, z)."""

    def residual(point):
        x, y, z = coupled.split(point)
        return coupled.mean(
            lambda i: np.concatenate(
                [i.f_x(x, y) + lam * (i.g_x(x, y) - i.g_x(x, z)), i.f_y(x, y) + lam * i.g_y(x, y), i.g_y(x, z)]
            )
        )

    size = coupled.N + 2 * coupled.Q
    constant = residual(np.zeros(size))
    matrix = np.stack([residual(e) - constant for e in np.eye(size)], axis=1)
    return np.linalg.solve(matrix, -constant)[: coupled.N]


def test_the_surrogates_answer_is_reached_and_its_bias_falls_like_one_over_the_multiplier():
    multipliers, bias = (10.0, 100.0, 1000.0), []
    for lam in multipliers:
        state, _ = coupled.final(fz.MemFBO(0.05, 0.1, lam, batch_size="full"), 2500)
        np.testing.assert_allclose(state.x, surrogate_answer(lam), atol=1e-9)
        bias.append(np.linalg.norm(state.x - coupled.ANSWER))
    slopes = np.diff(np.log10(bias)) / np.diff(np.log10(multipliers))
    np.testing.assert_allclose(slopes, -1, atol=0.1)
    assert abs(slopes[1] + 1) < 0.01


def test_one_round_is_one_communication_of_n_plus_2q_floats_each_way():
    # Per step and sample: one gradient of f, and g's at (x, y) and at (x, z); no products.
    coupled.check_costs(fz.MemFBO(0.02, 0.1, local_steps=3, batch_size=2), floats=coupled.N + 2 * coupled.Q, gradients=3 * 2 * 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.MemFBO(0, 0.1), "stepsize: found 0"),
        (lambda: fz.MemFBO(0.1, 0.1, 0), "multiplier: found 0"),
        (lambda: fz.MemFBO(0.1, 0.1, penalised_stepsize=-1), "penalised_stepsize: found -1"),
        (lambda: fz.MemFBO(0.1, 0.1, local_steps=0), "local_steps: found 0"),
    ],
)
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message):
        build()
