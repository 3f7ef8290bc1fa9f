"""`fedrzo deploy local`: a real SuperLink and real SuperNodes on the loopback interface, with TLS and node authentication.

Everything is as on machines apart, but for the place: each node has its own key, its own folder, its own worker. What was started
here is stopped here, whatever happens.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TextIO

import tomli_w

from fedrzo.deploy.credentials import make_authority, make_node_key
from fedrzo.deploy.processes import ProcessError, Processes, ending_in_order, executable, free_ports, wait_for_port
from fedrzo.deploy.server import OUTCOME
from fedrzo.errors import FedrzoError, InputError
from fedrzo.results.result import Result

HOST = "127.0.0.1"
CONNECTION = "fedrzo"
MARK = "fedrzo: "  # lines of the server that are meant to be seen
START = 180.0  # seconds for a process to come up, on a machine that may be busy
# No calls to the internet, and no waiting where Flower lets one choose.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}


class LocalFederation:
    """A federation on this machine; a context that stops what it started.

    The folder `work` gets keys, logs and what nodes remember. Each node may have more settings beside its `client-id`, and,
    unless `warm` is False, a worker that keeps data and compiled code.
    """

    def __init__(self, nodes: int, work: Path, settings: Sequence[Mapping[str, Any]] = (), warm: bool = True) -> None:
        self.work = work
        self.warm = warm
        self.settings = [{"client-id": i, **(settings[i] if settings else {})} for i in range(nodes)]
        self.port, *self.node_ports = free_ports(1 + nodes)
        self.processes = Processes(work / "logs")
        self._sockets = tempfile.TemporaryDirectory(prefix="fedrzo-")  # a socket's name must be short

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.processes.__enter__()
            make_authority(self.credential(""))
            self.connect(CONNECTION)
            self.start_superlink()
            nodes = range(len(self.settings))
            for i in nodes:
                make_node_key(self.credential(f"node-{i}"))
                if self.warm:
                    self.start_worker(i)
            with ThreadPoolExecutor() as pool:  # each call of the command line takes a second or two
                list(pool.map(self.register, nodes))
            for i in nodes:
                self.start_node(i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()
        self._sockets.cleanup()

    def credential(self, name: str) -> Path:
        """Return the place of a key or a certificate."""
        return self.work / "credentials" / name

    def environment(self, role: str) -> dict[str, str]:
        """Return the environment of a process: a Flower home of its own, and a cache of compiled code."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self.work / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        return {**QUIET, **cache, "PYTHONUNBUFFERED": "1", "FLWR_HOME": str(self.work / "flower" / role), "PATH": path}

    def connect(self, name: str, **changes: Any) -> None:
        """Tell Flower's command line how to reach the SuperLink."""
        home = Path(self.environment("cli")["FLWR_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        how = {"address": self.address, "root-certificates": str(self.credential("ca.crt")), **changes}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": name, name: how}}))

    def start_superlink(self) -> None:
        """Start the server and wait until it listens."""
        certificates = {"certfile": "server.pem", "keyfile": "server.key", "ca-certfile": "ca.crt"}
        flags = [part for kind, name in certificates.items() for part in (f"--ssl-{kind}", str(self.credential(name)))]
        self.processes.start(
            "superlink",
            [executable("flower-superlink"), "--host", HOST, "--port", str(self.port), *flags, "--enable-supernode-auth",
             "--disable-runtime-dependency-installation"],
            self.environment("superlink"),
        )  # fmt: skip
        wait_for_port(self.port, self.processes, START)

    def start_worker(self, i: int) -> None:
        """Start the process that does a node's work."""
        self.settings[i]["worker"] = f"{self._sockets.name}/{i}"
        command = [executable("fedrzo"), "deploy", "worker", self.settings[i]["worker"]]
        self.processes.start(f"worker-{i}", command, self.environment(f"node-{i}"))

    def register(self, i: int) -> None:
        """Have the SuperLink accept a node's key."""
        self.flwr(["supernode", "register", f"{self.credential(f'node-{i}')}.pub", CONNECTION])

    def start_node(self, i: int, *flags: str) -> None:
        """Start a SuperNode."""
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in self.settings[i].items())
        trust = ["--root-certificates", str(self.credential("ca.crt"))]
        key = ["--auth-supernode-private-key", str(self.credential(f"node-{i}"))]
        self.processes.start(
            f"node-{i}",
            [executable("flower-supernode"), "--superlink", self.address, "--host", HOST, "--port",
             str(self.node_ports[i]), *trust, *key, "--node-config", config, *flags],
            self.environment(f"node-{i}"),
        )  # fmt: skip

    def flwr(self, arguments: Sequence[str]) -> str:
        """Run Flower's command line and return what it printed."""
        done = subprocess.run(
            [executable("flwr"), *arguments], env={**os.environ, **self.environment("cli")}, text=True, timeout=START,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        if done.returncode:
            raise ProcessError(f"flwr {arguments[0]} {arguments[1]}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def run(self, app: Path, config: Mapping[str, Any], show: Callable[[str], None]) -> Result:
        """Run an app that `fedrzo deploy init` wrote to its end; `show` is given each line that the server writes.

        The app's run configuration is changed by `config`, which must have an `out`.
        """
        outcome = Path(config["out"]) / OUTCOME
        outcome.unlink(missing_ok=True)
        changes = " ".join(f"{name}={json.dumps(value)}" for name, value in {"clients": len(self.settings), **config}.items())
        (self.processes.logs / "run.log").unlink(missing_ok=True)
        command = [executable("flwr"), "run", str(app), CONNECTION, "--run-config", changes, "--stream"]
        process = self.processes.start("run", command, self.environment("cli"))
        with (self.processes.logs / "run.log").open() as log:
            while process.poll() is None:
                self.processes.check(but="run")
                _pass_on(log, show)
                time.sleep(0.1)
            _pass_on(log, show)
        self.processes.running.pop("run", None)
        if not outcome.exists():
            raise ProcessError(f"the server's app ended without a result: {self.processes.tail('run')}")
        if error := json.loads(outcome.read_text())["error"]:
            raise FedrzoError(error)
        return Result.load(config["out"])


def _pass_on(log: TextIO, show: Callable[[str], None]) -> None:
    for line in log:
        if line.startswith(MARK):
            show(line.removeprefix(MARK).strip())


def local(app: Path, nodes: int, config: Mapping[str, Any], show: Callable[[str], None], keep: Path | None = None) -> Result:
    """Run an app on a federation of this machine; see `LocalFederation.run`.

    The folder `keep`, by default a temporary one, gets keys, logs and what nodes remember.
    """
    if not (app / "pyproject.toml").is_file():
        raise InputError(f"DIR: {app} holds no pyproject.toml; write an app there with: fedrzo deploy init {app}")
    if nodes < 1:
        raise InputError(f"--nodes: found {nodes}; pass a whole number of at least 1")
    with tempfile.TemporaryDirectory(prefix="fedrzo-") as temporary, ending_in_order():
        work = Path(temporary) if keep is None else keep
        with LocalFederation(nodes, work) as federation:
            return federation.run(app, config, show)
