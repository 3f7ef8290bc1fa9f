"""Bytes for the wire and for files on a node: a JSON header, then raw arrays. No code, no pickle, nothing is ever evaluated.

Layout: the header's length (four bytes, little endian), the header, then the buffers of all arrays one after the other. The
header holds plain values, the shape of a pytree of containers, and each array's type and shape.
"""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedrzo.errors import FedrzoError
from fedrzo.methods.base import Method, parts
from fedrzo.support.pytrees import describe, rebuild

PyTree = Any
# What may travel, by name: NumPy itself would read more into a name than a type.
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
DTYPES = {dtype.str: dtype for dtype in (np.dtype(name).newbyteorder("<") for name in NUMBERS)}
MAX_HEADER = 1 << 24


class WireError(FedrzoError, ValueError):
    """Bytes that are not what the other side should have sent."""


def pack(header: dict[str, Any], tree: PyTree) -> bytes:
    """Return plain values and a pytree of arrays as bytes."""
    leaves: list[np.ndarray] = []
    shape = describe(tree, leaves)
    arrays = [np.ascontiguousarray(leaf).reshape(np.shape(leaf)) for leaf in leaves]
    described = [[array.dtype.newbyteorder("<").str, list(array.shape)] for array in arrays]
    text = json.dumps({**header, "tree": shape, "arrays": described}).encode()
    buffers = [array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes() for array in arrays]
    return b"".join([len(text).to_bytes(4, "little"), text, *buffers])


def unpack(payload: bytes, types: dict[str, type] | None = None) -> tuple[dict[str, Any], PyTree]:
    """Return what `pack` was given; raise a `WireError` where the bytes are damaged, or hold what they may not.

    They come from a side that may be broken or hostile; `types` are the named tuples that may appear in the tree, by name.
    """
    try:
        size = int.from_bytes(payload[:4], "little")
        if len(payload) < 4 or size > min(len(payload) - 4, MAX_HEADER):
            raise WireError(f"found {len(payload)} bytes that do not start with a header")
        header = json.loads(payload[4 : 4 + size])
        leaves = _arrays(header.pop("arrays"), payload, 4 + size)
        return header, rebuild(header.pop("tree"), leaves, types or {})
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise WireError(f"found bytes that cannot be read ({type(error).__name__}: {error})") from None


def joined(parts: Sequence[bytes]) -> bytes:
    """Return several messages, or answers, as one; a single one stays as it is."""
    return parts[0] if len(parts) == 1 else pack({}, [np.frombuffer(part, np.uint8) for part in parts])


def split(payload: bytes, count: int) -> list[bytes]:
    """Return the messages that `joined` was given, of which there must be so many."""
    if count == 1:
        return [payload]
    _, parts = unpack(payload)
    if not isinstance(parts, list) or [getattr(part, "dtype", None) for part in parts] != [np.dtype(np.uint8)] * count:
        raise WireError(f"found bytes that are not {count} messages in one")
    return [part.tobytes() for part in parts]


def _arrays(described: list, payload: bytes, start: int) -> list[np.ndarray]:
    leaves = []
    for name, shape in described:
        dtype = DTYPES.get(name)
        if dtype is None or not all(type(length) is int and length >= 0 for length in shape):
            raise WireError(f"found an array of type {name!r} and shape {shape!r}")
        count = math.prod(shape)
        stop = start + count * dtype.itemsize
        if stop > len(payload):
            raise WireError("found fewer bytes than the header announces")
        leaves.append(np.frombuffer(payload, dtype, count, start).reshape(shape))
        start = stop
    if start != len(payload):
        raise WireError("found more bytes than the header announces")
    return leaves


def named_tuples(method: Method) -> dict[str, type]:
    """Return the named tuples that a method's steps may receive: those that its own modules know, by name."""
    found: dict[str, type] = {}
    for part in parts(method):
        for cls in type(part).__mro__:
            for name, value in vars(sys.modules[cls.__module__]).items():
                if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
                    found.setdefault(name, value)
    return found
