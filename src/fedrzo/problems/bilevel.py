"""Problems with a lower-level optimisation: the class `Bilevel`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import vi
from fedrzo.errors import InputError, warn
from fedrzo.problems.base import INSIDE
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.courtesy import ask
from fedrzo.problems.curvature import check_sign, lower_level
from fedrzo.problems.inputs import Data, Loss, PyTree, check_data, client_weights
from fedrzo.problems.lower_level import LowerLevel, WithLowerLoss, check_descent
from fedrzo.problems.minimise import minimise, numeric_gradient
from fedrzo.problems.monitor import mean_gradient, mean_loss
from fedrzo.problems.questions import BY_SERVER, Stated
from fedrzo.sets.multipliers import multipliers
from fedrzo.support.arguments import check_function, checked_signature
from fedrzo.support.compiling import on_data, once
from fedrzo.support.pytrees import replaced

HESSIANS = 1e7  # numbers in all samples' lower Hessians up to which they are used
SETTLED = 1e-12  # the step that is left, relative to y, in such a solve
ACCURATE = 1e-10  # of the gradient at the start: how far monitoring solves the lower level


class Bilevel(WithLowerLoss):
    """Minimise the mean upper loss at (x, y(x)), where y(x) minimises the mean lower loss over Y(x).

    Args:
        loss: `loss(x, y, batch) -> scalar`.
        lower: `lower(x, y, batch) -> scalar`, strongly convex and smooth in y.
        data: the clients' data of the upper loss.
        x0: the starting point.
        y0: where the lower level starts.
        constraint: a set for x, or one per client.
        lower_data: the clients' data of the lower loss; the upper data if not given.
        lower_constraint: a set for y, or a function of x that returns one.
        lower_domain: a set on which the lower level is well behaved, such as that of the x for which Y(x) is not empty. It is
            solved at the projection of x onto it, and x has to keep to it.
        modulus: mu, the strong convexity of the lower loss in y; estimated where not given.
        smoothness: L, the Lipschitz constant of its gradient; likewise.
        lower_descent: optional, a faster `lower_descent(x, y, batch, stepsize, steps)` for so many gradient steps in y on one
            batch. Where y has no constraint, `LocalSGD(batch_size="full")` takes its local steps by it.
        weights: `"uniform"`, or `"samples"`: each level by the number of samples that clients have of it.
        test: optional batch; `test_loss` is then monitored.
        metrics: optional, `{name: metric(x, y, test)}`.
        coupling: upper constraints that involve y, `coupling(x, y) -> numbers`, each of which is to be at most 0.
        penalty: what breaking them by one costs; a larger one where a result still breaks them. `fz.solve` finds one.
        domain: a set outside of which the losses are not defined, such as where a logarithm is; they are evaluated at the
            projection of x onto it, and x has to keep to it.
        scale: units of x, one positive number for each entry; directions and steps are longer in those with larger ones.
        name: how the problem is called in tables.
    """

    arrays = (*WithLowerLoss.arrays, "lower_data")
    theorem = "bilevel"
    usual = "FedRZObl"
    lower_solved_by = BY_SERVER
    convexity = ("lower", "convex")

    @checked_signature()
    def __init__(
        self,
        loss: Loss,
        lower: Loss,
        data: Data,
        x0: PyTree,
        y0: PyTree,
        constraint: Any = None,
        lower_data: Data | None = None,
        lower_constraint: Any = None,
        lower_domain: Any = None,
        modulus: float | None = None,
        smoothness: float | None = None,
        *,
        lower_descent: Callable | None = None,
        weights: str = "uniform",
        test: PyTree = None,
        metrics: Mapping[str, Callable] | None = None,
        coupling: Callable | None = None,
        penalty: float = 1.0,
        domain: Any = None,
        scale: PyTree = None,
        name: str | None = None,
    ) -> None:
        super().__init__(loss, data, x0, constraint, weights, test, metrics, name, domain, scale, lower_domain)
        self.lower_fn = check_function(lower, "lower")
        self.lower_blackbox = is_blackbox(lower)
        self.lower_descent = None if lower_descent is None else check_function(lower_descent, "lower_descent")
        self.lower_data = check_data(data if lower_data is None else lower_data, "lower_data")
        if self.lower_data.clients != self.data.clients:
            raise InputError(
                f"lower_data: found {self.lower_data.clients} clients, data has {self.data.clients}; give one entry each"
            )
        if weights == "samples" and self.lower_data is not self.data:
            self.lower_weights = client_weights(weights, self.lower_data, "lower_data")
        self._set_lower(y0, lower_constraint, modulus, smoothness)
        self._set_coupling(coupling, penalty)

    @property
    def stated(self) -> tuple[Stated, ...]:
        """Both losses: the upper one in x, at y0, and the lower one in y, at x0."""
        trees = lambda y: self.trees(self.into_domain(self.start), y)  # noqa: E731
        lower = Stated("lower", self.lower_fn, self.lower_data, "lower_data", self.lower_layout, self.y0, trees)
        return (*super().stated, lower)

    def with_data(self, data: Data, lower_data: Data) -> Self:
        """Return this problem with other data."""
        return replaced(self, data=data, lower_data=lower_data)

    def part(self, clients: Sequence[int]) -> Self:
        """Return this problem with the data and the sets of some clients alone."""
        part = super().part(clients)
        part.lower_data = part.data if self.lower_data is self.data else self.lower_data.part(clients)
        if self.lower_weights is not None:
            part.lower_weights = np.asarray(self.lower_weights)[list(clients)]
        return part

    def lower_level(self, points: jax.Array) -> LowerLevel:
        """Return the lower level at one x (a vector) or at several at once (a matrix, one x per row)."""
        return LowerLevel(self, jnp.atleast_2d(points))

    def lower_solutions(self, points: np.ndarray) -> list[PyTree]:
        """Return an accurate lower-level solution for each row, all computed together."""
        with self.precision():
            found = np.asarray(_solve_lower(self, jnp.asarray(points, float)))
        return [self.lower_layout.unravel(y) for y in found]

    def lower_multipliers(self, x: PyTree) -> dict[str, np.ndarray] | None:
        """Return the multipliers of Y(x)'s constraints at the accurate lower-level solution; see `fedrzo.sets.multipliers`."""
        if not self.lower_constrained or self.lower_blackbox:
            return None
        with self.precision():
            found = _multipliers(self, jnp.asarray(self.layout.ravel(x), float))
        return None if found is None else {name: np.asarray(each) for name, each in found.items()}

    def solve_lower(self, x: jax.Array) -> jax.Array:
        """Return an accurate lower-level solution at a flat x, as a flat vector."""
        level = self.lower_level(x)

        def gradient(y: jax.Array) -> jax.Array:
            if self.lower_blackbox:
                return numeric_gradient(lambda y: mean_loss(level, y), y)
            return mean_gradient(level, y)

        q, data = self.lower_layout.size, self.lower_data
        if not self.lower_blackbox and q <= vi.LARGEST and data.stored and data.samples * q**2 <= HESSIANS:
            lower_set = self.lower_set_at(level.points[0])
            if not vi.lacks_jacobians(gradient, lower_set, self.start_below):
                return vi.Newton(SETTLED).solve(gradient, lower_set, self.start_below, None, None).y
        return minimise(gradient, lambda y, near: level.sets.project(0, y, near), self.start_below, ACCURATE)

    def solved_at(self, points: jax.Array) -> Callable[[PyTree], tuple[jax.Array, jax.Array]]:
        """Return the function of a batch that gives the loss at each row of `points`, and the accurate y behind it."""
        solutions = jax.vmap(self.solve_lower)(points)
        return lambda batch: (jax.vmap(self.value, (0, 0, None))(points, solutions, batch), solutions)

    def with_lower(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return a flat x and the accurate lower-level solution there."""
        x = jnp.asarray(x, float)
        return x, self.solve_lower(x)

    def try_losses(self) -> float:
        """Try both losses, and what else was given with them, before the first round."""
        value = super().try_losses()
        self.check_coupling(*self.trees(self.start, self.start_below))
        if self.lower_descent is not None:
            check_descent(self, self.lower_descent)
        self.check_curvature()
        return value

    def check_curvature(self) -> None:
        """Refuse a lower loss that bends the wrong way at x0."""
        ask(lambda: check_sign(self))

    def without_constants(self) -> Self:
        """Return this problem as if the user had not given the lower level's mu and L."""
        return replaced(self, given=(None, None))

    def constants_at(self, x: np.ndarray) -> vi.Constants:
        """Return mu and L of the lower level near a flat x, where a run may not lead; the user's where given."""
        for name, value in zip(("modulus", "smoothness"), self.given, strict=True):
            if value is None and self.lower_blackbox:
                raise InputError(f"{name}: found None, and a black box has no Hessian to measure it by; give it to the problem")
        found = lower_level(self.moved_to(x), strict=False)
        return vi.Constants(found.modulus, found.smoothness)

    def lower_empty(self, x: jax.Array) -> bool:
        """Tell whether Y(x) is empty."""
        return bool(_nearest_below(self, x)[1] > INSIDE)

    def inside_lower(self) -> Self:
        """Return this problem with y0 projected onto Y(x0), warning if it had to be moved; refuse an empty Y(x0)."""
        if not self.lower_constrained:
            return self
        y, broken = (np.asarray(found) for found in _nearest_below(self, self.start))
        if broken > INSIDE:
            raise InputError(
                f"lower_constraint: Y(x0) is empty (the nearest y breaks it by {broken:.3g}) at x0 = "
                f"{np.array2string(np.asarray(self.x0), precision=4, threshold=8)}; start elsewhere, or give a lower_domain"
            )
        distance = np.linalg.norm(y - self.y0)
        if distance <= INSIDE * (1 + np.linalg.norm(self.y0)):
            return self
        warn(f"y0: found a point {distance:.3g} outside Y(x0); it is projected first")
        return replaced(self, y0=y)


@on_data
def _solve_lower(problem: Bilevel, points: jax.Array) -> jax.Array:
    return jax.vmap(problem.solve_lower)(points)


@once
def _multipliers(problem: Bilevel, x: jax.Array) -> dict[str, jax.Array] | None:
    level, y = problem.lower_level(x), problem.solve_lower(x)
    return multipliers(problem.lower_set_at(problem.into_domain(x)), y, mean_gradient(level, y))


@once
def _nearest_below(problem: Bilevel, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return y0 projected onto Y(x), and by how much that still breaks a constraint."""
    level = problem.lower_level(x)
    y = level.sets.project(0, problem.start_below)
    return y, level.sets.violation(0, y)
