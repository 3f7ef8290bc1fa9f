"""What a client missed: small records of past rounds, from which a client that kept an old x rebuilds the new one.

A method that sends scalars instead of x keeps one record per round. A client that was away needs those since it last took part,
or, where that is less, x itself. `Missed` among the shared arguments of a call says so: each client is sent its own part, and
that part alone is counted.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.support.pytrees import index, nbytes

PyTree = Any


class Missed(NamedTuple):
    """Records of the rounds `first` .. `stop` - 1, or what they lead to."""

    rows: PyTree  # records by round, modulo the number of rows: older ones are overwritten
    fresh: PyTree  # what all records together lead to, sent instead where that is smaller or records are gone
    first: Any  # the first round missed; one entry per client on the server, one number on a client
    stop: Any  # the present round

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

    def of(self, client: Any) -> Self:
        """Return one client's part, as seen from where everything is at hand."""
        return self._replace(first=self.first[client])

    def sent(self) -> PyTree:
        """Return the arrays that travel to one client; on the host."""
        rounds = np.arange(int(self.first), int(self.stop)) % self.kept
        return self.fresh if self.renewed else jax.tree.map(lambda rows: np.asarray(rows)[rounds], self.rows)

    def packed(self) -> tuple[dict[str, Any], PyTree]:
        """Return one client's part for the wire: plain values, and what travels beside the shapes of what does not."""
        plain = {"first": int(self.first), "stop": int(self.stop), "kept": self.kept, "renewed": bool(self.renewed)}
        return plain, (_none_of(self.rows), self.fresh) if self.renewed else (self.sent(), _none_of(self.fresh))

    @classmethod
    def unpacked(cls, plain: dict[str, Any], arrays: PyTree) -> Self:
        """Read one client's part: of one shape whatever was missed, with zeros where nothing was sent."""
        rows, fresh = arrays
        first, stop, kept = plain["first"], plain["stop"], plain["kept"]
        if plain["renewed"]:
            return cls(_zeros_like(rows), fresh, np.int32(first), np.int32(stop))
        rounds = np.arange(first, stop) % kept

        def place(sent: np.ndarray) -> np.ndarray:
            full = np.zeros((kept, *sent.shape[1:]), sent.dtype)
            full[rounds] = sent
            return full

        return cls(jax.tree.map(place, rows), _zeros_like(fresh), np.int32(first), np.int32(stop))

    def catch_up(self, old: PyTree, replay: Callable[[PyTree, PyTree, Any], PyTree]) -> PyTree:
        """Return what `old` becomes by `replay(old, record, round)` over the missed rounds, or `fresh` where that was sent."""
        begin = jnp.where(self.renewed, self.stop, self.first)
        new = jax.lax.fori_loop(begin, self.stop, lambda r, x: replay(x, index(self.rows, r % self.kept), r), old)
        return jax.tree.map(lambda fresh, new: jnp.where(self.renewed, fresh, new), self.fresh, new)


class Either(NamedTuple):
    """A reply that is small or large: a client sends one of the two, and that one is counted."""

    small: PyTree  # such as scalars
    large: PyTree  # such as x
    sends_large: Any  # which of them travels; the other is zeros on the server of a real federation

    def sent(self) -> "Either":
        """Return what travels, with None for what does not; on the host."""
        return Either(None, self.large, None) if self.sends_large else Either(self.small, None, None)

    def received(self, expected: Self) -> "Either":
        """Return what arrived, with zeros for what was not sent; ValueError unless it is one of the two."""
        if (self.small is None) == (self.large is None):
            raise ValueError("found none or both of two kinds of replies, of which a client sends one")
        # One zero, seen again and again, takes no memory.
        small, large = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), expected[:2])
        return Either(small, self.large, np.True_) if self.small is None else Either(self.small, large, np.False_)


def _is_either(node: Any) -> bool:
    return isinstance(node, Either)


def as_sent(value: PyTree) -> PyTree:
    """Return a reply as it travels."""
    return jax.tree.map(lambda node: node.sent() if _is_either(node) else node, value, is_leaf=_is_either)


def as_received(value: PyTree, expected: PyTree) -> PyTree:
    """Return a reply as the server reads it, given what it looks like; ValueError where it cannot be that."""
    structure: Any = jax.tree.structure(expected, is_leaf=_is_either)
    try:
        nodes = structure.flatten_up_to(value)
    except ValueError:
        raise ValueError(f"found the structure {jax.tree.structure(value)}, wanted {structure}") from None
    wanted = structure.flatten_up_to(expected)
    found = [n.received(w) if _is_either(n) and _is_either(w) else n for n, w in zip(nodes, wanted, strict=True)]
    return jax.tree.unflatten(structure, found)


def stacked(values: list[PyTree]) -> PyTree:
    """Return replies one above the other; where nobody sent the large one of two, None stands for it and takes no memory."""

    def rows(*nodes: Any) -> Any:
        if not _is_either(nodes[0]):
            return jnp.stack(nodes)
        if not any(node.sends_large for node in nodes):
            nodes = tuple(node._replace(large=None) for node in nodes)
        return Either(*(jax.tree.map(rows, *parts) for parts in zip(*nodes, strict=True)))

    return jax.tree.map(rows, *values, is_leaf=_is_either)


def kinds(value: PyTree) -> tuple[bool, ...]:
    """Tell which of a reply's parts that are small or large were sent large."""
    return tuple(bool(node.sends_large) for node in jax.tree.leaves(value, is_leaf=_is_either) if _is_either(node))


def reply_bytes(value: PyTree) -> tuple[int, Any]:
    """Return the size of a reply's fixed part and of its parts that are small or large (a plain zero if it has none).

    In compiled code a leading axis of clients makes the second one an array; the first is then that of all clients together.
    """
    nodes = jax.tree.leaves(value, is_leaf=_is_either)
    fixed = nbytes([node for node in nodes if not _is_either(node)])

    def own(node: Either) -> Any:
        clients = max(1, np.size(node.sends_large))
        small, large = nbytes(node.small) // clients, nbytes(node.large) // clients
        return jnp.where(node.sends_large, large, small)

    return fixed, sum((own(node) for node in nodes if _is_either(node)), start=0)


def _none_of(tree: PyTree) -> PyTree:
    """Return arrays without a single number that still tell a tree's shapes and types."""
    arrays = jax.tree.map(np.asarray, tree)
    return jax.tree.map(lambda leaf: {"shape": np.array(leaf.shape, np.int64), "empty": np.zeros(0, leaf.dtype)}, arrays)


def _zeros_like(tree: PyTree) -> PyTree:
    """Read what `_none_of` wrote: zeros of those shapes and types."""

    def is_shape(leaf: Any) -> bool:
        return isinstance(leaf, dict) and set(leaf) == {"shape", "empty"}

    return jax.tree.map(lambda leaf: np.zeros(leaf["shape"], leaf["empty"].dtype), tree, is_leaf=is_shape)


def for_client(shared: tuple, client: Any) -> tuple:
    """Return a call's shared arguments as one client sees them where everything is at hand."""
    return tuple(value.of(client) if isinstance(value, Missed) else value for value in shared)


def common_bytes(shared: tuple) -> int:
    """Return the size of what every client is sent alike."""
    return nbytes([value for value in shared if not isinstance(value, Missed)])


def own_bytes(shared: tuple, client: Any) -> Any:
    """Return the size of what one client is sent beside that; a plain zero where there is nothing."""
    return sum((value.of(client).bytes for value in shared if isinstance(value, Missed)), start=0)
