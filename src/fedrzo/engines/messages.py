"""Messages: what the server sends for one call, and what a client answers; names, integers and arrays.

A message has a part that all clients are sent alike and a part of each client's own, so that an engine can ship the large one
once. `wire.py` turns both into bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from fedrzo.catchup import Missed, as_sent
from fedrzo.directions import VERSION
from fedrzo.engines.wire import WireError, pack, unpack
from fedrzo.federation import Reply
from fedrzo.methods.base import Method

PyTree = Any
Path = tuple[int, ...]


class Keep(NamedTuple):
    """Points that clients keep until others come: where their lower level is looked at.

    Attributes:
        owner: where the method that solves the lower level is found in the running one, such as `lower.`.
        path: where in the run they were sent.
        points: the array.
    """

    owner: str
    path: Path
    points: Any


class Message(NamedTuple):
    """What the server sends for one call.

    Attributes:
        step: where the step is found in the method, such as `client_steps` or `lower.client_steps`.
        view: `""`, or `"lower"`.
        path: round, call[, iteration, call ...]: where in the run this is, and the path of its randomness.
        iteration: the index within the innermost repeat.
        arrays: what is shared.
        keep: points to keep, where some client does not have them yet.
        accepted: the path of this client's last reply that the server took in this view; None if there is none. What a
            client remembers of a reply that never arrived must be forgotten.
    """

    step: str
    view: str
    path: Path
    iteration: int
    arrays: tuple
    keep: Keep | None = None
    accepted: Path | None = None

    def sent(self, client: int) -> PyTree:
        """Return the arrays that travel to one client."""
        points = () if self.keep is None else (self.keep.points,)
        return points + tuple(v.of(client).sent() if isinstance(v, Missed) else v for v in self.arrays)


def encode(message: Message) -> bytes:
    """Return the part of a message that is the same for all clients."""
    common = tuple(None if isinstance(value, Missed) else value for value in message.arrays)
    header: dict[str, Any] = {
        "step": message.step,
        "view": message.view,
        "path": message.path,
        "iteration": message.iteration,
        "own": [i for i, value in enumerate(message.arrays) if isinstance(value, Missed)],
        "directions": VERSION,
        "keep": None if message.keep is None else [message.keep.owner, message.keep.path],
    }
    return pack(header, (common, None if message.keep is None else message.keep.points))


def encode_own(message: Message, client: int, accepted: Path | None) -> bytes:
    """Return the part of a message that is one client's own."""
    missed = [value.of(client).packed() for value in message.arrays if isinstance(value, Missed)]
    return pack({"accepted": accepted, "missed": [plain for plain, _ in missed]}, [arrays for _, arrays in missed])


def decode(common: bytes, own: bytes, types: dict[str, type]) -> Message:
    """Read both parts of a message, on a client."""
    header, (arrays, points) = unpack(common, types)
    if header["directions"] != VERSION:
        raise WireError(
            f"directions: the server draws version {header['directions']}, this client {VERSION}; install the same fedrzo on both"
        )
    plain, trees = unpack(own, types)
    arrays = list(arrays)
    for i, missed, tree in zip(header["own"], plain["missed"], trees, strict=True):
        arrays[i] = Missed.unpacked(missed, tree)
    keep = None if header["keep"] is None else Keep(header["keep"][0], tuple(header["keep"][1]), points)
    accepted = None if plain["accepted"] is None else tuple(plain["accepted"])
    place = header["step"], header["view"], tuple(header["path"]), header["iteration"]
    return Message(*place, tuple(arrays), keep, accepted)


def encode_reply(path: Path, reply: Reply) -> bytes:
    """Return a client's answer as bytes. Its memory stays where it is."""
    counts = {name: int(np.asarray(getattr(reply, name)).astype(np.uint32)) for name in COUNTS}
    return pack({"path": path, "directions": VERSION, **counts}, as_sent(reply.value))


def encode_error(path: Path, error: BaseException) -> bytes:
    """Return what a client says when its step fails: the error's first line."""
    line = (str(error).splitlines() or [""])[0]
    return pack({"path": path, "error": f"{type(error).__name__}: {line}"[:500]}, None)


COUNTS = ("evaluations", "gradients", "steps")


class Answer(NamedTuple):
    """A reply as the server reads it: where it belongs, what it holds, or why there is nothing."""

    path: Path
    reply: Reply | None
    error: str | None


def decode_reply(payload: bytes, types: dict[str, type]) -> Answer:
    """Read a client's answer."""
    header, value = unpack(payload, types)
    path = header.get("path")
    if not isinstance(path, list) or not all(type(i) is int for i in path):
        raise WireError(f"found an answer to {path!r}")
    if "error" in header:
        return Answer(tuple(path), None, str(header["error"]))
    if header.get("directions") != VERSION:
        raise WireError(
            f"directions: the client draws version {header.get('directions')!r}, the server {VERSION}; "
            "install the same fedrzo on both"
        )
    counts = {name: header.get(name) for name in COUNTS}
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count < 2**32:
            raise WireError(f"found {name} = {count!r}")
    return Answer(tuple(path), Reply(value, **counts), None)


def find_step(method: Method, step: str) -> tuple[Method, str]:
    """Resolve a step's name, such as `lower.client_steps`, in a method."""
    *path, name = step.split(".")
    for field in path:
        part = getattr(method, field, None)
        if not isinstance(part, Method):
            raise WireError(f"step: found {step!r}; {type(method).__name__} has no part {field!r}")
        method = part
    if name and (name.startswith("_") or not callable(getattr(type(method), name, None))):
        raise WireError(f"step: found {step!r}, which {type(method).__name__} does not have")
    return method, name


def name_of(method: Method, owner: Any) -> str | None:
    """Return the path of fields that leads from a method to one of its parts, such as `lower.`."""
    if owner is method:
        return ""
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        part = getattr(method, field.name)
        if isinstance(part, Method) and (path := name_of(part, owner)) is not None:
            return f"{field.name}.{path}"
    return None
