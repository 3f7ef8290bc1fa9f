"""What needs no federation: the app that is written, a problem's parts, credentials, processes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib

import inprocess
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.cli.main import main
from fedrzo.deploy import parts
from fedrzo.deploy.credentials import make_authority, make_node_key
from fedrzo.deploy.node import NodeServer
from fedrzo.deploy.processes import ProcessError, Processes, free_ports, wait_for_port
from fedrzo.deploy.scaffold import init
from fedrzo.engines.messages.codec import decode_reply
from fedrzo.running.problem_file import UserFile


def test_an_app_is_complete(tmp_path, capsys):
    assert main(["deploy", "init", str(tmp_path / "My App"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert len(files) == 7
    project = tomllib.loads((tmp_path / "My App" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["clients"] == 3
    assert project["project"]["name"] == "my-app"
    example = UserFile(str(tmp_path / "My App" / "federation" / "problem.py"))
    assert fz.run(example.method, example.problem, 2, progress=False).history["loss"][-1] > 0
    assert "@" not in (tmp_path / "My App" / "README.md").read_text().replace("'@", "")
    from flwr.cli.config_utils import load_and_validate

    _, warned = load_and_validate(tmp_path / "My App" / "pyproject.toml")
    assert [line for line in warned if "license" not in line] == []


def test_an_app_of_ones_own_problem(tmp_path, capsys):
    init(tmp_path / "app", str(inprocess.PROBLEMS / "bl.py"))
    assert (tmp_path / "app" / "federation" / "problem.py").read_text() == (inprocess.PROBLEMS / "bl.py").read_text()
    assert main(["deploy", "init", str(tmp_path / "app")]) == 2
    assert "is not empty; pass a new folder" in capsys.readouterr().err
    bare = tmp_path / "bare.py"
    bare.write_text((inprocess.PROBLEMS / "memory.py").read_text().replace("def client_data", "def other"))
    with pytest.raises(fz.InputError, match=r"bare\.py: does not define client_data"):
        init(tmp_path / "other", str(bare))
    assert not (tmp_path / "other").exists()


def test_local_refuses_what_is_no_app(tmp_path, capsys):
    assert main(["deploy", "local", str(tmp_path)]) == 2
    assert "holds no pyproject.toml; write an app there with: fedrzo deploy init" in capsys.readouterr().err
    (tmp_path / "pyproject.toml").touch()
    assert main(["deploy", "local", str(tmp_path), "--nodes", "0"]) == 2
    assert "--nodes: found 0" in capsys.readouterr().err


def test_the_server_sees_neither_data_nor_private_sets():
    file = UserFile(str(inprocess.PROBLEMS / "nn.py"))
    outline = parts.outline(file, 4)
    assert outline.sets.free
    assert outline.clients == 4
    features, targets = outline.data.flat
    assert np.all(features == 1)
    assert np.all(targets == 1)
    own = parts.own_part(file, {"client-id": 1}, 1)
    assert not own.sets.free
    np.testing.assert_array_equal(own.data.flat[0], file.module.client_data({"client-id": 1})[0])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("def client_data", "def forgotten"), r"does not define client_data\(settings\)"),
        (("features @ np.array([1.0, -2.0, 3.0])", "1.0 / 0 + features[:, 0]"), r"line \d+: ZeroDivisionError"),
        (("return features, features", "return features[:, :2], features"), "client_data: found samples of 1 client"),
        (("return fz.sets.Product", "return fz.Product"), r"line \d+: AttributeError"),
        (("method = fz.FedRZOnn", "metod = fz.FedRZOnn"), "does not define method"),
    ],
)
def test_a_file_that_cannot_be_deployed_is_refused_in_one_line(change, line, tmp_path):
    file = tmp_path / "nn.py"
    text = (inprocess.PROBLEMS / "nn.py").read_text()
    assert change[0] in text
    file.write_text(text.replace(*change))
    settings = {"client-id": 0, "state": str(tmp_path)}
    request = {
        "run": {"kind": "hello", "experiment": "e", "seed": 0, "clients": 3, "participants": 3},
        "settings": settings,
        "problem": str(file),
    }
    error = decode_reply(NodeServer().answer(json.dumps(request).encode(), b"", b""), {}).error
    assert error is not None
    assert re.search(line, error), error


def test_constants_that_would_need_all_data_are_asked_for(tmp_path):
    file = tmp_path / "bl.py"
    file.write_text((inprocess.PROBLEMS / "bl.py").read_text().replace("modulus=1.0, ", ""))
    user = UserFile(str(file))
    with user.problem.precision(), pytest.raises(fz.InputError, match="give modulus= and smoothness= of the problem"):
        parts.prepared(user.method, parts.outline(user, 3), user)


def test_one_set_per_client_must_be_private(tmp_path):
    file = tmp_path / "sets.py"
    boxes = "[fz.sets.Box(0.0, 1.0), fz.sets.Box(0.0, 2.0)]"
    text = (inprocess.PROBLEMS / "memory.py").read_text()
    two = "fz.ClientData([np.ones((1, 2))] * 2), x0=np.zeros(2), constraint=" + boxes
    file.write_text(text.replace("fz.ClientData([np.ones((1, 2))]), x0=np.zeros(2)", two))
    with pytest.raises(fz.InputError, match="define client_constraint"):
        parts.outline(UserFile(str(file)), 3)


def test_credentials_are_what_flower_reads(tmp_path):
    import ssl

    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    make_authority(tmp_path)
    ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    make_node_key(tmp_path / "node")
    private = load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node.pub").read_bytes())
    assert private.public_key() == public
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o600


TREE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_processes_are_stopped_with_all_that_they_started(tmp_path, monkeypatch):
    """Even one that does not listen, and its child in a session of its own."""
    monkeypatch.setattr("fedrzo.deploy.processes.GRACE", 1.0)
    with contextlib.suppress(ZeroDivisionError), Processes(tmp_path) as processes:
        parent = processes.start("tree", [sys.executable, "-c", TREE], {})
        while not (text := (tmp_path / "tree.log").read_text()).endswith("\n"):
            time.sleep(0.05)
        family = [parent.pid, int(text)]
        assert all(inprocess.is_running(pid) for pid in family)
        raise ZeroDivisionError
    assert not any(inprocess.is_running(pid) for pid in family)


def test_a_process_that_ends_by_itself_is_named(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start("short", [sys.executable, "-c", "print('no such file')"], {}).wait(30)
        with pytest.raises(ProcessError, match="short ended with status 0: no such file"):
            wait_for_port(free_ports(1)[0], processes, 30)


def test_a_worker_answers_bytes_on_a_socket_of_its_owner_alone(tmp_path):
    from multiprocessing.connection import Client

    socket = tmp_path / "socket"
    command = [sys.executable, "-c", "import sys; from fedrzo.cli.main import main; sys.exit(main(sys.argv[1:]))"]
    process = subprocess.Popen([*command, "deploy", "worker", str(socket)], env={**os.environ, "JAX_PLATFORMS": "cpu"})
    try:
        while not socket.exists():
            assert process.poll() is None
            time.sleep(0.05)
        assert socket.stat().st_mode & 0o777 == 0o600
        settings = {"client-id": 1, "state": str(tmp_path)}
        run = {"kind": "hello", "experiment": "e", "seed": 0, "clients": 3, "participants": 3}
        problem = str(inprocess.PROBLEMS / "memory.py")
        for part in (b"not json", json.dumps({"run": run, "settings": settings, "problem": problem}).encode()):
            with Client(str(socket), "AF_UNIX") as line:
                for one in (part, b"", b""):
                    line.send_bytes(one)
                reply = line.recv_bytes()
        assert b'"client": 1' in reply
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not socket.exists()
    finally:
        process.kill()
