"""Sets described by linear constraints: a halfspace, an affine set, a polyhedron."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import lazy_loader
import numpy as np
from jax import Array

from fedrzo.errors import InputError
from fedrzo.sets.base import Rows, Set, is_concrete, make_rows, missed, numbers
from fedrzo.sets.empty import refuse_empty
from fedrzo.sets.solver import project_rows, rows_violation, unit_rows

optax = lazy_loader.load("optax")  # a tenth of the time that importing this library takes


class Linear(Set):
    """A set that is projected onto through its linear constraints."""

    def _project(self, x: Array, near: Array | None = None) -> Array:
        return project_rows(self._rows(x.shape[0], x.dtype), x, near)

    def _nearest(self, x: Array, near: Array | None = None) -> tuple[Array, Array]:
        y = self._project(x, near)
        return y, missed(x, y, self._violation(y))

    def _violation(self, x: Array) -> Array:
        return rows_violation(self._rows(x.shape[0], x.dtype), x)


@dataclass(frozen=True, eq=False, repr=False)
class Given(Linear):
    """A polyhedral set that is known by its rows."""

    rows: Rows

    def _rows(self, n: int, dtype: Any) -> Rows:
        return self.rows


@dataclass(frozen=True, eq=False, repr=False)
class Halfspace(Linear):
    """The halfspace `a x <= b`.

    Attributes:
        a: The normal, one number per entry.
        b: The offset, a number.
    """

    a: Any
    b: Any

    def __post_init__(self) -> None:
        self._store(a=numbers(self.a, "Halfspace: a"), b=numbers(self.b, "Halfspace: b", infinite=True))
        if np.ndim(self.a) != 1 or not hasattr(self.a, "shape"):
            raise InputError("Halfspace: a is not a vector; pass one number for each entry of x")
        if np.ndim(self.b) != 0:
            raise InputError(f"Halfspace: b has shape {np.shape(self.b)}; pass one number")
        if is_concrete(self.a) and not self.a.any():
            raise InputError("Halfspace: a is all zero; pass a nonzero normal, or use Reals()")
        _reject_minus_inf("Halfspace", self.b)

    def _project(self, x: Array, near: Array | None = None) -> Array:
        A, b = unit_rows(jnp.asarray(self.a, x.dtype)[None], jnp.asarray(self.b, x.dtype)[None])
        # A traced normal may be zero: then no point is better than x. Any unit normal with b = inf does that.
        idle = ~jnp.any(A) | ~jnp.isfinite(b[0])
        normal = jnp.where(idle, jnp.eye(1, x.shape[0], dtype=x.dtype)[0], A[0])
        return optax.projections.projection_halfspace(x, normal, jnp.where(idle, jnp.inf, b[0]))

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError` unless the normal has `n` values."""
        if self.a.shape != (n,):
            message = f"Halfspace has a of shape {self.a.shape}, but x has {n} entries; pass {n} values"
            raise InputError(f"{argument}: {message}")

    def _length(self) -> int | None:
        return int(self.a.shape[0])

    def _row_count(self, n: int) -> int:
        return 1

    def _rows(self, n: int, dtype: Any) -> Rows:
        return make_rows(n, dtype, self.a[None], self.b.reshape(1))


@dataclass(frozen=True, eq=False, repr=False)
class Matrix(Linear):
    """What `Affine` and `Polyhedron` share: a matrix with one right-hand side per row."""

    _rows_are: ClassVar[str]  # what its rows are called
    _infinite: ClassVar[bool]  # whether a right-hand side may be
    A: Any
    b: Any

    def __post_init__(self) -> None:
        kind = type(self).__name__
        A, b = numbers(self.A, f"{kind}: A"), numbers(self.b, f"{kind}: b", self._infinite)
        if not hasattr(A, "shape") or A.ndim != 2:
            found = f"has shape {A.shape}" if hasattr(A, "shape") else "has rows of unequal length"
            raise InputError(f"{kind}: A {found}; pass a matrix, one row for each constraint")
        if not hasattr(b, "shape") or b.shape not in ((), A.shape[:1]):
            message = f"b has shape {np.shape(b)}, but A has {A.shape[0]} rows; pass one number for each row"
            raise InputError(f"{kind}: {message}")
        _reject_minus_inf(kind, b)
        numpy = np if is_concrete(b) else jnp
        self._store(A=A, b=numpy.broadcast_to(b, A.shape[:1]))
        message = f"{kind}: found {self._rows_are} that no point satisfies together; correct A or b"
        refuse_empty([self], self._length(), message)

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError` unless A has `n` columns."""
        if self.A.shape[1] != n:
            message = f"{type(self).__name__} has A of shape {self.A.shape}, but x has {n} entries"
            raise InputError(f"{argument}: {message}; A needs {n} columns")

    def _length(self) -> int | None:
        return int(self.A.shape[1])

    def _row_count(self, n: int) -> int:
        return int(self.A.shape[0])


class Affine(Matrix):
    """The affine set `A x = b`; rows may be redundant. If traced ones contradict each other, it is solved in least squares.

    Attributes:
        A: A matrix, one row for each equation.
        b: One number for each row, or one for all.
    """

    _rows_are = "equations"
    _infinite = False

    def _rows(self, n: int, dtype: Any) -> Rows:
        return make_rows(n, dtype, E=self.A, f=self.b)


class Polyhedron(Matrix):
    """The polyhedron `A x <= b`, projected onto by way of its active rows, and exactly on those.

    Measured against the distance moved, the projection is within 1e-9 in float64, also with redundant, badly scaled or opposite
    rows (no interior) and at degenerate vertices. In float32 expect 1e-5, and 1e-3 where rows are nearly parallel. If a set of
    traced numbers is empty, the result is finite and `violation` positive.

    Attributes:
        A: A matrix, one row for each inequality.
        b: One number for each row, or one for all. May be inf.
    """

    _rows_are = "rows"
    _infinite = True

    def _rows(self, n: int, dtype: Any) -> Rows:
        return make_rows(n, dtype, self.A, self.b)


def _reject_minus_inf(kind: str, b: Any) -> None:
    if is_concrete(b) and (b == -np.inf).any():
        raise InputError(f"{kind}: b has -inf, which no point satisfies; pass a number")
