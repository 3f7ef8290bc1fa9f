"""The ray engine computes what the simulation does, counts what it counts, and keeps to this machine."""

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from raycases import assert_same_run, cluster, ray_engine, resumable  # noqa: F401
from sockets import descendants, listening

import fedrzo as fz
from fedrzo.federation.estimators import measure_noise
from fedrzo.problems.inputs import one_sample
from halved import halved

pytestmark = pytest.mark.usefixtures("cluster")
CLIENTS = 3
SETS = [fz.sets.Box(-1.0, 1.0), fz.sets.Ball(np.zeros(2), 1.5), fz.sets.Box(-2.0, 0.5)]


def samples(dtype=np.float64):
    rng = np.random.default_rng(0)
    return fz.ClientData([rng.normal(size=(4 + i, 2)).astype(dtype) for i in range(CLIENTS)])


def distance(x, batch):
    return jnp.mean(jnp.abs(batch @ x - 1))


def nonsmooth(dtype=np.float64):
    return fz.Nonsmooth(distance, samples(dtype), np.zeros(2, dtype), SETS, weights="samples")


def upper(x, y, batch):
    return 0.5 * jnp.sum((y - 1) ** 2) + 0.05 * jnp.sum(x**2) + 0.1 * jnp.mean(batch)


def lower(x, y, batch):
    return 0.5 * jnp.mean(jnp.sum((y - x - batch) ** 2, axis=-1))


def bilevel():
    return fz.Bilevel(upper, lower, samples(), np.zeros(2), np.zeros(2), SETS, modulus=1.0, smoothness=1.0)


def scenario_loss(x, y, xi):
    return 0.5 * jnp.sum((x - 1) ** 2) + 0.5 * jnp.sum(y**2) + xi[0] * jnp.sum(x)


def scenario_map(x, y, xi):
    return jnp.array([[2.0, 0.5], [-0.3, 1.5]]) @ y - x - xi


def two_stage():
    return fz.TwoStage(
        scenario_loss, scenario_map, samples(), np.zeros(2), np.zeros(2), fz.sets.Box(-2.0, 2.0), fz.sets.Box(0.0, 1.0),
        modulus=1.0, smoothness=3.0, monitor=fz.vi.Projection(steps=60),
    )  # fmt: skip


def unconstrained():
    return fz.Nonsmooth(distance, samples(), np.zeros(2))


def long():
    """A problem of 60 variables, so that slopes and records of them are smaller than x."""
    rng = np.random.default_rng(0)
    data = fz.ClientData([rng.normal(size=(4 + i, 60)) for i in range(CLIENTS)])
    return fz.Nonsmooth(distance, data, np.zeros(60), fz.sets.Public(fz.sets.Box(-0.1, 0.1)))


LOWER = fz.LocalSGD(batch_size="full", rounds=4)
CASES = {
    "FedRZO_nn": (fz.FedRZOnn(0.05, 0.1, 4), nonsmooth, None),
    "FedRZO_bl": (fz.FedRZObl(0.05, 0.1, 3, lower=LOWER), bilevel, None),
    "FedRZO_2s": (fz.FedRZO2s(0.05, 0.1, 3, solver=fz.vi.Projection(steps=20)), two_stage, None),
    "Scaffold, 2 of 3": (fz.Scaffold(0.05, 3), unconstrained, 2),
    "scalars": (fz.FedRZOnn(0.001, 0.1, 3, communication="scalars"), long, None),
    "scalars, 2 of 3": (fz.FedRZOnn(0.001, 0.1, 3, communication="scalars"), long, 2),
    "scalars of FedRZO_bl, 2 of 3": (fz.FedRZObl(0.01, 0.1, 3, communication="scalars", lower=LOWER), halved, 2),
    "DeComFL, 2 of 3": (fz.DeComFL(0.01, 0.01, momentum=0.5), unconstrained, 2),
}


OFTEN = ("FedRZO_nn",)


@pytest.mark.parametrize(
    "name",
    [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow("starts a process for every client")) for n in CASES],
)
def test_x_history_and_counted_bytes_are_the_simulations(name):
    method, problem, size = CASES[name]
    options = {"rounds": 8, "key": 3, "clients_per_round": size, "progress": False}
    ours = fz.run(method, problem(), engine=ray_engine(actors=2), **options)
    assert_same_run(ours, fz.run(method, problem(), **options))
    assert ours.events == []
    last = ours.history.last
    for way in ("upload_bytes", "download_bytes"):
        assert last[f"wire_{way}"] > last[way] > 0


@pytest.mark.slow("starts a process for every client")
def test_float32_rounds_agree_within_the_rounding_noise_of_the_estimator():
    """Each round starts from the simulation's x, since tiny differences grow from round to round."""
    problem, method, key = nonsmooth(np.float32), fz.FedRZOnn(0.05, 0.1, 4), jax.random.key(5)
    noise = measure_noise(problem, one_sample(problem.data), np.zeros(2, np.float32), 0.1).rounding
    fast = fz.engines.Simulation().start([method], problem, [key], None)
    plain = ray_engine(actors=2).start([method], problem, [key], None)
    try:
        for r in range(6):
            plain.state, plain.round = jax.tree.map(jnp.asarray, fast.states()[0]), r
            fast.advance(1)
            plain.advance(1)
            ours, theirs = plain.states()[0].x, fast.states()[0].x
            assert ours.dtype == theirs.dtype == np.float32
            # Four steps of 0.05 with estimates that are off by the noise, and the rounding of x itself.
            spacing = 4 * np.spacing(np.abs(theirs).max())
            assert np.linalg.norm(ours - theirs) <= 4 * 0.05 * noise + spacing
    finally:
        plain.close()
    assert noise > 0


def test_it_listens_on_loopback_alone():
    found = listening(descendants())
    assert {"raylet", "gcs_server"} <= {name for name, _ in found}
    assert [entry for entry in found if not entry[1].is_loopback] == []


def test_actors_hold_the_data_of_their_own_clients_alone():
    session = ray_engine(actors=2).start([fz.FedRZOnn(0.05, 0.1, 4)], nonsmooth(), [jax.random.key(0)], None)
    try:
        import ray

        started = [pickle.loads(ray.get(actor.init)) for actor in session.actors]
    finally:
        session.close()
    assert [init.clients for init in started] == [(0, 2), (1,)]
    rows = [np.asarray(init.problem.data.flat) for init in started]
    whole = np.split(samples().flat, [4, 9])
    np.testing.assert_array_equal(rows[0], np.concatenate([whole[0], whole[2]]))
    np.testing.assert_array_equal(rows[1], whole[1])
    assert [type(member).__name__ for member in started[1].problem.sets.members()] == ["Ball"]


GUEST = """
import sys
from typing import NamedTuple
import fedrzo as fz
from raycases import resumable
try:
    fz.run(*resumable(), 1, engine=fz.engines.Ray("127.0.0.1:1"), progress=False)
except fz.InputError as error:
    print(error)
engine = fz.engines.Ray(sys.argv[1], actors=1)
print(fz.run(*resumable(), 3, engine=engine, progress=False).x.tolist())

class Pair(NamedTuple):
    one: object
    other: object

@fz.method
class OfThisScript(fz.Method):
    length: float

    def round(self, federation, state, r):
        return fz.State(federation.average(self.client_steps, Pair(state.x, state.x)))

    def client_steps(self, client, key, memory, pair):
        return fz.Reply(pair.one + pair.other + self.length)

print(fz.run(OfThisScript(0.5), resumable()[1], 2, engine=engine, progress=False).x.tolist())
"""


@pytest.mark.slow("starts a process for every client")
def test_another_process_joins_by_address_and_leaves_the_cluster_as_it_was():
    import ray

    address = ray.get_runtime_context().gcs_address
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_ENABLE")}
    env["PYTHONPATH"] = str(Path(__file__).parent)
    command = [sys.executable, "-W", "error", "-c", GUEST, address]
    guest = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert guest.returncode == 0, guest.stderr
    refused, x, own = guest.stdout.splitlines()
    assert refused.startswith("address: found '127.0.0.1:1'; no Ray cluster can be used there: [Errno 111] Connection refused")
    ours = fz.run(*resumable(), 3, progress=False).x
    np.testing.assert_allclose(json.loads(x), ours, rtol=1e-9)
    assert json.loads(own) == [1.5] * 3  # a method, and a named tuple, that no module has
    assert ray.cluster_resources()["CPU"] > 0


def test_two_clusters_at_once_are_refused():
    with pytest.raises(fz.InputError, match=r"address: found '10.0.0.1:6379'; this process is connected to 127.0.0.1:"):
        fz.run(*resumable(), 1, engine=fz.engines.Ray("10.0.0.1:6379"), progress=False)


def test_a_problem_that_cannot_travel_is_refused_before_the_first_round():
    lock = threading.Lock()

    def guarded(x, batch):
        with lock:
            return distance(x, batch)

    problem = fz.Nonsmooth(guarded, samples(), np.zeros(2))
    with pytest.raises(fz.InputError, match=r"problem: it cannot be sent to an actor \(TypeError: .*lock"):
        fz.run(fz.FedRZOnn(0.05, 0.1, 4), problem, 1, engine=ray_engine(), progress=False)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"on_failure": "ignore"}, r"on_failure: found 'ignore'; pass one of 'drop', 'restart', 'raise'"),
        ({"actors": 0}, r"actors: found 0; pass a whole number of at least 1, or None"),
        ({"timeout": -1}, r"timeout: found -1; pass seconds, or None"),
        ({"min_clients": 0}, r"min_clients: found 0; pass a whole number of at least 1"),
        ({"max_reply_ratio": 1.0}, r"max_reply_ratio: found 1.0; pass a number above 1, or None"),
    ],
)
def test_bad_settings_are_refused(options, line):
    with pytest.raises(fz.InputError, match=line):
        fz.engines.Ray(**options)
