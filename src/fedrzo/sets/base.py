"""What every set shares: the pytree registration, reading its numbers, and the public methods."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedrzo.errors import InputError, warn
from fedrzo.support.pytrees import register

FOLD_LIMIT = 250_000  # entries of a dense matrix of constraints; beyond, alternating projections are faster


class Rows(NamedTuple):
    """A polyhedral set as `A y <= b, E y = f`."""

    A: Array
    b: Array
    E: Array
    f: Array


def make_rows(n: int, dtype: Any, A: Any = None, b: Any = (), E: Any = None, f: Any = ()) -> Rows:
    """Return `Rows` of one dtype; a pair that is left out has no rows."""
    empty = np.zeros((0, n))
    parts = (empty if A is None else A, b, empty if E is None else E, f)
    return Rows(*((jnp if isinstance(part, jax.Array) else np).asarray(part, dtype) for part in parts))


class Pytree:
    """Registers each subclass, a frozen dataclass, as a pytree.

    Fields marked `metadata={"static": True}` belong to the structure, all others are children. Rebuilding
    skips `__post_init__`: JAX puts placeholders where numbers should be.
    """

    def __init_subclass__(cls) -> None:
        register(cls, lambda: tuple(f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")))  # type: ignore[arg-type]

    def _store(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class Set(Pytree):
    """A closed convex set in R^n.

    A new kind of set is a `@dataclass(frozen=True, eq=False, repr=False)` that defines `_project` and
    `_violation` on a flat vector, in JAX; `check` if its numbers fix n; `_row_count` and `_rows` if it is
    polyhedral; `_ravelled` if its numbers may mirror a pytree.
    """

    _called: ClassVar[str | None] = None  # how users call the set, where not by its own name

    def project(self, x: Any, near: Any = None) -> Any:
        """Return the point of the set nearest to the flat vector `x`, in the dtype of `x`.

        A call outside compiled code warns if that may be off by more than 1e-6 of the distance moved. `near` is a point of the
        set that the answer may be close to, such as the last one in a loop: polyhedra start from the rows that are active
        there. The answer is the same.
        """
        x = self._vector(x)
        y, error = self._nearest(x) if near is None else self._nearest(x, self._vector(near))
        if not has_tracer((x, error)) and error > 0:
            warn_of_error(self._called or type(self).__name__, error, promise(x, y))
        return y.astype(x.dtype)

    def violation(self, x: Any) -> Array:
        """Return the largest amount by which `x` breaks a constraint; zero inside, up to rounding."""
        return self._violation(self._vector(x))

    def distance(self, x: Any) -> Array:
        """Return the Euclidean distance from `x` to its projection."""
        x = self._vector(x)
        return norm(x - self._project(x))

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError`, naming `argument`, if the set cannot act on vectors of length `n`."""

    def _nearest(self, x: Array, near: Array | None = None) -> tuple[Array, Array]:
        """Return the projection of x, found from a point near it if there is one, and a bound of its error, beyond rounding."""
        return self._project(x), jnp.zeros((), x.dtype)

    def _length(self) -> int | None:
        """Return the n that the set's numbers fix, or None if it acts on vectors of any length."""
        return None

    def _parts(self) -> tuple["Set", ...]:
        """Return the sets of which this one is the intersection."""
        return (self,)

    def _placed(self, start: int, n: int) -> Iterator[tuple["Set", slice]]:
        """Return the sets that this one is made of, each with the stretch of x that it acts on."""
        for part in self._parts():
            if part is self:
                yield self, slice(start, start + n)
            else:
                yield from part._placed(start, n)

    def _project(self, x: Array) -> Array:
        raise TypeError(f"{type(self).__name__} does not define _project")

    def _violation(self, x: Array) -> Array:
        raise TypeError(f"{type(self).__name__} does not define _violation")

    def _row_count(self, n: int) -> int | None:
        """Return how many linear constraints describe the set in R^n, or None if it is not polyhedral."""
        return None

    def _rows(self, n: int, dtype: Any) -> Rows:
        """Return a polyhedral set's linear constraints."""
        raise TypeError(f"{type(self).__name__} is not polyhedral: it has no rows")

    def _ravelled(self, example: Any) -> "Set":
        """Return the set with numbers that mirror the pytree `example` laid out along its flat vector."""
        return self

    def _vector(self, x: Any) -> Array:
        x = to_float(x)
        if x.ndim != 1:
            raise InputError(f"x: expected a flat vector, got shape {x.shape}; ravel it, or vmap over the others")
        self.check(x.shape[0], "x")
        return x

    def __repr__(self) -> str:
        fields = (f"{field.name}={show(getattr(self, field.name))}" for field in dataclasses.fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(fields)})"


def is_set(node: Any) -> bool:
    """Tell whether a node of a pytree is a set; for `is_leaf`."""
    return isinstance(node, Set)


def to_float(x: Any) -> Array:
    """Return `x` as a JAX array of its own floating dtype; whole numbers become floats."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def norm(v: Array) -> Array:
    """Return the Euclidean norm of a vector, with gradient zero (not NaN) at the origin."""
    square = jnp.sum(v * v)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def promise(x: Array, y: Array) -> Array:
    """Return the error that y may have as the projection of x: a millionth of the move, or what rounding leaves.

    The second counts near a set: a y that breaks a constraint by its own rounding, some eps |y|, may be the square root of
    that times |x - y| from the projection, which the sum exceeds at any |x - y|. In float32, no smaller factors do.
    """
    move, size = (1e-6, 1e-7) if y.dtype == jnp.float64 else (1e-3, 1e-3)
    return move * norm(x - y) + size * norm(y)


def missed(x: Array, y: Array, violation: Array) -> Array:
    """Return how far y may be from the projection z of x, if it lies in a set that is wider by `violation`.

    |y - z|^2 <= |x - z| dist(y, the set), for the projections onto a set and onto one that contains it.
    """
    x, y, violation = lax.stop_gradient((x, y, violation))
    return jnp.sqrt(norm(x - y) * jnp.maximum(violation, 0))


def warn_of_error(argument: str, error: Array, allowed: Array) -> None:
    """Warn of projections that may be off by more than they should, where the numbers are known."""
    if has_tracer((error, allowed)) or not np.any(np.asarray(error) > np.asarray(allowed)):
        return
    warn(
        f"{argument}: found a projection that may be off by {np.max(error):.2g}, more than {np.max(allowed):.2g}; the sets "
        "barely meet, or not at all: widen them, or state them as Box, Polyhedron and Ball in all entries of x"
    )


def has_tracer(value: Any) -> bool:
    """Tell whether some leaf has no value yet."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def is_concrete(*values: Any) -> bool:
    """Tell whether all values are plain arrays that can be looked at now."""
    return all(isinstance(value, np.ndarray | np.generic) for value in values)


def numbers(value: Any, argument: str, infinite: bool = False) -> Any:
    """Return a set's parameter as a float array, checked where its value is known.

    Known values become NumPy arrays, which stay float64 even where JAX would round them now. A pytree that is
    not a regular array is read leaf by leaf.
    """
    try:
        array = jnp.asarray(value) if has_tracer(value) else np.asarray(value)
    except (TypeError, ValueError):  # a ragged list, or a traced pytree
        array = None
    if array is None or array.dtype == object:
        if not jax.tree_util.all_leaves([value]) and jax.tree.leaves(value):
            return jax.tree.map(lambda v: numbers(v, argument, infinite), value, is_leaf=lambda v: v is not value)
        raise InputError(f"{argument}: expected numbers, got {type(value).__name__}; pass a number or an array")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        if not (jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool):
            raise InputError(f"{argument}: expected real numbers, got dtype {array.dtype}; pass floats")
        array = array.astype(float)
    if isinstance(array, np.ndarray) and (bad := np.isnan(array) if infinite else ~np.isfinite(array)).any():
        wanted = "a number" if infinite else "a finite number"
        raise InputError(f"{argument}: found {float(array[bad][0]):g}{first_index(bad)}; pass {wanted}")
    return array


def first_index(bad: np.ndarray) -> str:
    """Return ` at index 3` for the first true entry, or nothing for a scalar."""
    if bad.ndim == 0:
        return ""
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    return f" at index {where[0] if len(where) == 1 else where}"


def show(value: Any) -> str:
    """Return a parameter as short text; a long array by its ends and its size."""
    if isinstance(value, jax.core.Tracer):
        return f"traced{list(value.shape)}"
    if isinstance(value, np.ndarray | jax.Array):
        return _show_array(np.asarray(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {show(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(show(item) for item in value) + ")"
    return repr(value)


def _show_array(array: np.ndarray) -> str:
    if array.ndim == 0:
        return f"{float(array):g}"
    if array.ndim == 1 and array.size > 6:
        ends = [f"{float(v):g}" for v in (array[0], array[1], array[-1])]
        return f"[{ends[0]}, {ends[1]}, ..., {ends[2]}] ({array.size} values)"
    if array.ndim == 1 or array.size <= 6:
        return "[" + ", ".join(_show_array(item) for item in array) + "]"
    return f"array of shape {array.shape}"
