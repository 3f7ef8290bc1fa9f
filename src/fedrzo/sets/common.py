"""Several sets at once: what each is made of, and the projection onto what they have in common."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array

from fedrzo.errors import InputError
from fedrzo.sets.balls import project_balls
from fedrzo.sets.base import FOLD_LIMIT, Rows, Set, is_concrete, norm
from fedrzo.sets.basic import Ball, Box, Reals
from fedrzo.sets.polyhedral import Linear


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Set):
    """A product of sets, each on its own stretch of the flat vector; made by `flatten_set`."""

    _called = "Product"
    sets: tuple[Set, ...]
    sizes: tuple[int, ...] = field(metadata={"static": True})

    def _project(self, x: Array) -> Array:
        return self._nearest(x)[0]

    def _nearest(self, x: Array, near: Array | None = None) -> tuple[Array, Array]:
        found = (part._nearest(v, hint) for (part, v), hint in zip(self._split(x), _hints(near, self.sizes), strict=True))
        parts, errors = zip(*found, strict=True)
        return jnp.concatenate(parts), norm(jnp.stack(errors))

    def _violation(self, x: Array) -> Array:
        return jnp.max(jnp.stack([part.violation(v) for part, v in self._split(x)]))

    def _split(self, x: Array) -> list[tuple[Set, Array]]:
        return list(zip(self.sets, split(x, self.sizes), strict=True))

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError` unless the blocks have `n` entries in all and each set fits its block."""
        if sum(self.sizes) != n:
            message = f"Product has blocks of {self.sizes} entries, but x has {n}; give each part of x its set"
            raise InputError(f"{argument}: {message}")
        for part, size in zip(self.sets, self.sizes, strict=True):
            part.check(size, argument)

    def _length(self) -> int:
        return sum(self.sizes)

    def _placed(self, start: int, n: int) -> Iterator[tuple[Set, slice]]:
        for part, size in zip(self.sets, self.sizes, strict=True):
            yield from part._placed(start, size)
            start += size

    def _row_count(self, n: int) -> int | None:
        return total(part._row_count(size) for part, size in zip(self.sets, self.sizes, strict=True))

    def _rows(self, n: int, dtype: Any) -> Rows:
        parts = [part._rows(size, dtype) for part, size in zip(self.sets, self.sizes, strict=True)]
        stack = scipy.linalg.block_diag if is_concrete(*itertools.chain(*parts)) else jax.scipy.linalg.block_diag
        A, E = (stack(*(getattr(part, name) for part in parts)) for name in "AE")
        return Rows(A, join([p.b for p in parts]), E, join([p.f for p in parts]))


@dataclass(frozen=True, eq=False, repr=False)
class Folded(Linear):
    """Polyhedral sets as one: all their constraints together."""

    parts: tuple[Set, ...]

    def _row_count(self, n: int) -> int | None:
        return total(part._row_count(n) for part in self.parts)

    def _rows(self, n: int, dtype: Any) -> Rows:
        return Rows(*map(join, zip(*(part._rows(n, dtype) for part in self.parts), strict=True)))


@dataclass(frozen=True, eq=False, repr=False)
class Many(Linear):
    """The intersection of many sets of one kind, whose numbers are stacked in `group`."""

    group: Set

    def _parts(self) -> tuple[Set, ...]:
        return tuple(tightest(part) if isinstance(part, Box) else many(part) for part in self.group._parts())

    def _row_count(self, n: int) -> int | None:
        own = jax.tree.map(lambda leaf: leaf[0], self.group)._row_count(n)
        return None if own is None else own * jax.tree.leaves(self.group)[0].shape[0]

    def _rows(self, n: int, dtype: Any) -> Rows:
        rows = jax.vmap(lambda one: Rows(*map(jnp.asarray, one._rows(n, dtype))))(self.group)
        return Rows(*(part.reshape(-1, *part.shape[2:]) for part in rows))


def many(group: Set) -> Set:
    """Return the intersection of sets whose numbers are stacked; sets without numbers are all the same."""
    return Many(group) if jax.tree.leaves(group) else group


def nearest_common(members: Iterable[Set], x: Array, near: Array | None = None) -> tuple[Array, Array] | None:
    """Return the point that is in all members and nearest to x, and a bound of its error, if that can be solved exactly.

    It can if the members are polyhedral, or balls in all entries of x, and not too large for a dense matrix. One ball
    needs no matrix if what remains is a single set. `near` is a point that the answer may be close to.
    """
    parts = list(itertools.chain.from_iterable(member._parts() for member in members))
    layouts = {part.sizes if isinstance(part, Blocks) else None for part in map(_kind, parts)}
    if len(layouts) == 1 and (sizes := layouts.pop()) is not None:
        return _block_by_block(parts, sizes, x, near)
    n = x.shape[0]
    balls = [part for part in parts if isinstance(_kind(part), Ball)]
    rows = total(part._row_count(n) for part in parts if not isinstance(_kind(part), Ball))
    if rows is None:
        return None
    linear = _fold([part for part in parts if not isinstance(_kind(part), Ball)])
    centers, radii = _stacked(balls, n, x.dtype)
    cuts = len(radii) if len(radii) > 1 else 0
    single = not isinstance(linear, Folded | Many) and not cuts
    if not single and (rows + cuts) * n > FOLD_LIMIT:
        return None
    return project_balls(linear, centers, radii, x) if len(radii) else linear._nearest(x, near)


def folded(members: Sequence[Set], n: int) -> tuple[Set, ...]:
    """Return the members, the polyhedral ones as one while that is small."""
    counts = [member._row_count(n) for member in members]
    linear = tuple(member for member, count in zip(members, counts, strict=True) if count)
    curved = tuple(member for member, count in zip(members, counts, strict=True) if count is None)
    if len(linear) > 1 and sum(count or 0 for count in counts) * n <= FOLD_LIMIT:
        linear = (Folded(linear),)
    return (*curved, *linear)


def _fold(parts: Sequence[Set]) -> Set:
    """Return polyhedral sets as one; boxes as a box, which has a closed form."""
    boxes = [part for part in parts if isinstance(part, Box)]
    rest = [part for part in parts if not isinstance(part, Box)]
    for box in boxes[1:]:
        numpy = np if is_concrete(boxes[0].lo, boxes[0].hi, box.lo, box.hi) else jnp
        boxes[0] = _bounded(numpy.maximum(boxes[0].lo, box.lo), numpy.minimum(boxes[0].hi, box.hi))
    found = boxes[:1] + rest
    if not found:
        return Reals()
    return found[0] if len(found) == 1 else Folded(tuple(found))


def tightest(group: Box) -> Box:
    """Return the intersection of boxes whose numbers are stacked."""
    numpy = np if is_concrete(group.lo, group.hi) else jnp
    return _bounded(numpy.max(group.lo, axis=0), numpy.min(group.hi, axis=0))


def _bounded(lo: Any, hi: Any) -> Box:
    """Return a box that may turn out to be empty, which its violation tells."""
    box = object.__new__(Box)
    box._store(lo=lo, hi=hi)
    return box


def _block_by_block(
    parts: Sequence[Any], sizes: tuple[int, ...], x: Array, near: Array | None
) -> tuple[Array, Array] | None:  # fmt: skip
    found = []
    for b, (v, hint) in enumerate(zip(split(x, sizes), _hints(near, sizes), strict=True)):
        members = [part.sets[b] if isinstance(part, Blocks) else many(part.group.sets[b]) for part in parts]
        found.append(nearest_common(members, v, hint))
    if None in found:
        return None
    points, errors = zip(*found, strict=True)
    return jnp.concatenate(points), norm(jnp.stack(errors))


def _kind(part: Set) -> Any:
    return part.group if isinstance(part, Many) else part


def _stacked(balls: Sequence[Set], n: int, dtype: Any) -> tuple[Array, Array]:
    """Return the centres and the radii of balls, one row for each."""
    centers, radii = [jnp.zeros((0, n), dtype)], [jnp.zeros(0, dtype)]
    for part in balls:
        ball = _kind(part)
        radius = jnp.asarray(ball.radius, dtype).reshape(-1)
        center = jnp.asarray(ball.center, dtype)
        center = center.reshape(len(radius), -1) if isinstance(part, Many) else center
        centers.append(jnp.broadcast_to(center, (len(radius), n)))
        radii.append(radius)
    return jnp.concatenate(centers), jnp.concatenate(radii)


def split(x: Array, sizes: Sequence[int]) -> list[Array]:
    """Return the stretches of a flat vector."""
    return jnp.split(x, list(itertools.accumulate(sizes))[:-1])


def _hints(near: Array | None, sizes: Sequence[int]) -> Sequence[Array | None]:
    """Return the part of a hint for each stretch; none where there is none."""
    return [None] * len(sizes) if near is None else split(near, sizes)


def join(parts: Sequence[Any]) -> Any:
    """Concatenate arrays; in NumPy where all have values."""
    return (np if is_concrete(*parts) else jnp).concatenate(parts)


def total(counts: Any) -> int | None:
    """Return the sum, or None if one of them is None."""
    found = list(counts)
    return None if None in found else sum(found)
