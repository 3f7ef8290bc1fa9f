"""`Dataset`, how each set is put together from its files or from scikit-learn, and two classes out of ten."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrzo.data.files import fault
from fedrzo.data.parse import Part, read_cifar, read_idx, read_libsvm, read_members, reading, scaled
from fedrzo.data.sources import SOURCES
from fedrzo.errors import InputError
from fedrzo.support.extras import require

Paths: TypeAlias = dict[str, Path]

VEHICLES = (0, 1, 8, 9)  # of CIFAR-10: airplane, automobile, ship, truck
DIGITS = tuple("0123456789")
CLASSES: dict[str, tuple[str, ...]] = {
    "digits": DIGITS,
    "breast-cancer": ("malignant", "benign"),
    "mnist": DIGITS,
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "a9a": ("<=50K", ">50K"),
    "w8a": ("not in the category", "in the category"),
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, one sample per row."""

    name: str  # the name it was loaded by
    x_train: np.ndarray  # training samples, `(samples, features)`, float32
    y_train: np.ndarray  # their labels, `(samples,)`, int32
    x_test: np.ndarray  # test samples
    y_test: np.ndarray  # their labels
    classes: tuple[str, ...]  # what the labels mean, in ascending order of the labels

    def __repr__(self) -> str:
        n, features = self.x_train.shape
        return f"Dataset({self.name!r}: {n} + {len(self.x_test)} samples, {features} features)"


@functools.cache
def embedded(name: str) -> Dataset:
    """Return one of the sets that come with scikit-learn."""
    datasets = require("sklearn.datasets", "data")
    if name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        train, test = _every_fifth(y)
        x = x / 16
    else:
        x, y = datasets.load_breast_cancer(return_X_y=True)
        train, test = _every_fifth(y)
        x, y = (x - x[train].mean(axis=0)) / x[train].std(axis=0), 2 * y - 1
    x, y = x.astype(np.float32), y.astype(np.int32)
    return _shared(name, (x[train], y[train]), (x[test], y[test]))


@functools.cache
def from_files(name: str, paths: tuple[tuple[str, Path], ...]) -> Dataset:
    """Check and read the files of a data set: pairs of a file's published name and its resolved path."""
    found = dict(paths)
    for file in (file for choice in SOURCES[name].choices for file in choice if file.name in found):
        path = found[file.name]
        with reading(path):
            problem = fault(path, file)
        if problem:
            raise InputError(f"{path} is corrupt or incomplete: {problem}; delete it and fetch it again")
    return _shared(name, *_READERS[name](found))


def _mnist(paths: Paths) -> tuple[Part, Part]:
    def part(prefix: str) -> Part:
        images, labels = (paths[f"{prefix}-{kind}-ubyte.gz"] for kind in ("images-idx3", "labels-idx1"))
        with reading(images):
            x = scaled(read_idx(images))
        with reading(labels):
            y = read_idx(labels).astype(np.int32)
            if y.shape != (len(x),):
                raise ValueError(f"{y.size} labels for the {len(x)} images beside it")
        return x, y

    return part("train"), part("t10k")


def _cifar10(paths: Paths) -> tuple[Part, Part]:
    train, test = [f"data_batch_{k}.bin" for k in range(1, 6)], "test_batch.bin"
    archive = paths.get("cifar-10-binary.tar.gz")
    with reading(archive or paths[test].parent):
        loose = {} if archive else {name: path.read_bytes() for name, path in paths.items()}
        raw = read_members(archive, [*train, test]) if archive else loose
        return read_cifar(b"".join(raw[name] for name in train)), read_cifar(raw[test])


def _libsvm(name: str, features: int, paths: Paths) -> tuple[Part, Part]:
    def part(file: str) -> Part:
        if file not in paths:
            return np.zeros((0, features), np.float32), np.zeros(0, np.int32)
        with reading(paths[file]):
            return read_libsvm(paths[file], features)

    return part(name), part(f"{name}.t")


_READERS: dict[str, Callable[[Paths], tuple[Part, Part]]] = {
    "mnist": _mnist,
    "cifar10": _cifar10,
    "a9a": functools.partial(_libsvm, "a9a", 123),
    "w8a": functools.partial(_libsvm, "w8a", 300),
}


def _shared(name: str, train: Part, test: Part) -> Dataset:
    """Make the data set that every caller in this process gets, hence with read-only arrays."""
    for array in (*train, *test):
        array.flags.writeable = False
    return Dataset(name, *train, *test, CLASSES[name])


def _every_fifth(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split stratified by class and without random numbers; return sorted training and test indices."""
    order = np.argsort(labels, kind="stable")
    test = np.sort(order[::5])
    return np.setdiff1d(order, test), test


def even_odd(labels: ArrayLike) -> NDArray[np.float32]:
    """Return +1 for even class indices (even digits, in MNIST) and -1 for odd ones.

    The paper's losses take labels in {-1, 1}, but it does not say how ten classes become two. This leaves both nearly balanced.

    Args:
        labels: class indices, integers from 0.
    """
    return np.where(_indices(labels) % 2 == 0, 1, -1).astype(np.float32)


def animals_vehicles(labels: ArrayLike) -> NDArray[np.float32]:
    """Return +1 for CIFAR-10's animals and -1 for its vehicles (airplane, automobile, ship, truck).

    A second choice for CIFAR-10, where odd and even class indices mean nothing; 60 % are animals.

    Args:
        labels: CIFAR-10 class indices, 0 to 9.
    """
    indices = _indices(labels)
    if indices.size and indices.max() > 9:
        raise InputError(f"labels: found {indices.max()}; CIFAR-10's class indices are 0 to 9")
    return np.where(np.isin(indices, VEHICLES), -1, 1).astype(np.float32)


def _indices(labels: ArrayLike) -> np.ndarray:
    array = np.asarray(labels)
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"labels: found values of type {array.dtype}; give class indices, integers from 0")
    if array.size and array.min() < 0:
        raise InputError(f"labels: found {array.min()}; give class indices, integers from 0")
    return array
