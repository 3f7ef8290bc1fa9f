"""FedBiOAcc: by hand, against the closed form, and what one round costs."""

import numpy as np
import pytest

import coupled
import fedrzo as fz
from conformance import Case, suite

test_conformance = pytest.mark.slow("the suite of a baseline")(suite(
    Case(
        fz.FedBiOAcc(0.1, 0.2, local_steps=3, batch_size=2, first_batch_size=5, lower_momentum=0.5, offset=2.0),
        coupled.toy,
        rounds=60,
        descent=0.2,
        optimum=coupled.OPTIMUM,
        changes={"stepsize": 0.08, "lower_stepsize": 0.15, "momentum": 0.7, "scale": 0.9, "offset": 3.0, "local_steps": 2},
    )
))  # fmt: skip


def by_hand(eta, c, interval, delta, t0, radius, rounds):
    """Rounds in NumPy: all clients, full batches; the three numbers of eta and c are of x, y and v."""
    parts = (coupled.N, coupled.Q, coupled.Q)
    eta, c = (np.repeat(np.array(numbers), parts) for numbers in (eta, c))
    z = np.zeros(sum(parts))
    momentum = None
    for r in range(rounds):
        ends = []
        for client in coupled.ALL:
            here, d = z, client.directions(*coupled.split(z)) if r == 0 else momentum
            for k in range(interval):
                a = delta / (t0 + r * interval + k) ** (1 / 3)
                x, y, v = coupled.split(here - eta * a * d)
                new = np.concatenate([x, y, v * min(1.0, radius / np.linalg.norm(v))])
                d = client.directions(*coupled.split(new)) + (1 - c * a**2) * (d - client.directions(*coupled.split(here)))
                here = new
            ends.append((here, d))
        z, momentum = (np.mean([end[j] for end in ends], axis=0) for j in (0, 1))
    return z, momentum


@pytest.mark.parametrize("radius", [1e3, 0.2])
def test_rounds_are_the_listing_computed_by_hand(radius):
    method = fz.FedBiOAcc(
        0.05, 0.2, 0.1, 3, "full", momentum=0.9, lower_momentum=0.5, system_momentum=0.7, scale=1.1, offset=2.0,
        radius=radius,
    )  # fmt: skip
    state, _ = coupled.final(method, 4)
    z, momentum = by_hand((0.05, 0.2, 0.1), (0.9, 0.5, 0.7), 3, 1.1, 2.0, radius, 4)
    np.testing.assert_allclose(np.concatenate(state[:3]), z, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(np.concatenate(state.momentum), momentum, rtol=1e-11, atol=1e-13)
    assert np.linalg.norm(state.v) <= radius + 1e-12


def test_the_closed_form_answer_is_reached():
    state, _ = coupled.final(fz.FedBiOAcc(0.2, 0.3, batch_size="full"), 1500)
    np.testing.assert_allclose(state.x, coupled.ANSWER, atol=1e-12)
    np.testing.assert_allclose(state.y, coupled.lower_solution(coupled.ANSWER), atol=1e-12)


@pytest.mark.slow("one more program")
def test_one_batch_at_both_points_takes_the_noise_out():
    """Noise that is the same at both points cancels in the difference: against c = 9, which forgets
    faster, over eight keys, the mean squared error is several times smaller."""

    def error(momentum):
        runs = [
            coupled.final(fz.FedBiOAcc(0.3, 0.3, momentum=momentum, scale=1.0, offset=27.0), 400, key=key)[0] for key in range(8)
        ]
        return np.mean([np.sum((run.x - coupled.ANSWER) ** 2) for run in runs])

    assert error(1.0) < error(9.0) / 2


def test_one_round_is_one_communication_of_twice_n_plus_2q_floats_each_way():
    method = fz.FedBiOAcc(0.02, 0.1, local_steps=3, batch_size=2, first_batch_size=5)
    # Three sample gradients per direction and sample; two directions a step, and one from the first batch in round 0.
    floats = 2 * (coupled.N + 2 * coupled.Q)
    coupled.check_costs(method, floats, gradients=3 * 2 * 2 * 3, first_gradients=5 * 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.FedBiOAcc(0, 0.1), "stepsize: found 0"),
        (lambda: fz.FedBiOAcc(0.1, 0.1, local_steps=lambda r: r + 1), "local_steps: found a function"),
        (lambda: fz.FedBiOAcc(0.1, 0.1, momentum=3.0), r"momentum: c a_0\^2 is 3, above 1; use a smaller one"),
        (lambda: fz.FedBiOAcc(0.1, 0.1, first_batch_size=0), "batch_size: found 0"),
        (lambda: fz.FedBiOAcc(0.1, 0.1, radius=-1), "radius: found -1"),
    ],
)
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message):
        build()


@pytest.mark.parametrize("field", ["stepsize", "radius", "momentum", "system_stepsize"])
def test_numbers_that_cannot_follow_the_round_are_refused_as_functions(field):
    with pytest.raises(fz.InputError, match=f"{field}: found a function; pass a positive number"):
        fz.FedBiOAcc(**{"stepsize": 0.1, "lower_stepsize": 0.1, field: lambda r: 0.1})
