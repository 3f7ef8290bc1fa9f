"""Two classes out of ten, for losses that want labels in {-1, +1}."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrzo.errors import InputError

_VEHICLES = (0, 1, 8, 9)  # airplane, automobile, ship, truck


def even_odd(labels: ArrayLike) -> NDArray[np.float32]:
    """Return +1 for even class indices (even digits, in MNIST) and -1 for odd ones.

    The paper's losses on MNIST and CIFAR-10 take labels in {-1, 1}, but the paper does not say how ten
    classes become two. This is our choice; it leaves both sides nearly balanced.

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
    return np.where(np.isin(indices, _VEHICLES), -1, 1).astype(np.float32)


def _indices(labels: ArrayLike) -> np.ndarray:
    array = np.asarray(labels)
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"labels: found values of type {array.dtype}; give class indices, integers from 0")
    if array.size and array.min() < 0:
        raise InputError(f"labels: found {array.min()}; give class indices, integers from 0")
    return array
