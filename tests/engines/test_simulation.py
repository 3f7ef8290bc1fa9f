"""The simulation's program as a GPU gets it, with loops of known length: the same run, to the last bit."""

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines.simulation import engine
from fedrzo.engines.simulation.rounds import TRACES, counts
from fedrzo.engines.simulation.spread import Spread
from fedrzo.zoo import toys


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Compile for this machine, but as for a GPU."""
    compiled = engine.advance
    monkeypatch.setattr(Spread, "platform", "gpu")
    monkeypatch.setattr(engine, "advance", lambda platform, *how: compiled("cpu", *how))


@pytest.mark.slow("compiles four programs")
@pytest.mark.parametrize("steps", [2, 7])
def test_known_lengths_change_nothing(steps, request):
    """Fewer local steps than are drawn ahead, a block and a rest; rows that divide the rounds and do not."""
    method = fz.FedRZOnn(0.05, 0.1, steps)
    runs = [fz.run(method, toys.quadratic(), 21, eval_every=3, key=1)]
    request.getfixturevalue("as_on_a_gpu")
    runs += [fz.run(method, toys.quadratic(), 21, eval_every=every, key=1) for every in (3, 4)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.x, runs[0].x)
        assert run.history["evaluations"][-1] == runs[0].history["evaluations"][-1]
    np.testing.assert_array_equal(runs[1].history["loss"], runs[0].history["loss"])
    assert list(runs[2].history["round"]) == [0, 4, 8, 12, 16, 20, 21]


def test_a_sweep_over_local_steps_compiles_once_there_too(as_on_a_gpu):
    before = TRACES[0]
    fz.sweep(fz.FedRZOnn(0.05, 0.1), toys.quadratic(), 4, [0], eval_every=4, local_steps=[1, 3, 8])
    assert TRACES[0] == before + 1


def test_whole_numbers_of_a_method_are_found():
    """Its local steps, and those of the methods inside it."""
    found = counts(fz.FedRZObl(0.05, 0.1, local_steps=3, lower=fz.LocalSGD(local_steps=2)))
    assert sorted(number for _, number in found) == [2, 3]
