"""Sets that are thin, or empty: projections to 1e-6 all the same, a warning where not, and a refusal where no point is left."""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.errors import InputError
from fedrzo.problems.start import feasible_start
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
from fedrzo.sets.base import Set, norm, promise
from setkinds import double_precision  # noqa: F401 - it applies to every test here

SCALES = [1e-3, 1.0, 1e3]
nearest = jax.jit(lambda constraint, x: constraint._nearest(x))


def by_corners(balls, planes, x):
    """Project in the plane: the nearest feasible one of x, the feet on each boundary, and where two boundaries meet."""
    found = [x]
    for c, r in balls:
        found.append(c + (x - c) * r / np.linalg.norm(x - c))
    for a, b in planes:
        found.append(x - a * (a @ x - b))
        for c, r in balls:
            foot, along = c - a * (a @ c - b), np.array([-a[1], a[0]])
            half = np.sqrt(max(r**2 - (a @ c - b) ** 2, 0))
            found += [foot + half * along, foot - half * along]
    for (c, r), (d, s) in itertools.combinations(balls, 2):
        gap = np.linalg.norm(d - c)
        a = (d - c) / gap
        at = (gap**2 + r**2 - s**2) / (2 * gap)
        half = np.sqrt(max((r - at) * (r + at), 0)) * np.array([-a[1], a[0]])
        found += [c + at * a + half, c + at * a - half]
    outside = [max([np.linalg.norm(y - c) - r for c, r in balls] + [a @ y - b for a, b in planes]) for y in found]
    size = max(r for _, r in balls)
    return min((y for y, out in zip(found, outside, strict=True) if out < 1e-14 * size), key=lambda y: np.linalg.norm(x - y))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("thickness", [1e-3, 1e-7, 0])
def test_a_disc_that_hardly_reaches_over_a_line(thickness, scale):
    edge = 1 - thickness
    sliver = Intersection(Ball([0, 0], scale), Halfspace([-1, 0], -edge * scale))
    height = np.sqrt(thickness * (2 - thickness))
    for x, expected in (
        ([0, 3], [edge, height]),
        ([5, -9], [edge, -height]),
        ([0.5, -1e-9], [edge, -min(1e-9, height)]),
    ):
        y, error = nearest(sliver, scale * np.array(x, float))
        np.testing.assert_allclose(y / scale, expected, atol=2e-8)  # at a single point, the root of what is rounding
        assert np.linalg.norm(y - scale * np.array(expected)) <= error + 1e-15 * scale <= 1e-7 * scale


@pytest.mark.parametrize("scale", SCALES)
def test_two_and_three_balls_that_hardly_meet(scale):
    angles = 2 * np.pi / 3 * np.arange(3)
    circle = [np.array([np.cos(a), np.sin(a)]) for a in angles]
    lens = [(np.zeros(2), 1.0), (np.array([2 - 1e-6, 0]), 1.0)]
    three = [(c, 1 + 1e-6) for c in circle]
    for balls, x in itertools.product((lens, three), ([0.5, 3.0], [-4, 1e-5], [1, -0.2])):
        members = Intersection(*(Ball(scale * c, scale * r) for c, r in balls))
        y, error = nearest(members, scale * np.array(x))
        expected = by_corners(balls, [], np.array(x, float))
        np.testing.assert_allclose(y / scale, expected, atol=1e-9)
        assert error <= promise(scale * np.array(x), y)


def test_thin_sets_in_fifty_dimensions():
    n, rng = 50, np.random.default_rng(0)
    x = 3 * rng.normal(size=n)
    middle = np.full(n, 1 / n)
    along = x - middle - np.mean(x - middle)
    small = Intersection(Simplex(), Ball(middle, 1e-5))
    np.testing.assert_allclose(nearest(small, x)[0], middle + 1e-5 * along / np.linalg.norm(along), atol=1e-12)
    apart = 2 - 1e-6
    lens = Intersection(Ball(np.zeros(n), 1), Ball(apart * np.eye(n)[0], 1))
    side = np.r_[0, x[1:]] / np.linalg.norm(x[1:])
    expected = apart / 2 * np.eye(n)[0] + np.sqrt((1 - apart / 2) * (1 + apart / 2)) * side
    np.testing.assert_allclose(nearest(lens, x)[0], expected, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
def test_planes_that_meet_at_a_tiny_angle(scale):
    """|y| <= w x: the points to the left of its apex come from far away."""
    for w in (1e-2, 1e-4, 1e-6):
        wedge = Intersection(Halfspace([-w, 1], 0), Halfspace([-w, -1], 0), Halfspace([1, 0], scale))
        np.testing.assert_allclose(nearest(wedge, scale * np.array([-1.0, 0.5]))[0] / scale, [0, 0], atol=1e-9)
        np.testing.assert_allclose(nearest(wedge, scale * np.array([2.0, 0.5]))[0] / scale, [1, w], atol=1e-9)


def test_single_precision_too():
    thin = Intersection(Ball([0, 0], 1), Halfspace([-1, 0], -0.999))
    y, error = nearest(thin, np.array([0.0, 3.0], np.float32))
    assert y.dtype == error.dtype == np.float32
    np.testing.assert_allclose(y, [0.999, np.sqrt(1 - 0.999**2)], atol=1e-5)
    assert error <= promise(jnp.array([0.0, 3.0], jnp.float32), y)


# --- one set for each client


def test_what_clients_have_in_common():
    members = [Ball([0, 0], 1), *[Halfspace([-1, 0], -0.999 + 0.1 * i) for i in range(9)], Box(-4, 4), Reals()]
    y, error = jax.jit(lambda family, x: family.nearest(x))(stack_sets(members), np.array([0.0, 3.0]))
    np.testing.assert_allclose(y, [0.999, np.sqrt(1 - 0.999**2)], atol=1e-12)
    assert error < 1e-10


@dataclass(frozen=True, eq=False, repr=False)
class Disc(Set):
    """The unit disc, as a user would write it: nothing else is known of it."""

    def _project(self, x):
        return x / jnp.maximum(norm(x), 1)

    def _violation(self, x):
        return jnp.maximum(norm(x) - 1, 0)


def test_a_projection_that_is_not_exact_says_so():
    over = Halfspace([-1, 0], -0.999)
    with pytest.warns(UserWarning, match=r"^Intersection: found a projection that may be off by 0\.\d+, more than 3\.\de-06"):
        y = Intersection(Disc(), over).project([0.0, 3.0])
    true, error = np.array([0.999, np.sqrt(1 - 0.999**2)]), nearest(Intersection(Disc(), over), np.array([0.0, 3.0]))[1]
    assert 1e-3 < np.linalg.norm(y - true) <= error
    exact = Intersection(Disc(), Halfspace([-1, 0], -0.5)).project([0.0, 3.0])  # no warning, which would be an error here
    np.testing.assert_allclose(exact, [0.5, np.sqrt(0.75)], atol=1e-8)
    data = fz.ClientData([np.zeros((1, 2))] * 2)
    problem = fz.Nonsmooth(lambda x, batch: jnp.sum(x) + 0 * jnp.sum(batch), data, np.zeros(2), constraint=[Disc(), over])
    with pytest.warns(UserWarning, match=r"^constraint: found a projection that may be off by"):
        problem.project(np.array([[0.0, 3.0]]))
    shared = fz.Nonsmooth(problem.loss_fn, data, np.zeros(2), constraint=Intersection(Disc(), over))
    with pytest.warns(UserWarning, match=r"^constraint: found a projection that may be off by"):
        shared.project(np.array([0.0, 3.0]))


# --- empty or not

TRIANGLE = [np.array([np.cos(a), np.sin(a)]) for a in 2 * np.pi / 3 * np.arange(3)]
ROWS = np.random.default_rng(1).normal(size=(12, 5))
EMPTY = {
    "polyhedron": lambda s: Polyhedron([[1, 0], [-1, 0]], [0, -s]),
    "corner": lambda s: Polyhedron([[-1, 0], [0, -1], [1, 1]], [0, 0, -s]),
    "almost": lambda s: Polyhedron([[1, 0], [-1, 0]], [s, -1.0001 * s]),
    "affine": lambda s: Affine([[1, 1], [2, 2]], [s, 3 * s]),
    "simplex and box": lambda s: Intersection(Simplex(5 * s), Box(np.zeros(3), s)),
    "halfspaces": lambda s: Intersection(Halfspace([1, 0], 0), Halfspace([-1, 0], -s)),
    "ball and halfspace": lambda s: Intersection(Ball([0, 0], s), Halfspace([-1, 0], -1.0001 * s)),
    "ball and box": lambda s: Intersection(Box([s, s], 2 * s), Ball([0, 0], 1.41 * s)),
    "balls": lambda s: Intersection(Ball([0, 0], s), Ball([2.001 * s, 0], s)),
    "three balls": lambda s: Intersection(*(Ball(s * c, 0.999 * s) for c in TRIANGLE)),
    "nested": lambda s: Intersection(Box(0, s), Intersection(Simplex(s), Halfspace([1, 1, 1], 0.9 * s))),
    "many entries": lambda s: Intersection(Box(np.full(5000, s), 2 * s), Ball(0, s)),
    "product": lambda s: flatten_set(Product(Intersection(Simplex(5 * s), Box(0, s)), Reals()), (np.zeros(3), np.zeros(1))),
    "products": lambda s: flatten_set(
        Intersection(Product(Box(0, s), Ball(0, s)), Halfspace([1, 1, 0], -s)), (np.zeros(2), np.zeros(1))
    ),
}
THIN = {
    "plane": lambda s: Polyhedron([[1, 0], [-1, 0]], [s, -s]),
    "apex": lambda s: Polyhedron([[-1, 0], [0, -1], [1, 1]], [0, 0, 0]),
    "rounded": lambda s: Polyhedron(np.vstack([ROWS, -ROWS]), np.r_[ROWS @ np.full(5, s), -ROWS @ np.full(5, s)]),
    "in float32": lambda s: Affine(ROWS.astype(np.float32), (ROWS @ np.full(5, s)).astype(np.float32)),
    "redundant": lambda s: Affine([[1, 1], [2, 2], [1, -1]], [s, 2 * s, 0.1 * s]),
    "simplex and box": lambda s: Intersection(Simplex(5 * s), Box(np.zeros(5), s)),
    "ball and halfspace": lambda s: Intersection(Ball([0, 0], s), Halfspace([-1, 0], -s)),
    "ball and box": lambda s: Intersection(Box([s, s], 2 * s), Ball([0, 0], np.sqrt(2) * s)),
    "balls": lambda s: Intersection(Ball([0, 0], s), Ball([2 * s, 0], s)),
    "three balls": lambda s: Intersection(*(Ball(s * c, s) for c in TRIANGLE)),
    "line and ball": lambda s: Intersection(Affine([[1, 0, 0], [0, 1, 0]], [s, 0]), Ball([0, 0, 0], s)),
}


@pytest.mark.parametrize("scale", SCALES)
def test_empty_sets_are_refused_and_thin_ones_are_not(scale):
    for name, make in EMPTY.items():
        with pytest.raises(InputError, match=r"^\w+: found .* that (no point satisfies together|have no point in common); "):
            pytest.fail(f"{name}: {make(scale)!r}")
    for make in THIN.values():
        make(scale)


def test_the_length_of_x_may_decide():
    some = Intersection(Simplex(5), Box(0, 1))  # in five dimensions a point, in three nothing
    flatten_set(some, np.zeros(5))
    data = fz.ClientData([np.zeros((1, 3))] * 2)
    with pytest.raises(InputError, match=r"^constraint of client 1: found sets that have no point in common; correct"):
        fz.Nonsmooth(lambda x, batch: jnp.sum(x), data, np.zeros(3), constraint=[Reals(), some])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("clients", [2, 9])
def test_clients_sets_without_a_common_point_are_refused_wherever_x0_is(scale, clients):
    pairs = [
        (Box(0, scale), Box(1.5 * scale, 2 * scale)),
        (Affine([[1, 0]], 0), Affine([[1, 0]], scale)),
        (Ball([0, 0], scale), Ball([3 * scale, 0], scale)),
        (Ball(0, scale), Halfspace([-1, 0], -1.01 * scale)),
        (Polyhedron([[1, 0]], 0), Halfspace([-1, 0], -scale)),
        (Intersection(Ball(0, scale), Box(0, 1e4)), Box(-scale, [2 * scale, -0.5 * scale])),
        (Simplex(scale), Box(0, 0.4 * scale)),
    ]
    data = fz.ClientData([np.zeros((1, 2))] * clients)
    for pair, x0 in itertools.product(pairs, ([0, 0], [1.5, 0], [0.5, 0.5], [-70, 3])):
        members = [*pair, *[Reals()] * (clients - 2)]
        problem = fz.Nonsmooth(lambda x, batch: jnp.sum(x), data, scale * np.array(x0, float), constraint=members)
        with pytest.raises(InputError, match=r"^constraint: found clients' sets that have no point in common; correct the sets$"):
            feasible_start(problem)


def test_sets_of_a_users_own_kind_are_looked_at_when_a_run_starts():
    data = fz.ClientData([np.zeros((1, 2))] * 2)
    apart = [Disc(), Halfspace([-1, 0], -3)]
    problem = fz.Nonsmooth(lambda x, batch: jnp.sum(x), data, np.array([2.0, 0]), constraint=apart)
    with (
        pytest.warns(UserWarning, match=r"^constraint: found a projection that may be off"),
        pytest.raises(InputError, match=r"^constraint: found clients' sets that seem to have no point in common"),
    ):
        feasible_start(problem)


@pytest.mark.parametrize("scale", [1.0, *(pytest.param(scale, marks=pytest.mark.slow("another scale")) for scale in (1e-3, 1e3))])
@pytest.mark.parametrize("thickness", [1e-9, 0])
def test_a_thin_box_among_more_rows_than_are_added_one_by_one(thickness, scale):
    n = 8
    rows = np.vstack([np.eye(n), -np.eye(n), np.ones(n)])
    box = Polyhedron(rows, scale * np.r_[np.ones(n), np.full(n, thickness - 1), n + 1])
    x = scale * np.random.default_rng(0).normal(size=(60, n)) * np.tile([[0.5], [3], [100]], (20, 1))
    expected = np.clip(x, scale * (1 - thickness), scale)
    error = np.linalg.norm(jax.vmap(box.project)(x) - expected, axis=1)
    assert np.all(error <= 1e-9 * np.linalg.norm(x - expected, axis=1))
