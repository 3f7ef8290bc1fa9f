"""Sets: violation and distance, under jit, vmap, grad and tracing, and in either precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo.sets import Affine, Ball, Box, Halfspace, Intersection, Polyhedron, Product, Reals, Simplex
from setkinds import (
    A7,
    B7,
    CENTER,
    E3,
    F3,
    KINDS,
    NORMAL,
    double_precision,  # noqa: F401 - it applies to every test here
    points,
    project,
    violation,
)

# --- violation and distance


@pytest.mark.parametrize(
    ("constraint", "x", "expected"),
    [
        (Reals(), [5.0], 0),
        (Box(-1, 2), [-4.0, 2.5], 3),
        (Ball([1, 0], 2), [4.0, 4.0], 3),
        (Simplex(1), [1.5, -0.25], 0.25),
        (Simplex(1), [0.25, 0.25], 0.5),
        (Halfspace([3, 4], 5), [3.0, 4.0], 4),
        (Affine([[0, 2]], 4), [7.0, -1.0], 3),
        (Polyhedron([[0, 10], [1, 0]], [10, 0]), [-1.0, 3.0], 2),
        (Intersection(Box(0, 1), Ball(0, 1)), [1.0, 1.0], np.sqrt(2) - 1),
    ],
)
def test_violation_is_the_largest_broken_amount(constraint, x, expected):
    assert constraint.violation(x) == pytest.approx(expected, abs=1e-12)


def test_violation_of_a_row_of_zeros():
    assert jax.jit(lambda b: Polyhedron([[0, 0]], b).violation(jnp.zeros(2)))(-1.0) == 1


def test_distance_and_its_gradient():
    assert Box(0, 1).distance([4.0, 5.0]) == pytest.approx(5.0)
    assert Product(Box(0, 1), Box(0, 1)).distance((4.0, [5.0])) == pytest.approx(5.0)
    np.testing.assert_allclose(jax.grad(Box(0, 1).distance)(jnp.array([4.0, 5.0])), [0.6, 0.8])
    np.testing.assert_array_equal(jax.grad(Box(0, 1).distance)(jnp.array([0.5, 0.5])), [0, 0])


@pytest.mark.parametrize(
    "make",
    [
        lambda t: Box(t, t - 1),
        lambda t: Ball([t, t], -t),
        lambda t: Simplex(-t),
        lambda t: Halfspace([0 * t, 0 * t], -t),
        lambda t: Affine([[1.0, 1.0], [1.0, 1.0]], jnp.array([t, t + 1])),
        lambda t: Polyhedron(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), -t),
        lambda t: Polyhedron(jnp.array([[0.0, 0.0], [1.0, 0.0]]), -t),
        lambda t: Polyhedron(jnp.array([[1.0, 0.0], [1.0, 1.0]]), jnp.array([-jnp.inf, t])),
        lambda t: Intersection(Box(t, t + 1), Halfspace([t, t], 0)),
        lambda t: Intersection(Ball([0, 0], t), Ball([3, 0], t)),
    ],
)
def test_an_empty_set_gives_a_finite_point_with_positive_violation(make):
    constraint = jax.tree.map(np.asarray, jax.jit(make)(1.0))  # traced, so nobody looked at the numbers
    nearest = project(constraint, np.array([2.0, -3.0]))
    assert np.all(np.isfinite(nearest))
    assert violation(constraint, nearest) > 0.1


def test_a_simplex_of_total_zero_is_the_origin():
    np.testing.assert_array_equal(jax.jit(lambda t: Simplex(t).project(jnp.array([1.0, 2.0])))(0.0), [0, 0])


# --- tracing


def test_sets_are_pytrees_and_rebuild_without_validation():
    for kind, _ in KINDS.values():
        leaves, structure = jax.tree.flatten(kind)
        assert all(isinstance(leaf, np.ndarray) for leaf in leaves)
        hollow = jax.tree.unflatten(structure, [object() for _ in leaves])
        assert jax.tree.structure(hollow) == structure
        again = jax.tree.unflatten(structure, leaves)
        np.testing.assert_array_equal(project(again, CENTER), project(kind, CENTER))


def test_a_set_may_be_built_returned_and_batched_in_traced_code():
    boxes = jax.vmap(lambda c: Box(c, [1.0, c + 2]))(jnp.array([0.0, -5.0]))
    assert boxes.lo.shape == (2,)
    assert boxes.hi.shape == (2, 2)
    projected = jax.vmap(lambda box: box.project(jnp.array([-3.0, 9.0])))(boxes)
    np.testing.assert_array_equal(projected, [[0, 2], [-3, -3]])


def numerical_gradient(fun, value, step=1e-6):
    value = np.asarray(value, float)
    gradient = np.zeros(value.shape)
    for i in np.ndindex(*value.shape):
        shift = np.zeros(value.shape)
        shift[i] = step
        gradient[i] = (fun(value + shift) - fun(value - shift)) / (2 * step)
    return gradient


X0 = np.array([1.5, -2.0, 0.7, 2.5])


@pytest.mark.parametrize(
    ("make", "parameters", "tolerance"),
    [
        (Box, [np.array([-1.0, -1, -1, -1]), np.ones(4)], 1e-8),
        (Ball, [CENTER, np.array(0.8)], 1e-8),
        (Simplex, [np.array(1.3)], 1e-8),
        (Halfspace, [NORMAL, np.array(-1.0)], 1e-8),
        (Affine, [E3[1:], F3[1:]], 1e-8),
        (Polyhedron, [A7, B7], 1e-7),
        (lambda A, b, E, f: Intersection(Polyhedron(A, b), Affine(E, f)), [A7, B7 + 1, E3[:1], F3[:1]], 1e-7),
        (lambda A, b, c, r: Intersection(Polyhedron(A, b), Ball(c, r)), [A7[:2], B7[:2], CENTER, np.array(0.9)], 1e-7),
    ],
)
def test_gradients_equal_finite_differences(make, parameters, tolerance):
    weights = jnp.array([1.0, -2.0, 3.0, 0.5])
    both = jax.jit(jax.value_and_grad(lambda p, x: weights @ make(*p).project(x), (0, 1)))
    by_parameter, by_x = both(parameters, X0)[1]
    np.testing.assert_allclose(by_x, numerical_gradient(lambda x: both(parameters, x)[0], X0), atol=tolerance)
    for i, gradient in enumerate(by_parameter):
        changed = lambda v, i=i: both([*parameters[:i], v, *parameters[i + 1 :]], X0)[0]  # noqa: E731
        np.testing.assert_allclose(gradient, numerical_gradient(changed, parameters[i]), atol=tolerance)


def test_gradients_inside_and_at_zero_rows_are_finite():
    polyhedron = Polyhedron([[0, 0], [1, 1], [1, 1]], [1, 1, 1])
    jacobian = jax.jit(jax.jacobian(lambda p, x: p.project(x), (0, 1)))
    inside, outside = (jacobian(polyhedron, np.array([v, v])) for v in (0.2, 2.0))
    np.testing.assert_array_equal(inside[1], np.eye(2))
    np.testing.assert_allclose(outside[1], [[0.5, -0.5], [-0.5, 0.5]], atol=1e-10)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((inside, outside)))


# --- precision


def test_results_have_the_dtype_of_x_and_parameters_keep_their_digits():
    third = 1 / 3
    with jax.enable_x64(False):
        box, affine = Box([third], 1), Affine([[-1.0]], [-third])
        assert box.lo.dtype == np.float64
        assert box.project(np.zeros(1)).dtype == np.float32
    assert box.project(np.zeros(1))[0] == third
    assert affine.project(np.zeros(1))[0] == pytest.approx(third, abs=1e-15)
    assert affine.project(jnp.zeros(1, jnp.bfloat16)).dtype == jnp.bfloat16
    assert Box(0, 1).project([3, 4]).dtype == np.float64


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("few rows", "alternating")])
def test_single_precision_is_close_to_double(name):
    kind = KINDS[name][0]
    for x in points(3):
        single = project(kind, x.astype(np.float32))
        assert single.dtype == violation(kind, single).dtype == np.float32
        np.testing.assert_allclose(single, project(kind, x), atol=2e-5)


def test_single_precision_without_doubles():
    x = np.array([3.0, -1.0, 2.0, 1.0])
    both = KINDS["alternating"][0]  # its numbers are float64, which JAX then lacks
    expected = project(both, x)
    with jax.enable_x64(False):
        found = jax.vmap(both.project)(x[None])[0]
        assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)
