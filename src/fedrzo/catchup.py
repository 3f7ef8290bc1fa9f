"""What a client missed: small records of past rounds, from which a client that kept an old x rebuilds the new one.

A method that sends scalars instead of x keeps one record per round. A client that was away needs those since it last took part,
or, where that is less, x itself. `Missed` among the shared arguments of a call says so: each client is sent its own part, and
that part alone is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.pytrees import index, nbytes

PyTree = Any


class Missed(NamedTuple):
    """Records of the rounds `first` .. `stop` - 1, or what they lead to.

    Attributes:
        rows: records by round, modulo the number of rows: older ones are overwritten.
        fresh: what all records together lead to, sent instead where that is smaller or records are gone.
        first: the first round missed; one entry per client on the server, one number on a client.
        stop: the present round.
    """

    rows: PyTree
    fresh: PyTree
    first: Any
    stop: Any

    @property
    def kept(self) -> int:
        """How many rounds are on record."""
        return jax.tree.leaves(self.rows)[0].shape[0]

    @property
    def row_bytes(self) -> int:
        """The size of one record."""
        return nbytes(self.rows) // self.kept

    @property
    def gap(self) -> Any:
        """How many rounds were missed; one more than are on record stands for all larger numbers."""
        return jnp.minimum(self.stop - self.first, self.kept + 1)

    @property
    def renewed(self) -> Any:
        """Whether `fresh` is sent rather than records."""
        return (self.gap > self.kept) | (self.gap * self.row_bytes >= nbytes(self.fresh))

    @property
    def bytes(self) -> Any:
        """How many bytes travel."""
        return jnp.where(self.renewed, nbytes(self.fresh), self.gap * self.row_bytes)

    def of(self, client: Any) -> Missed:
        """Return one client's part, as seen from where everything is at hand."""
        return self._replace(first=self.first[client])

    def sent(self) -> PyTree:
        """Return the arrays that travel to one client; on the host."""
        if self.renewed:
            return self.fresh
        rounds = np.arange(int(self.first), int(self.stop)) % self.kept
        return jax.tree.map(lambda rows: np.asarray(rows)[rounds], self.rows)

    def received(self) -> Missed:
        """Return one client's part as it arrives: of one shape whatever was missed, with nothing where nothing was sent."""
        rounds = np.arange(int(self.first), int(self.stop)) % self.kept
        if self.renewed:
            return self._replace(rows=jax.tree.map(np.zeros_like, self.rows))
        kept = np.isin(np.arange(self.kept), rounds)

        def blank(rows: Any) -> np.ndarray:
            return np.where(kept.reshape(-1, *[1] * (np.ndim(rows) - 1)), rows, np.zeros_like(rows))

        return self._replace(rows=jax.tree.map(blank, self.rows), fresh=jax.tree.map(np.zeros_like, self.fresh))

    def catch_up(self, old: PyTree, replay: Callable[[PyTree, PyTree, Any], PyTree]) -> PyTree:
        """Return what `old` becomes by `replay(old, record, round)` over the missed rounds, or `fresh` where that was sent."""
        begin = jnp.where(self.renewed, self.stop, self.first)
        new = jax.lax.fori_loop(begin, self.stop, lambda r, x: replay(x, index(self.rows, r % self.kept), r), old)
        return jax.tree.map(lambda fresh, new: jnp.where(self.renewed, fresh, new), self.fresh, new)


def for_client(shared: tuple, client: Any) -> tuple:
    """Return a call's shared arguments as one client sees them where everything is at hand."""
    return tuple(value.of(client) if isinstance(value, Missed) else value for value in shared)


def common_bytes(shared: tuple) -> int:
    """Return the size of what every client is sent alike."""
    return nbytes([value for value in shared if not isinstance(value, Missed)])


def own_bytes(shared: tuple, client: Any) -> Any:
    """Return the size of what one client is sent beside that; a plain zero where there is nothing."""
    return sum((value.of(client).bytes for value in shared if isinstance(value, Missed)), start=0)
