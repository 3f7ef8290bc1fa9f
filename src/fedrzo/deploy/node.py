"""What a node does: it builds its own part of the problem, answers the server's messages, and remembers in a file.

A request comes from the node's own ClientApp: what the server wrote of the run, the node's settings, and where the problem is.
Messages are bytes (`fedrzo.engines.messages.wire`); an error in the user's code is an answer that says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import warnings
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.deploy import parts
from fedrzo.deploy.credentials import write_secret
from fedrzo.deploy.private_node import PrivateNode, refuse_open
from fedrzo.engines.messages.codec import encode_error
from fedrzo.engines.messages.monitoring import monitor
from fedrzo.engines.messages.node import Node
from fedrzo.engines.messages.wire import joined, pack, split, unpack
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Roots, private_key
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.courtesy import ask
from fedrzo.problems.start import check_start
from fedrzo.running.health import warn_of_long_steps
from fedrzo.running.problem_file import UserFile
from fedrzo.support.files import check_writable, write_file
from fedrzo.support.pytrees import on_host

KEPT = 4  # experiments that a worker keeps at hand
LONGEST = 100  # bytes of a Unix socket's name, on every system
ROUNDS = 100  # whose step sizes a node looks at: it does not know how many will be run


class NodeServer:
    """Answers requests, one by one, and keeps what it built for them."""

    def __init__(self) -> None:
        self.sessions: dict[str, NodeSession] = {}

    def answer(self, request: bytes, common: bytes, own: bytes) -> bytes:
        """Answer a message, part by part where it holds several; what goes wrong on the way is an answer too."""
        count = 1
        try:
            read = json.loads(request)
            kinds = read["run"]["kind"].split()
            count = len(kinds)
            parts = list(zip(kinds, split(common, count), split(own, count), strict=True))
            session = self._session(read)
        except Exception as error:
            return joined([encode_error((), error)] * count)
        return joined([session.answer(*part) for part in parts])

    def _session(self, request: dict[str, Any]) -> NodeSession:
        run = {name: value for name, value in request["run"].items() if name != "kind"}
        name = json.dumps([run, request["settings"], request["problem"]], sort_keys=True)
        if name not in self.sessions:
            while len(self.sessions) >= KEPT:
                del self.sessions[next(iter(self.sessions))]
            self.sessions[name] = NodeSession(run, request["settings"], request["problem"])
        return self.sessions[name]


def work(socket: Path) -> None:
    """Answer messages until the process is ended: the warm worker beside a SuperNode, which keeps data and compiled code.

    It listens on a Unix socket that only its owner can open, reads bytes and answers bytes, one message at a time.
    """
    if len(os.fsencode(socket)) > LONGEST:
        raise InputError(f"socket: {socket} is too long a name; pass one of at most {LONGEST} bytes")
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    mask = os.umask(0o177)  # only the owner may connect, from the first moment on
    try:
        listener = Listener(str(socket), "AF_UNIX")
    finally:
        os.umask(mask)
    print(f"worker: listening on {socket}", file=sys.stderr, flush=True)
    server = NodeServer()
    try:
        while True:
            with contextlib.suppress(EOFError, ConnectionError), listener.accept() as line:
                line.send_bytes(server.answer(*(line.recv_bytes() for _ in range(3))))
    finally:
        listener.close()
        socket.unlink(missing_ok=True)


def answer_once(request: bytes, common: bytes, own: bytes) -> bytes:
    """Answer one message in a process that will not answer another: without a worker, Flower starts one for each."""
    return NodeServer().answer(request, common, own)


class NodeSession:
    """One node's part in one experiment.

    The server has `experiment`, `seed`, `clients` and `participants` (of a round) in `run`; the node's own settings come from
    its command line: `client-id`, and what the user's file wants.
    """

    def __init__(self, run: dict[str, Any], settings: dict[str, Any], problem: str) -> None:
        self.file = UserFile(problem)
        self.id = parts.client_id(settings, run["clients"])
        self.problem = self._own_part(settings)
        folder = state_folder(settings)
        with self.problem.precision():
            method = find_method(self.file)
            outline = parts.outline(self.file, run["clients"])  # what the server knows: both must decide alike
            method = parts.prepared(method, outline, self.file).for_cohort(outline, run["participants"])
            self.private = self._protect(run, settings, outline, folder)
            roots = Roots.of(jax.random.key(run["seed"]))
            private = _sampling_key(settings, folder, roots, self.id)
            self.node = Node(method, jax.device_put(self.problem), 0, self.id, roots.directions, private)
        self.memory = folder / f"{_plain(run['experiment'])}.client-{self.id}.memory"
        self.stamp: tuple[int, int] | None = None

    def answer(self, kind: str, common: bytes, own: bytes) -> bytes:
        """Answer one message, or one part of it; what goes wrong with it is an answer too."""
        try:
            return self._answer(kind, common, own)
        except Exception as error:
            return encode_error((), error)

    def _answer(self, kind: str, common: bytes, own: bytes) -> bytes:
        with self.problem.precision(), self.file.blame():
            if kind == "hello":
                return self._hello()
            if kind == "evaluate":
                return self._evaluate(common)
            self._recall()
            guard = self.private
            reply = self.node.answer(common, own) if guard is None else guard.answer(self.node, common, own)
            self._remember()
            return reply

    def _own_part(self, settings: dict[str, Any]) -> Problem:
        """Read this node's own data and set; where they are to stay private, so is what goes wrong with them."""
        try:
            return parts.own_part(self.file, settings, self.id)
        except Exception as error:
            if getattr(self.file.method, "privacy", None) is None and "privacy-epsilon" not in settings:
                raise
            print(f"fedrzo: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise InputError("client_data: this node could not be set up; its log says why") from None

    def _protect(self, run: dict[str, Any], settings: dict[str, Any], outline: Problem, folder: Path) -> PrivateNode | None:
        """Return what stands before this node's records where the method promises privacy; nobody else looks at them then."""
        method = find_method(self.file)
        if getattr(method, "privacy", None) is None:
            refuse_open(settings)
            return None
        method.check(self.problem)
        self.problem = self.problem.hiding()
        data: Any = self.problem.data
        return PrivateNode(run, settings, method, outline, int(data.sizes[0]), self.id, folder)

    def _hello(self) -> bytes:
        """Try the problem on this node's own data, and say what the server may know of them."""
        with warnings.catch_warnings(record=True, action="always") as caught:
            if not self.problem.hidden:  # else all that may be looked at has been
                self.node.method.check(self.problem)
                check_start(self.problem, self.node.method)
            ask(lambda: warn_of_long_steps([self.node.method], self.problem, ROUNDS))  # only the node knows its set
        self._recall()
        self.node.kept = None  # points of an earlier run are no points of this one
        self._remember()
        distance = float(self.node.problem.worst_distance(jnp.asarray(self.problem.x0)))
        upper, lower = (int(data.sizes[0]) if data.stored else None for data in (self.problem.data, self.problem.stated[-1].data))
        heard = [str(warning.message) for warning in caught]
        said = {"client": self.id, "samples": upper, "lower_samples": lower, "distance": distance, "warnings": heard}
        promise = {} if self.private is None else {"noise": self.private.release.noise, "delta": self.private.ledger.delta}
        return pack(said | promise, None)

    def _evaluate(self, common: bytes) -> bytes:
        """Return what is monitored, over this node's own data."""
        _, (x, y) = unpack(common)
        row = on_host(monitor(self.node.problem, x, y))
        return pack({"client": self.id}, row if self.private is None else row | {"epsilon": np.float64(self.private.spent)})

    def _recall(self) -> None:
        """Read the file if another process has written it since."""
        if self.memory.exists() and _stamp(self.memory) != self.stamp:
            self.node.load(self.memory.read_bytes())

    def _remember(self) -> None:
        write_file(self.memory, self.node.dump())
        self.stamp = _stamp(self.memory)


def find_method(file: UserFile) -> Method:
    """Return the method that a user's file defines."""
    if not isinstance(file.method, Method):
        raise InputError(f"{file.path.name}: does not define method; set method = fz.FedRZOnn(...) or another one")
    return file.method


def state_folder(settings: parts.Settings) -> Path:
    """Return the folder in which a node keeps what it remembers: its setting `state`, or one in Flower's own."""
    home = os.environ.get("FLWR_HOME") or str(Path.home() / ".flwr")
    folder = Path(str(settings.get("state", Path(home) / "fedrzo"))).expanduser()
    check_writable(folder, "state")
    return folder


def _sampling_key(settings: parts.Settings, folder: Path, roots: Roots, client: int) -> jax.Array:
    """Return the key that draws this node's samples. The server does not know it, unless `shared-sampling` is set."""
    if settings.get("shared-sampling", False):
        return private_key(roots, client)
    path = folder / f"client-{client}.seed"
    if not path.exists():
        write_secret(path, str(secrets.randbits(63)).encode())
    return jax.random.key(int(path.read_text()))


def _plain(name: str) -> str:
    """Return a name that can be a file's."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", str(name)):
        raise InputError(f"experiment: found {name!r}; use letters, digits, dots, dashes and underscores")
    return str(name)


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino
