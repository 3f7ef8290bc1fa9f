"""What a message costs on Flower: three nodes on this machine, one step of FedRZO_nn at dimension 10, several settings.

    python benchmarks/flower_latency.py [ROUNDS]

Prints seconds per message (one round of FedRZO_nn is one message), and what travels through a node's TLS connection.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from fedrzo.deploy.local import HOST, LocalFederation
from fedrzo.deploy.processes import executable, free_ports
from fedrzo.deploy.scaffold import init

PROBLEM = """
import jax.numpy as jnp
import numpy as np
import fedrzo as fz

method = fz.FedRZOnn(stepsize=0.01, smoothing=0.1)


def loss(x, batch):
    return jnp.mean(jnp.abs(batch @ x))


def client_data(settings):
    return np.random.default_rng(settings["client-id"]).normal(size=(20, 10))


problem = fz.Nonsmooth(loss, fz.ClientData([client_data({"client-id": 0})]), x0=np.ones(10))
"""


class Measured(LocalFederation):
    """A federation whose settings can be taken back, and whose first node is reached through a relay that counts bytes."""

    def __init__(self, work: Path, warm: bool, tuned: bool) -> None:
        super().__init__(3, work, warm=warm)
        self.tuned = tuned
        self.relay, self.counts = free_ports(1)[0], {"up": 0, "down": 0}

    def environment(self, role: str) -> dict[str, str]:
        names = super().environment(role)
        left_out = () if self.tuned else ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "JAX_COMPILATION_CACHE_DIR")
        return {name: value for name, value in names.items() if name not in left_out}

    def start_node(self, i: int, *flags: str) -> None:
        if i == 0:
            threading.Thread(target=self._listen, daemon=True).start()
            flags = ("--superlink", f"{HOST}:{self.relay}")  # the last one counts
        super().start_node(i, *flags)

    def _listen(self) -> None:
        # When the federation stops, the SuperLink may be gone before the node stops calling.
        with contextlib.suppress(ConnectionRefusedError), socket.create_server((HOST, self.relay)) as server:
            while True:
                near, _ = server.accept()
                far = socket.create_connection((HOST, self.port))
                for source, sink, way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(target=self._carry, args=(source, sink, way), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.counts[way] += len(data)
                sink.sendall(data)


def measure(folder: Path, name: str, rounds: int, warm: bool, tuned: bool) -> None:
    out = folder / f"{warm}{tuned}"
    config = {"out": str(out), "rounds": rounds, "eval-every": rounds}
    marks: list[dict[str, int]] = []
    with Measured(folder / f"work{warm}{tuned}", warm, tuned) as federation:
        result = federation.run(folder / "app", config, lambda line: marks.append(dict(federation.counts)))
    seconds = result.history["seconds"]
    last = result.history.last
    per = (seconds[-1] - seconds[0]) / (rounds + 1)  # the rounds, and one message for the last row
    print(f"{name}: {per:.2f} s a message, first {seconds[0]:.1f} s")
    spent = {way: marks[-1][way] - marks[1][way] for way in ("up", "down")}
    counted = {"up": last["upload_bytes"], "down": last["download_bytes"]}
    ours = {"up": last["wire_upload_bytes"], "down": last["wire_download_bytes"]}
    for way in ("up", "down"):
        each = counted[way] / 3 / rounds, ours[way] / 3 / rounds, spent[way] / (rounds + 1)
        print(f"  {way}: a message has {each[0]:.0f} bytes of arrays, {each[1]:.0f} as sent, {each[2]:.0f} through TLS")


def start_of(command: str) -> float:
    """Return how long it takes to start a command that does nothing."""
    began = time.perf_counter()
    subprocess.run([executable(command), "--help"], stdout=subprocess.DEVNULL, env=os.environ, check=True)
    return time.perf_counter() - began


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    print(f"flwr-clientapp alone starts in {min(start_of('flwr-clientapp') for _ in range(3)):.2f} s")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "problem.py").write_text(PROBLEM)
        init(folder / "app", str(folder / "problem.py"))
        measure(folder, "Flower's defaults, no worker", rounds, warm=False, tuned=False)
        measure(folder, "polling 0.2 s, compilation cache, no worker", rounds, warm=False, tuned=True)
        measure(folder, "polling 0.2 s, worker", rounds, warm=True, tuned=True)


if __name__ == "__main__":
    main()
