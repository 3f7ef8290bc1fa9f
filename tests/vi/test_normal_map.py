"""Newton on the normal map: random inequalities over sets of five kinds, well and badly conditioned, symmetric and not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo.sets import Ball, Box, Halfspace, Polyhedron, Simplex
from fedrzo.vi import normal_map

N, MOST, TOLERANCE = 6, 300, 1e-10
ROW = np.random.default_rng(0).normal(size=(3, N))
SETS = {
    "box": Box(-0.5, 0.7),
    "simplex": Simplex(1.0),
    "ball": Ball(0.0, 1.0),
    "half-space": Halfspace(ROW[0], 0.1),
    "polyhedron": Polyhedron(ROW, np.full(3, 0.1)),
}


@pytest.mark.parametrize("kind", SETS)
def test_random_inequalities_are_solved(kind):
    project = SETS[kind].project

    @jax.jit
    def search(A, c):
        def body(s):
            y, projection = normal_map.with_jacobian(project, s.trial)
            return normal_map.after(s, y, A @ y - c, A, projection)

        going = lambda s: (s.steps < MOST) & ~normal_map.solved(s, TOLERANCE)  # noqa: E731
        return jax.lax.while_loop(going, body, normal_map.begin(jnp.zeros(N)))

    rng, active = np.random.default_rng(1), 0
    with jax.enable_x64(True):
        for condition in (1e1, 1e4):
            for skew in (0.0, 0.5):
                basis = np.linalg.qr(rng.normal(size=(N, N)))[0]
                S = rng.normal(size=(N, N)) * condition**0.5 * skew
                A = basis @ np.diag(np.geomspace(1, condition, N)) @ basis.T + S - S.T
                c = rng.normal(size=N) * condition**0.5
                found = search(A, c)
                y, largest = np.asarray(found.best_y), np.linalg.norm(A, 2)
                assert bool(normal_map.solved(found, TOLERANCE))
                # a solution is a fixed point of the projected step, whatever its length
                np.testing.assert_allclose(project(jnp.asarray(y - (A @ y - c) / largest)), y, atol=1e-7)
                active += not np.allclose(np.linalg.solve(A, c), y, atol=1e-3)
    assert active > 0


def test_the_projection_is_computed_once_beside_its_jacobian():
    calls = []

    def project(z):
        calls.append(1)
        return jnp.clip(z, -1, 1)

    y, jacobian = normal_map.with_jacobian(project, jnp.array([0.5, 2.0]))
    assert len(calls) == 1
    np.testing.assert_array_equal(y, [0.5, 1.0])
    np.testing.assert_array_equal(jacobian, [[1, 0], [0, 0]])
