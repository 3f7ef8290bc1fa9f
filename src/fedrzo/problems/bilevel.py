"""Problems with a lower-level optimisation: `Bilevel` and `Minimax`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.errors import InputError, warn
from fedrzo.problems.base import INSIDE, Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.curvature import check_sign
from fedrzo.problems.inputs import (
    Data,
    Loss,
    PyTree,
    check_data,
    check_loss,
    flat_set,
    flat_start,
    lower_constant,
    one_sample,
)
from fedrzo.problems.lower_level import LowerLevel, check_descent
from fedrzo.problems.minimise import minimise, numeric_gradient
from fedrzo.problems.monitor import mean_gradient, mean_loss, worst_distance
from fedrzo.support.arguments import call_user, check_function, named
from fedrzo.support.pytrees import traced

ACCURATE = 1e-10  # of the gradient at the start: how far monitoring solves the lower level


class Hierarchical(Problem):
    """What problems with a lower level share: y, its sets, and the constants of the lower level."""

    hierarchical = True
    usual = "FedRZObl"

    def _set_lower(
        self,
        y0: PyTree,
        lower_constraint: Any,
        lower_domain: Any,
        modulus: float | None,
        smoothness: float | None,
    ) -> None:
        self.lower_layout, self.y0 = flat_start(y0, "y0")
        if isinstance(lower_constraint, type):
            raise InputError(
                f"lower_constraint: found the class {lower_constraint.__name__}; pass a set, such as fz.sets.Box(-1, 1)"
            )
        self.lower_set_fn = lower_constraint if callable(lower_constraint) else None
        self.lower_set = None
        if lower_constraint is not None and self.lower_set_fn is None:
            self.lower_set = flat_set(lower_constraint, y0, self.lower_layout, "lower_constraint")
        self.lower_domain = None
        if lower_domain is not None:
            self.lower_domain = flat_set(lower_domain, self.layout.unravel(self.x0), self.layout, "lower_domain")
        mu, L = self.given = lower_constant(modulus, "modulus"), lower_constant(smoothness, "smoothness")
        if mu is not None and L is not None and mu > L:
            raise InputError(
                f"modulus: found {modulus}, above smoothness {smoothness}; no function is more convex than it is smooth: check "
                "both, or leave them out to have them estimated"
            )

    @property
    def estimated(self) -> bool:
        """Whether a constant of the lower level is measured, since the user did not give both."""
        return None in self.given

    @property
    def modulus(self) -> float | None:
        """The mu that the user gave."""
        return self.given[0]

    @property
    def smoothness(self) -> float | None:
        """The L that the user gave."""
        return self.given[1]

    def value(self, x: jax.Array, y: jax.Array, batch: PyTree) -> jax.Array:  # type: ignore[override]
        """Return the upper loss of one batch at flat x and y."""
        return self.loss_fn(self.layout.unravel(x), self.lower_layout.unravel(y), batch)

    def lower_set_at(self, x: jax.Array, *scenario: Any) -> sets.Set:
        """Return Y(x), or Y(x, xi), as a set of flat vectors."""
        if self.lower_set_fn is None:
            return sets.Reals() if self.lower_set is None else self.lower_set
        call = "lower_constraint(x, xi)" if scenario else "lower_constraint(x)"
        found = call_user(self.lower_set_fn, "lower_constraint", call, self.layout.unravel(x), *scenario)
        return flat_set(
            found, self.lower_layout.unravel(np.zeros(self.lower_layout.size)), self.lower_layout, "lower_constraint"
        )

    def feasible_lower(self) -> np.ndarray:
        """Return where lower solves start, moved into the lower set if need be."""
        return self.y0

    def check_lower(self) -> None:
        """Refuse, or warn of, a lower level that is not what it should be, at x0; called before the first round."""

    def into_domain(self, x: jax.Array) -> jax.Array:
        """Return the point at which the lower level is solved for x: its projection onto `lower_domain`, if one is given."""
        return x if self.lower_domain is None else self.lower_domain.project(x)


LOWER = ("y0", "lower_set", "lower_domain")


@traced("data", "x0", "sets", "client_weights", "test", "lower_data", *LOWER)
class Bilevel(Hierarchical):
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
        lower_domain: a set on which the lower level is well behaved; it is then solved at the projection of x onto it.
        modulus: mu, the strong convexity of the lower loss in y; estimated where not given.
        smoothness: L, the Lipschitz constant of its gradient; likewise.
        lower_descent: optional, a faster `lower_descent(x, y, batch, stepsize, steps)` for so many gradient steps in y on one
            batch. Where y has no constraint, `LocalSGD(batch_size="full")` takes its local steps by it.
        weights: `"uniform"` or `"samples"`, for both levels.
        test: optional batch; `test_loss` is then monitored.
        metrics: optional, `{name: metric(x, y, test)}`.
        name: how the problem is called in tables.
    """

    convexity = ("lower", "convex")  # the argument that is to bend upwards in y, and how that is called

    @named
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
        name: str | None = None,
    ) -> None:
        super().__init__(loss, data, x0, constraint, weights, test, metrics, name)
        self.lower_fn = check_function(lower, "lower")
        self.lower_descent = None if lower_descent is None else check_function(lower_descent, "lower_descent")
        self.lower_data = check_data(data if lower_data is None else lower_data, "lower_data")
        if self.lower_data.clients != self.data.clients:
            raise InputError(
                f"lower_data: found {self.lower_data.clients} clients, data has {self.data.clients}; give one entry each"
            )
        self._set_lower(y0, lower_constraint, lower_domain, modulus, smoothness)

    def part(self, clients: Sequence[int]) -> Bilevel:
        """Return this problem with the data and the sets of some clients alone."""
        part = super().part(clients)
        part.lower_data = part.data if self.lower_data is self.data else self.lower_data.part(clients)
        return part

    def lower_level(self, points: jax.Array) -> LowerLevel:
        """Return the lower level at one x (a vector) or at several at once (a matrix, one x per row)."""
        return LowerLevel(self, jnp.atleast_2d(points))

    def lower_solution(self, x: jax.Array) -> PyTree:
        """Return an accurate lower-level solution at a flat x, as y's pytree."""
        return self.lower_solutions(np.asarray(x)[None])[0]

    def lower_solutions(self, points: np.ndarray) -> list[PyTree]:
        """Return an accurate lower-level solution for each row, all computed together."""
        with self.precision():
            found = np.asarray(_solve_lower(self, jnp.asarray(points, float)))
        return [self.lower_layout.unravel(y) for y in found]

    def solve_lower(self, x: jax.Array) -> jax.Array:
        """Return an accurate lower-level solution at a flat x, as a flat vector."""
        level = self.lower_level(x)

        def gradient(y: jax.Array) -> jax.Array:
            if getattr(self.lower_fn, "is_blackbox", False):
                return numeric_gradient(lambda y: mean_loss(level, y), y)
            return mean_gradient(level, y)

        return minimise(gradient, lambda y: level.sets.project(0, y), jnp.asarray(self.y0, float), ACCURATE)

    def evaluate(self, x: jax.Array) -> dict[str, jax.Array]:
        """Return what is monitored at a flat x, with an accurate lower-level solution."""
        x = jnp.asarray(x, float)
        y = self.solve_lower(x)
        row = {"loss": mean_loss(self, x, y), "feasibility": worst_distance(self, x)}
        if self.test is not None:
            row["test_loss"] = self.value(x, y, self.test)
            trees = self.layout.unravel(x), self.lower_layout.unravel(y)
            row |= {name: jnp.asarray(metric(*trees, self.test)) for name, metric in self.metrics}
        return row

    def check_lower(self) -> None:
        """Try both losses and Y at x0, before the first round."""
        x, y = jnp.asarray(self.x0, float), jnp.asarray(self.y0, float)
        trees = self.layout.unravel(x), self.lower_layout.unravel(y)
        check_loss(self.loss_fn, "loss", "loss(x, y, batch)", *trees, one_sample(self.data))
        trees = self.layout.unravel(self.into_domain(x)), trees[1]
        check_loss(self.lower_fn, "lower", "lower(x, y, batch)", *trees, one_sample(self.lower_data))
        if self.lower_descent is not None:
            check_descent(self)
        check_sign(self)

    def feasible_lower(self) -> np.ndarray:
        """Return y0 projected onto Y(x0), warning if it had to be moved; refuse an empty Y(x0)."""
        if self.lower_set is None and self.lower_set_fn is None:
            return self.y0
        y, broken = (np.asarray(found) for found in _lower_start(self))
        if broken > INSIDE:
            raise InputError(
                f"lower_constraint: Y(x0) is empty (the nearest y breaks it by {broken:.3g}) at x0 = "
                f"{np.array2string(np.asarray(self.x0), precision=4, threshold=8)}; start elsewhere, or give a lower_domain"
            )
        distance = np.linalg.norm(y - self.y0)
        if distance <= INSIDE * (1 + np.linalg.norm(self.y0)):
            return self.y0
        warn(f"y0: found a point {distance:.3g} outside Y(x0); it is projected first")
        return y


@jax.jit
def _solve_lower(problem: Bilevel, points: jax.Array) -> jax.Array:
    return jax.vmap(problem.solve_lower)(points)


@jax.jit
def _lower_start(problem: Bilevel) -> tuple[jax.Array, jax.Array]:
    """Return y0 projected onto Y(x0), and by how much that still breaks a constraint."""
    level = problem.lower_level(jnp.asarray(problem.x0, float))
    y = level.sets.project(0, jnp.asarray(problem.y0, float))
    return y, level.sets.violation(0, y)


class Minimax(Bilevel):
    """Minimise over x the maximum over y in Y(x) of the mean loss: the bilevel problem whose lower loss is minus the upper.

    Args: as for `Bilevel`; `modulus` is the strong concavity in y.
    """

    convexity = ("loss", "concave")

    @named
    def __init__(
        self,
        loss: Loss,
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
        test: PyTree = None,
        metrics: Mapping[str, Callable] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            loss, Negative(check_function(loss, "loss")), data, x0, y0, constraint, None, lower_constraint, lower_domain,
            modulus, smoothness, weights=weights, test=test, metrics=metrics, name=name,
        )  # fmt: skip


traced("data", "x0", "sets", "client_weights", "test", "lower_data", *LOWER)(Minimax)


class Negative:
    """Minus a loss; equal for equal losses, so that compiled code is shared."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.is_blackbox = is_blackbox(loss)

    def __call__(self, *arguments: Any) -> jax.Array:
        """Return minus the loss."""
        return -self.loss(*arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Negative) and self.loss == other.loss

    def __hash__(self) -> int:
        return hash((Negative, self.loss))
