"""Clients over several devices and chunk by chunk: the same run, less memory."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedrzo as fz
from fedrzo import zoo
from fedrzo.engines.simulation import spread
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.engines.simulation.rounds import Span, advance
from fedrzo.zoo import toys
from quadratics import quadratic


@pytest.mark.slow("compiles in a process with several devices")
def test_clients_are_shared_among_devices():
    """Forced CPU devices give the numbers of one, and each really holds its share of the clients."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=3"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    script = Path(__file__).with_name("on_devices.py")
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=900)
    assert done.stdout.strip() == "ok", done.stderr


METHODS = {
    "average": fz.FedRZOnn(0.02, 0.1, 3),
    "gather": fz.FedRZOnn(0.02, 0.1, 3, communication="scalars"),
    "memory": fz.Scaffold(0.02, 3),
}


@pytest.mark.slow("compiles a run twice")
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [None, 5])
def test_chunks_change_nothing(name, size):
    problem = toys.quadratic(clients=7, dim=5)
    plain, chunks = (
        fz.run(METHODS[name], problem, 8, engine=engine, clients_per_round=size, progress=False, eval_every=8)
        for engine in ("simulation", Simulation(client_chunk=3))
    )
    np.testing.assert_allclose(chunks.x, plain.x, rtol=1e-12, atol=1e-14)
    for column in ("upload_bytes", "download_bytes", "evaluations", "gradients"):
        assert chunks.history.last[column] == plain.history.last[column], column


@pytest.mark.slow("compiles a run twice")
def test_a_lower_level_in_chunks():
    problem, method = zoo.make("direct"), fz.FedRZObl(0.01, 0.1, 2, 4)
    plain, chunks = (
        fz.run(method, problem, 4, engine=engine, progress=False, eval_every=4)
        for engine in ("simulation", Simulation(client_chunk=3))
    )
    np.testing.assert_allclose(chunks.x, plain.x, rtol=1e-12, atol=1e-14)
    assert chunks.history.last["lower_steps"] == plain.history.last["lower_steps"]


@pytest.mark.slow("compiles a run twice")
def test_memory_grows_with_the_chunk_and_not_with_the_clients():
    def temporary(clients, chunk):
        problem = toys.quadratic(clients=clients, dim=1000)
        with problem.precision():
            session = Simulation(client_chunk=chunk).start([fz.FedRZOnn(0.02, 0.1, 3)], problem, [jax.random.key(0)], None)
            lowered = advance("cpu", False).lower(
                session.method, session.problem, session.keys, session.carry, Span(np.int32(0), np.int32(1)),
                size=None, spread=session.spread, many=False,
            )  # fmt: skip
            return lowered.compile().memory_analysis().temp_size_in_bytes

    few, many, whole = temporary(20, 10), temporary(80, 10), temporary(80, None)
    assert many < 1.1 * few
    assert whole > 4 * many


@pytest.mark.parametrize("chunk", [0, -1, 2.0, True, "all"])
def test_bad_chunks(chunk):
    with pytest.raises(fz.InputError, match="client_chunk: found"):
        Simulation(client_chunk=chunk)


def test_data_leave_with_their_owner_also_where_a_device_could_use_their_memory():
    """JAX shares memory that is aligned to 64 bytes: one in four allocations, or fewer."""
    before, apart = len(spread._KEPT), []
    with jax.enable_x64(True):
        for i in range(400):
            samples = np.zeros((1000, 200))
            if samples.ctypes.data % 64 == 0:
                break
            apart.append(np.zeros(3 + i % 50))  # so that the next one lies elsewhere
        samples.flags.writeable = False
        spread.sent_once(samples, None)
        del samples
        gc.collect()
    assert len(spread._KEPT) == before


def test_large_data_travel_once_and_leave_with_their_owner():
    """Samples that nobody can change are kept by the device; what can change is sent anew."""
    gc.collect()
    before = len(spread._KEPT)
    data = fz.ClientData([np.zeros((1000, 200))])
    first, second = (spread.sent_once(data.flat, None) for _ in range(2))
    assert first is second
    assert first.dtype == jax.dtypes.canonicalize_dtype(float)
    with jax.enable_x64(True):
        assert spread.sent_once(data.flat, None).dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        data.flat[0] = 1.0
    changing, small = np.zeros((1000, 200)), fz.ClientData([np.zeros(3)]).flat
    assert spread.sent_once(changing, None) is changing
    assert spread.sent_once(small, None) is small
    del data
    gc.collect()
    assert len(spread._KEPT) == before


def test_cores_are_shared_where_it_pays(monkeypatch):
    """Long rounds use all of them, unless copies of the samples would take too much; short ones and common lower levels not."""
    cpu = jax.devices()[:1] * 4
    long, short, bilevel = toys.quadratic(clients=5, dim=100), toys.quadratic(clients=5, dim=99), quadratic()
    assert len(spread.worth_using(long, 5, cpu)) == 4
    assert len(spread.worth_using(long, 4, cpu)) == len(spread.worth_using(short, 5, cpu)) == 1
    assert len(spread.worth_using(bilevel, 10_000, cpu)) == 1
    monkeypatch.setattr(spread, "COPIES", 2 * long.data.flat.nbytes)
    assert len(spread.worth_using(long, 5, cpu)) == 2
    monkeypatch.setattr(spread, "COPIES", 1)
    assert len(spread.worth_using(long, 5, cpu)) == 1


@pytest.mark.slow("a long run")
def test_a_long_run_on_one_of_several_cores_ends_with_a_hint(monkeypatch, capsys):
    monkeypatch.setattr("fedrzo.engines.simulation.engine.cores", lambda: jax.device_count() + 1)
    problem, method = toys.quadratic(clients=5, dim=100), fz.FedRZOnn(0.01, 0.1, 1)
    fz.run(method, problem, 1, progress=True)
    assert "cores" not in capsys.readouterr().err
    monkeypatch.setattr("fedrzo.running.job.LONG_RUN", 0.0)
    fz.run(method, problem, 1, progress=True)
    assert f"JAX_NUM_CPU_DEVICES={jax.device_count() + 1}, set before Python starts" in capsys.readouterr().err
    fz.run(method, problem, 1, engine=Simulation(jax.devices()), progress=True)
    fz.run(method, toys.quadratic(), 1, progress=True)
    assert "cores" not in capsys.readouterr().err
