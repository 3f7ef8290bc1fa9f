"""Sets: what a mistake says, what fits, and how a set prints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo.errors import InputError
from fedrzo.sets import (
    Affine,
    Ball,
    Box,
    Halfspace,
    Intersection,
    Polyhedron,
    Product,
    Reals,
    Simplex,
    flatten_set,
    stack_sets,
)
from setkinds import (
    A7,
    KINDS,
    N,
    double_precision,  # noqa: F401 - it applies to every test here
)

# --- what a mistake says

MISTAKES = [
    (lambda: Box([0, 2, 5], [1, 1, 1]), r"Box: lo = 2 and hi = 1 at index 1 leave no point between them"),
    (lambda: Box(3, 1), r"Box: lo = 3 and hi = 1 leave no point"),
    (lambda: Box(np.inf, np.inf), r"Box: lo = inf and hi = inf leave no point"),
    (lambda: Box([0, np.nan], 1), r"Box: lo: found nan at index 1; pass a number"),
    (lambda: Box([0, 0], [1, 1, 1]), r"Box: lo has shape \(2,\) and hi has shape \(3,\); make them equal"),
    (lambda: Box("a", 1), r"Box: lo: expected real numbers, got dtype <U1; pass floats"),
    (lambda: Box(None, 1), r"Box: lo: expected numbers, got NoneType; pass a number or an array"),
    (lambda: Box(1j, 1), r"Box: lo: expected real numbers, got dtype complex128"),
    (lambda: Ball(0, -1), r"Ball: radius is -1; pass a number that is not negative"),
    (lambda: Ball(0, [1, 2]), r"Ball: radius is not one number; pass a scalar"),
    (lambda: Ball([0, np.inf], 1), r"Ball: center: found inf at index 1; pass a finite number"),
    (lambda: Simplex(0), r"Simplex: total is 0; pass a positive number"),
    (lambda: Simplex([1, 2]), r"Simplex: total is not one number"),
    (lambda: Halfspace([0, 0], 1), r"Halfspace: a is all zero; pass a nonzero normal"),
    (lambda: Halfspace(1, 1), r"Halfspace: a is not a vector; pass one number for each entry"),
    (lambda: Halfspace([1, 2], [1, 2]), r"Halfspace: b has shape \(2,\); pass one number"),
    (lambda: Halfspace([1, 2], -np.inf), r"Halfspace: b has -inf, which no point satisfies"),
    (lambda: Affine([1, 2], [1]), r"Affine: A has shape \(2,\); pass a matrix, one row for each constraint"),
    (lambda: Affine([[1, 2]], [1, 2]), r"Affine: b has shape \(2,\), but A has 1 rows; pass one number for each row"),
    (lambda: Affine([[1, 2]], np.inf), r"Affine: b: found inf; pass a finite number"),
    (lambda: Polyhedron([[1, 2], [3]], [1, 2]), r"Polyhedron: A has rows of unequal length; pass a matrix"),
    (lambda: Polyhedron([[1, np.nan]], 1), r"Polyhedron: A: found nan at index \(0, 1\)"),
    (lambda: Polyhedron([[1, 2]], -np.inf), r"Polyhedron: b has -inf"),
    (lambda: Product(), r"Product: no sets given; pass at least one"),
    (lambda: Product({"a": 3}), r"Product: expected sets, got int; pass sets such as Box\(0, 1\)"),
    (lambda: Intersection(), r"Intersection: no sets given; pass at least one"),
    (lambda: Intersection(Box(0, 1), 3), r"Intersection: expected sets, got int"),
    (lambda: stack_sets([]), r"sets: no clients; pass one set for each client"),
    (lambda: stack_sets([Box(0, 1), Product(Box(0, 1))]), r"sets: client 1 has a Product, which mirrors a pytree"),
    (lambda: stack_sets([3]), r"sets: client 0 has a int; pass a set of flat vectors"),
    (lambda: Box(0, 1).project(np.zeros((2, 2))), r"x: expected a flat vector, got shape \(2, 2\)"),
    (lambda: Box([0, 0], 1).project(np.zeros(3)), r"x: Box has lo of shape \(2,\), but x has 3 entries"),
    (lambda: Product(Box(0, 1)).project({"a": 1.0}), r"x: Product\(Box\(lo=0, hi=1\)\) does not mirror x"),
    (lambda: flatten_set(Product(Box(0, 1)), np.zeros(3)), r"constraint: Product.* does not mirror x"),
    (lambda: flatten_set(Box({"a": 0}, 1), {"b": 1.0}), r"constraint: Box has lo as a pytree"),
    (
        lambda: flatten_set(Box(np.zeros(3), 1), {"b": np.zeros(5)}),
        r"constraint: Box has lo of shape \(3,\), but x has 5",
    ),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(mistake, message):
    with pytest.raises(InputError, match=f"^{message}"):
        mistake()


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Box([1, 2, 3], 9), r"constraint: Box has lo of shape \(3,\), but x has 5 entries; pass a scalar or 5 values"),
        (Box(0, [1, 2, 3]), r"constraint: Box has hi of shape \(3,\)"),
        (Ball([1, 2, 3], 9), r"constraint: Ball has center of shape \(3,\)"),
        (Halfspace([1, 2], 9), r"constraint: Halfspace has a of shape \(2,\), but x has 5 entries; pass 5 values"),
        (Affine([[1, 2]], 9), r"constraint: Affine has A of shape \(1, 2\), but x has 5 entries; A needs 5 columns"),
        (Polyhedron([[1, 2]], 9), r"constraint: Polyhedron has A of shape \(1, 2\)"),
        (Intersection(Box(0, 1), Ball([1, 2], 9)), r"constraint: Ball has center of shape \(2,\)"),
        (Product(Box(0, 1)), r"constraint: Product mirrors a pytree, not a vector; call flatten_set"),
        (KINDS["blocks"][0], r"constraint: Product has blocks of \(2, 2\) entries, but x has 5"),
    ],
)
def test_check_names_the_argument_and_the_shapes(constraint, message):
    with pytest.raises(InputError, match=f"^{message}"):
        constraint.check(5, "constraint")


def test_check_accepts_what_fits():
    for kind, _ in KINDS.values():
        kind.check(N, "constraint")


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Reals(), "Reals()"),
        (Box(-1, 2), "Box(lo=-1, hi=2)"),
        (Box(np.arange(10), [10.5] * 10), "Box(lo=[0, 1, ..., 9] (10 values), hi=[10.5, 10.5, ..., 10.5] (10 values))"),
        (Ball([0, 1], 2), "Ball(center=[0, 1], radius=2)"),
        (Polyhedron(A7, 1), "Polyhedron(A=array of shape (7, 4), b=[1, 1, ..., 1] (7 values))"),
        (Affine([[1, 2]], 3), "Affine(A=[[1, 2]], b=[3])"),
        (Product(Box(0, 1), Simplex()), "Product(Box(lo=0, hi=1), Simplex(total=1))"),
        (Product({"a": Box(0, 1)}), "Product({'a': Box(lo=0, hi=1)})"),
        (Intersection(Box(0, 1), Reals()), "Intersection(Box(lo=0, hi=1), Reals())"),
    ],
)
def test_repr_reads_well(constraint, text):
    assert repr(constraint) == text


def test_repr_of_a_traced_set():
    seen = []
    jax.jit(lambda t: seen.append(repr(Box(t, 2))))(jnp.zeros(3))
    assert seen == ["Box(lo=traced[3], hi=2)"]
