"""A cluster of three nodes, each a raylet of its own on loopback: actors by memory, a node that dies, one that comes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from raycases import logistic

import fedrzo as fz

COMMON = """
import json, os, subprocess, sys
from pathlib import Path
from fedrzo.engines.ray.cluster import LOCAL, PRIVATE
os.environ.update(PRIVATE | LOCAL)
import numpy as np
import fedrzo as fz
from raycases import logistic

FOLDER = sys.argv[1]

def load(client):
    import ray
    node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "driver"
    with open(Path(FOLDER) / str(client), "a") as notes:
        notes.write(node + chr(10))
    return np.random.default_rng(client).normal(size=(5, 3)) + client / 10

def problem():
    return fz.Nonsmooth(logistic, fz.Loader(load, 10), np.zeros(3))

METHOD, OPTIONS = fz.Scaffold(0.2, 3, batch_size=2), {"key": 3, "clients_per_round": 7, "progress": False}
"""

DRIVER = (
    COMMON
    + """
from ray.cluster_utils import Cluster

MIB = 2**20
local = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "include_dashboard": False}
cluster = Cluster(True, head_node_args={**local, "memory": 250 * MIB, "ray_client_server_port": int(sys.argv[2])})
nodes = [cluster.add_node(**local, memory=memory * MIB) for memory in (250, 650)]

def log(row):
    if row["round"] == 4:
        cluster.remove_node(nodes[1], allow_graceful=False)
        cluster.add_node(**local, memory=900 * MIB)

engine = fz.engines.Ray(cluster.address, actors=5, on_failure="restart")
ours = fz.run(METHOD, problem(), 9, engine=engine, log=[log], **OPTIONS)
print(json.dumps({"x": ours.x.tolist(), "kinds": sorted({event.kind for event in ours.events})}))
try:
    fz.run(METHOD, problem(), 1, engine=fz.engines.Ray(cluster.address, actors=9), **OPTIONS)
except fz.InputError as error:
    print(error)
guest = subprocess.run(
    [sys.executable, "-W", "error", "-c", os.environ["GUEST"], sys.argv[1], "ray://127.0.0.1:" + sys.argv[2]],
    capture_output=True, text=True, timeout=300,
)
print(guest.stdout.strip() or json.dumps(guest.stderr[-2000:]))
cluster.shutdown()
"""
)

GUEST = (
    COMMON
    + """
engine = fz.engines.Ray(sys.argv[2], actors=2)
print(json.dumps(fz.run(METHOD, problem(), 4, engine=engine, **OPTIONS).x.tolist()))
"""
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow("starts four raylets and a dozen actors")
def test_three_nodes_of_which_one_dies_and_another_comes(tmp_path):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]), "GUEST": GUEST}
    command = [sys.executable, "-c", DRIVER, str(tmp_path), str(free_port())]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found, refused, guest = done.stdout.strip().splitlines()[-3:]
    data = fz.ClientData([np.random.default_rng(i).normal(size=(5, 3)) + i / 10 for i in range(10)])
    method, problem = fz.Scaffold(0.2, 3, batch_size=2), fz.Nonsmooth(logistic, data, np.zeros(3))
    for rounds, x in ((9, json.loads(found)["x"]), (4, json.loads(guest))):
        ours = fz.run(method, problem, rounds, key=3, clients_per_round=7, progress=False).x
        np.testing.assert_allclose(x, ours, rtol=1e-9)
    assert json.loads(found)["kinds"] == ["killed"]
    assert refused.startswith("actors: found 9 that take 190 MiB each, but room for 6 on 3 nodes; ask for fewer")
    # Five actors on three nodes with room for one, one and three; those of the third began anew on the fourth.
    before = {client: (tmp_path / str(client)).read_text().split() for client in range(5)}
    first = [before[actor][before[actor][0] == "driver"] for actor in range(5)]
    assert sorted(first.count(node) for node in set(first)) == [1, 1, 3]
    lost = max(set(first), key=first.count)
    moved = {before[actor][1 + (before[actor][0] == "driver")] for actor in range(5) if first[actor] == lost}
    assert len(moved) == 1
    assert moved.isdisjoint(first)
