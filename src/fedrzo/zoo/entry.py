"""What a published problem is made of: its value, its solution, and terms of which each client holds a share.

Published values are best known, not proved: a smaller one found here is no error. None of the problems is federated: their
objectives are taken as sums of terms of which each client holds an unequal share, so that the mean over clients is the
published one; where X has several sides, each client knows only some of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.problems.base import Problem
from fedrzo.problems.bilevel import Bilevel

Terms = Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]]
Solution = tuple[Any, Any]  # x, and y(x) or None where y is long
INF = np.inf
MACMPEC = "MacMPEC"  # S. Leyffer: "MacMPEC: AMPL collection of MPECs", 2000
BOLIB = "BOLIB"  # S. Zhou, A. B. Zemkoho, A. Tin: "BOLIB: Bilevel Optimization LIBrary of test problems", 2018
PAPER = "the paper"
NO_START = "none published"
INSIDE_X = "the collection's start, projected onto X"
AT_THE_ANSWER = "the collection's start is the solution"


@dataclass(frozen=True)
class Entry:
    """A problem from the literature with its best known value, in the units of its collection."""

    name: str  # as in its collection
    make: Callable[[], Problem]  # builds the problem; its x0 is the start
    published: float  # the best known value
    source: str  # the collection
    solution: Solution  # has the published value, or the verified one
    verified: float | None = None  # the least value of a search over all x, where the published one is not that
    start: str = ""  # where the start comes from, if it is not the collection's


@dataclass(frozen=True)
class Shared:
    """A loss made of terms; a batch says how much of each term is the client's."""

    terms: Terms

    def __call__(self, x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
        """Return the client's share of the loss."""
        return jnp.mean(batch @ jnp.stack(self.terms(x, y)))


def shares(terms: Terms, x0: Any, y0: Any, clients: int = 2) -> ClientData:
    """Give client i between half and one and a half of each term, so that the mean over clients is one."""
    with jax.enable_x64(True):  # as in a run: constants in the terms keep the precision they are first traced in
        count = len(jax.eval_shape(terms, x0, y0))
    i, k = np.arange(clients)[:, None], np.arange(count)
    return ClientData(list((0.5 + (i + k) % clients / (clients - 1))[:, None]))


def bilevel(name: str, upper: Terms, lower: Terms, x0: Any, y0: Any, clients: int = 2, **more: Any) -> Bilevel:
    """Return a bilevel problem whose terms are shared out among the clients."""
    x0, y0 = np.asarray(x0, float), np.asarray(y0, float)
    data, lower_data = (shares(terms, x0, y0, clients) for terms in (upper, lower))
    return Bilevel(Shared(upper), Shared(lower), data, x0, y0, lower_data=lower_data, name=name, **more)


def described(make: Callable[[], Problem], about: str, source: str, published: float) -> Callable[[], Problem]:
    """Return the maker with one line that says what it makes."""
    make.__doc__ = f"{about} ({source}; f* = {published:g})."
    return make


def entry(
    source: str, name: str, about: str, published: float, solution: Solution, *stated: Any,
    verified: float | None = None, start: str = "", **more: Any,
) -> Entry:  # fmt: skip
    """Return a bilevel problem; `stated` and `more` are what `bilevel` takes, functions of x and y made once."""
    make = described(lambda: bilevel(name, *stated, **more), about, source, published)
    return Entry(name, make, published, source, solution, verified, start)


def by_name(*entries: Entry) -> dict[str, Entry]:
    """Return the entries by their names."""
    return {entry.name: entry for entry in entries}
