"""A network that delays, stalls, cuts and loses, between real SuperNodes and their SuperLink."""

import collections
import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Self

import inprocess
import numpy as np
import pytest
from proxy import HOST, Proxy, Weather
from test_engine import simulate
from test_real import app, flat, without

import fedrzo as fz
from fedrzo.deploy.local import LocalFederation
from fedrzo.engines.flower import post

NODES = 2


class Faraway(LocalFederation):
    """A federation whose nodes reach their SuperLink over a bad network, each by a line of its own."""

    def __init__(self, work: Path, weather: Weather) -> None:
        super().__init__(NODES, work, [{"shared-sampling": True}] * NODES)
        self.proxies = [Proxy(self.port, weather, seed) for seed in range(NODES)]

    def __enter__(self) -> Self:
        for proxy in self.proxies:
            proxy.__enter__()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for proxy in self.proxies:
            proxy.__exit__()

    def start_node(self, i: int, *flags: str) -> None:
        super().start_node(i, *flags, "--superlink", f"{HOST}:{self.proxies[i].port}")  # the last address counts

    @property
    def counts(self) -> collections.Counter[str]:
        return sum((proxy.counts for proxy in self.proxies), collections.Counter())


def over(weather: Weather, rounds: int, folder: Path, timeout: float = 30.0) -> tuple[fz.Result, collections.Counter[str]]:
    """Run over a network: x is that of all clients but those whom events name, in the rounds that they name."""
    config = {"out": str(folder / "out"), "rounds": rounds, "eval-every": rounds, "timeout": timeout}
    with Faraway(folder / "work", weather) as federation:
        try:
            found = federation.run(app("nn", folder), config, print)
        except fz.FedrzoError as error:  # a round that the network kept from all nodes; the message says how to go on
            if "min_clients" not in str(error):
                raise
            found = federation.run(app("nn", folder), config | {"resume": True}, print)
        counts = federation.counts
    missing: dict[int, set[int]] = {}
    for event in found.events:
        assert event.kind in ("timeout", "absent", "killed"), event
        if "monitoring" not in event.detail:
            missing.setdefault(event.client, set()).add(event.round)
    np.testing.assert_allclose(flat(found), without("nn", missing, rounds, NODES), rtol=1e-9, atol=1e-12)
    return found, counts


def echo(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):
                while data := line.recv(100):
                    line.sendall(data)


def asked(port: int) -> bool:
    """Ask an echo over a connection of its own; tell whether it answered."""
    with contextlib.suppress(ConnectionError), socket.create_connection((HOST, port)) as line:
        line.sendall(b"hello")
        return line.recv(100) == b"hello"
    return False


def test_the_proxy_does_what_it_says():
    with socket.create_server((HOST, 0)) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        with Proxy(server.getsockname()[1], Weather(cut=0.2, lose=0.2), 0) as proxy:
            answered = sum(asked(proxy.port) for _ in range(200))
        assert proxy.counts["requests"] == 200
        assert answered == 200 - proxy.counts["connections cut"] - proxy.counts["answers lost"]
        assert 20 < proxy.counts["connections cut"] < 60
        assert 20 < proxy.counts["answers lost"] < 60
        with Proxy(server.getsockname()[1], Weather(stall=1.0, stall_seconds=0.2), 0) as proxy:
            began = time.monotonic()
            assert asked(proxy.port)
            assert time.monotonic() - began > 0.2


def test_a_node_whose_greeting_was_lost_is_greeted_again(tmp_path, monkeypatch):
    monkeypatch.setattr(post, "AGAIN", 0.5)
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path))
    pull = grid.pull_messages
    monkeypatch.setattr(grid, "pull_messages", lambda ids: pull([i for i in ids if i != "1"]))  # a lost answer
    found = inprocess.run("memory", tmp_path, grid, rounds=1)
    assert found.events == []
    np.testing.assert_allclose(found.x, simulate("memory", 1).x, rtol=1e-9)


@pytest.mark.slow("a SuperLink and two SuperNodes: a minute, most of it Flower's waiting")
def test_some_rounds_over_a_bad_network(tmp_path):
    _, counts = over(Weather(delay=0.05, stall=0.02, stall_seconds=2.0, cut=0.03, lose=0.02), 3, tmp_path, timeout=20.0)
    assert counts["connections cut"] > 0


@pytest.mark.soak
def test_thirty_rounds_over_a_bad_network(tmp_path, capsys):
    began, weather = time.monotonic(), Weather(delay=0.05, stall=0.02, stall_seconds=3.0, cut=0.02, lose=0.005)
    found, counts = over(weather, 30, tmp_path, timeout=20.0)
    assert min(counts.values()) > 0
    done = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    with capsys.disabled():
        lost = f"{len(found.events)} answers, named by events; x is that of the others" if found.events else "nothing: the same x"
        print(f"\n| rounds over a bad network: {done} | 30 | {lost} | {time.monotonic() - began:.0f} s |")
