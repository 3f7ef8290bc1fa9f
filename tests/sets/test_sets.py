"""Sets: projections against independent solutions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from fedrzo import InputError, sets
from fedrzo.sets import Affine, Ball, Box, Halfspace, Intersection, Polyhedron, Product, Simplex, flatten_set
from setkinds import (
    A7,
    B7,
    CENTER,
    EYE,
    KINDS,
    LINEAR,
    RNG,
    N,
    double_precision,  # noqa: F401 - it applies to every test here
    points,
    project,
    violation,
)


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
        kind, tolerance = KINDS[name][0], 1e-10
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
    np.testing.assert_allclose(project(KINDS[name][0], deeper), deeper, rtol=0, atol=1e-9 if name == "alternating" else 1e-15)


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
    monkeypatch.setattr(sets.common, "FOLD_LIMIT", 0)
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
    np.testing.assert_allclose(both.project(x), by_enumeration(A, b, np.array([[0.0, 0, 1, 1]]), np.ones(1), x), atol=1e-12)


def _near(x, c):
    return (x - c) @ (x - c) - 0.25


def test_a_function_with_a_parameter_can_be_intersected_before_the_length_of_x_is_known():
    """Nothing but the parameter says how long x is: a check with no entries failed."""
    both = sets.Intersection(sets.Box(-1, 1), sets.Sublevel(_near, np.zeros(3)))
    np.testing.assert_allclose(both.project(np.array([3.0, 0.0, 0.0])), [0.5, 0, 0], atol=1e-6)


def test_a_function_that_takes_another_length_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"Sublevel: g: calling g\(x, ...\) failed: .*make them fit"):
        sets.Sublevel(_near, np.zeros(3)).project(np.zeros(2))


@pytest.mark.parametrize("x64", [False, True])
def test_clients_sets_of_several_kinds_answer_in_the_precision_of_x(x64):
    """Rows and units are float64, which one kind cast to x's type and another did not."""
    rows = sets.Intersection(sets.Halfspace(np.ones(2), 0.5), sets.Affine(np.array([[1.0, -1.0]]), 0.0))
    family = sets.stack_sets([rows, sets.Box(-1, 1), sets.Ball(0, 1.0)]).scaled(np.array([1.0, 2.0]))
    x = np.array([3.0, 1.0], np.float32)
    with jax.enable_x64(x64):
        for answer in (family.project, family.violation, family.distance):
            assert jax.jit(answer)(jnp.int32(0), x).dtype == np.float32
