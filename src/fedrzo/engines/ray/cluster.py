"""A Ray cluster as the ray engine uses it: how it is reached, and an actor as the driver sees it."""

import dataclasses
import logging
import os
import socket
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from fedrzo.engines.ray.share import Asked
from fedrzo.errors import InputError, first_line
from fedrzo.support.extras import require

LOOPBACK = "127.0.0.1"
# Ray reads these when it is imported or started: no reports to its makers, devices as the driver sees them, nothing on
# standard output when an actor dies, which is an event of the run ...
PRIVATE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed",
}
# ... and no address but loopback, which it otherwise replaces by one that other machines can reach.
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
ANSWER_SECONDS = 5.0
NAMED = 8  # clients of an actor that are named in a message
QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


def connect(address: str | None) -> bool:
    """Connect to Ray; return whether that was done here, so that it has to be undone."""
    host, port = _host_and_port(address)
    for name, value in (PRIVATE | LOCAL if address is None or host in (LOOPBACK, "localhost") else PRIVATE).items():
        os.environ.setdefault(name, value)
    # In a notebook it asks for packages that nothing here needs, some versions as soon as they are imported.
    logging.getLogger("ray.widgets").setLevel(logging.WARNING)
    ray = require("ray", "ray")
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", joined):
            raise InputError(f"address: found {address!r}; this process is connected to {joined}: call ray.shutdown() first")
        return False
    if address is None:
        _start_local(ray)
        return True
    try:
        if host:  # Ray itself would wait for many minutes
            socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
        ray.init(address=address, **QUIET)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"address: found {address!r}; no Ray cluster can be used there: {first_line(error)}") from None
    return True


def _host_and_port(address: str | None) -> tuple[str, int]:
    """Read an address such as `10.0.0.1:6379` or `ray://10.0.0.1:10001`; of another form, nothing."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    return (host, int(port)) if port.isdecimal() and "/" not in host else ("", 0)


def _start_local(ray: Any) -> None:
    with warnings.catch_warnings():
        # Ray forks only to execute its own programs at once, which is what JAX's warning about forks is not about.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        ray.init(address="local", include_dashboard=False, _node_ip_address=LOOPBACK, **QUIET)
    found = ray.util.get_node_ip_address()
    if found != LOOPBACK:
        ray.shutdown()
        raise InputError(
            f"engine: Ray listens on {found} rather than on {LOOPBACK} alone, since it was imported earlier; set "
            f"{next(iter(LOCAL))}=0 before that, or call ray.init() yourself to have it so"
        )


def told_by(error: Exception) -> str:
    """Return in one line what went wrong in an actor: Ray's errors hold the one that was raised there, and long tracebacks."""
    cause = getattr(error, "cause", None)
    return first_line(error) if cause is None else f"{type(cause).__name__}: {first_line(cause)}"


class Call(NamedTuple):
    """A message on its way through an actor: where the answers and what clients remember will be, and whose they are."""

    answers: Any
    kept: Any
    clients: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class ActorHandle:
    """An actor as the driver sees it: at most one message at a time, and what its clients last remembered."""

    ray: Any  # the module
    make: Callable[[], Any]  # starts an actor
    spare: list[Any] | None  # actors of former runs, to be used again; None to end them with the run
    clients: tuple[int, ...]  # whose names they are
    init: Any  # their part of the run, a pickled `WorkerInit` in the object store
    tells: bool  # whether clients remember anything, which is then handed over with every reply
    call: Call | None = None  # the message that has not been answered yet, or over which the actor died
    kept: dict[int, Any] = dataclasses.field(default_factory=dict)  # by client: the object that holds what it remembers

    def __post_init__(self) -> None:
        self.start()

    @property
    def name(self) -> str:
        """How messages to the user speak of it."""
        many = f", ... ({len(self.clients)} of them)" if len(self.clients) > NAMED else ""
        return f"the actor of client{'s' * (len(self.clients) > 1)} {', '.join(map(str, self.clients[:NAMED]))}{many}"

    def start(self) -> None:
        """Start an actor, or take a spare one, from what the clients last remembered."""
        self.handle = self.spare.pop() if self.spare else self.make()
        self.call = None
        self.up = self.handle.open.remote(self.init, self.remembered())

    def stop(self) -> None:
        """End the actor, or lay it aside."""
        if self.spare is None or self.call is not None:
            self.ray.kill(self.handle)
        else:
            self.spare.append(self.handle)

    def send(self, common: Any, asked: Asked) -> None:
        """Have clients answer."""
        answers, kept = self.handle.answer.options(num_returns=2).remote(common, asked, self.tells)
        self.call = Call(answers, kept, asked.clients or self.clients)

    def collect(self) -> tuple[bytes | None, tuple[int, ...], dict[int, bytes]]:
        """Return the sum that answers the last message, if any, of which clients it is, and the replies of all others.

        Raises what Ray raises if the actor died over it.
        """
        assert self.call is not None
        call = self.call
        total, replies = self.ray.get(call.answers)
        self.call = None
        if self.tells:
            self.kept.update(dict.fromkeys(call.clients, call.kept))
        return total, tuple(i for i in call.clients if i not in replies), replies

    def remember(self, memories: dict[int, bytes]) -> None:
        """Have clients remember what a checkpoint holds."""
        kept = self.handle.remember.remote(memories)
        self.ray.wait([kept])
        self.kept.update(dict.fromkeys(memories, kept))

    def remembered(self) -> dict[int, bytes]:
        """Return all that clients remembered when they last answered; nothing for those that never did."""
        found = {ref: self.ray.get(ref) for ref in set(self.kept.values())}
        return {i: found[ref][i] for i, ref in self.kept.items()}
