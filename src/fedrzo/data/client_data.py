"""Where samples come from: `ClientData` (stored samples) and `Sampler` (drawn on demand)."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.arrays import check_clients, concatenate, stack_fixed
from fedrzo.errors import InputError
from fedrzo.support.arguments import call_user
from fedrzo.support.keys import usual
from fedrzo.support.numbers import check_counts
from fedrzo.support.pytrees import index, replaced, traced

PyTree = Any
# Samples evaluated at a time where clients of unequal sizes are walked through in full: large enough to keep the
# processor busy, small enough that the last, partly filled chunk wastes little.
CHUNK = 128
MONITOR_CHUNK = 4096  # the same where all clients' samples are walked through together


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
        self.monitor_chunk = min(self.samples, MONITOR_CHUNK)

    @classmethod
    def shared(cls, samples: PyTree, clients: int) -> Self:
        """Return data of identical clients: all draw from the same samples, which are stored once."""
        check_counts(clients=clients)
        data = cls([samples])
        data.offsets, data.sizes = np.repeat(data.offsets, clients), np.repeat(data.sizes, clients)
        data.clients, data.identical = clients, True
        return data

    def part(self, clients: Sequence[int]) -> Self:
        """Return some clients' samples alone; whether all clients have equally many is still known, so steps compute alike."""
        part = copy.copy(self)
        part.clients, part.sizes = len(clients), np.asarray(self.sizes)[list(clients)]
        part.offsets = np.asarray(self.offsets)[list(clients)]
        if not self.identical:
            rows = np.concatenate([o + np.arange(s) for o, s in zip(part.offsets, part.sizes, strict=True)])
            part.flat = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], self.flat)
            part.offsets = (np.cumsum(part.sizes) - part.sizes).astype(np.int32)
            part.samples = len(rows)
        part.fixed = jax.tree.map(lambda leaf: np.asarray(leaf)[list(clients)], self.fixed)
        part.longest = int(part.sizes.max())
        part.monitor_chunk = min(part.samples, MONITOR_CHUNK)
        return part

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
        rows = jax.random.randint(key, (batch_size,), 0, jnp.asarray(self.sizes)[client], dtype=jnp.int32)
        return jnp.asarray(self.offsets)[client] + rows

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
        return self._singles(rows, jnp.broadcast_to(client, rows.shape)), jnp.where(place < size, 1.0 / size, 0.0)

    def chunks(self, client: Any) -> Any:
        """Return the number of chunks of one client."""
        return (jnp.asarray(self.sizes)[client] + self.chunk_size - 1) // self.chunk_size

    def everything(self, k: Any, client_weights: Any) -> tuple[PyTree, jax.Array]:
        """Return the k-th chunk of ALL samples as batches of one, each weighted by its client's weight over its size.

        This walks the flat storage, so monitoring clients of very unequal sizes costs no padding.
        """
        place = k * self.monitor_chunk + jnp.arange(self.monitor_chunk, dtype=jnp.int32)
        rows = jnp.minimum(place, self.samples - 1)
        client = jnp.searchsorted(jnp.asarray(self.offsets), rows, side="right") - 1
        weight = jnp.asarray(client_weights)[client] / jnp.asarray(self.sizes)[client]
        return self._singles(rows, client), jnp.where(place < self.samples, weight, 0.0)

    def _rows(self, rows: Any) -> PyTree:
        samples = index(self.flat, rows)
        if not self.is_wide:
            return samples
        return jax.tree.map(lambda leaf: leaf.astype(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, samples)

    def _singles(self, rows: Any, clients: Any) -> PyTree:
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


@traced()
class Sampler:
    """Samples drawn on demand: `fn(key, client_id) -> xi`, a pytree of arrays without a batch axis.

    Args:
        fn: JAX-traceable.
        clients: how many clients there are.
        evaluation: samples per client, drawn once from a fixed key, over which losses are monitored.
    """

    stored: Literal[False] = False
    identical: Literal[False] = False
    fixed = None
    equal_size = None

    def __init__(self, fn: Callable[[jax.Array, Any], PyTree], clients: int, evaluation: int = 1024) -> None:
        if not callable(fn):
            raise InputError(f"Sampler: fn is {type(fn).__name__}, not a function; pass fn(key, client_id)")
        for name, value in (("clients", clients), ("evaluation", evaluation)):
            if not isinstance(value, int) or value < 1:
                raise InputError(f"Sampler: {name} is {value!r}; pass a whole number of at least 1")
        drawn = functools.partial(jax.eval_shape, fn)
        call_user(drawn, "Sampler: fn", "fn(key, client_id)", jax.random.key(0), jnp.int32(0))
        self.fn = fn
        self.clients = clients
        self.evaluation = evaluation
        self.full_batch = evaluation  # how many samples stand for all that a client could draw

    @property
    def samples(self) -> int:
        """How many samples one pass over all clients takes."""
        return self.clients * self.evaluation

    def __repr__(self) -> str:
        return f"Sampler({getattr(self.fn, '__name__', 'fn')}, {self.clients} clients)"

    def sample(self, key: jax.Array, client: Any, client_id: Any, batch_size: int) -> PyTree:
        """Draw a batch: independent samples on a new leading axis."""
        return self.batch(self.draw(key, client, batch_size), client, client_id)

    def draw(self, key: jax.Array, client: Any, batch_size: int) -> jax.Array:
        """Draw the keys of a batch's samples."""
        return usual(jax.random.split(key, batch_size))

    def batch(self, keys: jax.Array, client: Any, client_id: Any) -> PyTree:
        """Return the samples that were drawn."""
        return jax.vmap(lambda key: self.fn(key, client_id))(keys)

    def part(self, clients: Sequence[int]) -> Self:
        """Return the sampler for some clients: samples depend on a client's name, which it keeps, not on its place."""
        return replaced(self, clients=len(clients))

    def wide(self) -> Self:
        """Return this sampler: what it draws has the precision it was drawn in."""
        return self

    def everything_of(self, client_id: Any) -> PyTree:
        """Return the fixed batch over which this client's loss is monitored."""
        key = jax.random.fold_in(jax.random.key(20_230_913), client_id)
        return self.sample(key, client_id, client_id, self.evaluation)
