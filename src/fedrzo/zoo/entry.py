"""A published problem with its best known value, what it takes to solve it here, and how it becomes federated.

None of the published problems is federated: their objectives are taken as sums of terms of which each client holds an unequal
share, so that the mean over clients is the published one; where X has several sides, each client knows only some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.methods import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.bilevel import Bilevel

Terms = Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]]


@dataclass(frozen=True)
class Entry:
    """A problem from the literature.

    Attributes:
        name: as in its collection.
        make: builds the problem; its x0 is the start.
        published: the best known value, in the collection's units. Best known is not proved: smaller is no error.
        method: what solves it, with its step sizes.
        rounds: how many rounds that takes.
        scale: the collection's loss over the problem's. Iterates leave X by smoothing times the loss's slope, so losses
            in the thousands are divided by this to keep that distance small.
        start: where the start comes from, if it is not the collection's.
    """

    name: str
    make: Callable[[], Problem]
    published: float
    method: Method
    rounds: int
    scale: float = 1.0
    start: str = ""

    @property
    def smoothing(self) -> float:
        """The method's smoothing, by which infeasibility is judged."""
        return float(self.method.smoothing)  # type: ignore[attr-defined]


class Shared:
    """A loss made of terms; a batch says how much of each term is the client's."""

    def __init__(self, terms: Terms, scale: float = 1.0) -> None:
        self.terms = terms
        self.scale = scale

    def __call__(self, x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
        """Return the client's share of the loss."""
        return jnp.mean(batch @ jnp.stack(self.terms(x, y))) / self.scale


def shares(terms: Terms, x0: Any, y0: Any, clients: int) -> ClientData:
    """Give client i between half and one and a half of each term, so that the mean over clients is one."""
    with jax.enable_x64(True):  # as in a run: constants in the terms keep the precision they are first traced in
        count = len(jax.eval_shape(terms, x0, y0))
    i, k = np.arange(clients)[:, None], np.arange(count)
    return ClientData(list((0.5 + (i + k) % clients / (clients - 1))[:, None]))


def bilevel(
    name: str, upper: Terms, lower: Terms, x0: Any, y0: Any, scale: float = 1.0, clients: int = 2, **more: Any
) -> Bilevel:
    """Return a bilevel problem whose terms are shared out among the clients."""
    x0, y0 = np.asarray(x0, float), np.asarray(y0, float)
    data, lower_data = shares(upper, x0, y0, clients), shares(lower, x0, y0, clients)
    return Bilevel(Shared(upper, scale), Shared(lower), data, x0, y0, lower_data=lower_data, name=name, **more)
