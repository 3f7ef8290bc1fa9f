"""Sets made of sets: products that mirror a pytree, intersections."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedrzo.errors import InputError
from fedrzo.sets.base import Pytree, Rows, Set, is_set, show, to_float
from fedrzo.sets.common import Blocks, Folded, folded, nearest_common, total
from fedrzo.sets.dykstra import alternate
from fedrzo.sets.empty import refuse_empty


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

    def project(self, x: Any, near: Any = None) -> Any:
        """Return the nearest point, a pytree like `x`."""
        flat, blocks, unravel = self._flat(x)
        return unravel(blocks.project(flat, None if near is None else self._flat(near)[0]))

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


@dataclass(frozen=True, eq=False)
class Members(Pytree):
    """Sets of different kinds, one by one."""

    sets: tuple[Set, ...]

    def project(self, i: Any, x: Array) -> Array:
        """Return the projection onto set i."""
        if isinstance(i, int):
            return self.sets[i]._project(x)
        return lax.switch(i, [lambda member=member: member._project(x) for member in self.sets])


alternate_between = jax.jit(alternate, static_argnums=1)  # so that a call outside compiled code compiles once, not each time


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Intersection(Set):
    """The points that lie in every one of several sets.

    Polyhedral members are folded into one polyhedron while that is small, and balls are solved with it, or with a single other
    set, exactly: within 1e-6 of the distance moved, however thin the set is (float32: 1e-3). What remains (a ball in a part of
    x, a `Sublevel`, sets too large for a dense matrix, a kind of your own) is met by Dykstra's alternating
    projections, 2000 sweeps at most. Both bound their error, and a call outside compiled code warns where the bound exceeds
    1e-6. Members with no point in common are refused where all numbers are known; otherwise, the result is finite and
    `violation` positive.

    Attributes:
        sets: The members.
    """

    sets: tuple[Set, ...]

    def __init__(self, *sets: Set) -> None:
        _check_members("Intersection", sets)
        inner = (member.sets if isinstance(member, Intersection) else (member,) for member in sets)
        self._store(sets=tuple(itertools.chain.from_iterable(inner)))
        self._refuse_empty(self._length(), "Intersection")

    def _refuse_empty(self, n: int | None, argument: str) -> None:
        if n is None:
            return
        try:
            self.check(n, argument)
        except InputError:  # said when x is known: a member mirrors a pytree, or does not fit
            return
        refuse_empty(self.sets, n, f"{argument}: found sets that have no point in common; correct their numbers")

    def _project(self, x: Array) -> Array:
        return self._nearest(x)[0]

    def _nearest(self, x: Array, near: Array | None = None) -> tuple[Array, Array]:
        found = nearest_common(self.sets, x, near)
        if found is not None:
            return found
        members = jax.tree.map(lambda leaf: jnp.asarray(leaf, x.dtype), folded(self.sets, x.shape[0]))
        return alternate_between(Members(members), len(members), x)

    def _violation(self, x: Array) -> Array:
        return jnp.max(jnp.stack([member.violation(x) for member in self.sets]))

    def _parts(self) -> tuple[Set, ...]:
        return tuple(itertools.chain.from_iterable(member._parts() for member in self.sets))

    def _length(self) -> int | None:
        return next((n for member in self.sets if (n := member._length()) is not None), None)

    def check(self, n: int, argument: str) -> None:
        """Raise `InputError` unless every member acts on `n` entries."""
        for member in self.sets:
            member.check(n, argument)

    def _row_count(self, n: int) -> int | None:
        return total(member._row_count(n) for member in self.sets)

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
        both = Intersection(*(flatten_set(member, example, argument) for member in constraint.sets))
        if both._length() is None:  # only now is it known how long x is
            both._refuse_empty(_size(example), argument)
        return both
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
        raise InputError(f"{argument}: {constraint!r} does not mirror x, which is {found}; give each part a set") from None
    blocks = tuple(flatten_set(member, part, argument) for member, part in zip(sets, parts, strict=True))
    return Blocks(blocks, tuple(map(_size, parts)))


def _check_members(kind: str, members: Sequence[Any]) -> None:
    if not members:
        raise InputError(f"{kind}: no sets given; pass at least one")
    for member in members:
        if not is_set(member):
            raise InputError(f"{kind}: expected sets, got {type(member).__name__}; pass sets such as Box(0, 1)")


def _size(tree: Any) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))
