"""Processes that are started together and stopped together: whatever happens, nothing is left running."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

from fedrzo.errors import FedrzoError
from fedrzo.support.extras import require

GRACE = 5.0  # seconds between asking processes to stop and making them


class ProcessError(FedrzoError):
    """A process that was started here failed; the message ends with the last lines that it wrote."""


class Processes:
    """Processes with a log file each; leaving the context stops them and all that they started."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs  # the folder of the log files
        self.running: dict[str, subprocess.Popen] = {}
        self._family: dict[int, Any] = {}  # all processes ever seen below ours, by number

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen:
        """Start a process; the log file of an earlier one of that name is gone on with."""
        with (self.logs / f"{name}.log").open("ab") as log:
            # A session of its own: an interrupt at the terminal reaches us first, and we stop it in order.
            process = subprocess.Popen(
                [*command], env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.running[name] = process
        return process

    def check(self, but: str | None = None) -> None:
        """Raise an error if a process has ended by itself; one may."""
        for name, process in self.running.items():
            self._look(process)
            if name != but and process.poll() is not None:
                raise ProcessError(f"{name} ended with status {process.returncode}: {self.tail(name)}")

    def tail(self, name: str) -> str:
        """Return the last lines of a log."""
        text = (self.logs / f"{name}.log").read_text(errors="replace")
        return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-3:])

    def kill(self, name: str) -> None:
        """End a process and all that it started, at once, as a crash of its machine would."""
        process = self.running.pop(name)
        for member in _family(process.pid):
            _quietly(member.kill)
        process.wait()

    def stop(self) -> None:
        """Ask everything to stop, wait a little, and make it."""
        psutil = require("psutil", "flower")
        for process in self.running.values():
            self._look(process)
        for process in reversed(self.running.values()):
            if process.poll() is None:
                process.terminate()
        _, left = psutil.wait_procs(list(self._family.values()), GRACE)
        for member in left:
            _quietly(member.kill)
        psutil.wait_procs(left, GRACE)
        for process in self.running.values():
            process.wait()
        self.running.clear()
        self._family.clear()

    def _look(self, process: subprocess.Popen) -> None:
        """Note a process and all below it, while they are still related."""
        self._family |= {member.pid: member for member in _family(process.pid)}


def _family(pid: int) -> list[Any]:
    """Return a process and all below it."""
    psutil = require("psutil", "flower")
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _quietly(action: Any) -> None:
    with contextlib.suppress(require("psutil", "flower").NoSuchProcess):
        action()


class Stopped(BaseException):
    """Somebody asked this process to end (SIGTERM)."""


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that what was started is stopped on the way out."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def wait_for_port(port: int, processes: Processes, seconds: float) -> None:
    """Wait until somebody listens on a port of the loopback interface."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        processes.check()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise ProcessError(f"nobody listens on port {port} after {seconds:g} seconds")


def executable(name: str) -> str:
    """Return a command that was installed beside this Python, or the bare name."""
    path = Path(sys.executable).with_name(name)
    return str(path) if path.exists() else name
