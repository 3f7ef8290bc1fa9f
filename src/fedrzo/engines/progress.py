"""What every engine keeps beside a method's state: a round drawn at random, and the first failure."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

RANDOM_ROUND = 2  # the stream of the run's key that the random synchronisation index is drawn from


class Progress(NamedTuple):
    """Carried from round to round.

    Attributes:
        x_random: x at a synchronisation drawn uniformly among those so far. It stands in for the theory's random
            iterate k*, which falls inside a round and never reaches a server.
        random_round: which synchronisation that was.
        first_failed_round: the first round that left a state which cannot be gone on from, or -1.
        x_good: the last x before that.
    """

    x_random: jax.Array
    random_round: jax.Array
    first_failed_round: jax.Array
    x_good: jax.Array

    @classmethod
    def start(cls, x: jax.Array) -> Progress:
        """Return the record before round 0."""
        return cls(x, jnp.int32(0), jnp.int32(-1), x)

    def after(self, key: jax.Array, r: Any, x: jax.Array, good: jax.Array) -> Progress:
        """Return the record after round r has produced x (synchronisation r + 1), healthy or not."""
        draw = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, RANDOM_ROUND), r))
        take = draw < 1.0 / (r + 2)  # reservoir sampling: uniform over synchronisations 0 .. r+1
        good = good & (self.first_failed_round < 0)
        return Progress(
            jnp.where(take & good, x, self.x_random),
            jnp.where(take & good, r + 1, self.random_round).astype(jnp.int32),
            jnp.where((self.first_failed_round < 0) & ~good, r, self.first_failed_round).astype(jnp.int32),
            jnp.where(good, x, self.x_good),
        )
