"""Two-stage stochastic programs with equilibrium constraints: the problem class `TwoStage`."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets, vi
from fedrzo.data.client_data import CHUNK
from fedrzo.problems.client_constants import WithClientConstants
from fedrzo.problems.inputs import Data, Loss, PyTree, check_loss
from fedrzo.problems.questions import BY_CLIENTS
from fedrzo.problems.scenarios import EMPTY, measure
from fedrzo.support.arguments import check_function, checked_signature
from fedrzo.support.compiling import on_data
from fedrzo.vi.base import check_solver
from fedrzo.vi.spectrum import DENSE, at_point

MONITORED = 1e-11
CACHED = 2**12  # entries of all y that are solved for together, on a CPU: more do not stay in its cache


class TwoStage(WithClientConstants):
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
        modulus: mu, the strong monotonicity of the map in y. Where not given, every client measures its own at x0, near y0 and
            over its scenarios, and solves its lower levels by it; `modulus` is then the least of them.
        smoothness: L, the map's Lipschitz constant in y; likewise, and the largest of them.
        weights: `"uniform"` or `"samples"`.
        coupling: as for `Bilevel`, but `coupling(x, y, xi)`; so are `penalty`, `domain` and `scale`.
        monitor: the solver of `fz.vi` behind the monitored `loss`; by default one that is accurate to 1e-11, where rounding
            allows it. `lower_error` is the largest bound on its error.
        name: how the problem is called in tables.
    """

    arrays = (*WithClientConstants.arrays, "monitor")
    theorem = "twostage"
    usual = "FedRZO2s"
    lower_solved_by = BY_CLIENTS
    takes_batches = False
    of_scenarios = True
    whole = False  # its loss is one scenario's, black box or not

    @checked_signature()
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
        coupling: Callable | None = None,
        penalty: float = 1.0,
        domain: Any = None,
        scale: PyTree = None,
        monitor: vi.Solver | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(loss, data, x0, constraint, weights, None, None, name, domain, scale, lower_domain)
        self.map_fn = check_function(map, "map")
        self._set_lower(y0, lower_constraint, modulus, smoothness)
        self._set_coupling(coupling, penalty)
        self.monitor = vi.accurate(self.lower_layout.size, MONITORED) if monitor is None else check_solver(monitor, "monitor")
        with self.precision():
            self.check_map()
            self.take_constants(measure(self) if self.estimated else None)

    def moved_to(self, x0: np.ndarray) -> Self:
        """Return this problem with another starting point, with the constants measured there."""
        moved = super().moved_to(x0)
        if moved.estimated:
            with moved.precision():
                moved.take_constants(measure(moved))
        return moved

    def part(self, clients: Sequence[int]) -> Self:
        """Return this problem with the data, the sets and the constants of some clients alone."""
        part = super().part(clients)
        part.client_constants = vi.Constants(*(np.asarray(c)[list(clients)] for c in self.client_constants))
        return part

    def solve(self, x: jax.Array, xi: PyTree, solver: vi.Solver, k: Any = 1, client: Any = None) -> vi.Solution:
        """Solve the lower level at a flat x for a scenario of a client. Where Y(x, xi) is empty, y is NaN, which stops a run."""
        found = solver.solve(*self.inequality(x, xi), *self.constants_of(client), k)
        return self.told_empty(x, xi, found)

    def inequality(self, x: jax.Array, xi: PyTree) -> tuple[Callable[[jax.Array], jax.Array], sets.Set, jax.Array]:
        """Return the map and the set of the lower level at a flat x for a scenario, and where its solve starts."""
        point = self.into_domain(jnp.asarray(x, float))
        return lambda y: self.map(point, y, xi), self.lower_set_at(point, xi), self.start_below

    def told_empty(self, x: jax.Array, xi: PyTree, found: vi.Solution) -> vi.Solution:
        """Return a solution, with y NaN if Y(x, xi) is empty."""
        if self.lower_set_fn is None:  # a constant Y was looked at before the run
            return found
        lower_set = self.lower_set_at(self.into_domain(jnp.asarray(x, float)), xi)
        return found._replace(y=jnp.where(lower_set.violation(found.y) > EMPTY, jnp.nan, found.y))

    def bounds(self, points: jax.Array, batch: PyTree, found: vi.Solution) -> jax.Array:
        """Return bounds on the errors of what `implicit` found, for each x and each scenario of a batch."""
        return jax.vmap(jax.vmap(self.bound, (None, self.scenario_axis, 0)), (0, None, 0))(points, batch, found)

    def implicit(
        self, points: jax.Array, batch: PyTree, solver: vi.Solver, k: Any = 1, client: Any = None
    ) -> tuple[jax.Array, vi.Solution]:
        """Return loss(x, y(x, xi), xi) and y(x, xi) for each x (first axis) and each scenario of a batch (second axis)."""

        def one(x: jax.Array, xi: PyTree) -> tuple[jax.Array, vi.Solution]:
            found = self.solve(x, xi, solver, k, client)
            return self.value(x, found.y, xi), found

        return jax.vmap(jax.vmap(one, (None, self.scenario_axis)), (0, None))(points, batch)

    def implicit_gradients(
        self, x: jax.Array, batch: PyTree, solver: vi.Solver, k: Any = 1, client: Any = None
    ) -> tuple[jax.Array, vi.Solution]:
        """Return the gradient in x of loss(x, y(x, xi), xi), and y(x, xi), for each scenario of a batch."""
        return self.with_gradients(x, batch, solver, k, client)[1:]

    def with_gradients(
        self, x: jax.Array, batch: PyTree, solver: vi.Solver, k: Any = 1, client: Any = None
    ) -> tuple[jax.Array, jax.Array, vi.Solution]:
        """Return loss(x, y(x, xi), xi), its gradient in x, and y(x, xi), for each scenario of a batch."""

        def one(xi: PyTree) -> tuple[jax.Array, jax.Array, vi.Solution]:
            if isinstance(solver, vi.Newton):
                found, linear = solver.solve_and_linearise(*self.inequality(x, xi), self.constants_of(client).mu)
                found = self.told_empty(x, xi, found)
                return self.value(x, found.y, xi), self.gradient_by(linear, x, found.y, xi), found
            found = self.solve(x, xi, solver, k, client)
            return self.value(x, found.y, xi), self.gradient(x, found.y, xi, 1 / self.constants_of(client).L), found

        return jax.vmap(one, (self.scenario_axis,))(batch)

    def gradient_by(self, linear: Any, x: jax.Array, y: jax.Array, xi: PyTree) -> jax.Array:
        """Return the gradient of loss(x, y(x, xi), xi) at a flat x, by the linear equation that y solves."""
        direct, through = jax.grad(self.value, (0, 1))(x, y, xi)
        s, v = linear.adjoint(through)
        found = direct + jax.grad(lambda x: linear.a * jnp.vdot(self.map(self.into_domain(x), y, xi), s))(x)
        if self.lower_set_fn is None:
            return found
        return found + jax.vjp(lambda x: self.lower_set_at(self.into_domain(x), xi).project(linear.z), x)[1](v)[0]

    def gradient(self, x: jax.Array, y: jax.Array, xi: PyTree, length: Any) -> jax.Array:
        """Return the gradient of loss(x, y(x, xi), xi) at a flat x whose lower solution is y.

        y solves y = P(y - a G(x, y)) with P the projection onto Y(x, xi) and any a > 0, such as `length`. Where P has no
        derivative, which happens on a null set, that of a neighbour stands for it.
        """

        def step(x: jax.Array, y: jax.Array) -> jax.Array:
            point = self.into_domain(x)
            return self.lower_set_at(point, xi).project(y - length * self.map(point, y, xi))

        direct, through = jax.grad(self.value, (0, 1))(x, y, xi)
        pull = jax.vjp(step, x, y)[1]
        return direct + pull(vi.adjoint(lambda w: pull(w)[1], through))[0]

    def solved_at(self, points: jax.Array) -> Callable[[PyTree], tuple[jax.Array, jax.Array]]:
        """Return the function of a batch that gives the mean loss at each row of `points`, and each scenario's y."""

        def solved(batch: PyTree) -> tuple[jax.Array, jax.Array]:
            values, found = self.implicit(points, batch, self.monitor)
            return jnp.mean(values, axis=1), found.y

        return solved

    def judge(self, x: jax.Array) -> tuple[dict[str, jax.Array], None]:
        """Return the mean loss over scenarios at a flat x and what it breaks; no lower solution is all clients' own."""
        return self._mean(jnp.asarray(x, float), lambda found, x, xi: jnp.zeros(()))[0], None

    def evaluate(self, x: jax.Array) -> dict[str, jax.Array]:
        """Return what is monitored at a flat x: the loss, infeasibility, and the largest bound on the lower level's error."""
        x = jnp.asarray(x, float)
        if self.hidden:
            return {"feasibility": self.worst_distance(x)}
        means, error = self._mean(x, self._error)
        return means | {"feasibility": self.worst_distance(x), "lower_error": error}

    def _mean(self, x: jax.Array, error: Callable[[vi.Solution, jax.Array, PyTree], jax.Array]) -> tuple[dict, jax.Array]:
        """Return means over scenarios of the loss and of what is broken, and the largest of a function of lower solutions."""
        fetch, owner, weights = self.scenarios()
        rows, most = jnp.arange(weights.size), max(1, CACHED // self.lower_layout.size)
        together = min(weights.size, CHUNK, most if jax.default_backend() == "cpu" else CHUNK)

        def seen(row: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
            xi = fetch(row)
            found = self.solve(x, xi, self.monitor, client=owner[row])
            return {"loss": self.bare.value(x, found.y, xi)} | self.violation(x, found.y, xi), error(found, x, xi)

        values, errors = jax.lax.map(seen, rows, batch_size=together)
        return {name: weights @ each for name, each in values.items()}, jnp.max(errors)

    def _error(self, found: vi.Solution, x: jax.Array, xi: PyTree) -> jax.Array:
        """Return a bound on the error of a lower solution, no less than its tolerance: what is below that is rounding."""
        error, tolerance = self.bound(x, xi, found), getattr(self.monitor, "tolerance", None)
        return error if tolerance is None else jnp.maximum(error, tolerance * jnp.maximum(1, jnp.linalg.norm(found.y)))

    def bound(self, x: jax.Array, xi: PyTree, found: vi.Solution) -> jax.Array:
        """Return a bound on the error of a lower solution, by the modulus of this very scenario, here and at y0.

        The client's own was measured at x0, and the map may be less monotone where x has come to. Where it was given, or the
        Jacobian is too large to be formed, it is all there is.
        """
        if self.given[0] is not None or found.y.size > DENSE:
            return found.error_bound
        point = self.into_domain(x)
        ends = jnp.stack([found.y, self.lower_set_at(point, xi).project(self.start_below)])
        mu = jnp.min(jax.vmap(lambda y: at_point(lambda y: self.map(point, y, xi), y).mu)(ends))
        return jnp.where(mu > 0, found.residual / jnp.where(mu > 0, mu, 1), jnp.inf)

    def lower(self, x: PyTree, xi: PyTree) -> PyTree:
        """Return an accurate lower-level solution at x (a pytree, such as `result.x`) for one scenario."""
        with self.precision():
            flat, xi = jnp.asarray(self.layout.ravel(x), float), jax.tree.map(jnp.asarray, xi)
            found = solve_once(self, flat, xi, vi.accurate(self.lower_layout.size, MONITORED))
            return self.lower_layout.unravel(np.asarray(found.y))

    def constants_at(self, x: np.ndarray) -> vi.Constants:
        """Return mu and L of all clients' maps near a flat x; what holds at x0, or was given, may be stricter."""
        found = measure(self, x).overall
        return vi.Constants(min(found.mu, self.modulus), max(found.L, self.smoothness))

    def lower_empty(self, x: jax.Array) -> bool:
        """Tell whether Y(x, xi) is empty for a scenario."""
        return measure(self, x).violation > EMPTY

    def try_losses(self) -> float:
        """Look at the map, Y and the loss at x0, before the first round."""
        x, measured = self.into_domain(self.start), measure(self)
        measured.check_nonempty(x)
        xi = measured.worst[0][0]
        lower_set = self.lower_set_at(x, xi)
        self.check_monotone(measured.overall, lower_set)
        trees = self.trees(x, lower_set.project(self.start_below))
        self.check_coupling(*trees, xi)
        return check_loss(self.loss_fn, "loss", "loss(x, y, xi)", *trees, xi)


@on_data
def solve_once(problem: TwoStage, x: jax.Array, xi: PyTree, solver: vi.Solver, client: Any = None) -> vi.Solution:
    """Solve one lower level; compiled once for a problem and a kind of solver."""
    return problem.solve(x, xi, solver, client=client)
