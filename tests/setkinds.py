"""One set of each kind in four dimensions, with what describes it, for the tests of sets."""

import jax
import numpy as np
import pytest

from fedrzo.sets import Affine, Ball, Box, Halfspace, Intersection, Polyhedron, Product, Reals, Simplex, flatten_set

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


def points(count, scale=3.0, n=N):
    return RNG.normal(size=(count, n)) * scale
