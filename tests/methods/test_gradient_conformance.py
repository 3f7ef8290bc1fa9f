"""The suite of all methods, on those of the family that go by gradients."""

import dataclasses

import numpy as np
import pytest

import coupled
import fedrzo as fz
from conformance import Case, everyone_descends_alike_on_both_engines_and_counts_what_is_computed, suite
from fedrzo.zoo import toys

OPTIMUM = 0.5 * float(np.mean(np.var(np.asarray(toys.quadratic(4, 6).data.flat), axis=0)) * 6)
CHANGES = {"stepsize": 0.03, "local_steps": 3, "smoothing": 0.2}


def toy(wrap):
    plain = toys.quadratic(4, 6)
    return fz.Nonsmooth(wrap(plain.loss_fn), plain.data, plain.x0, [fz.sets.Box(-9.0, 9.0 + i) for i in range(4)])


test_fedrzo_nn = suite(Case(fz.FedRZOnn(0.02, 0.1, 5, 2, oracle="gradients"), toy, rounds=60, optimum=OPTIMUM, changes=CHANGES))
BELOW = Case(
    fz.FedRZObl(0.05, 0.1, 2, 2, oracle="gradients"),
    coupled.toy,
    rounds=30,
    descent=0.2,
    optimum=coupled.OPTIMUM,
    changes=CHANGES,
)
test_fedrzo_bl = pytest.mark.slow("FedRZO_bl's suite once more")(suite(BELOW))


SCALARS = {"communication": "scalars", "directions": 3}
WITH_SCALARS = dataclasses.replace(
    BELOW,
    method=dataclasses.replace(BELOW.method, **SCALARS),
    descent=0.5,
    changes={"stepsize": 0.03, "smoothing": 0.2},  # as many local steps as before: a record holds the slopes of each
)
test_fedrzo_bl_by_scalars = pytest.mark.slow("FedRZO_bl's suite once more")(suite(WITH_SCALARS))


@pytest.mark.slow("compiles FedRZO_bl once more")
def test_fedrzo_bl_counts_what_is_computed(tmp_path):
    everyone_descends_alike_on_both_engines_and_counts_what_is_computed(BELOW, tmp_path)
