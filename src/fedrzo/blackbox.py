"""Losses that JAX cannot trace: any Python callable on NumPy arrays."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import FedrzoError


def blackbox(fn: Callable[..., Any], vectorized: bool = False) -> Callable[..., jax.Array]:
    """Make a loss out of a Python function on NumPy arrays; its gradient is never needed.

    This is the one place where compiled code calls back into Python.

    Args:
        fn: `fn(x, batch) -> float` (or `fn(x, y, batch)`); pytrees in, as declared in the problem.
        vectorized: if True, one call receives all points at once: every array has an extra leading axis of length P, and
            `fn` returns P numbers. It may spread them over a process pool.

    Returns:
        A loss to be passed to a problem.
    """

    @functools.wraps(fn)
    def loss(*arguments: Any) -> jax.Array:
        leaves, treedef = jax.tree.flatten(arguments)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        dtype = np.dtype(jnp.result_type(*jax.tree.leaves(arguments[0])))
        host = Host(fn, treedef, tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves), dtype, vectorized)
        answer = jax.ShapeDtypeStruct((2,) if dtype.itemsize == 8 else (), jnp.uint32)
        method = "broadcast_all" if vectorized else "sequential"
        words = jax.pure_callback(host, answer, *map(_to_words, leaves), vmap_method=method)
        return jax.lax.bitcast_convert_type(words, dtype)

    loss.is_blackbox = True  # type: ignore[attr-defined]
    return loss


def _to_words(leaf: jax.Array) -> jax.Array:
    """Pass 64-bit numbers as pairs of 32-bit words: callbacks run in threads where JAX would cut them to 32 bits."""
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32) if leaf.dtype.itemsize == 8 else leaf


@dataclasses.dataclass(frozen=True)
class Host:
    """The Python side of one call; equal for equal functions and shapes, so that compiled code is shared."""

    fn: Callable[..., Any]
    treedef: Any
    signature: tuple[tuple[tuple[int, ...], np.dtype], ...]
    dtype: np.dtype
    vectorized: bool

    def __call__(self, *words: Any) -> np.ndarray:
        """Rebuild the arguments, call the function, and check what it returns."""
        leaves = [self._array(word, *known) for word, known in zip(words, self.signature, strict=True)]
        lead = leaves[0].shape[: leaves[0].ndim - len(self.signature[0][0])]
        if self.vectorized:  # fold however many batch axes JAX added into one
            leaves = [leaf.reshape(-1, *shape) for leaf, (shape, _) in zip(leaves, self.signature, strict=True)]
        with jax.enable_x64(self.dtype == np.float64):
            value = np.asarray(self.fn(*jax.tree.unflatten(self.treedef, leaves)), self.dtype)
        points = (leaves[0].shape[0],) if self.vectorized else ()
        if value.size != int(np.prod(points)):
            name, wanted = (
                getattr(self.fn, "__name__", "fn"),
                f"{points[0]} numbers" if points else "one number",
            )
            raise FedrzoError(f"blackbox: {name} returned shape {value.shape}; it must return {wanted}")
        value = np.ascontiguousarray(value.reshape(lead))
        return (
            value.view(np.uint32).reshape(*lead, 2) if self.dtype.itemsize == 8 else value.view(np.uint32).reshape(lead)
        )

    @staticmethod
    def _array(words: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        array = np.ascontiguousarray(words)
        return array.view(dtype)[..., 0] if dtype.itemsize == 8 else array
