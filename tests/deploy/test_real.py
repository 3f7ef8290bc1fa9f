"""One real Flower run: a SuperLink and three SuperNodes on loopback, TLS and node authentication on, one node killed."""

import contextlib
import socket
from pathlib import Path
from typing import Any

import inprocess
import jax
import numpy as np
import psutil
import pytest
from test_engine import same_history, simulate

import fedrzo as fz
from fedrzo.deploy.local import LocalFederation
from fedrzo.deploy.scaffold import init
from fedrzo.engines.loop import LoopSession
from fedrzo.engines.messages.codec import Message


def app(name: str, folder: Path) -> Path:
    init(folder / name, str(inprocess.PROBLEMS / f"{name}.py"))
    return folder / name


def flat(result: fz.Result) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.x)])


def without(name: str, missing: dict[int, set[int]], rounds: int, clients: int = 3) -> np.ndarray:
    """Run client by client, leaving out some clients in some rounds: x at the end, computed by the loop engine's nodes."""
    module = inprocess.load(name)
    problem = module.whole(clients)

    class Thinned(LoopSession):
        def deliver(self, message: Message, ids: Any) -> Any:
            return super().deliver(message, [i for i in ids if message.path[0] not in missing.get(int(i), ())])

    with problem.precision():
        session = Thinned(module.method, problem, jax.random.key(0), None)
        session.advance(rounds)
        return session.states()[0].x


@pytest.mark.slow("a SuperLink and three SuperNodes, two runs: two minutes, most of them Flower's waiting")
def test_a_real_federation(tmp_path):
    settings = [{"shared-sampling": True}] * 3
    ours = psutil.Process()
    others = {child.pid for child in ours.children(recursive=True)}  # of other tests
    with LocalFederation(3, tmp_path / "work", settings) as federation:
        lines: list[str] = []
        bilevel = federation.run(app("bl", tmp_path), {"out": str(tmp_path / "bl-out"), "timeout": 600.0}, lines.append)
        same_history(bilevel, simulate("bl", 1))
        assert bilevel.events == []

        def kill_one(line: str) -> None:
            lines.append(line)
            if line.startswith("round 0"):
                federation.processes.kill("node-2")

        out = str(tmp_path / "nn-out")
        config = {"out": out, "rounds": 3, "eval-every": 3, "timeout": 60.0}
        nonsmooth = federation.run(app("nn", tmp_path), config, kill_one)
        assert {event.client for event in nonsmooth.events} == {2}
        first = nonsmooth.events[0]
        assert first.kind in ("timeout", "killed")
        x = without("nn", {2: set(range(first.round, 3))}, 3)
        np.testing.assert_allclose(flat(nonsmooth), x, rtol=1e-9, atol=1e-12)
        last = nonsmooth.history.last
        assert last["failures"] == len(nonsmooth.events)
        assert last["wire_upload_bytes"] > last["upload_bytes"] > 0
        family = [child.pid for child in ours.children(recursive=True) if child.pid not in others]
        listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.pid in family and c.status == "LISTEN"}
        assert len(listening) >= 3
    assert not [pid for pid in family if inprocess.is_running(pid)]
    for port in listening:
        with pytest.raises(OSError, match="refused"), contextlib.closing(socket.create_connection(("127.0.0.1", port))):
            pass
