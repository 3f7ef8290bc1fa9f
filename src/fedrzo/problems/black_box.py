"""Losses that JAX cannot trace: any Python callable on NumPy arrays.

What goes wrong inside a callback reaches Python as a long error of the compiler, or later, or both. The error itself is
therefore kept where it happens, and told by `telling` where compiled code was started.

Shapes in compiled code are static, and sizes of clients may differ: there, a client's whole batch travels to the host with rows
to spare, which are cut off before the function is called.
"""

import contextlib
import dataclasses
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import Whole
from fedrzo.errors import BlackboxError
from fedrzo.support.arguments import check_function
from fedrzo.support.interrupt import PRESSES

FAILURES: list[tuple[str, BaseException]] = []  # of black boxes, that have not been told yet
FORGIVING = [0]  # how many runs are under way whose records are private; callbacks come in threads of their own
COUNTING = threading.Lock()  # callbacks may come in several threads
NO_LOSS = "USMmc"  # NumPy's text, dates and complex numbers, some of which it would turn into real numbers if asked to


class Blackbox:
    """A Python function as a loss; see `blackbox`."""

    is_blackbox = True

    def __init__(self, fn: Callable[..., Any], vectorized: bool, mean: bool = False) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.name = getattr(fn, "__name__", "fn")  # how the user calls the function
        self.vectorized = vectorized  # whether one call receives all points
        self.mean = mean  # whether the user states that `fn` returns the mean over its batch
        self.logged = False  # whether an error has been written to this process's log
        self.calls = 0  # how often `fn` was called in this process: by steps, by monitoring, by what looks at a problem before

    def __call__(self, *arguments: Any) -> jax.Array:
        """Return the loss at pytrees of arrays, the last of which is the batch."""
        ask = jax.custom_jvp(self._loss)
        ask.defjvp(self._no_gradient)  # as numbers pass in words, JAX would else take it for a constant
        return ask(*arguments)

    def ask(self, *arguments: Any) -> Any:
        """Call the function once, and count the call."""
        with COUNTING:
            self.calls += 1
        return self.fn(*arguments)

    def log(self, error: Exception) -> None:
        """Write the first error to standard error, where nobody else may see it."""
        if not self.logged:
            self.logged = True
            print(
                f"blackbox: {self.name} raised {type(error).__name__}: {error}; it counts as no number",
                file=sys.stderr,
                flush=True,
            )

    def _loss(self, *arguments: Any) -> jax.Array:
        *points, batch = arguments
        if not isinstance(batch, Whole):
            return self._ask(points, batch)
        if self.vectorized:
            return self._ask(points, *batch.padded())
        # Clients come one by one, and so do their rows: never are more spare than the largest client has.
        return jax.custom_batching.sequential_vmap(lambda points, batch: self._ask(points, *batch.padded()))(points, batch)

    def _no_gradient(self, *primals_and_tangents: Any) -> Any:
        raise BlackboxError(f"blackbox: {self.name} has no gradient, and one was asked for; use a method such as fz.FedRZOnn")

    def _ask(self, points: list, samples: Any, fixed: tuple = (), size: Any = None) -> jax.Array:
        """Call the host; where a size is given, only so many of the samples count."""
        batch = (samples, *fixed) if fixed else samples
        leaves, treedef = jax.tree.flatten((*points, batch))
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        dtype = np.dtype(jnp.result_type(*jax.tree.leaves(points[0])))
        signature = tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)
        first = len(jax.tree.leaves(points))
        cut = None if size is None else (first, first + len(jax.tree.leaves(samples)))
        words = [*map(_to_words, leaves), *([] if size is None else [jnp.asarray(size, jnp.int32)])]
        host = Host(self, treedef, signature, dtype, cut)
        answer = jax.ShapeDtypeStruct((2,) if dtype.itemsize == 8 else (), jnp.uint32)
        method = "broadcast_all" if self.vectorized else "sequential"
        return jax.lax.bitcast_convert_type(jax.pure_callback(host, answer, *words, vmap_method=method), dtype)


def blackbox(fn: Callable[..., Any], vectorized: bool = False, mean: bool = False) -> Blackbox:
    """Make a loss out of a Python function on NumPy arrays; its gradient is never needed.

    This is the one place where compiled code calls back into Python. What shapes arrive, and how often: docs/black-boxes.md.

    Args:
        fn: `fn(x, batch) -> float` (or `fn(x, y, batch)`); pytrees in, as declared in the problem. With `batch_size="full"`,
            and where the loss is monitored, a batch holds all samples of one client.
        vectorized: if True, one call receives all points at once: every array has an extra leading axis of length P, and
            `fn` returns P numbers. It may spread them over a process pool. Whole batches of clients that differ in size come
            in one call for each size.
        mean: if True, `fn` returns the mean over its batch. State it where a few values cannot show it, such as those of a 0-1
            loss that is wrong about all samples near x0: `fz.solve` then draws small batches, and runs do not warn.

    Returns:
        A loss to be passed to a problem; its attribute `calls` counts the calls of `fn`.
    """
    return Blackbox(check_function(fn, "blackbox"), vectorized, mean)


def is_blackbox(function: Any) -> bool:
    """Tell whether a function is a black box, which has no gradient and gets whole batches."""
    return getattr(function, "is_blackbox", False)


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Turn what comes of a black box's error into one line, with that error as the cause."""
    earlier, log = len(FAILURES), logging.getLogger("jax._src.callback")  # it would log a traceback as well
    disabled, log.disabled = log.disabled, True
    try:
        with PRESSES.counted():
            yield
    except Exception as error:
        found = FAILURES[earlier:]
        del FAILURES[earlier:]
        if any(isinstance(failure, KeyboardInterrupt) for _, failure in found):
            raise KeyboardInterrupt from None
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


@contextlib.contextmanager
def forgiving() -> Iterator[None]:
    """Take an error of a black box for a loss that is not a number: that a record made it fail must not be seen from outside."""
    FORGIVING[0] += 1
    try:
        yield
    finally:
        FORGIVING[0] -= 1


def _to_words(leaf: jax.Array) -> jax.Array:
    """Pass 64-bit numbers as pairs of 32-bit words: callbacks run in threads where JAX would cut them to 32 bits."""
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32) if leaf.dtype.itemsize == 8 else leaf


@dataclasses.dataclass(frozen=True)
class Host:
    """The Python side of one call; equal for one black box and equal shapes, so that compiled code is shared."""

    box: Blackbox  # the black box
    treedef: Any  # of its arguments
    signature: tuple[tuple[tuple[int, ...], np.dtype], ...]  # the shape and the type of each of their arrays
    dtype: np.dtype  # of what it returns
    # the first of the arrays that have rows to spare, and the first after them; then a size follows all arrays
    cut: tuple[int, int] | None

    def __call__(self, *words: Any) -> np.ndarray:
        """Rebuild the arguments, call the function, and check what it returns."""
        size = None if self.cut is None else np.asarray(words[-1])
        leaves = [self._array(word, *known) for word, known in zip(words, self.signature, strict=self.cut is None)]
        lead = leaves[0].shape[: leaves[0].ndim - len(self.signature[0][0])]
        try:
            if PRESSES.due:
                raise KeyboardInterrupt
            value = self._points(leaves, size) if self.box.vectorized else self._value(self._cut(leaves, size))
        except (Exception, KeyboardInterrupt) as error:
            # A terminal sends Ctrl-C to the processes of a pool as well: that they are gone is its doing.
            if isinstance(error, KeyboardInterrupt) or PRESSES.seen():
                FAILURES.append((self.box.name, KeyboardInterrupt()))
                raise BlackboxError("blackbox: stopped by Ctrl-C") from None
            if FORGIVING[0]:
                self.box.log(error)
                value = np.full(lead, np.nan, self.dtype)
            else:
                FAILURES.append((self.box.name, error))
                raise
        answer = np.ascontiguousarray(value.reshape(lead)).view(np.uint32)
        return answer.reshape(*lead, 2) if self.dtype.itemsize == 8 else answer.reshape(lead)

    def _points(self, leaves: list[np.ndarray], sizes: np.ndarray | None) -> np.ndarray:
        """Return the values at all points: in one call, or in one for each size that batches have."""
        # However many batch axes JAX added are folded into one.
        leaves = [leaf.reshape(-1, *shape) for leaf, (shape, _) in zip(leaves, self.signature, strict=True)]
        if sizes is None:
            return self._value(leaves, (len(leaves[0]),))
        found = np.empty(len(leaves[0]), self.dtype)
        for size in np.unique(sizes):
            chosen = np.flatnonzero(sizes.ravel() == size)
            found[chosen] = self._value(self._cut([leaf[chosen] for leaf in leaves], size), chosen.shape).ravel()
        return found

    def _cut(self, leaves: list[np.ndarray], size: Any) -> list[np.ndarray]:
        """Return the arrays without rows to spare."""
        if self.cut is None:
            return leaves
        first, last = self.cut
        rows = (slice(None), slice(int(size))) if self.box.vectorized else slice(int(size))
        return [leaf[rows] if first <= k < last else leaf for k, leaf in enumerate(leaves)]

    def _value(self, leaves: list[np.ndarray], points: tuple[int, ...] = ()) -> np.ndarray:
        """Return what the function returns, as an array of the right size."""
        with jax.enable_x64(self.dtype == np.float64):
            found = self.box.ask(*jax.tree.unflatten(self.treedef, leaves))
        name, wanted = self.box.name, f"it must return {f'{points[0]} numbers' if points else 'one number'}"
        if found is None:
            raise BlackboxError(f"blackbox: {name} returned None; {wanted}: is a `return` missing?")
        try:
            value = np.asarray(found)
            if value.dtype.kind in NO_LOSS:
                raise TypeError
            value = value.astype(self.dtype)
        except (TypeError, ValueError):
            raise BlackboxError(f"blackbox: {name} returned {type(found).__name__}; {wanted}") from None
        if value.size != int(np.prod(points)):
            raise BlackboxError(f"blackbox: {name} returned shape {value.shape}; {wanted}")
        return value

    @staticmethod
    def _array(words: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        # NumPy's `ascontiguousarray` makes a vector of a scalar: only pairs of words, which are vectors already, go through it.
        return np.ascontiguousarray(words).view(dtype)[..., 0] if dtype.itemsize == 8 else np.asarray(words)
