"""A run on a cluster that ends too soon goes on from its checkpoint, as if it had not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from raycases import assert_same_run, cluster, ray_engine, resumable  # noqa: F401
from sockets import name

import fedrzo as fz
from fedrzo.running.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("cluster")
OPTIONS = {"key": 4, "clients_per_round": 2, "progress": False}

SERVER = """
import json, os, signal, sys, time
import fedrzo as fz
from raycases import resumable
from sockets import descendants, listening, name

def log(row):
    if row["round"] == 3:
        time.sleep(1.1)  # a checkpoint is stored once a second at most: now is the time for another
    if row["round"] == 5:
        found = descendants() - {os.getpid()}
        print(json.dumps({pid: name(pid) for pid in found}), flush=True)
        print(json.dumps([str(address) for _, address in listening(found)]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

method, problem = resumable()
fz.run(method, problem, 9, key=4, clients_per_round=2, engine="ray", checkpoint=sys.argv[1], log=[log], progress=False)
"""


def gone(pids, seconds=30.0):
    pids, until = list(pids), time.monotonic() + seconds
    assert pids
    while time.monotonic() < until:
        if not any(name(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow("starts Ray several times")
def test_a_killed_server_goes_on_to_the_same_x_and_leaves_no_process_behind(tmp_path):
    """The server starts Ray by itself, on loopback, and is killed with SIGKILL after five of nine rounds."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "error", "-c", SERVER, str(tmp_path)]
    server = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert server.returncode == -signal.SIGKILL, server.stderr
    processes, addresses = map(json.loads, server.stdout.splitlines())
    assert {"raylet", "gcs_server", "ray::Worker"} <= set(processes.values())
    assert len(addresses) >= 4
    assert set(addresses) == {"127.0.0.1"}
    assert Checkpoint.read(tmp_path).round == 3
    method, problem = resumable()
    resumed = fz.run(method, problem, 9, engine=ray_engine(), checkpoint=tmp_path, resume=True, **OPTIONS)
    assert_same_run(resumed, fz.run(method, problem, 9, **OPTIONS))
    # Two helpers of Ray, which hold nothing of the run, notice by themselves within a minute or so.
    assert gone(pid for pid, kind in processes.items() if kind not in ("ray::DashboardA", "ray::RuntimeEnv"))


def test_a_checkpoint_passes_from_engine_to_engine(tmp_path):
    """Three rounds on ray, two on the loop, two simulated, two on ray: the clients' memories travel along."""
    method, problem = resumable()
    stages = ((3, ray_engine(actors=2)), (5, "loop"), (7, "simulation"), (9, ray_engine(actors=3)))
    for rounds, engine in stages:
        found = fz.run(method, problem, rounds, engine=engine, checkpoint=tmp_path, resume=True, **OPTIONS)
    np.testing.assert_allclose(found.x, fz.run(method, problem, 9, **OPTIONS).x, rtol=1e-9)
