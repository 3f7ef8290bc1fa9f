"""Constraint sets: what a set is, and the Euclidean projection onto it.

A set acts on a flat vector `x`: `.project(x)` is its nearest point, `.violation(x)` the largest amount by
which a constraint is broken, `.distance(x)` the distance to the projection. `Product` mirrors a pytree
instead, and `flatten_set` turns it into a set that acts on the flat vector. Sets are pytrees, so they may be
built inside a traced function, differentiated, or stacked: `stack_sets` holds one private set per client.
"""

from fedrzo.sets.base import Set, promise, warn_of_error
from fedrzo.sets.basic import Ball, Box, Reals, Simplex
from fedrzo.sets.combined import Intersection, Product, flatten_set
from fedrzo.sets.common import Blocks
from fedrzo.sets.family import Public, SetFamily, stack_sets
from fedrzo.sets.polyhedral import Affine, Halfspace, Polyhedron
from fedrzo.sets.sublevel import Sublevel

__all__ = [
    "Affine",
    "Ball",
    "Blocks",
    "Box",
    "Halfspace",
    "Intersection",
    "Polyhedron",
    "Product",
    "Public",
    "Reals",
    "Set",
    "SetFamily",
    "Simplex",
    "Sublevel",
    "flatten_set",
    "promise",
    "stack_sets",
    "warn_of_error",
]
