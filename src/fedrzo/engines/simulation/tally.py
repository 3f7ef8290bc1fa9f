"""Counters that stay exact in compiled code: 64 bits in two 32-bit halves, since JAX has no wide integers by default."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.federation.protocol import Cost


class Tally(NamedTuple):
    """One 64-bit counter per field of `Cost`; low and high halves."""

    low: jax.Array
    high: jax.Array

    @classmethod
    def zero(cls) -> Tally:
        """Return counters at zero."""
        return cls(jnp.zeros(len(Cost._fields), jnp.uint32), jnp.zeros(len(Cost._fields), jnp.uint32))

    def plus(self, **more: tuple[Any, Any]) -> Tally:
        """Add to named fields of `Cost`; every amount is a pair of halves."""
        none = (jnp.uint32(0), jnp.uint32(0))
        amounts = [more.get(name, none) for name in Cost._fields]
        low = jnp.stack([jnp.asarray(a[0], jnp.uint32) for a in amounts])
        high = jnp.stack([jnp.asarray(a[1], jnp.uint32) for a in amounts])
        return Tally(*_add((self.low, self.high), (low, high)))

    def cost(self) -> Cost:
        """Return the counts as Python integers."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        return Cost(*(int(h) << 32 | int(lo) for lo, h in zip(low, high, strict=True)))


def halves(amount: int) -> tuple[int, int]:
    """Split a Python integer."""
    return amount & 0xFFFFFFFF, amount >> 32


def total(amount: Any, clients: int) -> tuple[Any, Any]:
    """Sum one amount per client exactly: a Python integer that all share, or an array with one entry per client."""
    if isinstance(amount, int):
        return halves(amount * clients)
    low = jnp.broadcast_to(jnp.asarray(amount).astype(jnp.uint32), (clients,))
    # Sums of 16 bits cannot overflow then; and where amounts do not change, XLA adds them up once for all rounds.
    if clients < 1 << 16:
        low, high = (jnp.sum(part, dtype=jnp.uint32) for part in (low & np.uint32(0xFFFF), low >> 16))
        return _add((low, high >> 16), (high << 16, jnp.uint32(0)))
    zero = jnp.uint32(0)
    return jax.lax.reduce((low, jnp.zeros_like(low)), (zero, zero), _add, (0,))


def _add(a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
    low = a[0] + b[0]
    return low, a[1] + b[1] + (low < b[0]).astype(jnp.uint32)
