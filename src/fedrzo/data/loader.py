"""Samples that stay where their clients are until they are needed: `Loader`."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from fedrzo.data.client_data import CHUNK, ClientData, PyTree
from fedrzo.errors import InputError
from fedrzo.support.arguments import call_user, check_function, checked_signature
from fedrzo.support.numbers import check_counts
from fedrzo.support.pytrees import replaced, traced


@traced("flat", "offsets", "sizes", "fixed")
class Loader(ClientData):
    """Samples that are loaded where their clients are: with `engine="ray"`, no process has those of others.

    The process that starts a run loads client 0's alone, to look at their shapes. Other engines load all clients' samples.

    Args:
        load: `load(client)` returns the samples of one client, as an entry of `fz.ClientData`; files that it reads must be where
            actors may be.
        clients: how many clients there are.
        sizes: how many samples each client has; by default as many as client 0.
    """

    @checked_signature()
    def __init__(self, load: Callable[[int], PyTree], clients: int, sizes: Sequence[int] | None = None) -> None:
        check_function(load, "Loader: load")
        check_counts(clients=clients)
        super().__init__([call_user(load, "Loader: load", "load(client)", 0)])
        found = int(self.sizes[0])
        given = np.full(clients, found) if sizes is None else np.asarray(sizes)
        if given.shape != (clients,) or not np.issubdtype(given.dtype, np.integer) or given.min() < 1:
            raise InputError(f"sizes: found {sizes!r:.60}; pass a whole number of samples for each of {clients} clients")
        if given[0] != found:
            raise InputError(f"sizes: found {given[0]} for client 0, whose samples are {found}; pass what load(client) returns")
        self.load = load
        self.names = tuple(range(clients))  # by which `load` knows these clients
        self.sizes, self.offsets = given.astype(np.int32), np.zeros(clients, np.int32)
        self.clients, self.samples = clients, int(given.sum())
        self.equal_size = found if (given == found).all() else None
        self.longest = int(given.max())
        self.chunk_size = min(self.longest, CHUNK)

    def __repr__(self) -> str:
        return super().__repr__().replace("ClientData", "Loader", 1)

    def part(self, clients: Sequence[int]) -> Self:
        """Return the loader of some clients; nothing is loaded."""
        sizes = np.asarray(self.sizes)[list(clients)]
        part = replaced(self, sizes=sizes, offsets=np.zeros(len(sizes), np.int32), clients=len(sizes), samples=int(sizes.sum()))
        part.names, part.longest = tuple(self.names[i] for i in clients), int(sizes.max())
        part.flat = jax.tree.map(lambda leaf: leaf[:0], self.flat)
        return part

    def loaded(self) -> ClientData:
        """Load the samples of all these clients; steps compute alike wherever that is done."""
        found = ClientData([call_user(self.load, "Loader: load", "load(client)", name) for name in self.names])
        for name, size, wanted in zip(self.names, found.sizes, np.asarray(self.sizes), strict=True):
            if size != wanted:
                raise InputError(f"data: load({name}) returned {size} samples, expected were {wanted}; say so by sizes=[...]")
        found.equal_size, found.chunk_size, found.is_wide = self.equal_size, self.chunk_size, self.is_wide
        return found

    def sketched(self) -> ClientData:
        """Return data of the same shapes, for compiled code that is never run: every client has client 0's samples."""
        sketch = object.__new__(ClientData)
        vars(sketch).update({name: value for name, value in vars(self).items() if name not in ("load", "names")})
        return sketch

    def thinned(self, every: int) -> Self:
        """Refuse: the samples are not here."""
        raise self._elsewhere()

    def draw(self, key: Any, client: Any, batch_size: int) -> Any:
        """Refuse: the samples are not here."""
        raise self._elsewhere()

    def everything(self, k: Any, client_weights: Any) -> Any:
        """Refuse: the samples are not here."""
        raise self._elsewhere()

    def _widened(self, samples: PyTree) -> PyTree:
        raise self._elsewhere()  # nothing is taken out of the data without coming by here

    def _elsewhere(self) -> InputError:
        return InputError(
            "data: this needs samples of all clients, which a Loader leaves where the clients are; give the numbers that are "
            "estimated from them, such as modulus= and smoothness=, or load all here: "
            "fz.ClientData([load(i) for i in range(clients)])"
        )
