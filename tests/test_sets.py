"""Sets: projections against independent solutions, under jit, vmap, grad and tracing; families; errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize, nnls

from fedrzo import sets
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

N = 4
RNG = np.random.default_rng(7)
A7 = RNG.normal(size=(7, N))
B7 = RNG.uniform(0.1, 1.0, 7)
E3 = np.array([[1.0, 1, 1, 1], [2.0, 2, 2, 2], [1.0, -1, 0, 0]])  # the second row repeats the first
F3 = np.array([1.0, 2.0, 0.5])
LO = np.array([-1.0, -np.inf, 0.0, -2.0])
HI = np.array([1.0, 0.5, np.inf, -1.0])
NORMAL = np.array([1.0, -2.0, 0.5, 3.0])
CENTER = np.array([0.5, -0.5, 0.0, 1.0])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


# Each kind with its linear description (A, b, E, f), or None, and whether a point is in it, written out again here.
EYE = np.eye(N)
NO_ROWS = (np.zeros((0, N)), np.zeros(0))
BOX_ROWS = (np.vstack([EYE[[0, 1, 3]], -EYE[[0, 2, 3]]]), np.r_[HI[[0, 1, 3]], -LO[[0, 2, 3]]])
KINDS = {
    "reals": (Reals(), (*NO_ROWS, *NO_ROWS)),
    "box": (Box(LO, HI), (*BOX_ROWS, *NO_ROWS)),
    "ball": (Ball(CENTER, 0.8), None),
    "simplex": (Simplex(2.0), (-EYE, np.zeros(N), np.ones((1, N)), np.array([2.0]))),
    "halfspace": (Halfspace(NORMAL, -1.0), (NORMAL[None], np.array([-1.0]), *NO_ROWS)),
    "affine": (Affine(E3, F3), (*NO_ROWS, E3, F3)),
    "polyhedron": (Polyhedron(A7, B7), (A7, B7, *NO_ROWS)),
    "few rows": (Polyhedron(A7[:2], B7[:2]), (A7[:2], B7[:2], *NO_ROWS)),
    "folded": (
        Intersection(Simplex(1.0), Halfspace(NORMAL, 0.5), Affine(E3[2:], F3[2:])),
        (np.vstack([-EYE, NORMAL]), np.r_[np.zeros(N), 0.5], E3[[0, 2]], F3[[0, 2]]),
    ),
    "alternating": (Intersection(Polyhedron(A7, B7), Ball(CENTER, 1.2)), None),
    "blocks": (flatten_set(Product(Ball(0, 1), Simplex()), (np.zeros(2), np.zeros(2))), None),
}
# Compiled once for each kind and dtype, for all tests: compilation is most of their time.
project = jax.jit(lambda constraint, x: constraint.project(x))
violation = jax.jit(lambda constraint, x: constraint.violation(x))
LINEAR = [name for name, (_, rows) in KINDS.items() if rows is not None]


def by_enumeration(A, b, E, f, x):
    """Project onto A y <= b, E y = f: try every set of active rows, keep the nearest feasible point."""
    best, found = np.inf, None
    for k in range(len(b) + 1):
        for active in itertools.combinations(range(len(b)), k):
            M, r = np.vstack([E, A[list(active)]]), np.r_[f, b[list(active)]]
            y = x - np.linalg.lstsq(M, M @ x - r, rcond=None)[0] if len(r) else x
            feasible = np.all(A @ y <= b + 1e-10) and np.allclose(M @ y, r, atol=1e-10)
            if feasible and np.linalg.norm(x - y) < best:
                best, found = np.linalg.norm(x - y), y
    return found


def points(count, scale=3.0, n=N):
    return RNG.normal(size=(count, n)) * scale


@pytest.mark.parametrize("name", LINEAR)
def test_linear_projections_equal_the_best_active_set(name):
    for x in points(6):
        np.testing.assert_allclose(project(KINDS[name][0], x), by_enumeration(*KINDS[name][1], x), atol=1e-11)


def test_closed_forms():
    x = np.array([3.0, 3.0, -4.0, 0.0])
    np.testing.assert_array_equal(project(KINDS["box"][0], x), [1.0, 0.5, 0.0, -1.0])
    np.testing.assert_allclose(Ball(0, 1).project([3.0, 4.0]), [0.6, 0.8], atol=1e-15)
    np.testing.assert_allclose(Ball([1, 1], 0).project([1.0, 1.0]), [1, 1])
    np.testing.assert_allclose(Simplex().project([1e9, 1e9 + 1, -5.0]), [0, 1, 0])
    np.testing.assert_allclose(Halfspace([1e-200, 0], 0).project([2.0, 5.0]), [0, 5])
    np.testing.assert_allclose(Affine([[1, 1]], 2).project([0.0, 0.0]), [1, 1], atol=1e-15)
    np.testing.assert_allclose(Affine([[1, 1], [1, -1], [2, 0]], [2, 0, 2]).project([9.0, 7.0]), [1, 1], atol=1e-13)


def test_affine_with_nearly_parallel_rows():
    angle = 1e-6
    A = [[1, 0, 0], [np.cos(angle), np.sin(angle), 0]]
    nearest = Affine(A, [1, np.cos(angle) + 2 * np.sin(angle)]).project([5.0, 5.0, 5.0])
    np.testing.assert_allclose(nearest, [1, 2, 5], atol=1e-6)


@pytest.mark.parametrize("name", ["ball", "alternating", "blocks"])
def test_curved_projections_equal_a_general_solver(name):
    inside = {
        "ball": [lambda y: 0.64 - np.sum((y - CENTER) ** 2)],
        "alternating": [lambda y: 1.44 - np.sum((y - CENTER) ** 2), lambda y: B7 - A7 @ y],
        "blocks": [
            lambda y: 1 - np.sum(y[:2] ** 2),
            lambda y: y[2:],
            lambda y: y[2:].sum() - 1,
            lambda y: 1 - y[2:].sum(),
        ],
    }[name]
    constraints = [{"type": "ineq", "fun": fun} for fun in inside]
    for x in points(4):
        solved = minimize(
            lambda y, x=x: np.sum((y - x) ** 2),
            CENTER,
            constraints=constraints,
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(project(KINDS[name][0], x), solved.x, atol=2e-6)


vectors = st.lists(st.floats(-20, 20), min_size=N, max_size=N).map(np.array)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(x=vectors, y=vectors)
def test_projection_is_feasible_idempotent_and_firmly_nonexpansive(name, x, y):
    with jax.enable_x64(True):
        kind, tolerance = KINDS[name][0], 1e-7 if name == "alternating" else 1e-10
        p, q = np.asarray(project(kind, x)), np.asarray(project(kind, y))
        assert violation(kind, p) < tolerance
        assert np.abs(project(kind, p) - p).max() < tolerance
        # <x - p, z - p> <= 0 for z in the set says that p is the nearest point; q is such a z.
        assert (x - p) @ (q - p) <= tolerance * (1 + np.linalg.norm(x - p))
        assert np.linalg.norm(p - q) <= np.linalg.norm(x - y) + tolerance


@pytest.mark.parametrize("name", KINDS)
def test_a_point_inside_stays_where_it_is(name):
    inside = np.asarray(project(KINDS[name][0], np.array([0.3, 0.1, 0.2, 0.4])))
    deeper = np.asarray(project(KINDS[name][0], inside))
    np.testing.assert_allclose(
        project(KINDS[name][0], deeper), deeper, rtol=0, atol=1e-9 if name == "alternating" else 1e-15
    )


def test_polyhedron_leaves_interior_points_untouched():
    x = np.array([0.01, -0.02, 0.03, 0.0])
    np.testing.assert_array_equal(project(KINDS["polyhedron"][0], x), x)


def hard_polyhedra(kind, count):
    """Return polyhedra in R^4 with 12 rows that contain a point z, and points outside."""
    A, z = RNG.normal(size=(count, 12, N)), RNG.normal(size=(count, N))
    room = RNG.uniform(0, 1, (count, 12))
    if kind in ("opposite rows", "thin"):
        A[:, 6:9] = -A[:, :3]
        room[:, :3], room[:, 6:9] = (0, 0) if kind == "opposite rows" else (5e-8, 5e-8)
    if kind == "degenerate vertex":
        A[..., -1] = np.abs(A[..., -1])  # a cone that opens downwards, with apex z
        room[:] = 0
    if kind == "zero and double rows":
        A[:, 0], A[:, 6:] = 0, A[:, :6]
        room[:, 6:] = room[:, :6]
    if kind == "nearly parallel":
        A[:, 6:] = A[:, :6] + 1e-5 * RNG.normal(size=(count, 6, N))
        room *= 1e-5
    scale = 10.0 ** RNG.uniform(-8, 8, (count, 12)) if kind == "badly scaled" else np.ones((count, 12))
    b = np.einsum("cij,cj->ci", A, z) + room
    x = z + RNG.normal(size=(count, N)) * 10.0 ** RNG.uniform(-3, 2, (count, 1))
    if kind == "weakly active":
        x = z + np.abs(RNG.normal(size=(count, 1))) * A[:, 0]
        b = np.einsum("cij,cj->ci", A, z) + np.where(np.arange(12) < 4, 0, room)
    return A * scale[..., None], b * scale, x


def optimality_error(A, b, x, y):
    """Return by how much y misses: feasibility, and x - y in the cone of the active rows (non-negative least squares)."""
    norms = np.linalg.norm(A, axis=1)
    A, b = A[norms > 0] / norms[norms > 0, None], b[norms > 0] / norms[norms > 0]
    active = A @ y - b > -1e-9 * (1 + np.linalg.norm(x - y))
    residual = nnls(A[active].T, x - y)[1] if active.any() else np.linalg.norm(x - y)
    return max(np.max(A @ y - b), residual) / (1 + np.linalg.norm(x - y))


project_many = jax.jit(jax.vmap(lambda A, b, x: Polyhedron(A, b).project(x)))
HARD = [
    "random",
    "opposite rows",
    "thin",
    "degenerate vertex",
    "zero and double rows",
    "nearly parallel",
    "badly scaled",
    "weakly active",
]


@pytest.mark.parametrize("kind", HARD)
def test_hard_polyhedra_to_1e_9(kind):
    A, b, x = hard_polyhedra(kind, 60)
    errors = [optimality_error(*case) for case in zip(A, b, x, np.asarray(project_many(A, b, x)), strict=True)]
    assert max(errors) < 1e-9


def test_random_polyhedra_in_single_precision():
    for A, b, x in zip(*hard_polyhedra("random", 40), strict=True):
        A, b, x = (v.astype(np.float32) for v in (A[:7], b[:7], x))
        single = np.asarray(project(Polyhedron(A, b), x), np.float64)
        double = np.asarray(project(Polyhedron(A, b), x.astype(np.float64)))
        assert np.abs(single - double).max() < 1e-5 * (1 + np.linalg.norm(x - double))


def test_folding_and_alternating_projections_agree(monkeypatch):
    both, x = KINDS["folded"][0], points(5)
    folded = [project(both, v) for v in x]
    monkeypatch.setattr(sets.combined, "FOLD_LIMIT", 0)
    np.testing.assert_allclose(jax.vmap(both.project)(x), folded, atol=1e-6)


def test_three_curved_members():
    lens = Intersection(Ball([0, 0], 1), Intersection(Ball([1, 0], 1), Box(-5, 5)))
    assert len(lens.sets) == 3
    np.testing.assert_allclose(lens.project([0.5, 3.0]), [0.5, np.sqrt(0.75)], atol=1e-7)


def test_products_of_polyhedral_sets_fold_too():
    box_and_sum = Product({"a": Box(0, 1), "b": Affine([[1, 1]], 1)})
    example = {"a": np.zeros(2), "b": np.zeros(2)}
    both = flatten_set(Intersection(box_and_sum, Halfspace([1, 1, 1, 0], 1)), example)
    x = np.array([0.9, 0.7, 2.0, 0.5])
    A, b = np.vstack([EYE[:2], -EYE[:2], [[1, 1, 1, 0]]]), np.array([1.0, 1, 0, 0, 1])
    np.testing.assert_allclose(
        both.project(x), by_enumeration(A, b, np.array([[0.0, 0, 1, 1]]), np.ones(1), x), atol=1e-12
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
        (Polyhedron([[0, 0]], [-1]), [0.0, 0.0], 1),
        (Intersection(Box(0, 1), Ball(0, 1)), [1.0, 1.0], np.sqrt(2) - 1),
    ],
)
def test_violation_is_the_largest_broken_amount(constraint, x, expected):
    assert constraint.violation(x) == pytest.approx(expected, abs=1e-12)


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
        (lambda A, b, c, r: Intersection(Polyhedron(A, b), Ball(c, r)), [A7[:2], B7[:2], CENTER, np.array(0.9)], 1e-3),
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


def test_family_under_vmap_equals_a_loop():
    members = family_members()
    family = stack_sets(members)
    assert (family.kinds, family.identical) == (5, False)
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
    assert (family.kinds, family.identical) == (1, False)
    assert family.groups[0].lo.shape == (5,)
    assert "cond" not in str(jax.make_jaxpr(family.project)(0, jnp.zeros(2)))
    np.testing.assert_array_equal(
        jax.vmap(family.project, (0, None))(jnp.arange(5), jnp.full(1, -9.0))[:, 0], -np.arange(5)
    )


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
