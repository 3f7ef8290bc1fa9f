"""What problems on data sets share: makers, how samples are dealt out to clients, and which labels a loss knows."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from fedrzo import data as datasets
from fedrzo.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
Loss = TypeVar("Loss", bound=Callable)


def on_dataset(make: Callable[Concatenate[str, P], T], name: str, about: str) -> Callable[P, T]:
    """Return the maker of a problem on the data set of this name, with a line about it."""
    made = functools.partial(make, name)
    made.__doc__ = about
    return made


def split_rows(split: str, labels: np.ndarray, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Return each client's rows, dealt out by the split of this name."""
    if split == "iid":
        return datasets.iid(labels, clients, seed)
    if split == "dirichlet":
        return datasets.dirichlet(labels, clients, alpha, seed)
    raise InputError(f'split: found {split!r}; pass "dirichlet" or "iid"')


def knows(labels: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Loss], Loss]:
    """Give a loss `known_labels(x, samples)`, the samples' labels and those that it knows; others are refused before a run.

    An index that is out of range is no error in JAX.
    """

    def give(loss: Loss) -> Loss:
        loss.known_labels = labels  # type: ignore[attr-defined]
        return loss

    return give


def known_signs(x: Any, samples: Any) -> tuple[Any, Any]:
    """Return the labels of `(inputs, labels)`, and those of two classes."""
    return samples[1], (-1, 1)
