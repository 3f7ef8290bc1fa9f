"""Sets: products that mirror a pytree, and one set for each client."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedrzo.sets import Ball, Box, Polyhedron, Product, Reals, Simplex, flatten_set, stack_sets
from setkinds import (
    A7,
    B7,
    CENTER,
    N,
    double_precision,  # noqa: F401 - it applies to every test here
    points,
    project,
    violation,
)

# --- products


def test_product_mirrors_the_pytree():
    mirror = Product({"a": Box(0, 1), "b": (Ball(0, 1), Simplex())})
    x = {"a": np.array([[2.0, -1.0], [0.5, 3.0]]), "b": (np.array([3.0, 4.0]), {"w": np.array([5.0]), "v": 1.0})}
    y = jax.jit(mirror.project)(x)
    np.testing.assert_array_equal(y["a"], [[1, 0], [0.5, 1]])
    np.testing.assert_allclose(y["b"][0], [0.6, 0.8])
    np.testing.assert_allclose((y["b"][1]["v"], y["b"][1]["w"][0]), (0, 1))
    assert mirror.violation(x) == pytest.approx(5.0)  # the simplex: 5 + 1 is 5 too much
    flat = jax.jit(lambda tree: flatten_set(mirror, tree).project(ravel_pytree(tree)[0]))(x)
    np.testing.assert_allclose(flat, ravel_pytree(y)[0])


def test_several_sets_make_a_tuple_and_leaves_keep_their_dtype():
    a, b = Product(Box(0, 1), Reals()).project((np.array([2.0], np.float32), np.array([7])))
    assert (a.dtype, b.dtype) == (np.float32, np.float64)
    assert (a[0], b[0]) == (1, 7)


def test_flatten_set_lays_out_numbers_that_mirror_x():
    x0 = {"a": np.zeros((2, 2)), "b": np.zeros(1)}
    box = flatten_set(Box({"a": [[0, 1], [2, 3]], "b": -1}, 9), x0)
    np.testing.assert_array_equal(box.lo, [0, 1, 2, 3, -1])
    np.testing.assert_array_equal(box.project(np.full(5, -7.0)), [0, 1, 2, 3, -1])
    np.testing.assert_array_equal(flatten_set(Ball([[1, 2], [3, 4]], 1), np.zeros((2, 2))).center, [1, 2, 3, 4])
    ragged = flatten_set(Box([[0, 1], 2], 9), [np.zeros(2), np.zeros(1)])
    np.testing.assert_array_equal(ragged.lo, [0, 1, 2])
    same = Box(0, 1)
    assert flatten_set(same, x0).lo.shape == ()
    traced = jax.jit(lambda t: flatten_set(Box({"a": t, "b": 2 * t}, 9), x0).project(jnp.zeros(5)))(3.0)
    np.testing.assert_array_equal(traced, [3, 3, 3, 3, 6])


# --- one set for each client


def family_members():
    return [
        Box(-1, 1),
        Polyhedron(A7, B7),
        Ball(CENTER, 0.5),
        Box(0, 3),
        Polyhedron(-A7, B7),
        Box(np.zeros(N), np.ones(N)),
        flatten_set(Product(Simplex(), Reals()), (np.zeros(3), np.zeros(1))),
    ]


@pytest.mark.slow("many sets")
def test_family_under_vmap_equals_a_loop():
    members = family_members()
    family = stack_sets(members)
    assert (len(family.groups), family.identical) == (5, False)
    x = points(len(members))
    clients = jnp.arange(len(members))
    batched = jax.jit(jax.vmap(lambda f, i, x: (f.project(i, x), f.violation(i, x)), (None, 0, 0)))
    projected, violated = batched(family, clients, x)
    for member, v, p, amount in zip(members, x, projected, violated, strict=True):
        np.testing.assert_allclose(p, project(member, v), atol=1e-12)
        np.testing.assert_allclose(amount, violation(member, v), atol=1e-12)
    np.testing.assert_allclose(family.distance(3, x[0]), np.linalg.norm(x[0] - np.clip(x[0], 0, 3)))


def test_family_of_one_kind_needs_no_switch():
    family = stack_sets([Box(-i, i + 1) for i in range(5)])
    assert (len(family.groups), family.identical) == (1, False)
    assert family.groups[0].lo.shape == (5,)
    assert "cond" not in str(jax.make_jaxpr(family.project)(0, jnp.zeros(2)))
    np.testing.assert_array_equal(jax.vmap(family.project, (0, None))(jnp.arange(5), jnp.full(1, -9.0))[:, 0], -np.arange(5))


def test_equal_sets_are_stored_once():
    shared = Polyhedron(A7, B7)
    assert stack_sets([shared] * 100).groups == (shared,)
    assert stack_sets([shared] * 100).identical
    assert stack_sets([Polyhedron(A7, B7), Polyhedron(A7.copy(), B7)]).identical
    assert not stack_sets([Polyhedron(A7, B7), Polyhedron(A7, 2 * B7)]).identical
    assert not stack_sets([Box(0, 1), Ball(0, 1)]).identical


def test_reals_cost_nothing():
    family = stack_sets([Reals() for _ in range(3)])
    assert family.identical
    assert not jax.make_jaxpr(family.project)(1, jnp.zeros(2)).eqns


def test_family_of_traced_sets():
    @jax.jit
    def project(bounds, i, x):
        return stack_sets([Box(0, bounds[0]), Box(0, bounds[1]), Ball(0, 1)]).project(i, x)

    np.testing.assert_array_equal(project(jnp.array([2.0, 3.0]), 1, jnp.array([9.0])), [3])
    np.testing.assert_array_equal(project(jnp.array([2.0, 3.0]), 2, jnp.array([9.0])), [1])
