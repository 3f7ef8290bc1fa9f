"""`fz.certified`: the rule that stops a run, its columns, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.support.columns import taken
from fedrzo.zoo import bilevel, toys

ETA = 0.1
METHOD = fz.FedRZOnn(0.02, ETA, 3)


def go(rounds=60, stop=None, **options):
    return fz.run(METHOD, toys.quadratic(3, 4), rounds, progress=False, stop=stop or fz.certified(0.1, 10), **options)


def test_a_run_stops_when_its_point_is_certified():
    result = go(400)
    history = result.history
    assert history["round"][-1] < 400
    assert history["round"][-1] % 10 == 0
    assert history["certificate_upper"][-1] <= 0.1 < history["certificate_upper"][-2]
    assert np.linalg.norm(result.x - toys.answer(toys.quadratic(3, 4))) <= 0.1
    plain = fz.run(METHOD, toys.quadratic(3, 4), int(history["round"][-1]), eval_every=2, progress=False).history
    np.testing.assert_array_equal(plain["evaluations"], history["evaluations"])  # charged apart
    assert np.isnan(history["certificate_norm"][0])
    assert history["round"][1] == 2  # so that 400 rounds have 200 rows, and a row where the rule looks
    assert history["certificate_evaluations"][4] == 0 < history["certificate_evaluations"][5]
    assert np.all(np.diff(history["certificate_upload_bytes"]) >= 0)
    assert all(map(taken, history))  # no metric of a user's may be called so


def test_a_certified_run_resumes_as_if_it_had_never_stopped(tmp_path):
    straight = go(400).history
    go(25, checkpoint=tmp_path, eval_every=2)
    resumed = go(400, checkpoint=tmp_path, resume=True).history
    again = go(400, checkpoint=tmp_path, resume=True).history  # certified already: nothing more is done
    for name in straight:
        if name != "seconds":
            np.testing.assert_array_equal(straight[name], resumed[name])
            np.testing.assert_array_equal(straight[name], again[name])
    with pytest.raises(fz.CheckpointError, match="stop"):
        fz.run(METHOD, toys.quadratic(3, 4), 400, progress=False, checkpoint=tmp_path, resume=True)


def test_rules_that_cannot_work_are_refused_before_the_run():
    with pytest.raises(fz.InputError, match="every: found 10 with eval_every=4"):
        go(20, eval_every=4)
    with pytest.raises(fz.InputError, match="epsilon: found 0"):
        fz.certified(0)
    with pytest.raises(fz.InputError, match="every: found a function"):
        fz.certified(0.1, lambda r: 10)
    with pytest.raises(fz.InputError, match="lower: found one"):
        go(20, fz.certified(0.1, lower=fz.LocalSGD()))
    with pytest.raises(fz.InputError, match="batch_size: found 0"):
        go(20, fz.certified(0.1, batch_size=0))
    plain = bilevel.direct(2, 2, 2, 3)
    loss = fz.blackbox(lambda x, y, batch: 0.0)
    problem = fz.Bilevel(loss, plain.lower_fn, plain.data, plain.x0, plain.y0, modulus=1.0, smoothness=2.0)
    with pytest.raises(fz.InputError, match="stop: the upper loss is a black box"):
        fz.run(fz.FedRZObl(0.1, ETA), problem, 20, progress=False, stop=fz.certified(0.1))
    with pytest.raises(fz.InputError, match="smoothing: FedAvg has none"):
        fz.run(fz.FedAvg(0.1), toys.quadratic(3, 4), 5, progress=False, stop=fz.certified(0.1))


def test_gradients_that_cannot_be_had_are_refused_before_the_first_round():
    jumps = fz.Nonsmooth(lambda x, batch: jnp.mean(jnp.floor(20 * x)) + 0 * jnp.sum(batch), toys.boxes(3).data, np.full(3, 0.1))
    rows: list = []
    with pytest.raises(fz.InputError, match="loss: its gradients are not"):
        fz.run(METHOD, jumps, 20, stop=fz.certified(0.1, oracle="gradients"), progress=False, log=[rows.append], eval_every=10)
    assert rows == []
