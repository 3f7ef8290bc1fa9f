"""Many clients in few actors: the same numbers, bytes that do not grow with them, and data that only actors load."""

import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from raycases import assert_same_run, cluster, ray_engine  # noqa: F401

import fedrzo as fz
from fedrzo.engines.messages.receive import FederationError
from fedrzo.engines.ray.placement import arranged

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


def test_a_run_with_a_loader_goes_on_where_all_samples_are(tmp_path):
    problem, options = fz.Nonsmooth(distance, fz.Loader(samples, 4, [3, 4] * 2), np.zeros(4)), {"key": 2, "progress": False}
    folder = tmp_path / "checkpoint"
    fz.run(Drift(), problem, 2, engine=ray_engine(actors=2), checkpoint=folder, **options)
    ours = fz.run(Drift(), problem, 4, checkpoint=folder, resume=True, **options)
    np.testing.assert_allclose(ours.x, fz.run(Drift(), problem, 4, **options).x, rtol=1e-12)


def fragile(x, batch):
    if batch.shape[0] == 4:
        raise ArithmeticError("no solution")
    return float(np.abs(batch @ x - 1).mean())


def test_an_actor_whose_loss_fails_while_it_is_looked_at_is_left_out_of_the_row():
    problem = fz.Nonsmooth(fz.blackbox(fragile), fz.Loader(samples, 4, [3, 4] * 2), np.zeros(4, np.float32))
    result = fz.run(Drift(), problem, 1, engine=ray_engine(actors=2), key=2, progress=False)
    assert [(e.round, e.client, e.kind) for e in result.events] == [(r, i, "raised") for r in (0, 1) for i in (1, 3)]
    assert "while monitoring" in result.events[0].detail
    assert "no solution" in result.events[0].detail
    assert np.isfinite(result.history["loss"]).all()
    np.testing.assert_allclose(result.x, fz.run(Drift(), many(4, "uniform"), 1, key=2, progress=False).x, rtol=1e-5)


@pytest.mark.slow("an actor is killed, and does not start anew")
def test_an_actor_that_cannot_load_its_data_anew_says_why(tmp_path):
    def load(i):
        if i == 1 and (tmp_path / "lost").exists():
            raise FileNotFoundError("client_1.npy")
        return samples(i)

    def lose(row):
        if row["round"] == 1 and not (tmp_path / "lost").exists():
            (tmp_path / "lost").touch()
            (tmp_path / "kill").touch()

    problem = fz.Nonsmooth(distance, fz.Loader(load, 2, [3, 4]), np.zeros(4))
    engine = ray_engine(actors=2, on_failure="restart")
    with pytest.raises(FederationError, match=r"client 1 failed to start anew: .*FileNotFoundError: client_1.npy"):
        fz.run(Dies(str(tmp_path / "kill")), problem, 4, engine=engine, log=[lose], progress=False)


@fz.method
class Dies(Drift):
    """Client 1's process ends once there is a file that says so."""

    note: str = fz.methods.base.static(default="")

    def client_steps(self, client, key, memory, x):
        def end(value, rows):
            if rows == 4 and Path(self.note).exists():
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        rows = client.level.data.sizes[client.index]
        return fz.Reply(jax.pure_callback(end, jax.ShapeDtypeStruct(x.shape, x.dtype), x, rows), evaluations=3)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"num_gpus": 1000}, r"actors: found 2 that take 190 MiB and 1000 GPU each, but room for 0 on 1 node; ask for fewer"),
        ({"resources": {"silo": 0.5}}, r"actors: found 2 that take 190 MiB and 0.5 silo each, but room for 0 on 1 node"),
        ({"memory": 2**60}, r"actors: found 2 that take 1,099,511,627,776 MiB each, but room for 0 on 1 node"),
    ],
)
def test_what_the_cluster_does_not_have_is_not_waited_for(options, line):
    with pytest.raises(fz.InputError, match=line):
        fz.run(Drift(), many(4), 1, engine=fz.engines.Ray(actors=2, options=options), progress=False)


def test_there_are_as_many_actors_as_there_is_room_for():
    problem, free = many(6), {"num_cpus": 0}

    class Cluster:  # what Ray says of a cluster with two nodes, as this machine has no GPU
        def cluster_resources(self):
            return {"CPU": 16.0, "GPU": 2.0}

        def nodes(self):
            room = {"CPU": 8.0, "memory": 2.0**31}
            return [{"Alive": True, "Resources": room | {"GPU": 2.0}}, {"Alive": True, "Resources": room}]

    def found(actors=None, platform="cuda", **options):
        count, given = arranged(Cluster(), problem, actors, free | options, platform)
        return count, given.get("num_gpus")

    assert found() == (2, 1)  # a GPU each
    assert found(actors=3) == (3, 0.5)
    assert found(actors=5) == (5, 0.3333)
    assert found(num_gpus=0.5) == (4, 0.5)
    assert found(platform="cpu") == (6, None)
    assert found(platform="cpu", memory=2**30) == (4, None)
