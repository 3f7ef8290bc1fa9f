"""`benchmarks/gradients.py`: what is counted until a loss is reached, and a row is what the table shows."""

import numpy as np
import pytest

import fedrzo as fz
import gradients


@pytest.mark.slow("compiles programs of both oracles")
def test_gradients_of_the_two_stage_row_take_fewer_solves():
    row = gradients.Row(
        "leaders", gradients.leaders, lambda gamma, oracle: fz.FedRZO2s(gamma, 0.1, 5, 4, oracle=oracle),
        {"values": (3e-3,), "gradients": (0.03,)}, {"values": 20, "gradients": 5}, "lower solves",
    )  # fmt: skip
    found = gradients.measure(row, 2)
    assert found["ratio"] > 2
    assert found["values"]["spent"][0] <= 20 * gradients.CLIENTS * 5 * 4 * 2  # rounds, clients, steps, scenarios, points
    [_, shown] = gradients.table({"rows": [found]})
    assert shown[0] == "leaders"
    assert shown[-2] == f"{found['ratio']:.1f} x"


def test_what_was_spent_is_read_where_the_loss_is_first_reached():
    history = {
        "loss": np.array([3.0, 1.0, 2.0, 0.5]),
        "evaluations": np.array([0, 10, 20, 30]),
        "gradients": np.array([0, 1, 2, 3]),
    }
    assert gradients.reached(history, "evaluations", 1.5) == 13
    assert gradients.reached(history, "evaluations", 0.1) == 39
