"""Many clients in few actors: the same numbers, bytes that do not grow with them, and data that only actors load."""

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from raycases import assert_same_run, cluster, ray_engine  # noqa: F401

import fedrzo as fz

pytestmark = pytest.mark.usefixtures("cluster")
WIRE = ("wire_upload_bytes", "wire_download_bytes")


def distance(x, batch):
    return jnp.mean(jnp.abs(batch @ x - 1))


def samples(i):
    return np.random.default_rng(i).normal(size=(3 + i % 2, 4))


def many(clients, weights="samples"):
    return fz.Nonsmooth(distance, fz.ClientData([samples(i) for i in range(clients)]), np.zeros(4), weights=weights)


@fz.method
class Drift(fz.Method):
    """Clients add one of their samples to x: little to compile."""

    def round(self, federation, state, r):
        return fz.State(federation.average(self.client_steps, state.x))

    def client_steps(self, client, key, memory, x):
        return fz.Reply(x + client.sample(key, 1)[0], evaluations=3)


def test_forty_clients_send_no_more_bytes_than_ten():
    found = {}
    for clients in (10, 40):
        options = {"rounds": 4, "key": 2, "progress": False}
        ours = fz.run(Drift(), many(clients), engine=ray_engine(actors=2), **options)
        assert_same_run(ours, fz.run(Drift(), many(clients), **options))
        found[clients] = [ours.history.last[name] for name in WIRE]
    assert found[10] == found[40]


CASES = {
    "cohorts": (fz.FedRZOnn(0.05, 0.1, 3), 7),
    "memory, one reply each": (fz.Scaffold(0.05, 3, batch_size=2), 7),
    "memory, averaged": (fz.Scaffnew(0.05, 0.5, batch_size=2), None),
}


@pytest.mark.slow("compiles programs for several numbers of clients, in two processes")
@pytest.mark.parametrize("name", CASES)
def test_cohorts_and_memories_are_the_simulations(name):
    method, size = CASES[name]
    options = {"rounds": 6, "key": 2, "clients_per_round": size, "progress": False}
    ours = fz.run(method, many(12, "uniform"), engine=ray_engine(actors=2), **options)
    assert ours.events == []
    assert_same_run(ours, fz.run(method, many(12, "uniform"), **options))


@fz.method
class OneIsLost(fz.Method):
    """From round 1 on, client 5 sends no number."""

    def round(self, federation, state, r):
        return fz.State(federation.average(self.client_steps, state.x))

    def client_steps(self, client, key, memory, x):
        lost = (client.id == 5) & (client.round > 0)
        return fz.Reply(x + jnp.where(lost, jnp.nan, client.id), evaluations=3)


def test_a_client_that_sends_no_number_is_named_though_its_actor_sends_a_sum():
    result = fz.run(OneIsLost(), many(8, "uniform"), 3, engine=ray_engine(actors=2), progress=False)
    assert [(e.round, e.client, e.kind, e.detail) for e in result.events] == [
        (r, 5, "not finite", "found nan in 4 of 4 numbers") for r in (1, 2)
    ]
    np.testing.assert_allclose(result.x, np.full(4, 28 / 8 + 2 * 23 / 7), rtol=1e-12)
    assert list(result.history["evaluations"]) == [0, 24, 45, 66]


def loading(folder: Path):
    """A loader that leaves a note of who loaded what."""

    def load(i):
        (folder / f"{i} {os.getpid()}").touch()
        return samples(i)

    return fz.Loader(load, 6, sizes=[3, 4] * 3)


def test_clients_data_are_loaded_by_their_actors_alone(tmp_path):
    options = {"rounds": 5, "key": 2, "progress": False}
    far = fz.Nonsmooth(distance, loading(tmp_path), np.zeros(4), weights="samples", test=samples(9))
    ours = fz.run(Drift(), far, engine=ray_engine(actors=2), **options)
    notes = [note.name.split() for note in tmp_path.iterdir()]
    here = fz.Nonsmooth(distance, far.data.loaded(), np.zeros(4), weights="samples", test=samples(9))
    assert_same_run(ours, fz.run(Drift(), here, **options))
    assert [client for client, pid in notes if int(pid) == os.getpid()] == ["0"]
    assert sorted(client for client, pid in notes if int(pid) != os.getpid()) == list("012345")


def upper(x, y, batch):
    return 0.5 * jnp.sum((y - 1) ** 2) + 0.05 * jnp.sum(x**2) + 0.1 * jnp.mean(batch)


def lower(x, y, batch):
    return 0.5 * jnp.mean(jnp.sum((y - x - batch) ** 2, axis=-1))


@pytest.mark.slow("compiles a bilevel method in two processes")
def test_a_lower_level_over_data_that_nobody_has_is_monitored(tmp_path):
    options = {"rounds": 3, "key": 2, "progress": False}
    method = fz.FedRZObl(0.05, 0.1, 3, lower=fz.LocalSGD(batch_size="full", rounds=4))

    def solved(data, engine):
        problem = fz.Bilevel(upper, lower, data, np.zeros(4), np.zeros(4), modulus=1.0, smoothness=1.0)
        return fz.run(method, problem, engine=engine, **options)

    ours = solved(loading(tmp_path), ray_engine(actors=2))
    theirs = solved(fz.ClientData([samples(i) for i in range(6)]), "simulation")
    np.testing.assert_allclose(ours.x, theirs.x, rtol=1e-9)
    np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-9)
    np.testing.assert_allclose(ours.y, theirs.y, rtol=1e-6)
