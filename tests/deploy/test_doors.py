"""Closed doors: who has no registered key, no TLS or another authority's certificate is refused by the running SuperLink."""

import http.client
import socket
import ssl
import time
from pathlib import Path

import psutil
import pytest

from fedrzo.deploy.credentials import make_authority, make_node_key
from fedrzo.deploy.local import CONNECTION, LocalFederation
from fedrzo.deploy.processes import ProcessError, executable, free_ports

pytestmark = pytest.mark.flower
REFUSED = 40  # seconds for a refusal to show


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A SuperLink with one node, which is registered."""
    with LocalFederation(1, tmp_path_factory.mktemp("doors"), warm=False) as started:
        wait(started, "node-0", "SuperNode ID")
        yield started


def wait(federation: LocalFederation, name: str, text: str, seconds: float = REFUSED) -> str:
    """Wait until a process has written something."""
    log, limit = federation.processes.logs / f"{name}.log", time.monotonic() + seconds
    while time.monotonic() < limit:
        if log.exists() and text in log.read_text():
            return log.read_text()
        time.sleep(0.2)
    raise AssertionError(f"{name} never wrote {text!r}: {log.read_text()[-2000:]}")


def knock(federation: LocalFederation, name: str, *flags: str) -> None:
    """Start a SuperNode of one's own making."""
    command = [
        executable("flower-supernode"), "--superlink", federation.address, "--host", "127.0.0.1", "--port", str(free_ports(1)[0]),
        "--max-retries", "1", "--max-wait-time", "5", *flags,
    ]  # fmt: skip
    federation.processes.start(name, command, federation.environment(name))


def nobody_came_in(federation: LocalFederation, name: str) -> None:
    assert "SuperNode ID" not in (federation.processes.logs / f"{name}.log").read_text()
    listed = federation.flwr(["supernode", "list", CONNECTION, "--format", "json"])
    assert listed.count('"online"') == 1, listed
    federation.processes.kill(name)


def key(folder: Path) -> list[str]:
    make_node_key(folder / "key")
    return ["--auth-supernode-private-key", str(folder / "key")]


def test_an_unregistered_key_is_refused(federation, tmp_path):
    knock(federation, "stranger", "--root-certificates", str(federation.credential("ca.crt")), *key(tmp_path))
    process = federation.processes.running["stranger"]
    assert process.wait(REFUSED) != 0
    nobody_came_in(federation, "stranger")


def test_a_node_without_a_key_is_refused(federation):
    knock(federation, "keyless", "--root-certificates", str(federation.credential("ca.crt")))
    assert federation.processes.running["keyless"].wait(REFUSED) != 0
    nobody_came_in(federation, "keyless")


def test_a_node_without_tls_is_refused(federation):
    knock(federation, "plain", "--insecure")
    time.sleep(8)  # it may go on trying: what counts is that it never comes in
    nobody_came_in(federation, "plain")


def test_a_node_that_trusts_another_authority_does_not_connect(federation, tmp_path):
    make_authority(tmp_path / "other")
    registered = ["--auth-supernode-private-key", str(federation.credential("node-0"))]
    knock(federation, "mistrust", "--root-certificates", str(tmp_path / "other" / "ca.crt"), *registered)
    time.sleep(8)
    nobody_came_in(federation, "mistrust")


def test_plaintext_and_strange_certificates_get_no_answer(federation, tmp_path):
    plain = http.client.HTTPConnection("127.0.0.1", federation.port, timeout=5)
    plain.request("POST", "/v1/fleet/pull-messages", b"")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
    make_authority(tmp_path)
    strange = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", federation.port)) as line,
        pytest.raises(ssl.SSLCertVerificationError),
        strange.wrap_socket(line, server_hostname="localhost"),
    ):
        pass


def test_the_command_line_needs_the_right_authority(federation, tmp_path):
    make_authority(tmp_path)
    federation.connect("other", **{"root-certificates": str(tmp_path / "ca.crt")})
    with pytest.raises(ProcessError, match=r"(?i)certificate|ssl|connect"):
        federation.flwr(["supernode", "list", "other"])
    federation.connect(CONNECTION)


def test_nothing_listens_beyond_loopback_and_nobody_calls_out(federation):
    family = psutil.Process().children(recursive=True)
    connections = [c for one in family if one.is_running() for c in one.net_connections("inet")]
    assert connections
    assert {c.laddr.ip for c in connections} | {c.raddr.ip for c in connections if c.raddr} <= {"127.0.0.1"}


def test_secrets_are_their_owners_alone(federation):
    for name in ("server.key", "node-0"):
        assert federation.credential(name).stat().st_mode & 0o777 == 0o600
