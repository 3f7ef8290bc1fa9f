"""Readers of the file formats: idx (MNIST), CIFAR-10's binary version, LIBSVM text.

On a damaged file they raise one of `UNREADABLE`, which `reading` turns into one clear line.
"""

import bz2
import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrzo.errors import InputError
from fedrzo.support.extras import require

Part: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32]]  # samples, one per row, and their labels
UNREADABLE = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError)  # what damaged files and decompressors raise
IDX_BYTES = b"\x00\x00\x08"  # how an idx file of unsigned bytes starts; the number of axes follows
CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes per sample: a label, then the red, green and blue planes


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any failure to read `path` into an `InputError` of one line."""
    try:
        yield
    except InputError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read ({reason}); delete it and fetch it again") from error


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or plain, in the shape that its header gives."""
    with _open(path) as stream:
        raw = stream.read()
    start = 4 + 4 * int.from_bytes(raw[3:4])
    if raw[:3] != IDX_BYTES or len(raw) < start:
        raise ValueError("not an idx file of unsigned bytes")
    shape = tuple(int(size) for size in np.frombuffer(raw[4:start], ">u4"))
    values = np.frombuffer(raw, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{values.size} values where the header announces {shape}")
    return values.reshape(shape)


def scaled(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Flatten each image and map 0..255 to [0, 1]."""
    return np.divide(images.reshape(len(images), -1), np.float32(255), dtype=np.float32)


def read_cifar(raw: bytes) -> Part:
    """Read the records of one or more CIFAR-10 batches."""
    if not raw or len(raw) % CIFAR_RECORD:
        raise ValueError(f"{len(raw)} bytes is not a whole number of {CIFAR_RECORD}-byte records")
    records = np.frombuffer(raw, np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0].astype(np.int32)
    if labels.max() > 9:
        raise ValueError(f"label {labels.max()} where 0 to 9 are possible")
    return scaled(records[:, 1:]), labels


def read_members(path: Path, names: list[str]) -> dict[str, bytes]:
    """Read the named regular files of a tar archive into memory, whatever folder they are in.

    Nothing is written to disk and links are not followed, so the archive has no say in any path.
    """
    found: dict[str, bytes] = {}
    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            if member.isreg() and name in names:
                content = archive.extractfile(member)
                assert content is not None  # it is a regular file
                found[name] = content.read()
    absent = [name for name in names if name not in found]
    if absent:
        raise ValueError(f"no {', '.join(absent)} inside")
    return found


def read_libsvm(path: Path, features: int) -> Part:
    """Read a LIBSVM text (gzip, bzip2 or plain) of integer labels as dense arrays."""
    datasets = require("sklearn.datasets", "data")
    with _open(path) as stream:
        x, y = datasets.load_svmlight_file(stream, n_features=features, dtype=np.float32, zero_based=False)
    return x.toarray(), y.astype(np.int32)


def count_libsvm(path: Path) -> tuple[int, int]:
    """Return the numbers of samples and of `index:value` pairs of a LIBSVM text."""
    rows = nonzeros = 0
    with _open(path) as stream:
        for line in stream:
            rows += not line.isspace()  # the published w8a ends with an empty line
            nonzeros += line.count(b":")
    return rows, nonzeros


def _open(path: Path) -> io.BufferedIOBase:
    """Open a file through the decompressor that its first bytes call for."""
    with path.open("rb") as stream:
        start = stream.read(3)
    if start[:2] == b"\x1f\x8b":
        return gzip.open(path, "rb")
    if start == b"BZh":
        return bz2.open(path, "rb")
    return path.open("rb")
