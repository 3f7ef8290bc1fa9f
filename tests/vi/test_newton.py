"""Large lower levels: Newton's first steps, and adjoints by products, on maps that are neither affine nor symmetric."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo import sets, vi
from fedrzo.vi.adjoint import adjoint
from fedrzo.vi.newton import begin

N = 150
RNG = np.random.default_rng(5)
TURN = RNG.normal(size=(N, N)) / np.sqrt(N)
SHIFT = 3 * RNG.normal(size=N)
SETS = {"box": sets.Box(-0.3, 0.5), "reals": sets.Reals(), "ball": sets.Ball(0.1, 2.0), "simplex": sets.Simplex(3.0)}


def twisted(y):
    """Strongly monotone with modulus one: a skew part, and a cube that bends."""
    return y + y**3 / 10 + (TURN - TURN.T) @ y + SHIFT


def plain_steps(constraint, steps=20_000):
    """The answer by short projected steps, which need nothing but monotonicity."""
    y, length = jnp.zeros(N), 0.05
    return jax.jit(lambda y: jax.lax.fori_loop(0, steps, lambda _, y: constraint.project(y - length * twisted(y)), y))(y)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", SETS)
def test_newton_brings_the_residual_down_and_the_solver_to_the_answer(name):
    constraint, L = SETS[name], 6.0
    y0 = constraint.project(jnp.zeros(N))

    def residual(y):
        return float(jnp.linalg.norm(y - constraint.project(y - twisted(y))))

    begun, steps = jax.jit(lambda y: begin(twisted, constraint, y, 1.0, L, 1e-10))(y0)
    assert residual(begun) <= 1e-3 * residual(y0)
    assert 0 < int(steps) < 2000
    found = jax.jit(lambda y: vi.Accelerated(1e-10).solve(twisted, constraint, y, 1.0, L))(y0)
    np.testing.assert_allclose(found.y, plain_steps(constraint), atol=1e-8)
    assert float(found.error_bound) <= 1e-9 * max(1.0, float(jnp.linalg.norm(found.y)))


def test_sets_without_a_closed_form_are_left_to_the_solver():
    y0, constraint = jnp.zeros(N), sets.Halfspace(np.ones(N), 1.0)
    begun, steps = begin(twisted, constraint, y0, 1.0, 6.0, 1e-10)
    assert int(steps) == 0
    np.testing.assert_array_equal(begun, y0)


def test_a_map_that_is_not_finite_leaves_the_start():
    y0 = jnp.full(N, 0.1)
    begun, _ = begin(lambda y: y + jnp.log(-y), SETS["box"], y0, 1.0, 6.0, 1e-10)
    np.testing.assert_array_equal(begun, y0)


@pytest.mark.parametrize("spread", [0.5, 0.999])
def test_adjoints_by_products_agree_with_a_dense_solve(spread):
    matrix = TURN - TURN.T
    matrix = spread * matrix / np.linalg.norm(matrix, 2)
    right = RNG.normal(size=N)
    w = jax.jit(lambda right: adjoint(lambda w: matrix.T @ w, right))(jnp.asarray(right))
    np.testing.assert_allclose(w, np.linalg.solve(np.eye(N) - matrix.T, right), rtol=1e-6, atol=1e-6)
