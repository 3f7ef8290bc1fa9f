"""How claims are judged."""

import math

import numpy as np
import pytest

from fedrzo.paper import claims
from fedrzo.results.history import History


def history(losses, per_round=10, gradients=0):
    rounds = np.arange(len(losses))
    costs = {"round": rounds, "evaluations": per_round * rounds, "gradients": gradients * rounds,
             "upload_bytes": 4 * rounds, "download_bytes": 8 * rounds}  # fmt: skip
    return History({name: column.tolist() for name, column in costs.items()} | {"loss": list(losses)})


def test_at_equal_cost_counts_a_gradient_as_three_evaluations():
    runs = history([3.0, 2.0, 1.0], per_round=10, gradients=2)
    np.testing.assert_allclose(claims.at_cost([runs], "loss", "evaluations", 24.0), [1.5])


@pytest.mark.parametrize(
    ("left", "right", "holds"),
    [
        ([1.0, 1.1, 0.9], [2.0, 2.2, 2.1], True),
        ([2.0, 2.2, 2.1], [1.0, 1.1, 0.9], False),
        ([1.0, 2.0, 3.0], [1.1, 1.9, 3.0], None),
        ([1.0, 1.0, 1.0], [math.nan, 1.0, 1.0], True),
        ([math.inf, 1.0, 1.0], [1.0, 1.0, 1.0], False),
        ([math.nan] * 3, [math.nan] * 3, None),
        ([1.0], [2.0], None),
    ],
)
def test_smaller_holds_only_if_the_whole_interval_says_so(left, right, holds):
    assert claims.smaller("a", "b", np.array(left), np.array(right)).holds is holds


def test_an_interval_covers_the_true_difference_as_often_as_it_says():
    """2,000 experiments of five seeds: coverage of a 95 % interval is within 0.935 and 0.965 but for 1 in 400 suites."""
    rng = np.random.default_rng(0)
    found = [claims.smaller("", "", *rng.normal([[0.3], [0.0]], 1.0, (2, 5))) for _ in range(2000)]
    covered = np.mean([claim.low <= 0.3 <= claim.high for claim in found])
    assert 0.935 <= covered <= 0.965


def test_more_local_steps_are_compared_at_equal_rounds_and_at_equal_evaluations():
    """H = 10 is ahead per round only because it works ten times as much: per evaluation it is behind."""
    few = [history(5.0 - 0.2 * np.arange(11) + noise, per_round=1) for noise in (0.0, 0.01, 0.02)]
    many = [history(5.0 - 0.4 * np.arange(11) + noise, per_round=10) for noise in (0.0, 0.011, 0.019)]
    rounds, evaluations, upper = claims.more_local_steps({1: few, 10: many}, where="here", costs=("evaluations", claims.UPPER))
    assert evaluations.note == "By then H = 10 has made 1 rounds, H = 1 10."
    assert upper.value == evaluations.value  # there are no gradients here
    assert (rounds.holds, evaluations.holds) == (True, False)
    assert rounds.value == pytest.approx(-2.0, abs=0.01)
    assert evaluations.value == pytest.approx(5 - 0.4 - (5 - 2.0), abs=0.01)
    assert "Confounded" in rounds.note
    assert (rounds.own, evaluations.own) == (False, True)
    assert rounds.text.endswith("(here)")


def test_limits():
    assert claims.between("", "", np.array([0.1, 0.11, 0.12]), (-math.inf, 0.2)).holds is True
    assert claims.between("", "", np.array([0.1, 0.11, 0.12]), (-math.inf, 0.05)).holds is False
    assert claims.between("", "", np.array([0.1, 0.3]), (-math.inf, 0.2)).holds is None
    assert claims.between("", "", np.array([0.01, -0.01, 0.02]), (-0.1, 0.1)).holds is True
    assert claims.between("", "", np.array([-0.5, -0.51, -0.52]), (-0.1, 0.1)).holds is False
    assert claims.between("", "", np.array([-0.5, 0.5]), (-0.1, 0.1)).holds is None
    large = claims.between("", "", np.array([0.1, 0.11, 0.12]), (0.05, math.inf))
    assert (large.holds, large.low < large.value < large.high) == (True, True)
    assert large.value == pytest.approx(0.11)
    assert claims.between("", "", np.array([0.1, 0.11, 0.12]), (0.2, math.inf)).holds is False
    assert claims.between("", "", np.array([0.3]), (0.2, math.inf)).holds is True
    assert claims.summary([claims.exact("x", "y", 1.0, False)])[1] == ["x", "1", "", "does not hold"]
