"""Lower levels in plain NumPy, to check published problems without the library's own projections and solvers."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls

import fedrzo as fz


def rows(found, n, y=None):
    """Return A and b of {A z <= b}; a ball is taken as the half-space that touches it in the direction of y."""
    if isinstance(found, fz.sets.Intersection):
        parts = [rows(part, n, y) for part in found.sets]
        return np.vstack([A for A, _ in parts]), np.concatenate([b for _, b in parts])
    if isinstance(found, fz.sets.Ball):
        center = np.broadcast_to(found.center, n)
        normal = (y - center) / np.linalg.norm(y - center)
        return normal[None], np.array([normal @ center + float(found.radius)])
    A, b, E, f = map(np.asarray, found._rows(n, float))
    A, b = np.vstack([A, E, -E]), np.concatenate([b, f, -f])
    return A[np.isfinite(b)], b[np.isfinite(b)]


def quadratic(H, g, A, b):
    """Return the minimiser of y'Hy/2 + g'y over A y <= b: a least-distance problem, as Lawson and Hanson solve it."""
    if not len(A):
        return np.linalg.solve(H, -g)
    inverse = np.linalg.inv(np.linalg.cholesky(H))
    sides = np.vstack([-(A @ inverse.T).T, -(b + A @ np.linalg.solve(H, g))])
    u, _ = nnls(sides, np.eye(len(H) + 1)[-1], maxiter=3000)
    rest = sides @ u - np.eye(len(H) + 1)[-1]
    assert abs(rest[-1]) > 1e-9, "there is no such y"
    return inverse.T @ (-rest[:-1] / rest[-1] - inverse @ g)


class Plain:
    """A published problem as functions of NumPy vectors: what the leader loses, the follower's map, and Y(x)."""

    def __init__(self, entry):
        self.problem = problem = entry.make()
        self.n = problem.lower_layout.size
        scenario = () if isinstance(problem, fz.Bilevel) else (jnp.ones(()),)
        if scenario:
            self._loss, field = problem.loss_fn.loss, lambda x, y: problem.map_fn(x, y, *scenario)
        else:
            zero_sum = isinstance(problem, fz.Minimax)
            lower = (lambda x, y: -self._loss(x, y)) if zero_sum else (lambda x, y: sum(problem.lower_fn.terms(x, y)))
            self._loss, field = lambda x, y: sum(problem.loss_fn.terms(x, y)), jax.grad(lower, 1)
        self._field, self._bend = jax.jit(field), jax.jit(jax.jacfwd(field, 1))
        self._set = lambda x: problem.lower_set_at(x, *scenario)

    def loss(self, x, y):
        with self.problem.precision():
            return float(self._loss(jnp.asarray(x), jnp.asarray(y)))

    def coupling(self, x, y):
        """Return what is to be at most zero; nothing where no upper constraint involves y."""
        if self.problem.coupling_fn is None:
            return np.zeros(0)
        with self.problem.precision():
            return np.atleast_1d(self.problem.coupling_fn(jnp.asarray(x), jnp.asarray(y)))

    def map(self, x, y):
        with self.problem.precision():
            return np.asarray(self._field(jnp.asarray(x), jnp.asarray(y)))

    def bend(self, x, y):
        """Return the Jacobian of the map in y: the lower loss's Hessian where there is one."""
        with self.problem.precision():
            return np.asarray(self._bend(jnp.asarray(x), jnp.asarray(y)))

    def sides(self, x, y=None):
        with self.problem.precision():
            return rows(self._set(jnp.asarray(x)), self.n, y)

    def solve(self, x):
        """Return y(x) of a lower level that is a quadratic program."""
        zero = np.zeros(self.n)
        return quadratic(self.bend(x, zero), self.map(x, zero), *self.sides(x))

    def residual(self, x, y):
        """Return y less the projection of y - map(x, y) onto Y(x), which is zero at the solution and nowhere else."""
        A, b = self.sides(x, y)
        return y - quadratic(np.eye(self.n), self.map(x, y) - y, A, b)
