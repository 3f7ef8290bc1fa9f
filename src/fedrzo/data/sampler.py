"""Samples that are drawn on demand: `Sampler`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp

from fedrzo.data.client_data import ALL_AT_ONCE, PyTree
from fedrzo.errors import InputError
from fedrzo.support.arguments import call_user, checked_signature
from fedrzo.support.keys import usual
from fedrzo.support.pytrees import index, replaced, size_of, traced


@traced("drawn")
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
    drawn: Any = None  # what losses are monitored over, clients and samples in front, where it is kept

    @checked_signature()
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
        if self.drawn is not None:
            return index(self.drawn, client_id)
        key = jax.random.fold_in(jax.random.key(20_230_913), client_id)
        return self.sample(key, client_id, client_id, self.evaluation)

    def keeping(self) -> Self:
        """Return this sampler with what losses are monitored over drawn once, unless that takes too much memory."""
        too_much = size_of(jax.eval_shape(_drawn, self)) > ALL_AT_ONCE
        return self if too_much else replaced(self, drawn=_drawn(self))


@jax.jit
def _drawn(sampler: Sampler) -> PyTree:
    return jax.vmap(sampler.everything_of)(jnp.arange(sampler.clients))
