"""One set per client, kinds may differ: stacked, so that a traced client index picks its set."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedrzo.errors import InputError
from fedrzo.sets.base import Pytree, Rows, Set, has_tracer, is_set, norm, promise, to_float
from fedrzo.sets.basic import Ball, Box, Reals
from fedrzo.sets.combined import Intersection, Product
from fedrzo.sets.common import Blocks, many, nearest_common, tightest
from fedrzo.sets.dykstra import alternate
from fedrzo.sets.empty import refuse_empty
from fedrzo.sets.polyhedral import Given, Halfspace
from fedrzo.sets.sublevel import Sublevel, beyond_ball

TOGETHER = 16  # clients whose projections are computed together, of several points as a rule


@dataclass(frozen=True)
class Public:
    """Says that the server may know a client's set, so that the client may send scalars: `constraint=Public(Box(-1, 1))`.

    Args:
        set: the set.
    """

    set: Set


@dataclass(frozen=True, eq=False)
class SetFamily(Pytree):
    """The sets of m clients; made by `stack_sets`."""

    groups: tuple[Set, ...]  # one set per kind, with its members' numbers stacked; a single set if all clients share it
    kind: Any  # for each client, its place in `groups`
    place: Any  # for each client, its place in its group
    identical: bool = field(metadata={"static": True})  # whether all clients have the same set, by value
    public: Any = None  # for each client, whether the server may know its set; None if it may know none

    @property
    def free(self) -> bool:
        """Whether no client has a constraint."""
        return all(isinstance(group, Reals) for group in self.groups)

    def of(self, client: int) -> Set:
        """Return the set of one client."""
        if self.identical:
            return self.groups[0]
        place = self.place[client]
        return jax.tree.map(lambda leaf: np.asarray(leaf)[place], self.groups[self.kind[client]])

    def part(self, clients: Sequence[int]) -> "SetFamily":
        """Return the sets of some clients alone, in that order."""
        public = None if self.public is None else np.asarray(self.public)[list(clients)]
        return replace(stack_sets([self.of(i) for i in clients]), public=public)

    def scaled(self, units: np.ndarray) -> "SetFamily":
        """Return these sets for vectors in other units, one for each entry."""
        if self.free:
            return self
        return self._of_members(lambda member: _in_units(member, units))

    def within(self, domain: Set) -> "SetFamily":
        """Return what each of these sets has in common with a domain; itself where they are boxes that keep to one together."""
        inner = _one_box(self.members())
        if inner is not None and isinstance(domain, Box) and np.all(inner.lo >= domain.lo) and np.all(inner.hi <= domain.hi):
            return self
        found = self._of_members(lambda member: domain if isinstance(member, Reals) else Intersection(member, domain))
        # Everybody knows the domain, so that who has no other set has no secret.
        free = np.array([isinstance(group, Reals) for group in self.groups])[np.asarray(self.kind)]
        return replace(found, public=free if self.public is None else free | np.asarray(self.public)) if free.any() else found

    def _of_members(self, change: Callable[[Set], Set]) -> "SetFamily":
        if self.identical:
            return replace(self, groups=(change(self.groups[0]),))
        return replace(stack_sets([change(self.of(i)) for i in range(len(self.place))]), public=self.public)

    def known(self, client: Any) -> Any:
        """Tell whether the server knows a client's set: there is none, or it was declared public."""
        free = np.array([isinstance(group, Reals) for group in self.groups])
        found = jnp.asarray(free)[jnp.asarray(self.kind)[client]] if not free.all() else jnp.bool_(True)
        return found if self.public is None else found | jnp.asarray(self.public)[client]

    def members(self) -> list[Set]:
        """Return the distinct sets one by one; boxes, whose intersection is a box, as one."""
        if self.identical:
            return [self.groups[0]]
        found: list[Set] = []
        for group in self.groups:
            if isinstance(group, Box):
                found.append(tightest(group))
                continue
            leaves = jax.tree.leaves(group)
            count = leaves[0].shape[0] if leaves else 1  # sets without numbers are all the same
            found += [jax.tree.map(lambda leaf, j=j: leaf[j], group) for j in range(count)]
        return found

    def bounds(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest value that the boxes among these sets allow each of n entries, or infinities."""
        low, high = np.full(n, -np.inf), np.full(n, np.inf)
        for part, place in itertools.chain.from_iterable(member._placed(0, n) for member in self.members()):
            if isinstance(part, Box):
                low[place] = np.maximum(low[place], part.lo)
                high[place] = np.minimum(high[place], part.hi)
        return low, high

    def nearest(self, x: Array) -> tuple[Array, Array]:
        """Return the projection of `x` onto the intersection of all clients' sets, and a bound of its error.

        As `Intersection` does it, on stacked numbers, so that the compiled program does not grow with the clients.
        """
        if self.identical:
            return self.groups[0]._nearest(x)
        found = nearest_common((many(group) for group in self.groups if not isinstance(group, Reals)), x)
        return alternate(self, len(self.place), x) if found is None else found

    def refuse_empty(self, x: np.ndarray) -> None:
        """Raise `InputError` if the clients' sets have no point in common; `x` is one that they may have."""
        found = "an empty set" if self.identical else "clients' sets that have no point in common"
        refuse_empty(self.members(), x.size, f"constraint: found {found}; correct the sets", near=x)

    def worst_violation(self, x: Array) -> Array:
        """Return the largest amount by which `x` breaks a constraint of a client."""
        clients = jnp.arange(1 if self.identical else len(self.place))
        return jnp.max(lax.map(lambda i: self.violation(i, x), clients))

    def apart(self, x: Array, units: Any = None) -> tuple[Array, Array]:
        """Return the largest distance from `x` to a client's set, and the largest error that a client's projection may have.

        The distance is without the units of x, if there are any; the error is relative to what is promised.
        """

        def one(i: Array) -> tuple[Array, Array]:
            y, error = self._pick(i, x, lambda member: member._nearest(x))
            gap = x - y if units is None else (x - y) * jnp.asarray(units, x.dtype)
            return norm(gap), jnp.where(error > 0, error / promise(x, y), 0)

        count = 1 if self.identical else len(self.place)
        if count == 1:
            return one(jnp.int32(0))
        distances, doubts = lax.map(one, jnp.arange(count), batch_size=TOGETHER)
        return jnp.max(distances), jnp.max(doubts)

    def project(self, i: Any, x: Any, near: Any = None) -> Array:
        """Return the projection of `x` onto the set of client `i`; see `Set.project`."""
        return self._pick(i, x, lambda member: member.project(x, near))

    def violation(self, i: Any, x: Any) -> Array:
        """Return by how much `x` breaks the constraints of client `i`."""
        return self._pick(i, x, lambda member: member.violation(x))

    def distance(self, i: Any, x: Any) -> Array:
        """Return the distance from `x` to the set of client `i`."""
        return self._pick(i, x, lambda member: member.distance(x))

    def _pick(self, i: Any, x: Any, act: Callable[[Set], Any]) -> Any:
        """Return what the set of client `i` answers at x, in the precision of x, whatever that of its numbers."""
        dtype = to_float(x).dtype

        def answer(member: Set) -> Any:
            return jax.tree.map(lambda leaf: leaf.astype(dtype), act(member))

        if self.identical:
            return answer(self.groups[0])
        place = jnp.asarray(self.place)[i]
        acts = [lambda group=group: answer(jax.tree.map(lambda leaf: jnp.asarray(leaf)[place], group)) for group in self.groups]
        return acts[0]() if len(acts) == 1 else lax.switch(jnp.asarray(self.kind)[i], acts)


def stack_sets(sets: Sequence[Set]) -> SetFamily:
    """Return the sets of m clients as one object that a traced client index may pick from.

    Sets of one kind and shape are stacked. Under `vmap` over clients each client computes every kind and
    keeps its own, so few kinds are fast. If all sets are equal one is kept, and `Reals` costs nothing.

    Args:
        sets: One set for each client, acting on flat vectors (see `flatten_set`).
    """
    _check_flat(sets)
    kind, place, groups = _group(sets)
    if len(groups) == 1 and all(_equal(sets[0], other) for other in sets[1:]):
        return SetFamily((sets[0],), kind, place, identical=True)
    stack = lambda *leaves: (jnp if has_tracer(leaves) else np).stack(leaves)  # noqa: E731
    stacked = tuple(jax.tree.map(stack, *group) for group in groups)
    return SetFamily(stacked, kind, place, identical=False)


def _one_box(members: list[Set]) -> Box | None:
    """Return the box that several boxes have in common; None where one is another kind of set."""
    if not all(isinstance(member, Box) for member in members):
        return None
    both = [np.broadcast_arrays(*ends) for ends in zip(*((box.lo, box.hi) for box in members), strict=True)]  # type: ignore[attr-defined]
    return tightest(Box(*map(np.stack, both)))


def _in_units(member: Set, units: np.ndarray) -> Set:
    """Return a flat set, for vectors in other units; its projection is then the nearest point in those."""
    if isinstance(member, Reals):
        return member
    if isinstance(member, Box):
        each = units[0] if np.ptp(units) == 0 else units  # a number stays a number, for which programs are compiled already
        return Box(member.lo / each, member.hi / each)
    if isinstance(member, Halfspace):
        return Halfspace(member.a * units, member.b)
    if isinstance(member, Intersection):
        return Intersection(*(_in_units(part, units) for part in member.sets))
    if isinstance(member, Blocks):
        ends = np.cumsum(member.sizes)[:-1]
        parts = zip(member.sets, np.split(units, ends), strict=True)
        return Blocks(tuple(_in_units(part, own) for part, own in parts), member.sizes)
    if np.ptp(units) == 0 and isinstance(member, Ball):
        return Ball(member.center / units[0], member.radius / units[0])
    if isinstance(member, Ball):
        return Sublevel(beyond_ball, np.broadcast_to(member.center, units.shape), member.radius, units=units)
    if isinstance(member, Sublevel):
        return Sublevel(member.g, *member.parameters, units=units if member.units is None else member.units * units)
    if member._row_count(units.size) is None:
        raise InputError(
            f"scale: found entries from {units.min():.3g} to {units.max():.3g} for {type(member).__name__}, a set that knows no "
            "units; leave scale out, or scale x yourself"
        )
    A, b, E, f = member._rows(units.size, units.dtype)
    return Given(Rows(A * units, b, E * units, f))


def _group(sets: Sequence[Set]) -> tuple[np.ndarray, np.ndarray, list[list[Set]]]:
    groups: dict[Any, list[Set]] = {}
    kind, place = np.zeros((2, len(sets)), np.int32)
    for i, member in enumerate(sets):
        leaves, structure = jax.tree.flatten(member)
        key = (structure, tuple(leaf.shape for leaf in leaves))
        group = groups.setdefault(key, [])
        kind[i], place[i] = list(groups).index(key), len(group)
        group.append(member)
    return kind, place, list(groups.values())


def _equal(one: Set, other: Set) -> bool:
    """Tell whether two sets of one kind and shape have the same numbers; traced ones count as different."""
    if one is other:
        return True
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    return not has_tracer(pairs) and all(np.array_equal(a, b) for a, b in pairs)


def _check_flat(sets: Sequence[Set]) -> None:
    if len(sets) == 0:
        raise InputError("sets: no clients; pass one set for each client")
    for i, member in enumerate(sets):
        if not is_set(member) or isinstance(member, Product):
            found = "a Product, which mirrors a pytree" if is_set(member) else f"a {type(member).__name__}"
            raise InputError(f"sets: client {i} has {found}; pass a set of flat vectors (see flatten_set)")
