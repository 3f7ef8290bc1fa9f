"""Nodes that die, lie, sleep and come back, and a server that dies: on real Flower federations."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import inprocess
import numpy as np
import psutil
import pytest
from test_engine import same_history, simulate
from test_real import app, flat, without

from fedrzo.deploy.local import LocalFederation
from fedrzo.deploy.processes import executable
from fedrzo.deploy.server import OUTCOME
from fedrzo.errors import FedrzoError

pytestmark = pytest.mark.flower
SHARED = [{"shared-sampling": True}] * 3


def come_back(federation: LocalFederation, i: int, seconds: float = 150) -> None:
    """Start a killed node until it is let in, as a supervisor would: first Flower must notice that the old one is gone."""
    log, limit = federation.processes.logs / f"node-{i}.log", time.monotonic() + seconds
    while time.monotonic() < limit:
        before = log.stat().st_size
        federation.start_node(i)
        while federation.processes.running[f"node-{i}"].poll() is None and time.monotonic() < limit:
            if b"SuperNode ID" in log.read_bytes()[before:]:
                return
            time.sleep(0.2)
        federation.processes.running.pop(f"node-{i}")
    raise AssertionError(f"node {i} was not let in again: {log.read_text()[-500:]}")


def kill_and_bring_back(federation: LocalFederation) -> Callable[[str], None]:
    """Return what is called with each line of a run: it kills node 2 and its worker after round 1, and brings them back."""

    def called(line: str) -> None:
        if line.startswith("round 1,"):
            federation.processes.kill("node-2")
            federation.processes.kill("worker-2")
        if line.startswith("round 2,"):
            federation.start_worker(2)
            come_back(federation, 2)

    return called


def test_answers_that_cannot_be_used_are_refused_named_and_never_averaged(tmp_path):
    """Client 1 spoils its answer in eight ways, one a round, then oversleeps; after that it is honest, and taken again."""
    liar = app("nn", tmp_path)
    shutil.copy(Path(__file__).with_name("corrupt_app.py"), liar / "federation" / "corrupt.py")
    project = liar / "pyproject.toml"
    project.write_text(project.read_text().replace("federation.client_app:app", "federation.corrupt:app"))
    wanted = ["raised", "not finite", "not finite", "shape", "dtype", "too large", "malformed", "late", "timeout"]
    rounds = len(wanted) + 12
    config = {
        "out": str(tmp_path / "out"), "rounds": rounds, "eval-every": rounds, "timeout": 30.0, "max-reply-ratio": 100.0,
    }  # fmt: skip
    with LocalFederation(3, tmp_path / "work", SHARED) as federation:
        found = federation.run(liar, config, print)
    assert {event.client for event in found.events} == {1}
    assert [event.kind for event in found.events[: len(wanted)]] == wanted
    assert {event.kind for event in found.events[len(wanted) :]} <= {"absent", "timeout"}
    away = {event.round for event in found.events}
    assert away.issuperset(range(len(wanted)))
    assert max(away) < rounds - 1, "it never came back"
    np.testing.assert_allclose(flat(found), without("nn", {1: away}, rounds), rtol=1e-9, atol=1e-12)


def test_a_private_node_that_comes_back_goes_on_with_its_ledger(tmp_path):
    """It is killed in the second round and started again: what it was charged for is in its file, and no loss is ever seen."""
    with LocalFederation(3, tmp_path / "work", [{}] * 3) as federation:
        found = federation.run(
            app("dp", tmp_path), {"out": str(tmp_path / "out"), "rounds": 8, "timeout": 30.0}, kill_and_bring_back(federation)
        )
    assert {event.client for event in found.events} == {2}
    assert "loss" not in found.history
    spent = found.history["epsilon"]
    assert (np.diff(spent) >= 0).all()
    assert 1.9 < spent[-1] <= 2.0
    [ledger] = (tmp_path / "work").rglob("client-2.ledger.json")
    [entry] = json.loads(ledger.read_text())["charges"]
    missed = len({event.round for event in found.events if "monitoring" not in event.detail})
    assert 2 * (8 - missed) <= entry["releases"] <= 2 * 8  # a round may have been charged whose reply was lost


def test_a_node_that_comes_back_takes_part_again(tmp_path):
    """It is killed in the second round and started again; its memory, which the method needs, is in its file."""
    with LocalFederation(3, tmp_path / "work", SHARED) as federation:
        config = {"out": str(tmp_path / "out"), "rounds": 10, "timeout": 30.0}
        found = federation.run(app("memory", tmp_path), config, kill_and_bring_back(federation))
    assert {event.client for event in found.events} == {2}
    away = {event.round for event in found.events if "monitoring" not in event.detail}
    assert away
    assert max(away) < 9, "it never came back"
    np.testing.assert_allclose(flat(found), without("memory", {2: away}, 10), rtol=1e-9, atol=1e-12)


def test_a_server_that_is_killed_goes_on_from_its_checkpoint(tmp_path):
    """The SuperLink and the ServerApp are killed in a round; another SuperLink, with the same nodes' folders, goes on."""
    scaffold, work, out = app("memory", tmp_path), tmp_path / "work", tmp_path / "out"
    config = {"out": str(out), "rounds": 4, "timeout": 60.0}
    with LocalFederation(3, work, SHARED) as federation:

        def crash(line: str) -> None:
            if line.startswith("round 2,"):
                federation.processes.kill("superlink")
                federation.processes.kill("run")

        with pytest.raises(FedrzoError, match="ended without a result"):
            federation.run(scaffold, config, crash)
    assert not (out / OUTCOME).exists()
    with LocalFederation(3, work, SHARED) as federation:
        found = federation.run(scaffold, {**config, "resume": True}, print)
    same_history(found, simulate("memory", 4))


def test_too_few_clients_stop_with_one_line_and_nothing_is_lost(tmp_path):
    nonsmooth, out = app("nn", tmp_path), tmp_path / "out"
    config = {"out": str(out), "rounds": 3, "min-clients": 3, "timeout": 20.0}
    with LocalFederation(3, tmp_path / "work", SHARED) as federation:

        def crash(line: str) -> None:
            if line.startswith("round 1,"):
                federation.processes.kill("node-0")

        with pytest.raises(FedrzoError, match=r"min_clients is 3.*resume"):
            federation.run(nonsmooth, config, crash)
        come_back(federation, 0)
        found = federation.run(nonsmooth, {**config, "resume": True, "timeout": 60.0}, print)
    same_history(found, simulate("nn", 3))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_local_run_leaves_nothing_behind(number, tmp_path):
    nonsmooth, work = app("nn", tmp_path), tmp_path / "work"
    command = [executable("fedrzo"), "deploy", "local", str(nonsmooth), "--nodes", "2", "--keep", str(work)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("waiting for") for line in process.stderr)
        family = psutil.Process(process.pid).children(recursive=True)
        ports = {c.laddr.port for one in family for c in one.net_connections("tcp") if c.status == "LISTEN"}
        assert len(family) >= 8  # SuperLink and two nodes, the executor of each, two workers, the run
        assert len(ports) == 3
        process.send_signal(number)
        assert process.wait(30) != 0
    _, left = psutil.wait_procs(family, 5)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
    listening = [c.laddr.port for c in psutil.net_connections("tcp") if c.status == "LISTEN"]
    assert not ports.intersection(listening)


def test_nodes_without_workers_give_the_same_numbers(tmp_path):
    with LocalFederation(3, tmp_path / "work", SHARED, warm=False) as federation:
        found = federation.run(app("ts", tmp_path), {"out": str(tmp_path / "out")}, print)
    same_history(found, simulate("ts", inprocess.load("ts").rounds))
    assert found.events == []
