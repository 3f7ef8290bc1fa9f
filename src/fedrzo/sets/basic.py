"""Sets with a closed-form projection: all of R^n, a box, a ball, a simplex."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import lazy_loader
import numpy as np
from jax import Array

from fedrzo.errors import InputError
from fedrzo.sets.base import Rows, Set, first_index, is_concrete, make_rows, norm, numbers

optax = lazy_loader.load("optax")  # a tenth of the time that importing this library takes


@dataclass(frozen=True, eq=False, repr=False)
class Reals(Set):
    """All of R^n: no constraint."""

    def _project(self, x: Array) -> Array:
        return x

    def _violation(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def _parts(self) -> tuple[Set, ...]:
        return ()

    def _row_count(self, n: int) -> int:
        return 0

    def _rows(self, n: int, dtype: Any) -> Rows:
        return make_rows(n, dtype)


class PerEntry(Set):
    """A set with numbers that may be given once for all entries of x, once for each, or in a pytree that mirrors x."""

    _per_entry: ClassVar[tuple[str, ...]]  # their names

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError` unless each of these is a scalar or has `n` values."""
        for name in self._per_entry:
            value, kind = getattr(self, name), type(self).__name__
            if not hasattr(value, "shape"):
                raise InputError(f"{argument}: {kind} has {name} as a pytree; call flatten_set(set, x0) first")
            if value.shape not in ((), (n,)):
                raise InputError(
                    f"{argument}: {kind} has {name} of shape {value.shape}, but x has {n} entries; pass a scalar or {n} values"
                )

    def _length(self) -> int | None:
        shapes = (getattr(getattr(self, name), "shape", ()) for name in self._per_entry)
        return next((shape[0] for shape in shapes if shape), None)

    def _ravelled(self, example: Any) -> Set:
        return replace(self, **{name: ravel_like(getattr(self, name), example) for name in self._per_entry})  # type: ignore[type-var]


@dataclass(frozen=True, eq=False, repr=False)
class Box(PerEntry):
    """The box `lo <= x <= hi`.

    Attributes:
        lo: Lower bounds: a scalar, one number per entry, or a pytree that mirrors x. May be -inf.
        hi: Upper bounds, likewise. May be inf.
    """

    _per_entry = ("lo", "hi")
    lo: Any
    hi: Any

    def __post_init__(self) -> None:
        self._store(lo=numbers(self.lo, "Box: lo", infinite=True), hi=numbers(self.hi, "Box: hi", infinite=True))
        if is_concrete(self.lo, self.hi):
            _check_bounds(self.lo, self.hi)

    def _project(self, x: Array) -> Array:
        lo, hi = self._bounds(x)
        # Two comparisons, which leave NaN as it is; `jnp.clip` asks for it twice more.
        x = jnp.where(x < lo, lo, x)
        return jnp.where(x > hi, hi, x)

    def _violation(self, x: Array) -> Array:
        lo, hi = self._bounds(x)
        return jnp.max(jnp.maximum(lo - x, x - hi), initial=0)

    def _bounds(self, x: Array) -> tuple[Array, Array]:
        return jnp.asarray(self.lo, x.dtype), jnp.asarray(self.hi, x.dtype)

    def _row_count(self, n: int) -> int:
        return 2 * n

    def _rows(self, n: int, dtype: Any) -> Rows:
        numpy = np if is_concrete(self.lo, self.hi) else jnp
        bounds = [numpy.broadcast_to(numpy.asarray(v, dtype), n) for v in (self.hi, -self.lo)]
        return make_rows(n, dtype, np.vstack([np.eye(n), -np.eye(n)]), numpy.concatenate(bounds))


def _check_bounds(lo: np.ndarray, hi: np.ndarray) -> None:
    try:
        lo, hi = np.broadcast_arrays(lo, hi)
    except ValueError:
        message = f"Box: lo has shape {lo.shape} and hi has shape {hi.shape}; make them equal, or one a scalar"
        raise InputError(message) from None
    bad = (lo > hi) | (lo == np.inf) | (hi == -np.inf)
    if bad.any():
        found = f"lo = {float(lo[bad][0]):g} and hi = {float(hi[bad][0]):g}{first_index(bad)}"
        raise InputError(f"Box: {found} leave no point between them; correct the bounds")


@dataclass(frozen=True, eq=False, repr=False)
class Ball(PerEntry):
    """The Euclidean ball `||x - center|| <= radius`.

    Attributes:
        center: A scalar, one number per entry, or a pytree that mirrors x.
        radius: A number, zero or more.
    """

    _per_entry = ("center",)
    center: Any
    radius: Any

    def __post_init__(self) -> None:
        self._store(center=numbers(self.center, "Ball: center"), radius=numbers(self.radius, "Ball: radius"))
        if not hasattr(self.radius, "shape") or self.radius.shape != ():
            raise InputError("Ball: radius is not one number; pass a scalar")
        if is_concrete(self.radius) and self.radius < 0:
            raise InputError(f"Ball: radius is {float(self.radius):g}; pass a number that is not negative")

    def _project(self, x: Array) -> Array:
        center = jnp.asarray(self.center, x.dtype)
        # optax divides by the radius or the distance, so a radius of zero must stay above underflow.
        smallest = float(jnp.finfo(x.dtype).tiny) ** 0.5
        radius = jnp.maximum(jnp.asarray(self.radius, x.dtype), smallest)
        return center + optax.projections.projection_l2_ball(x - center, radius)

    def _violation(self, x: Array) -> Array:
        beyond = norm(x - jnp.asarray(self.center, x.dtype)) - jnp.asarray(self.radius, x.dtype)
        return jnp.maximum(beyond, 0)


@dataclass(frozen=True, eq=False, repr=False)
class Simplex(Set):
    """The simplex `x >= 0, sum(x) = total`.

    Attributes:
        total: A positive number.
    """

    total: Any = 1.0

    def __post_init__(self) -> None:
        self._store(total=numbers(self.total, "Simplex: total"))
        if not hasattr(self.total, "shape") or self.total.shape != ():
            raise InputError("Simplex: total is not one number; pass a scalar")
        if is_concrete(self.total) and self.total <= 0:
            raise InputError(f"Simplex: total is {float(self.total):g}; pass a positive number")

    def _project(self, x: Array) -> Array:
        total = jnp.asarray(self.total, x.dtype)
        scale = jnp.where(total > 0, total, 1)
        # The projection ignores a common shift, and so does its derivative; without the largest entry, sums of x lose no digits.
        # The derivative of a maximum divides by the number of entries that equal it: none where x is computed anew, and rounded
        # otherwise, to be compared with it.
        nearest = _onto_simplex(x - jax.lax.stop_gradient(jnp.max(x)), scale)
        # A traced total may not be positive: then the set is empty or {0}.
        return jnp.where(total > 0, nearest, 0)

    def _violation(self, x: Array) -> Array:
        off_total = jnp.abs(jnp.sum(x) - jnp.asarray(self.total, x.dtype))
        return jnp.maximum(off_total, jnp.max(-x, initial=0))

    def _row_count(self, n: int) -> int:
        return n + 1

    def _rows(self, n: int, dtype: Any) -> Rows:
        return make_rows(n, dtype, -np.eye(n), np.zeros(n), np.ones((1, n)), self.total.reshape(1))


@jax.custom_jvp
def _onto_simplex(x: Array, total: Array) -> Array:
    """Lower all entries by as much as leaves the total, and those below zero to zero.

    By Michelot's method, since sorting takes 2 to 20 times as long: entries below the mean excess are left out, and it is found
    anew, until none is below. It only rises, so that each pass leaves some out for good; a few are enough.
    """

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        excess, before, _ = carry
        above = x > excess
        count = jnp.sum(above, dtype=jnp.int32)
        return (jnp.sum(jnp.where(above, x, 0)) - total) / count, count, count < before

    start = ((jnp.sum(x) - total) / x.shape[0], jnp.int32(x.shape[0]), jnp.bool_(True))
    return jnp.maximum(x - jax.lax.while_loop(lambda carry: carry[2], step, start)[0], 0)


@_onto_simplex.defjvp
def _onto_simplex_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    dx, dtotal = tangents
    nearest = _onto_simplex(*primals)
    left = nearest > 0
    excess = (jnp.sum(jnp.where(left, dx, 0)) - dtotal) / jnp.sum(left)
    return nearest, jnp.where(left, dx - excess, 0)


def ravel_like(value: Any, example: Any) -> Any:
    """Lay out a parameter along the flat vector of `example`, leaf by leaf; a scalar stays a scalar.

    A value that does not fit is returned as it is, for `check` to name.
    """
    if getattr(value, "shape", None) == ():
        return value
    numpy = np if is_concrete(*jax.tree.leaves(value)) else jnp
    try:  # fails if the structures differ, or a shape
        full = jax.tree.map(lambda v, leaf: numpy.broadcast_to(v, np.shape(leaf)).reshape(-1), value, example)
    except ValueError:
        return value
    return numpy.concatenate(jax.tree.leaves(full))
