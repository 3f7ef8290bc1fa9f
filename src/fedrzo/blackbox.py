"""Losses that JAX cannot trace: any Python callable on NumPy arrays.

What goes wrong inside a callback reaches Python as a long error of the compiler, or later, or both. The error itself is
therefore kept where it happens, and told by `telling` where compiled code was started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.arguments import check_function
from fedrzo.errors import BlackboxError

FAILURES: list[tuple[str, Exception]] = []  # of black boxes, that have not been told yet


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
    check_function(fn, "blackbox")

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


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Turn what comes of a black box's error into one line, with that error as the cause."""
    earlier, log = len(FAILURES), logging.getLogger("jax._src.callback")  # it would log a traceback as well
    disabled, log.disabled = log.disabled, True
    try:
        yield
    except Exception as error:
        found = FAILURES[earlier:]
        del FAILURES[earlier:]
        if not found or isinstance(error, BlackboxError):
            raise
        name, first = found[0]
        if isinstance(first, BlackboxError):
            raise first from None
        line = " ".join(str(first).split()) or "no message"
        raise BlackboxError(
            f"blackbox: {name} raised {type(first).__name__}: {line}; it must return a loss at every point it is asked for: "
            "repair it, or catch the error in it and return a large loss"
        ) from first
    finally:
        log.disabled = disabled


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

    @property
    def name(self) -> str:
        """How the user calls the function."""
        return getattr(self.fn, "__name__", "fn")

    def __call__(self, *words: Any) -> np.ndarray:
        """Rebuild the arguments, call the function, and check what it returns."""
        leaves = [self._array(word, *known) for word, known in zip(words, self.signature, strict=True)]
        lead = leaves[0].shape[: leaves[0].ndim - len(self.signature[0][0])]
        if self.vectorized:  # fold however many batch axes JAX added into one
            leaves = [leaf.reshape(-1, *shape) for leaf, (shape, _) in zip(leaves, self.signature, strict=True)]
        try:
            value = self._value(leaves)
        except Exception as error:
            FAILURES.append((self.name, error))
            raise
        value = np.ascontiguousarray(value.reshape(lead))
        return (
            value.view(np.uint32).reshape(*lead, 2) if self.dtype.itemsize == 8 else value.view(np.uint32).reshape(lead)
        )

    def _value(self, leaves: list[np.ndarray]) -> np.ndarray:
        """Return what the function returns, as an array of the right size."""
        with jax.enable_x64(self.dtype == np.float64):
            found = self.fn(*jax.tree.unflatten(self.treedef, leaves))
        points = (leaves[0].shape[0],) if self.vectorized else ()
        wanted = f"{points[0]} numbers" if points else "one number"
        if found is None:
            raise BlackboxError(f"blackbox: {self.name} returned None; it must return {wanted}: is a `return` missing?")
        try:
            value = np.asarray(found, self.dtype)
        except (TypeError, ValueError):
            raise BlackboxError(
                f"blackbox: {self.name} returned {type(found).__name__}; it must return {wanted}"
            ) from None
        if value.size != int(np.prod(points)):
            raise BlackboxError(f"blackbox: {self.name} returned shape {value.shape}; it must return {wanted}")
        return value

    @staticmethod
    def _array(words: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        # NumPy's `ascontiguousarray` makes a vector of a scalar: only pairs of words, which are vectors already, go through it.
        return np.ascontiguousarray(words).view(dtype)[..., 0] if dtype.itemsize == 8 else np.asarray(words)
