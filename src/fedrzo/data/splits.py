"""Divide sample indices among clients.

Every split is a list with one sorted index array per client; no sample is given twice. The same arguments
give the same split, with the same version of NumPy.
"""

import operator
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrzo.errors import InputError

Split: TypeAlias = list[NDArray[np.intp]]


def iid(n_or_labels: int | ArrayLike, clients: int, seed: int) -> Split:
    """Deal all samples out at random; client sizes differ by at most one.

    Args:
        n_or_labels: the number of samples, or their labels (of which only the number is used).
        clients: the number of clients.
        seed: of the permutation.
    """
    array = np.asarray(n_or_labels)
    n = len(array) if array.ndim else _whole("n_or_labels", array.item())
    clients = _clients(clients, n)
    order = np.random.default_rng(_whole("seed", seed)).permutation(n)
    return [np.sort(part) for part in np.array_split(order, clients)]


def dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int, min_size: int = 1) -> Split:
    """Deal each class out in random proportions drawn from a symmetric Dirichlet distribution.

    The smaller `alpha`, the fewer classes a client sees; large values give all clients the same mixture. All
    samples are dealt out. Where a client ends up with fewer than `min_size`, samples move to it one by one,
    picked at random, from whichever client is then the largest; redrawing instead would not end when `alpha`
    is small and clients are many.

    Args:
        labels: one class label per sample.
        clients: the number of clients.
        alpha: concentration, positive.
        seed: of the proportions and of the samples.
        min_size: the least number of samples per client.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise InputError(f"labels: found an array of shape {labels.shape}; give one label per sample")
    clients, min_size = _clients(clients, len(labels)), _whole("min_size", min_size)
    if not 0 < alpha < 1e300:  # beyond, the gamma variates that NumPy divides overflow
        raise InputError(f"alpha={alpha}: the concentration must be positive and finite")
    if min_size * clients > len(labels):
        raise InputError(f"min_size={min_size}: {clients} clients need more than the {len(labels)} samples there are")

    generator = np.random.default_rng(_whole("seed", seed))
    parts: list[list[int]] = [[] for _ in range(clients)]
    classes, which = np.unique(labels, return_inverse=True)
    for label in range(len(classes)):
        samples = generator.permutation(np.flatnonzero(which == label))
        proportions = generator.dirichlet(np.full(clients, float(alpha)))
        cuts = (np.cumsum(proportions)[:-1] * len(samples)).astype(int)
        for part, piece in zip(parts, np.split(samples, cuts), strict=True):
            part.extend(piece.tolist())
    _fill_up(parts, min_size, generator)
    return [np.sort(np.array(part, np.intp)) for part in parts]


def by_sizes(n: int, sizes: Sequence[int], seed: int) -> Split:
    """Give client i `sizes[i]` samples at random; what is over goes to nobody.

    Args:
        n: the number of samples.
        sizes: samples per client, each at least 1, together at most `n`.
        seed: of the permutation.
    """
    n, sizes = _whole("n", n), [_whole("sizes", size) for size in sizes]
    if not sizes or min(sizes) < 1:
        raise InputError(f"sizes: found {min(sizes, default='no client')}; every client needs at least 1 sample")
    if sum(sizes) > n:
        raise InputError(f"sizes: they add up to {sum(sizes)}, more than the {n} samples there are")
    order = np.random.default_rng(_whole("seed", seed)).permutation(n)[: sum(sizes)]
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def _fill_up(parts: list[list[int]], min_size: int, generator: np.random.Generator) -> None:
    """Move samples, in place, until every part has `min_size`."""
    sizes = np.array([len(part) for part in parts])
    if sizes.min() >= min_size:
        return
    for part in parts:
        generator.shuffle(part)  # so that the last sample of a part is a random one
    for short in np.flatnonzero(sizes < min_size):
        while sizes[short] < min_size:
            # The mean is at least min_size and one part is below it, so the largest can spare a sample.
            largest = sizes.argmax()
            parts[short].append(parts[largest].pop())
            sizes[short] += 1
            sizes[largest] -= 1


def _clients(clients: int, n: int) -> int:
    clients = _whole("clients", clients)
    if clients < 1:
        raise InputError(f"clients={clients}: there must be at least 1")
    if clients > n:
        raise InputError(f"clients={clients}: more than the {n} samples there are; every client needs one")
    return clients


def _whole(name: str, value: int) -> int:
    """Return a non-negative integer argument as an `int`."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise InputError(f"{name}={value!r}: must be an integer") from None
    if whole < 0:
        raise InputError(f"{name}={value}: must not be negative")
    return whole
