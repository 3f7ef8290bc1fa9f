"""Sets made of sets: products that mirror a pytree, blocks of a flat vector, intersections."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedrzo.errors import InputError
from fedrzo.sets.base import Rows, Set, is_set, show, to_float
from fedrzo.sets.polyhedral import Linear

FOLD_LIMIT = 250_000  # entries of a dense matrix of constraints; beyond, alternating projections are faster
SWEEPS = 2000
TANGENT_SWEEPS = 200


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Product(Set):
    """One set for each part of a pytree: `Product({"a": Box(0, 1), "b": Ball(0, 2)})`.

    `.project` and the other methods take a pytree x. Each set acts on its leaf or subtree of x as a flat
    vector. Several sets, as in `Product(Box(0, 1), Ball(0, 2))`, make a tuple.

    Attributes:
        sets: A pytree of sets: the argument, or the tuple of several.
    """

    sets: Any

    def __init__(self, *sets: Any) -> None:
        tree = sets[0] if len(sets) == 1 and not is_set(sets[0]) else sets
        _check_members("Product", jax.tree.leaves(tree, is_leaf=is_set))
        self._store(sets=tree)

    def project(self, x: Any) -> Any:
        """Return the nearest point, a pytree like `x`."""
        flat, blocks, unravel = self._flat(x)
        return unravel(blocks.project(flat))

    def violation(self, x: Any) -> Array:
        """Return the largest violation over the parts of `x`."""
        flat, blocks, _ = self._flat(x)
        return blocks.violation(flat)

    def distance(self, x: Any) -> Array:
        """Return the Euclidean distance from `x` to its projection."""
        flat, blocks, _ = self._flat(x)
        return blocks.distance(flat)

    def _flat(self, x: Any) -> tuple[Array, Set, Callable[[Array], Any]]:
        x = jax.tree.map(to_float, x)
        flat, unravel = ravel_pytree(x)
        return flat, flatten_set(self, x, "x"), unravel

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError`: only the pytree tells which entries belong to which set."""
        raise InputError(f"{argument}: Product mirrors a pytree, not a vector; call flatten_set(set, x0) first")

    def __repr__(self) -> str:
        return f"Product{show(self.sets)}" if isinstance(self.sets, tuple) else f"Product({show(self.sets)})"


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Set):
    """A product of sets, each on its own stretch of the flat vector; made by `flatten_set`."""

    sets: tuple[Set, ...]
    sizes: tuple[int, ...] = field(metadata={"static": True})

    def _project(self, x: Array) -> Array:
        return jnp.concatenate([part.project(v) for part, v in self._split(x)])

    def _violation(self, x: Array) -> Array:
        return jnp.max(jnp.stack([part.violation(v) for part, v in self._split(x)]))

    def _split(self, x: Array) -> list[tuple[Set, Array]]:
        return list(zip(self.sets, jnp.split(x, list(itertools.accumulate(self.sizes))[:-1]), strict=True))

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError` unless the blocks have `n` entries in all and each set fits its block."""
        if sum(self.sizes) != n:
            message = f"Product has blocks of {self.sizes} entries, but x has {n}; give each part of x its set"
            raise InputError(f"{argument}: {message}")
        for part, size in zip(self.sets, self.sizes, strict=True):
            part.check(size, argument)

    def _row_count(self, n: int) -> int | None:
        return _total(part._row_count(size) for part, size in zip(self.sets, self.sizes, strict=True))

    def _rows(self, n: int, dtype: Any) -> Rows:
        parts = [part._rows(size, dtype) for part, size in zip(self.sets, self.sizes, strict=True)]
        A, E = (jax.scipy.linalg.block_diag(*(getattr(part, name) for part in parts)) for name in "AE")
        return Rows(A, jnp.concatenate([p.b for p in parts]), E, jnp.concatenate([p.f for p in parts]))


@dataclass(frozen=True, eq=False, repr=False)
class Folded(Linear):
    """Polyhedral sets as one: all their constraints together."""

    parts: tuple[Set, ...]

    def _rows(self, n: int, dtype: Any) -> Rows:
        return Rows(*map(jnp.concatenate, zip(*(part._rows(n, dtype) for part in self.parts), strict=True)))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Intersection(Set):
    """The points that lie in every one of several sets.

    Polyhedral members (all but `Ball`) are folded into one polyhedron while that is small. Where more than
    one set remains, Dykstra's alternating projections run until a sweep changes nothing beyond 1e-10 of the
    distance moved (float32: 1e-6), 2000 sweeps at most. That is within 1e-6 unless the sets barely touch. If
    they are disjoint the result is finite and `violation` positive.

    Attributes:
        sets: The members.
    """

    sets: tuple[Set, ...]

    def __init__(self, *sets: Set) -> None:
        _check_members("Intersection", sets)
        inner = (member.sets if isinstance(member, Intersection) else (member,) for member in sets)
        self._store(sets=tuple(itertools.chain.from_iterable(inner)))

    def _project(self, x: Array) -> Array:
        members = self._folded(x.shape[0])
        if len(members) == 1:
            return members[0].project(x)
        return dykstra(jax.tree.map(lambda leaf: jnp.asarray(leaf, x.dtype), members), x)

    def _violation(self, x: Array) -> Array:
        return jnp.max(jnp.stack([member.violation(x) for member in self.sets]))

    def _folded(self, n: int) -> tuple[Set, ...]:
        counts = [member._row_count(n) for member in self.sets]
        linear = tuple(member for member, count in zip(self.sets, counts, strict=True) if count)
        curved = tuple(member for member, count in zip(self.sets, counts, strict=True) if count is None)
        if len(linear) > 1 and sum(count or 0 for count in counts) * n <= FOLD_LIMIT:
            linear = (Folded(linear),)
        return (*curved, *linear) or self.sets[:1]

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError` unless every member acts on `n` entries."""
        for member in self.sets:
            member.check(n, argument)

    def _row_count(self, n: int) -> int | None:
        return _total(member._row_count(n) for member in self.sets)

    def _rows(self, n: int, dtype: Any) -> Rows:
        return Folded(self.sets)._rows(n, dtype)

    def __repr__(self) -> str:
        return f"Intersection({', '.join(map(repr, self.sets))})"


def flatten_set(constraint: Set, example: Any, argument: str = "constraint") -> Set:
    """Return `constraint` as a set that acts on the flat vector of the pytree `example`.

    Args:
        constraint: A set; a `Product` must mirror `example`, and so may the numbers of a `Box` or `Ball`.
        example: A pytree of arrays; only its structure and shapes matter.
        argument: The name to use in an error.

    Returns:
        A set whose `project` takes `ravel_pytree(example)[0]`.
    """
    if isinstance(constraint, Intersection):
        return Intersection(*(flatten_set(member, example, argument) for member in constraint.sets))
    if not isinstance(constraint, Product):
        flat = constraint._ravelled(example)
        flat.check(_size(example), argument)
        return flat
    sets: list[Set]
    structure: Any
    sets, structure = jax.tree.flatten(constraint.sets, is_leaf=is_set)
    try:
        parts = structure.flatten_up_to(example)
    except ValueError:
        found = jax.tree.structure(example)
        raise InputError(
            f"{argument}: {constraint!r} does not mirror x, which is {found}; give each part a set"
        ) from None
    blocks = tuple(flatten_set(member, part, argument) for member, part in zip(sets, parts, strict=True))
    return Blocks(blocks, tuple(map(_size, parts)))


@jax.jit
def dykstra(members: tuple[Set, ...], x: Array) -> Array:
    """Return the projection of x onto the intersection, by Dykstra's alternating projections."""
    return _dykstra(members, x)


@jax.custom_jvp
def _dykstra(members: tuple[Set, ...], x: Array) -> Array:
    return x - jnp.sum(_corrections(members, x), axis=0)


@_dykstra.defjvp
def _dykstra_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    # The corrections are a fixed point of the sweep, so their tangents are one of the linearised sweep.
    (members, x), (dmembers, dx) = primals, tangents
    corrections = _corrections(members, x)
    _, linear = jax.linearize(_sweep, members, x, corrections)
    step = lambda d, _: (linear(dmembers, dx, d), None)  # noqa: E731
    dcorrections, _ = lax.scan(step, jnp.zeros_like(corrections), length=TANGENT_SWEEPS)
    return x - jnp.sum(corrections, axis=0), dx - jnp.sum(dcorrections, axis=0)


def _sweep(members: tuple[Set, ...], x: Array, corrections: Array) -> Array:
    """Project onto each member in turn; what a projection takes away is given back before its next turn."""
    y, new = x - jnp.sum(corrections, axis=0), []
    for member, correction in zip(members, corrections, strict=True):
        before = y + correction
        y = member.project(before)
        new.append(before - y)
    return jnp.stack(new)


def _corrections(members: tuple[Set, ...], x: Array) -> Array:
    # The change of the corrections, not of y, is the safe test: y may stand still for many sweeps.
    tolerance = 1e-10 if x.dtype == np.float64 else 1e-6

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        count, old, _ = carry
        new = _sweep(members, x, old)
        moved = jnp.max(jnp.abs(new - old)) > tolerance * jnp.max(jnp.abs(new))
        return count + 1, new, moved

    start = (jnp.asarray(0), jnp.zeros((len(members), *x.shape), x.dtype), jnp.asarray(True))
    return lax.while_loop(lambda c: (c[0] < SWEEPS) & c[2], step, start)[1]


def _check_members(kind: str, members: Sequence[Any]) -> None:
    if not members:
        raise InputError(f"{kind}: no sets given; pass at least one")
    for member in members:
        if not is_set(member):
            raise InputError(f"{kind}: expected sets, got {type(member).__name__}; pass sets such as Box(0, 1)")


def _size(tree: Any) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))


def _total(counts: Any) -> int | None:
    found = list(counts)
    return None if None in found else sum(found)
