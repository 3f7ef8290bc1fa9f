"""How runs are compiled on a CPU: options of XLA, and what it is to compute as it stands. What each gives is in docs/speed.md."""

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

PyTree = Any
LONG = 1024  # entries of x from which on directions take most of the time
# Sums are left to the compiler: the library that XLA else calls for them takes longer to start than they take.
SUMS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
WIDE = {"xla_cpu_prefer_vector_width": 512}  # for long rows of integers; where loops are short it is slower
PIECE = {"inlineable": "false", "xla_cpu_small_call": "true"}  # XLA's marks of a call that becomes one function
_unsplit = contextvars.ContextVar("unsplit", default=False)


@functools.cache
def compiler_options(platform: str, long: bool) -> dict[str, Any]:
    """Return the options for a platform: those that this JAX knows, and that the user has not set in XLA_FLAGS."""
    if platform != "cpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    wanted = SUMS | WIDE if long else SUMS
    return {name: value for name, value in wanted.items() if name not in flags and _known(name, value)}


def _known(name: str, value: Any) -> bool:
    """Tell whether this JAX takes an option; they come and go."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def stored(value: Callable[[], PyTree]) -> PyTree:
    """Return a value that a CPU is to compute once and store: its compiler would compute it anew wherever it is used.

    A choice of which the compiler cannot know how it ends keeps it from doing so. On a GPU it would wait for the host.
    """

    def chosen() -> PyTree:
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(value))
        return jax.lax.cond(jax.lax.optimization_barrier(jnp.bool_(True)), value, lambda: nothing)

    return jax.lax.platform_dependent(cpu=chosen, default=value)


@contextlib.contextmanager
def unsplit(wanted: bool) -> Iterator[None]:
    """While a program is traced: have its pieces computed by one thread each, if this JAX can.

    XLA shares an operation on many numbers among all cores. Where each core has a device of its own to work for, the parts
    only wait for each other.
    """
    token = _unsplit.set(wanted and pieces_work())
    try:
        yield
    finally:
        _unsplit.reset(token)


def single_function(function: Callable[..., PyTree], small: PyTree, *large: PyTree) -> PyTree:
    """Return `function(small, *large)`; where pieces are unsplit, XLA makes one function of it, too.

    Args:
        function: arithmetic and lookups: no sums, products or sorting, for which XLA calls a library.
        small: an argument, which must be read: XLA ends the process where a piece is given what it does not read, or a constant.
        large: arguments that are no constants; where they are, there is no piece.
    """
    if not _unsplit.get() or not all(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(large)):
        return function(small, *large)
    return _piece(function, small, *large)


def _piece(function: Callable[..., PyTree], small: PyTree, *large: PyTree) -> PyTree:
    # What it returns is stored, since XLA cannot compile a piece that ends with an operation which it means to split.
    piece = jax.jit(lambda *arguments: stored(lambda: function(*arguments)))
    return set_xla_metadata(piece(stored(lambda: small), *large), **PIECE)


@functools.cache
def pieces_work() -> bool:
    """Try a piece: the marks are an affair of XLA's own, which may change."""
    table, rows = np.arange(7, dtype=np.int32), np.arange(1 << 16, dtype=np.int32).reshape(8, -1) % 7

    def looked_up(table: jax.Array, rows: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: _piece(lambda row, table: 3 * table[row], row, table))(rows)

    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            compiled = jax.jit(looked_up).lower(table, rows).compile()
            return bool((np.asarray(compiled(table, rows)) == 3 * rows).all())
    except Exception:  # whatever it is: rounds can do without pieces
        return False
