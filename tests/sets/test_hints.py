"""A projection that starts from a point nearby: the same answer as without it, whatever the hint is worth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo.sets import Affine, Box, Intersection, Polyhedron, Product, Simplex, flatten_set
from setkinds import KINDS, N, double_precision  # noqa: F401 - the last applies to every test here

RNG = np.random.default_rng(3)


def many_rows(p, n, scale=1.0):
    """A polyhedron around the origin."""
    return Polyhedron(RNG.normal(size=(p, n)), scale * RNG.uniform(0.2, 2, p))


SETS = {
    "few rows": (many_rows(9, 5), 5),
    "many rows, few entries": (many_rows(60, 4), 4),
    "many rows, many entries": (many_rows(40, 50), 50),
    "small": (many_rows(30, 6, 1e-3), 6),
    "large": (many_rows(30, 6, 1e3), 6),
    "thin": (Polyhedron(np.vstack([np.eye(8), -np.eye(8), np.ones(8)]), np.r_[np.ones(8), np.full(8, -1 + 1e-9), 9]), 8),
    "parallel rows": (Polyhedron(np.repeat(RNG.normal(size=(10, 4)), 2, axis=0), np.repeat(RNG.uniform(0.1, 1, 10), 2)), 4),
    "with equations": (Intersection(Simplex(1.0), many_rows(25, 6, 5.0), Affine(np.ones((1, 6)), 1.0)), 6),
    "blocks": (flatten_set(Product(many_rows(20, 3), Box(0, 1)), (np.zeros(3), np.zeros(2))), 5),
}


OFTEN = ("many rows, few entries", "thin")
SLOW = pytest.mark.slow("another polyhedron")


@pytest.mark.parametrize("name", [name if name in OFTEN else pytest.param(name, marks=SLOW) for name in SETS])
def test_the_answer_does_not_depend_on_the_hint(name):
    constraint, n = SETS[name]
    size = float(np.max(np.abs(constraint.project(10 * RNG.normal(size=n)))))
    cold = jax.jit(jax.vmap(constraint.project))
    warm = jax.jit(jax.vmap(constraint.project))
    x = jnp.asarray(RNG.normal(size=(40, n)) * size * RNG.choice([0.5, 3, 100], size=(40, 1)))
    expected = cold(x)
    close = cold(x + 0.05 * size * RNG.normal(size=x.shape))
    hints = {"the answer": expected, "one nearby": close, "one elsewhere": expected[::-1], "none of the set's": 5 * x}
    for kind, near in hints.items():
        error = jnp.linalg.norm(warm(x, near) - expected, axis=1)
        assert jnp.all(error <= 1e-8 * (jnp.linalg.norm(x - expected, axis=1) + size)), kind


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_set_takes_a_hint(kind):
    constraint, _ = KINDS[kind]
    x = 3 * RNG.normal(size=N)
    y = constraint.project(x)
    np.testing.assert_allclose(constraint.project(x, near=y), y, atol=1e-8)


@pytest.mark.slow("many derivatives")
def test_derivatives_do_not_depend_on_the_hint():
    constraint, n = SETS["many rows, few entries"]
    x = jnp.asarray(3 * RNG.normal(size=n))
    y = constraint.project(x)
    plain, hinted = jax.jacobian(constraint.project)(x), jax.jacobian(lambda x: constraint.project(x, near=y))(x)
    np.testing.assert_allclose(hinted, plain, atol=1e-9)
    assert np.linalg.matrix_rank(np.asarray(plain), tol=1e-6) < n  # some row is active
    assert not jax.jacobian(lambda near: constraint.project(x, near=near))(y).any()


def test_a_product_takes_a_hint_like_x():
    both = Product({"a": many_rows(20, 3), "b": Box(0, 1)})
    x = {"a": 5 * np.ones(3), "b": 2 * np.ones(2)}
    y = both.project(x)
    for name, value in both.project(x, near=y).items():
        np.testing.assert_allclose(value, y[name], atol=1e-9)
