"""ZSOL: the H = 1 case of FedRZO_2s."""

import numpy as np
import pytest
from test_fedrzo_2s import least_loss, numpy_upper, toy

import fedrzo as fz
from conformance import Case, suite
from fedrzo.zoo import cournot

test_conformance = suite(
    Case(
        method=fz.ZSOL(0.1, 0.1, batch_size=2),
        problem=toy,
        numpy_loss=numpy_upper,
        rounds=100,
        optimum=least_loss(),
        changes={"stepsize": 0.03, "smoothing": 0.2},
    )
)


@pytest.mark.slow("a solver for every scenario")
def test_it_is_fedrzo_2s_with_one_local_step():
    problem = cournot.cournot(followers=3, clients=1, scenarios=5)
    solver = fz.vi.Accelerated()
    ours = fz.run(fz.ZSOL(0.5, 0.25, solver=solver), problem, 20, eval_every=20, progress=False)
    theirs = fz.run(fz.FedRZO2s(0.5, 0.25, 1, solver=solver), problem, 20, eval_every=20, progress=False)
    np.testing.assert_array_equal(ours.x, theirs.x)
    assert ours.x[0] > 0.5


def test_its_local_steps_cannot_be_chosen():
    with pytest.raises(TypeError, match="local_steps"):
        fz.ZSOL(0.1, 0.1, local_steps=2)
    assert repr(fz.ZSOL(0.1, 0.1)) == "ZSOL(stepsize=0.1, smoothing=0.1)"
