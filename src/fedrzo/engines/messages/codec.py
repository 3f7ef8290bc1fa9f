"""Messages: what the server sends for one call, and what a client answers; names, integers and arrays.

A message has a part that all clients are sent alike and a part of each client's own, so that an engine can ship the large one
once. `wire.py` turns both into bytes.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from fedrzo.engines.messages.wire import WireError, pack, unpack
from fedrzo.errors import first_line
from fedrzo.federation.catch_up import Missed, as_sent
from fedrzo.federation.directions import VERSION
from fedrzo.federation.protocol import Reply
from fedrzo.methods.base import Method

Path = tuple[int, ...]


class Keep(NamedTuple):
    """Points that clients keep until others come: where their lower level is looked at."""

    owner: str  # where the method that solves the lower level is found in the running one, such as `lower.`
    path: Path  # where in the run they were sent
    points: Any  # the array; None on a client that rebuilds it
    step: str = ""  # what rebuilds the points from the arrays and the client's memory; empty where the points travel
    arrays: tuple = ()  # what it is given
    # The path of this client's last reply in the view `""` that the server took: its memory then is rebuilt from
    accepted: Path | None = None

    @property
    def travels(self) -> tuple:
        """What clients are sent."""
        return self.arrays if self.step else (self.points,)


class Message(NamedTuple):
    """What the server sends for one call."""

    step: str  # where the step is found in the method, such as `client_steps` or `lower.client_steps`
    view: str  # `""`, or `"lower"`
    path: Path  # round, call[, iteration, call ...]: where in the run this is, and the path of its randomness
    iteration: int  # the index within the innermost repeat
    arrays: tuple  # what is shared
    keep: Keep | None = None  # points to keep, where some client does not have them yet
    # The path of this client's last reply that the server took in this view; None if there is none. What a client remembers of
    # a reply that never arrived must be forgotten.
    accepted: Path | None = None
    together: bool = False  # whether the sum of clients' replies will do, where they can be added up on the way; does not travel


def encode(message: Message) -> bytes:
    """Return the part of a message that is the same for all clients."""
    keep = message.keep
    header: dict[str, Any] = {
        "step": message.step,
        "view": message.view,
        "path": message.path,
        "iteration": message.iteration,
        "directions": VERSION,
        "keep": None if keep is None else [keep.owner, keep.path, keep.step],
    }
    return pack(header, (_common(message.arrays), None if keep is None else _common(keep.travels)))


def encode_own(message: Message, client: int, accepted: Path | None, above: Path | None = None) -> bytes:
    """Return the part of a message that is one client's own; `above` is what was accepted in the view `""`."""
    missed = _own(message.arrays, client), _own(() if message.keep is None else message.keep.travels, client)
    plain = [{place: header for place, (header, _) in part.items()} for part in missed]
    return pack(
        {"accepted": accepted, "above": above, "missed": plain},
        [[arrays for _, arrays in part.values()] for part in missed],
    )


def _common(arrays: tuple) -> tuple:
    return tuple(None if isinstance(value, Missed) else value for value in arrays)


def _own(arrays: tuple, client: int) -> dict[str, tuple]:
    """Return what a client is sent of each argument that differs between clients, by its place."""
    return {str(i): value.of(client).packed() for i, value in enumerate(arrays) if isinstance(value, Missed)}


def decode(common: bytes, own: bytes, types: dict[str, type]) -> Message:
    """Read both parts of a message, on a client."""
    header, (arrays, points) = unpack(common, types)
    if header["directions"] != VERSION:
        raise WireError(
            f"directions: the server draws version {header['directions']}, this client {VERSION}; install the same fedrzo on both"
        )
    plain, (missed, missed_points) = unpack(own, types)
    arrays, keep = _together(arrays, plain["missed"][0], missed), None
    if header["keep"] is not None:
        owner, path, step = header["keep"]
        points = _together(points, plain["missed"][1], missed_points)
        rebuilt = (None, step, points) if step else (points[0],)
        keep = Keep(owner, tuple(path), *rebuilt)._replace(accepted=_path(plain["above"]))
    place = header["step"], header["view"], tuple(header["path"]), header["iteration"]
    return Message(*place, arrays, keep, _path(plain["accepted"]))


def _together(common: tuple, plain: dict[str, Any], missed: list) -> tuple:
    """Return arguments with those that differ between clients in their places."""
    arrays = list(common)
    for (place, header), tree in zip(plain.items(), missed, strict=True):
        arrays[int(place)] = Missed.unpacked(header, tree)
    return tuple(arrays)


def _path(found: list | None) -> Path | None:
    return None if found is None else tuple(found)


def encode_reply(path: Path, reply: Reply) -> bytes:
    """Return a client's answer as bytes. Its memory stays where it is."""
    counts = {name: int(np.asarray(getattr(reply, name)).astype(np.uint32)) for name in COUNTS}
    return pack({"path": path, "directions": VERSION, **counts}, as_sent(reply.value))


def encode_error(path: Path, error: BaseException) -> bytes:
    """Return what a client says when its step fails: the error's first line."""
    return pack({"path": path, "error": f"{type(error).__name__}: {first_line(error)}"[:500]}, None)


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
