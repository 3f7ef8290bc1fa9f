"""Two-stage stochastic programs with equilibrium constraints: the problem class `TwoStage`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets, vi
from fedrzo.arguments import call_user, check_function, named
from fedrzo.clientdata import CHUNK, ClientData
from fedrzo.errors import InputError, warn
from fedrzo.hierarchical import LOWER, Hierarchical
from fedrzo.inputs import Data, Loss, PyTree, check_loss
from fedrzo.monitor import worst_distance
from fedrzo.pytrees import index, traced
from fedrzo.vi.trial import solve_once, try_solver

MONITORED = 1e-11
PROBES = 3  # scenarios of the first client, and points y for each, at which a map is looked at before a run
EMPTY = 1e-4  # a projection onto Y that still breaks a constraint by more than this says that Y is empty
FAR = 1e6  # a projection that moves this far out, from twice as far, says that Y is unbounded


@traced("data", "x0", "sets", "client_weights", "test", *LOWER, "monitor")
class TwoStage(Hierarchical):
    """Minimise the mean of `loss(x, y(x, xi), xi)`, where y(x, xi) solves the variational inequality of `map` over Y(x, xi).

    Args:
        loss: `loss(x, y, xi) -> scalar` for ONE scenario xi (a sample without its leading axis).
        map: `map(x, y, xi) -> G`, of y's structure, strongly monotone in y; JAX-traceable.
        data: the clients' scenarios, stored or drawn.
        x0: the starting point.
        y0: where lower-level solves start.
        constraint: a set for x, or one per client.
        lower_constraint: a set for y, or a function of (x, xi) that returns one.
        lower_domain: as for `Bilevel`.
        modulus: mu, the strong monotonicity of the map in y; measured near y0 on a few scenarios where not given.
        smoothness: L, its Lipschitz constant in y; likewise.
        weights: `"uniform"` or `"samples"`.
        monitor: the solver of `fz.vi` behind the monitored `loss`; by default one that is accurate to 1e-11, where rounding
            allows it. `lower_error` is the largest bound on its error.
        name: how the problem is called in tables.
    """

    usual = "FedRZO2s"

    @named
    def __init__(
        self,
        loss: Loss,
        map: Callable,
        data: Data,
        x0: PyTree,
        y0: PyTree,
        constraint: Any = None,
        lower_constraint: Any = None,
        lower_domain: Any = None,
        modulus: float | None = None,
        smoothness: float | None = None,
        *,
        weights: str = "uniform",
        monitor: vi.Solver | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(loss, data, x0, constraint, weights, None, None, name)
        self.map_fn = check_function(map, "map")
        self._set_lower(y0, lower_constraint, lower_domain, modulus, smoothness)
        self.monitor = vi.Accelerated(MONITORED) if monitor is None else check_solver(monitor, "monitor")
        with self.precision():
            _check_map(self)
            if modulus is None or smoothness is None:
                found = measure(self)
                self.modulus = found.mu if modulus is None else modulus
                self.smoothness = found.L if smoothness is None else smoothness

    def map(self, x: jax.Array, y: jax.Array, xi: PyTree) -> jax.Array:
        """Return the map at flat x and y, as a flat vector."""
        return self.lower_layout.ravel(self.map_fn(self.layout.unravel(x), self.lower_layout.unravel(y), xi))

    def solve(self, x: jax.Array, xi: PyTree, solver: vi.Solver, k: Any = 1) -> vi.Solution:
        """Solve the lower level at a flat x for one scenario. Where Y(x, xi) is empty, y is NaN, which stops a run."""
        point = self.into_domain(jnp.asarray(x, float))
        lower_set = self.lower_set_at(point, xi)
        start = jnp.asarray(self.y0, float)
        found = solver.solve(lambda y: self.map(point, y, xi), lower_set, start, self.modulus, self.smoothness, k)
        if self.lower_set_fn is None:  # a constant Y was looked at before the run
            return found
        return found._replace(y=jnp.where(lower_set.violation(found.y) > EMPTY, jnp.nan, found.y))

    def implicit(
        self, points: jax.Array, batch: PyTree, solver: vi.Solver, k: Any = 1
    ) -> tuple[jax.Array, vi.Solution]:
        """Return loss(x, y(x, xi), xi) and y(x, xi) for each x (first axis) and each scenario of a batch (second axis)."""

        def one(x: jax.Array, xi: PyTree) -> tuple[jax.Array, vi.Solution]:
            found = self.solve(x, xi, solver, k)
            return self.value(x, found.y, xi), found

        scenario_axis = 0 if self.data.fixed is None else (0, None)
        return jax.vmap(jax.vmap(one, (None, scenario_axis)), (0, None))(points, batch)

    def evaluate(self, x: jax.Array) -> dict[str, jax.Array]:
        """Return what is monitored at a flat x: the loss, infeasibility, and the largest bound on the lower level's error."""
        x = jnp.asarray(x, float)
        scenarios, weights = self._scenarios()

        def add(k: Any, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total, worst = found
            place = k * CHUNK + jnp.arange(CHUNK, dtype=jnp.int32)
            rows = jnp.minimum(place, weights.size - 1)
            solution = jax.vmap(lambda xi: self.solve(x, xi, self.monitor))(scenarios(rows))
            values = jax.vmap(lambda y, xi: self.value(x, y, xi))(solution.y, scenarios(rows))
            weight = jnp.where(place < weights.size, weights[rows], 0)
            return total + jnp.dot(weight, values), jnp.maximum(worst, jnp.max(self._error(solution)))

        nothing = jnp.zeros((), x.dtype)
        loss, error = jax.lax.fori_loop(0, -(-weights.size // CHUNK), add, (nothing, nothing))
        return {"loss": loss, "feasibility": worst_distance(self, x), "lower_error": error}

    def _error(self, found: vi.Solution) -> jax.Array:
        """Return bounds on errors, but not below the tolerance: how far below it a solve ends is rounding, and not repeatable."""
        tolerance = getattr(self.monitor, "tolerance", None)
        if tolerance is None:
            return found.error_bound
        return jnp.maximum(found.error_bound, tolerance * jnp.maximum(1, jnp.linalg.norm(found.y, axis=1)))

    def _scenarios(self) -> tuple[Callable[[jax.Array], PyTree], jax.Array]:
        """Return all monitored scenarios, as a function of their numbers, and their weights."""
        data, clients = self.data, jnp.asarray(self.client_weights, float)
        if not isinstance(data, ClientData):
            drawn = jax.vmap(data.monitor)(jnp.arange(data.clients))
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), drawn)
            return lambda rows: index(flat, rows), jnp.repeat(clients / data.evaluation, data.evaluation)
        sizes = jnp.asarray(data.sizes)
        owner = jnp.repeat(jnp.arange(data.clients), sizes, total_repeat_length=data.samples)

        def fetch(rows: jax.Array) -> PyTree:
            samples = index(data.flat, rows)
            return samples if data.fixed is None else (samples, index(data.fixed, owner[rows]))

        return fetch, (clients / sizes)[owner]

    def lower(self, x: PyTree, xi: PyTree) -> PyTree:
        """Return an accurate lower-level solution at x (a pytree, such as `result.x`) for one scenario."""
        with self.precision():
            flat = jnp.asarray(self.layout.ravel(x), float)
            found = solve_once(self, flat, jax.tree.map(jnp.asarray, xi), vi.Accelerated(MONITORED))
            return self.lower_layout.unravel(np.asarray(found.y))

    def try_solver(self, solver: vi.Solver) -> None:
        """Refuse a solver that diverges, or misses its tolerance, at x0 on some scenarios."""
        with self.precision():
            x = self.into_domain(jnp.asarray(self.project(jnp.asarray(self.x0, float))))
            for xi in probes(self):
                _check_nonempty(self, x, xi)
                try_solver(self, x, xi, solver)

    def check_lower(self) -> None:
        """Look at the map, Y and the loss at x0, before the first round."""
        x, xi = self.into_domain(jnp.asarray(self.x0, float)), probes(self)[0]
        _check_nonempty(self, x, xi)
        _check_monotone(self, measure(self), self.lower_set_at(x, xi))
        y = self.lower_set_at(x, xi).project(jnp.asarray(self.y0, float))
        trees = self.layout.unravel(x), self.lower_layout.unravel(y)
        check_loss(self.loss_fn, "loss", "loss(x, y, xi)", *trees, xi)


def check_solver(solver: Any, argument: str) -> vi.Solver:
    """Return a solver, or say what was found in its place."""
    if not isinstance(solver, vi.Solver):
        raise InputError(f"{argument}: found {type(solver).__name__}; pass a solver such as fz.vi.Projection()")
    return solver


def probes(problem: TwoStage) -> list[PyTree]:
    """Return a few scenarios of the first client, one by one."""
    batch = problem.data.sample(jax.random.key(0), 0, 0, PROBES)
    samples, fixed = (batch, None) if problem.data.fixed is None else batch
    singles = [jax.tree.map(lambda leaf, j=j: leaf[j], samples) for j in range(PROBES)]
    return singles if fixed is None else [(single, fixed) for single in singles]


def measure(problem: TwoStage) -> vi.Constants:
    """Measure the map's constants at x0, at y0 and some points of Y around it, on a few scenarios."""
    x = problem.into_domain(jnp.asarray(problem.x0, float))
    y0 = jnp.asarray(problem.y0, float)
    noise = np.random.default_rng(0).normal(size=(PROBES, y0.size))
    noise[0] = 0
    found = []
    for xi in probes(problem):
        points = jnp.stack([lower_projection(problem, x, xi, y0 + jnp.asarray(direction))[0] for direction in noise])
        found.append(vi.measure(_map, points, problem, x, xi))
    return vi.Constants(min(c.mu for c in found), max(c.L for c in found))


@jax.jit
def lower_projection(problem: TwoStage, x: jax.Array, xi: PyTree, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Project y onto Y(x, xi), and tell by how much that breaks it; traced, so that an empty Y is no error yet."""
    lower_set = problem.lower_set_at(x, xi)
    nearest = lower_set.project(y)
    return nearest, lower_set.violation(nearest)


def _map(y: jax.Array, problem: TwoStage, x: jax.Array, xi: PyTree) -> jax.Array:
    return problem.map(x, y, xi)


def _check_map(problem: TwoStage) -> None:
    x, y = problem.layout.unravel(jnp.asarray(problem.x0)), problem.lower_layout.unravel(jnp.asarray(problem.y0))
    if getattr(problem.map_fn, "is_blackbox", False):
        raise InputError("map: found a black box; its derivatives are needed, so write it with jax.numpy")
    traced = functools.partial(jax.eval_shape, problem.map_fn)
    found = call_user(traced, "map", "map(x, y, xi)", x, y, probes(problem)[0])
    shapes, wanted = (jax.tree.map(lambda leaf: jnp.shape(leaf), tree) for tree in (found, y))
    if shapes != wanted:
        raise InputError(f"map: found {shapes} for a y of {wanted}; it must return one number for each entry of y")


def _check_nonempty(problem: TwoStage, x: jax.Array, xi: PyTree) -> None:
    broken = float(lower_projection(problem, x, xi, jnp.asarray(problem.y0, float))[1])
    if broken > EMPTY:
        raise InputError(
            f"lower_constraint: Y is empty (the nearest y breaks it by {broken:.3g}) at x = "
            f"{np.array2string(np.asarray(x), precision=4, threshold=8)}; correct it, start elsewhere, or give a lower_domain"
        )


def _check_monotone(problem: TwoStage, measured: vi.Constants, lower_set: sets.Set) -> None:
    """Warn of a map that is not strongly monotone; refuse it on an unbounded Y, where it may have no solution at all."""
    assert problem.modulus is not None
    if measured.mu <= 0 and _is_unbounded(lower_set, problem.lower_layout.size):
        raise InputError(
            f"lower_constraint: Y is unbounded and the map's measured modulus is {measured.mu:.3g}: there may be no lower "
            "solution; bound Y, or make the map strongly monotone"
        )
    if measured.mu <= 0:
        warn(
            f"map: not strongly monotone on samples (measured modulus {measured.mu:.3g}); lower solutions may not be "
            "unique, and their error has no bound"
        )
    elif problem.modulus > measured.mu * (1 + 1e-6):
        warn(
            f"modulus: found {problem.modulus:.4g}, but measured {measured.mu:.4g} on samples; bounds on the lower level's "
            "error are too small"
        )


def _is_unbounded(lower_set: sets.Set, size: int) -> bool:
    """Tell whether projections of far points keep moving out, in some directions and their opposites."""
    noise = np.random.default_rng(0).normal(size=(8, size))
    rays = np.concatenate([noise, -noise]) / np.linalg.norm(noise, axis=1).max()
    near, far = (np.array([lower_set.project(jnp.asarray(scale * ray)) for ray in rays]) for scale in (FAR, 2 * FAR))
    return bool(np.max(np.linalg.norm(far - near, axis=1)) > 1e-3 * FAR)
