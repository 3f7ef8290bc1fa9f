"""`fz.vi.Newton`: the answers of `Accelerated`, in a few evaluations, and derivatives that are those of differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.vi import Accelerated, Newton

N = 5
ROWS = np.random.default_rng(0).normal(size=(4, N))
SETS = {
    "free": fz.sets.Reals(),
    "box": fz.sets.Box(-0.4, 0.3),
    "simplex": fz.sets.Simplex(1.0),
    "polyhedron": fz.sets.Polyhedron(ROWS, np.full(4, 0.2)),
    "box and ball": fz.sets.Intersection(fz.sets.Box(-0.5, 0.5), fz.sets.Ball(0.0, 0.6)),
}


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_it_finds_what_accelerated_steps_find(kind, scale):
    rng = np.random.default_rng(1)
    A, c = rng.normal(size=(N, N)), scale * rng.normal(size=N)
    A = scale * (A @ A.T / N + np.eye(N) + 0.3 * (A - A.T))
    mu, L = float(np.linalg.eigvalsh((A + A.T) / 2)[0]), float(np.linalg.norm(A, 2))

    def solve(solver):
        # a map with a bend, so that one Newton step is not enough
        return jax.jit(lambda c: solver.solve(lambda y: A @ y + scale * jnp.tanh(y) - c, SETS[kind], jnp.zeros(N), mu, 2 * L))(c)

    with jax.enable_x64(True):
        found, wanted = solve(Newton(1e-10)), solve(Accelerated(1e-10))
    np.testing.assert_allclose(found.y, wanted.y, atol=1e-9)
    assert float(found.error_bound) <= 1e-10 * max(1, np.linalg.norm(found.y))
    assert found.steps <= 30


@pytest.mark.parametrize("moving", [False, True], ids=["fixed set", "moving set"])
def test_gradients_through_it_are_differences_of_values(moving):
    """The map is not symmetric, so that a transposed matrix would show; a part of y is at its bounds."""
    rng = np.random.default_rng(2)
    A = rng.normal(size=(3, 3))
    A = A @ A.T + np.eye(3) + A - A.T
    data = fz.ClientData([rng.normal(size=(2, 3)), rng.normal(size=(3, 3))])
    bounds = (lambda x, xi: fz.sets.Box(-0.3, 0.2 + 0.1 * x[0] ** 2)) if moving else fz.sets.Box(-0.3, 0.2)
    problem = fz.TwoStage(
        lambda x, y, xi: jnp.sum((y - xi) ** 2) + y[0] * x[1],
        lambda x, y, xi: A @ y + jnp.tanh(y) - x[:2].sum() - xi,
        data, np.array([0.4, -0.2]), np.zeros(3), lower_constraint=bounds,
    )  # fmt: skip
    xi = np.asarray(data.flat)

    with problem.precision():
        one = jax.jit(lambda x: problem.with_gradients(x, xi, Newton(1e-12), client=0)[:2])
        x = np.array([0.4, -0.2])
        values, slopes = one(x)
        assert np.unique(np.asarray(values)).size == 5
        for direction in np.eye(2):
            ahead, behind = (np.asarray(one(x + t * direction)[0]) for t in (1e-5, -1e-5))
            np.testing.assert_allclose(slopes @ direction, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-8)


def test_what_it_does_not_take():
    with pytest.raises(fz.InputError, match=r"fz\.vi\.Newton needs tolerance and max_steps"):
        Newton(None)
    assert repr(Newton(1e-6)) == "Newton(tolerance=1e-06)"


def test_a_lower_loss_without_second_derivatives_is_monitored_by_its_gradients():
    """As those that a `jax.custom_vjp` is part of; before a run asks for mu and L, which it cannot measure then."""

    @jax.custom_vjp
    def square(r):
        return jnp.sum(r**2)

    square.defvjp(lambda r: (square(r), r), lambda r, g: (2 * g * r,))
    data = fz.ClientData([np.ones((2, 2)), np.zeros((3, 2))])
    problem = fz.Bilevel(
        lambda x, y, b: jnp.sum((y - 1) ** 2), lambda x, y, b: square(y - x) + jnp.mean(jnp.sum((y - b) ** 2, axis=-1)),
        data, np.zeros(2), np.zeros(2), modulus=4.0, smoothness=4.0,
    )  # fmt: skip
    np.testing.assert_allclose(problem.lower_solutions(np.array([[0.5, 1.0]]))[0], [0.5, 0.75], atol=1e-9)
    with pytest.raises(fz.InputError, match="lower: QuasiNewton needs second derivatives"):
        fz.QuasiNewton(0.1).check(problem)


def test_a_guard_at_the_bounds_is_no_solution():
    """With half of the slope that `maximum` has at 0, y = 0 would look like a solution; Newton's steps lead exactly there."""
    data = fz.ClientData([np.full((2, 1), 0.3), np.full((3, 1), 0.3)])
    problem = fz.Bilevel(
        lambda x, y, b: jnp.sum(y**2),
        lambda x, y, b: 0.05 * jnp.sum(y**2) - jnp.mean(jnp.log(b + jnp.maximum(y, 0.0))) + 2 * jnp.sum(y),
        data, np.zeros(1), np.ones(1), lower_constraint=fz.sets.Box(0, 1),
    )  # fmt: skip
    [y] = problem.lower_solutions(np.zeros((1, 1)))
    slope = 0.1 * y - 1 / (0.3 + y) + 2
    np.testing.assert_allclose(slope, 0, atol=1e-9)
