"""Run by `test_spread.py` in a process of its own, in which the CPU is three devices: it ends with an error, or prints ok."""

import dataclasses

import jax
import numpy as np

import fedrzo as fz
from fedrzo.engines.loop import Loop
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.engines.simulation.rounds import Span, advance
from fedrzo.zoo import toys

ROUNDS, SPAN = 3, Span(np.int32(0), np.int32(3))
FIRST, _, THIRD = jax.devices()
METHOD = fz.FedRZOnn(0.02, 0.1, 3)
PROBLEM = toys.quadratic(clients=7, dim=5)  # they do not divide by 3: two of them step twice


def started(*methods, engine=None):
    methods = [method.for_cohort(PROBLEM, PROBLEM.clients) for method in methods]
    return (engine or Simulation(jax.devices())).start(methods, PROBLEM, [jax.random.key(0)] * len(methods), None)


def finished(*methods, engine=None):
    session = started(*methods, engine=engine)
    session.advance(ROUNDS)
    return session


def check(session, *methods):
    """Compare with the same runs client by client, on one device."""
    for state, cost, method in zip(session.states(), session.costs(), methods, strict=True):
        one = finished(method, engine=Loop())
        np.testing.assert_allclose(state.x, one.states()[0].x, rtol=1e-10)
        assert [cost] == one.costs()


def clients_that_devices_share():
    session = started(METHOD)
    arguments = (session.method, session.problem, session.keys, session.carry, SPAN)
    program = advance("cpu", False).lower(*arguments, size=None, spread=session.spread, many=False).compile()
    text = program.as_text()
    assert "f64[3,5]" in text
    assert "f64[7,5]" not in text.replace("f64[7,5]{1,0} slice", "")
    session.carry, _ = program(*arguments)
    check(session, METHOD)


def a_device_that_is_not_the_first():
    method = fz.FedAvg(0.02, 1)
    session, one = finished(method, engine=Simulation([THIRD])), finished(method, engine=Loop())
    assert session.carry.state.x.devices() == {THIRD}
    session.restore(session.store(), ROUNDS)
    assert session.evaluate()["loss"].shape == (1,)
    assert session.carry.state.x.devices() == {THIRD}
    np.testing.assert_allclose(session.states()[0].x, one.states()[0].x, rtol=1e-10)


def rows_of_rows():
    """Runs side by side are shared, too, and so is what each client answers for itself."""
    method = fz.FedRZOnn(0.02, 0.1, 2, directions=2, communication="scalars")
    pair = [dataclasses.replace(method, stepsize=stepsize) for stepsize in (0.01, 0.02)]
    check(finished(*pair), *pair)


with PROBLEM.precision():
    clients_that_devices_share()
    a_device_that_is_not_the_first()
    rows_of_rows()
print("ok")
