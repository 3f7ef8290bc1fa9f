"""Clients over several devices and chunk by chunk: the same run, less memory."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedrzo as fz
from fedrzo import zoo
from fedrzo.engines.simulation import engine as simulation
from fedrzo.zoo import toys

SCRIPT = """
import jax, numpy as np, jax.numpy as jnp, fedrzo as fz
from fedrzo.engines.simulation import engine as simulation
from fedrzo.zoo import toys
assert len(jax.devices()) == 8
method = fz.FedRZOnn(0.02, 0.1, 3)
problem = toys.quadratic(clients=21, dim=5)  # they do not divide by 8: three of them step twice
one, all_, chunks = (
    fz.run(method, problem, 20, engine=simulation.Simulation(*how), progress=False)
    for how in ((jax.devices()[:1],), (), (None, 16))
)
for other in (all_, chunks):
    np.testing.assert_allclose(other.x, one.x, rtol=1e-10)
    for column in ("upload_bytes", "download_bytes", "evaluations"):
        assert other.history.last[column] == one.history.last[column], column
with problem.precision():
    session = simulation.Simulation().start([method], problem, [jax.random.key(0)], None)
    text = simulation.advance("cpu", False).lower(session.method, session.problem, session.key, session.carry,
        (jnp.int32(0), jnp.int32(1)), size=None, spread=session.spread, many=False).compile().as_text()
assert "f64[3,5]" in text and "f64[21,5]" not in text.replace("f64[21,5]{1,0} slice", "")
assert "xla_cpu_small_call" in text  # a device for each core: there are pieces
third = jax.devices()[2]
with problem.precision():
    session = simulation.Simulation([third]).start([method], problem, [jax.random.key(0)], None)
    session.advance(20)
    assert session.carry.state.x.devices() == {third}
    session.restore(session.store(), 20)
    assert session.evaluate()["loss"].shape == (1,) and session.carry.state.x.devices() == {third}
np.testing.assert_array_equal(session.states()[0].x, one.x)
print("ok")
"""


# Rows of rows are shared, too; and of data with a single row a piece, which would not read which row, would end the process.
SPECIAL = """
import dataclasses, jax, numpy as np, fedrzo as fz
from fedrzo.engines.simulation import engine as simulation
from fedrzo.zoo import toys
single, problem = simulation.Simulation(jax.devices()[:1]), toys.quadratic(4, 50)
for method in (fz.FedRZOnn(0.02, 0.1, 3), fz.FedRZOnn(0.02, 0.1, 2, directions=2, communication="scalars")):
    sweep = fz.sweep(method, problem, 6, seeds=1, stepsize=[0.01, 0.02], progress=False)
    for (found,), stepsize in zip(sweep.results, (0.01, 0.02), strict=True):
        one = fz.run(dataclasses.replace(method, stepsize=stepsize), problem, 6, engine=single, progress=False)
        np.testing.assert_allclose(found.x, one.x, rtol=1e-10)
data = fz.ClientData.shared(np.ones((1, 3)), 4)
problem = fz.Nonsmooth(lambda x, batch: jax.numpy.mean(abs(x - batch)), data, np.zeros(3))
for batch_size in (1, "full"):
    method = fz.FedRZOnn(0.02, 0.1, 3, batch_size)
    one, all_ = (fz.run(method, problem, 6, engine=e, progress=False) for e in (single, "simulation"))
    np.testing.assert_allclose(one.x, all_.x, rtol=1e-10)
print("ok")
"""


@pytest.mark.parametrize(("script", "devices"), [(SCRIPT, 8), (SPECIAL, 2)], ids=["many", "special cases"])
def test_clients_are_shared_among_devices(script, devices):
    """Forced CPU devices give the numbers of one, and each really holds its share of the clients."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=180)
    assert done.stdout.strip() == "ok", done.stderr


METHODS = {
    "average": fz.FedRZOnn(0.02, 0.1, 3),
    "gather": fz.FedRZOnn(0.02, 0.1, 3, communication="scalars"),
    "memory": fz.Scaffold(0.02, 3),
}


@pytest.mark.parametrize("name", [n if n == "gather" else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
@pytest.mark.parametrize("size", [None, pytest.param(5, marks=pytest.mark.slow)])
def test_chunks_change_nothing(name, size):
    problem = toys.quadratic(clients=7, dim=5)
    plain, chunks = (
        fz.run(METHODS[name], problem, 8, engine=engine, clients_per_round=size, progress=False, eval_every=8)
        for engine in ("simulation", simulation.Simulation(client_chunk=3))
    )
    np.testing.assert_allclose(chunks.x, plain.x, rtol=1e-12, atol=1e-14)
    for column in ("upload_bytes", "download_bytes", "evaluations", "gradients"):
        assert chunks.history.last[column] == plain.history.last[column], column


@pytest.mark.slow
def test_a_lower_level_in_chunks():
    problem, method = zoo.make("direct"), fz.FedRZObl(0.01, 0.1, 2, 4)
    plain, chunks = (
        fz.run(method, problem, 4, engine=engine, progress=False, eval_every=4)
        for engine in ("simulation", simulation.Simulation(client_chunk=3))
    )
    np.testing.assert_allclose(chunks.x, plain.x, rtol=1e-12, atol=1e-14)
    assert chunks.history.last["lower_steps"] == plain.history.last["lower_steps"]


@pytest.mark.slow
def test_memory_grows_with_the_chunk_and_not_with_the_clients():
    def temporary(clients, chunk):
        problem = toys.quadratic(clients=clients, dim=1000)
        with problem.precision():
            session = simulation.Simulation(client_chunk=chunk).start(
                [fz.FedRZOnn(0.02, 0.1, 3)], problem, [jax.random.key(0)], None
            )
            lowered = simulation.advance("cpu", False).lower(
                session.method, session.problem, session.key, session.carry, (np.int32(0), np.int32(1)),
                size=None, spread=session.spread, many=False,
            )  # fmt: skip
            return lowered.compile().memory_analysis().temp_size_in_bytes

    few, many, whole = temporary(20, 10), temporary(80, 10), temporary(80, None)
    assert many < 1.1 * few
    assert whole > 4 * many


@pytest.mark.parametrize("chunk", [0, -1, 2.0, True, "all"])
def test_bad_chunks(chunk):
    with pytest.raises(fz.InputError, match="client_chunk: found"):
        simulation.Simulation(client_chunk=chunk)
