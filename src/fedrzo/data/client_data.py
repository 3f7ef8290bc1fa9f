"""Clients' stored samples: `ClientData`."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.arrays import check_clients, concatenate, stack_fixed
from fedrzo.support.keys import below
from fedrzo.support.numbers import check_counts
from fedrzo.support.pytrees import index, replaced, size_of, traced

PyTree = Any
# Samples evaluated at a time where clients of unequal sizes are walked through in full: large enough to keep the
# processor busy, small enough that the last, partly filled chunk wastes little.
CHUNK = 128
MONITOR_CHUNK = 4096  # the same where all clients' samples are walked through together
CLIENTS_AT_A_TIME = 64  # whole clients that are looked at together; bounds the memory that monitoring takes at a large n
# More of them, as long as their samples have no more bytes than this: what a cache holds, or a GPU has to spare.
BYTES_AT_A_TIME = {"cpu": 1 << 24, "gpu": 1 << 30}
ALL_AT_ONCE = 1 << 28  # bytes of all samples up to which they are looked at where they are; parts of them are copied first


@traced("flat", "offsets", "sizes", "fixed")
class ClientData:
    """Samples of every client, unequal in number, stored end to end without padding.

    Args:
        clients: one pytree of arrays per client, samples on the leading axis.
        fixed: optional, one pytree per client (all of one shape) that accompanies every batch: a loss then receives
            `(samples, fixed_i)` as its batch.
    """

    stored: Literal[True] = True  # whether clients have a number of samples, all of which can be asked for
    full_batch = "full"  # the batch size of one pass over what a client has

    def __init__(self, clients: Sequence[PyTree], fixed: Sequence[PyTree] | None = None) -> None:
        clients = check_clients(clients)
        leaves = [jax.tree.leaves(client) for client in clients]
        treedef = jax.tree.structure(clients[0])
        sizes = np.array([len(client[0]) for client in leaves])
        columns = [concatenate([client[j] for client in leaves], j) for j in range(len(leaves[0]))]
        self.flat = jax.tree.unflatten(treedef, columns)
        self.sizes = sizes.astype(np.int32)
        self.offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        self.fixed = None if fixed is None else stack_fixed(fixed, len(clients))
        self.clients = len(clients)
        self.samples = int(sizes.sum())
        self.equal_size = int(sizes[0]) if len(set(sizes.tolist())) == 1 else None
        self.identical = False
        self.is_wide = False
        self.longest = int(sizes.max())
        self.chunk_size = min(self.longest, CHUNK)

    @classmethod
    def shared(cls, samples: PyTree, clients: int) -> Self:
        """Return data of identical clients: all draw from the same samples, which are stored once."""
        check_counts(clients=clients)
        data = cls([samples])
        data.offsets, data.sizes = np.repeat(data.offsets, clients), np.repeat(data.sizes, clients)
        data.clients, data.identical = clients, True
        return data

    def thinned(self, every: int) -> Self:
        """Return every so manieth sample of each client, and at least one."""
        thin = copy.copy(self)
        thin._take(range(self.clients), every)
        thin.equal_size = int(thin.sizes[0]) if len(set(thin.sizes.tolist())) == 1 else None
        return thin

    def part(self, clients: Sequence[int]) -> Self:
        """Return some clients' samples alone; whether all clients have equally many is still known, so steps compute alike."""
        part = copy.copy(self)
        part.clients = len(clients)
        if self.identical:
            part.sizes, part.offsets = np.asarray(self.sizes)[list(clients)], np.asarray(self.offsets)[list(clients)]
        else:
            part._take(clients, 1)
        part.fixed = jax.tree.map(lambda leaf: np.asarray(leaf)[list(clients)], self.fixed)
        part.longest = int(part.sizes.max())
        return part

    def _take(self, clients: Iterable[int], every: int) -> None:
        """Keep every so manieth sample of some clients, who do not share theirs."""
        offsets, sizes = np.asarray(self.offsets), np.asarray(self.sizes)
        rows = [offsets[i] + np.arange(0, sizes[i], every) for i in clients]
        kept = np.concatenate(rows)
        self.flat = jax.tree.map(lambda leaf: np.asarray(leaf)[kept], self.flat)
        self.sizes = np.array([len(own) for own in rows], np.int32)
        self.offsets = (np.cumsum(self.sizes) - self.sizes).astype(np.int32)
        self.samples, self.longest = len(kept), int(self.sizes.max())

    def wide(self) -> Self:
        """Return these data, with floats handed out in the precision of the run rather than in that of their storage.

        Each product would convert them anyway, and XLA then keeps a converted copy for each.
        """
        return replaced(self, is_wide=True)

    def __repr__(self) -> str:
        sizes = np.asarray(self.sizes)
        each = f"{sizes.min()}" if self.equal_size else f"{sizes.min()} to {sizes.max()}"
        return f"ClientData({self.clients} clients, {each} samples each)"

    def draw(self, key: jax.Array, client: Any, batch_size: int) -> jax.Array:
        """Draw which samples of a client a batch has: their rows, with replacement."""
        return jnp.asarray(self.offsets)[client] + below(jnp.asarray(self.sizes)[client], key, (batch_size,))

    def batch(self, rows: jax.Array, client: Any, client_id: Any) -> PyTree:
        """Return the samples that were drawn; stored ones do not depend on the client's name."""
        samples = self._rows(rows)
        return samples if self.fixed is None else (samples, index(self.fixed, client))

    def everything_of(self, client: Any) -> PyTree:
        """Return all samples of one client as one batch; as a `Whole` where sizes differ."""
        if self.equal_size is None:
            return Whole(self, client)
        rows = jnp.asarray(self.offsets)[client] + jnp.arange(self.equal_size, dtype=jnp.int32)
        return self.batch(rows, client, client)

    def chunk(self, client: Any, k: Any) -> tuple[PyTree, jax.Array]:
        """Return the k-th chunk of a client's samples as batches of one, with weights that sum to 1 over its chunks."""
        size = jnp.asarray(self.sizes)[client]
        place = k * self.chunk_size + jnp.arange(self.chunk_size, dtype=jnp.int32)
        rows = jnp.asarray(self.offsets)[client] + jnp.minimum(place, size - 1)
        return self.singles(rows, jnp.broadcast_to(client, rows.shape)), jnp.where(place < size, 1.0 / size, 0.0)

    def chunks(self, client: Any) -> Any:
        """Return the number of chunks of one client."""
        return (jnp.asarray(self.sizes)[client] + self.chunk_size - 1) // self.chunk_size

    @property
    def _walk(self) -> tuple[int, int]:
        """How many batches all samples make, one for each client or, where sizes differ, each sample; how many go together."""
        if self.equal_size is None:
            return self.samples, min(self.samples, MONITOR_CHUNK)
        stored = size_of(self.flat)
        if stored <= ALL_AT_ONCE:
            return self.clients, self.clients
        most = BYTES_AT_A_TIME.get(jax.default_backend(), 0) * self.clients // stored
        return self.clients, min(self.clients, max(CLIENTS_AT_A_TIME, most))

    @property
    def all_chunks(self) -> int:
        """In how many chunks all samples are walked through."""
        batches, together = self._walk
        return -(-batches // together)

    def everything(self, k: Any, client_weights: Any) -> tuple[PyTree, jax.Array]:
        """Return the k-th chunk of ALL samples as batches, with what each counts in the mean of all clients.

        This walks the flat storage, so monitoring clients of very unequal sizes costs no padding, and nothing is looked up.
        """
        (batches, together), each = self._walk, self.equal_size or 1
        first = jnp.minimum(k * together, batches - together)  # the last chunk goes back over some of the one before
        place = first + jnp.arange(together, dtype=jnp.int32)
        client = place if self.equal_size else jnp.searchsorted(jnp.asarray(self.offsets), place, side="right") - 1

        def cut(leaf: jax.Array) -> jax.Array:
            rows = jax.lax.dynamic_slice_in_dim(jnp.asarray(leaf), first * each, together * each)
            return rows.reshape(together, each, *rows.shape[1:])

        weight = jnp.asarray(client_weights)[client] * each / jnp.asarray(self.sizes)[client]
        samples = self._widened(jax.tree.map(cut, self.flat))
        samples = samples if self.fixed is None else (samples, index(self.fixed, client))
        return samples, jnp.where(place >= k * together, weight, 0.0)

    def _rows(self, rows: Any) -> PyTree:
        return self._widened(index(self.flat, rows))

    def _widened(self, samples: PyTree) -> PyTree:
        if not self.is_wide:
            return samples
        return jax.tree.map(lambda leaf: leaf.astype(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, samples)

    def singles(self, rows: Any, clients: Any) -> PyTree:
        """Batches of one sample, stacked on a new leading axis."""
        samples = jax.tree.map(lambda leaf: leaf[:, None], self._rows(rows))
        return samples if self.fixed is None else (samples, index(self.fixed, clients))


class Whole(NamedTuple):
    """All samples of one client as a batch, where sizes differ: for black boxes, since compiled code knows one length only."""

    data: ClientData
    client: Any

    def padded(self) -> tuple[PyTree, tuple, Any]:
        """Return the samples, as many as the longest client has (the last again); `fixed`, in a tuple if any; how many count."""
        data, client = self
        size = jnp.asarray(data.sizes)[client]
        place = jnp.minimum(jnp.arange(data.longest, dtype=jnp.int32), size - 1)
        samples = data._rows(jnp.asarray(data.offsets)[client] + place)
        return samples, () if data.fixed is None else (index(data.fixed, client),), size
