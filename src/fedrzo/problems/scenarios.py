"""Problems with a lower level for each scenario: the scenarios themselves, and the map of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo import vi
from fedrzo.problems.hierarchical import Hierarchical
from fedrzo.problems.inputs import PyTree
from fedrzo.support.pytrees import index


class Scenarios(NamedTuple):
    """All scenarios over which a two-stage problem is monitored.

    Attributes:
        fetch: returns the scenarios of some rows.
        owner: the client of each row.
        weights: of each row in the mean loss; they sum to one.
    """

    fetch: Callable[[jax.Array], PyTree]
    owner: jax.Array
    weights: jax.Array


class WithMap(Hierarchical):
    """A problem whose lower levels are variational inequalities, one for each scenario."""

    map_fn: Callable
    client_constants = vi.Constants(None, None)  # until they are measured

    def map(self, x: jax.Array, y: jax.Array, xi: PyTree) -> jax.Array:
        """Return the map at flat x and y, as a flat vector."""
        return self.lower_layout.ravel(self.map_fn(self.layout.unravel(x), self.lower_layout.unravel(y), xi))

    @property
    def scenario_axis(self) -> Any:
        """Where a batch has its scenarios: a client's fixed values belong to all of them."""
        return 0 if self.data.fixed is None else (0, None)

    def alone(self, batch: PyTree) -> PyTree:
        """Return the one scenario of a batch of one."""
        samples, *fixed = (batch,) if self.data.fixed is None else batch
        scenario = jax.tree.map(lambda leaf: leaf[0], samples)
        return (scenario, *fixed) if fixed else scenario

    def scenarios(self) -> Scenarios:
        """Return all monitored scenarios, whose they are, and their weights."""
        data, clients = self.data, jnp.asarray(self.client_weights, float)
        if not data.stored:
            drawn = jax.vmap(data.everything_of)(jnp.arange(data.clients))
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), drawn)
            owner = jnp.repeat(jnp.arange(data.clients), data.evaluation)
            return Scenarios(lambda rows: index(flat, rows), owner, (clients / data.evaluation)[owner])
        if data.identical:  # stored once: every sample counts for all clients
            owner = jnp.zeros(data.samples, jnp.int32)
            return Scenarios(lambda rows: index(data.flat, rows), owner, jnp.full(data.samples, 1 / data.samples))
        sizes = jnp.asarray(data.sizes)
        owner = jnp.repeat(jnp.arange(data.clients), sizes, total_repeat_length=data.samples)

        def fetch(rows: jax.Array) -> PyTree:
            samples = index(data.flat, rows)
            return samples if data.fixed is None else (samples, index(data.fixed, owner[rows]))

        return Scenarios(fetch, owner, (clients / sizes)[owner])
