"""What problems with a lower level share, and the lower level of a bilevel one: itself a single-level federated problem."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.errors import InputError
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.coupling import Coupled
from fedrzo.problems.inputs import Data, Loss, PyTree, flat_set, flat_start, lower_constant, one_sample
from fedrzo.problems.questions import Stated
from fedrzo.support.arguments import call_user
from fedrzo.support.pytrees import Layout


class Hierarchical(Coupled):
    """What problems with a lower level share: y, its sets, and the constants of the lower level."""

    arrays = (*Coupled.arrays, "y0", "lower_set", "lower_domain")

    def _set_lower(
        self,
        y0: PyTree,
        lower_constraint: Any,
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
        self.lower_constrained = lower_constraint is not None
        if self.lower_constrained and self.lower_set_fn is None:
            self.lower_set = flat_set(lower_constraint, y0, "lower_constraint")
        mu, L = self.given = lower_constant(modulus, "modulus"), lower_constant(smoothness, "smoothness")
        if mu is not None and L is not None and mu > L:
            raise InputError(
                f"modulus: found {modulus}, above smoothness {smoothness}; no function is more convex than it is smooth: check "
                "both, or leave them out to have them estimated"
            )

    @property
    def dtype(self) -> np.dtype:
        """Double precision, whatever x0 is: lower solutions need it."""
        return np.dtype(np.float64)

    @property
    def start(self) -> jax.Array:
        """The starting point in double precision."""
        return jnp.asarray(self.x0, float)

    @property
    def layouts(self) -> dict[str, Layout]:
        """How x and y lie in flat vectors."""
        return {"x0": self.layout, "y0": self.lower_layout}

    @property
    def stated(self) -> tuple[Stated, ...]:
        """The upper loss, looked at in x, at y0."""
        [upper] = super().stated
        return (upper._replace(trees=lambda x: self.trees(x, self.start_below)),)

    @property
    def start_below(self) -> jax.Array:
        """Where lower solves start, in the type they are computed in."""
        return jnp.asarray(self.y0, float)

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

    def lower_set_at(self, x: jax.Array, *scenario: Any) -> sets.Set:
        """Return Y(x), or Y(x, xi), as a set of flat vectors."""
        if self.lower_set_fn is None:
            return sets.Reals() if self.lower_set is None else self.lower_set
        call = "lower_constraint(x, xi)" if scenario else "lower_constraint(x)"
        found = call_user(self.lower_set_fn, "lower_constraint", call, self.defined(x), *scenario)
        return flat_set(found, self.lower_layout.unravel(np.zeros(self.lower_layout.size)), "lower_constraint")

    def into_domain(self, x: jax.Array) -> jax.Array:
        """Return the point at which the lower level is solved for x: its projection onto `lower_domain`, if one is given."""
        return x if self.lower_domain is None else self.onto(self.lower_domain, x)


class WithLowerLoss(Hierarchical):
    """A problem whose lower level is itself the mean of the clients' losses: what a `LowerLevel` is made of."""

    arrays = (*Hierarchical.arrays, "lower_weights")
    convexity: ClassVar[tuple[str, str]]  # the argument that is to bend upwards in y, and how that is called
    lower_fn: Loss
    lower_descent: Callable | None
    lower_data: Data


class LowerLevel:
    """The lower level of a bilevel problem at given points, as a single-level problem in all their y at once.

    Solving at x+v and x-v together is one problem in the pair (y+, y-): one message carries both, both see the same samples.
    """

    def __init__(self, problem: WithLowerLoss, points: jax.Array) -> None:
        self.problem = problem
        self.points = jax.vmap(problem.into_domain)(points)
        self.copies = self.points.shape[0]
        self.nested = True
        self.whole = problem.lower_blackbox
        self.client_weights = problem.weights_in("lower")
        self.data = problem.lower_data.wide()
        self.sets = LowerSets(self)
        self.clients = problem.clients
        self.dim = self.copies * problem.lower_layout.size
        # The problem's y0, once per point; in the precision of the solve, which what clients remember has too.
        self.x0 = self.start = jnp.tile(problem.start_below, self.copies)

    def value(self, y: jax.Array, batch: PyTree) -> jax.Array:
        """Return the sum over the points of the lower loss of one batch."""
        return jnp.sum(self.each(lambda x, y: self.loss(x, y, batch), y))

    def descend(self, y: jax.Array, batch: PyTree, stepsize: Any, steps: Any) -> jax.Array:
        """Take gradient steps of one length on one batch, each after a projection; by the problem's `lower_descent`, if any."""
        own = self.problem.lower_descent if self.sets.free else None

        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            if own is not None:
                return self.problem.lower_layout.ravel(own(*self.problem.trees(x, y), batch, stepsize, steps))
            # `LocalSGD`'s own steps again, but in a loop for each point: in one loop for both they take half as long again.
            # What all clients begin with is projected before any loop, once for all of them.
            project, gradient = self.problem.lower_set_at(x).project, jax.grad(lambda y: self.loss(x, y, batch))
            y = y if self.sets.free else project(y)
            if isinstance(steps, int) and steps == 1:
                return y - stepsize * gradient(y)

            def step(t: Any, y: jax.Array) -> jax.Array:
                y = y if self.sets.free else jax.lax.cond(t > 0, project, lambda y: y, y)
                return y - stepsize * gradient(y)

            return jax.lax.fori_loop(0, steps, step, y)

        if self._in_turn:  # a loop, so that compiled code has the steps once
            return jax.lax.map(lambda point: one(*point), (self.points, self.split(y))).ravel()
        return self.each(one, y).ravel()

    def each(self, function: Callable[[jax.Array, jax.Array], jax.Array], y: jax.Array) -> jax.Array:
        """Return `function(x, y)` of each point, in rows."""
        if self._in_turn:
            return jnp.stack([function(*point) for point in zip(self.points, self.split(y), strict=True)])
        return jax.vmap(function)(self.points, self.split(y))

    @property
    def _in_turn(self) -> bool:
        """Whether points are taken one after the other: two of them, on a CPU, and no black box, which gets all in one call.

        Side by side, products with a vector become products with a matrix of two columns, for which XLA takes longer than for
        both vectors.
        """
        return self.copies <= 2 and not self.whole and jax.default_backend() == "cpu"

    def loss(self, x: jax.Array, y: jax.Array, batch: PyTree) -> jax.Array:
        """Return the lower loss of one batch at one point."""
        return self.problem.lower_fn(*self.problem.trees(x, y), batch)

    def losses_at(self, points: jax.Array) -> Callable[[PyTree], jax.Array]:
        """Return the function of a batch that gives the loss at each row of `points`."""
        return lambda batch: jax.vmap(self.value, (0, None))(points, batch)

    def pair(self, y: jax.Array, v: jax.Array, batch: PyTree) -> jax.Array:
        """Return value(y+v) - value(y-v)."""
        return self.value(y + v, batch) - self.value(y - v, batch)

    def split(self, y: jax.Array) -> jax.Array:
        """Return the y of each point as the rows of a matrix."""
        return y.reshape(self.copies, -1)


class LowerSets:
    """Y at each of a lower level's points; the same for every client."""

    def __init__(self, level: LowerLevel) -> None:
        self.level = level
        self.identical = True
        self.free = not level.problem.lower_constrained

    def project(self, i: Any, y: jax.Array, near: Any = None) -> jax.Array:
        """Project each point's y onto its own Y(x); see `Set.project`."""
        if self.free:
            return y
        hints = () if near is None else (near,)
        return self._each(lambda found, *given: found.project(*given), y, *hints).ravel()

    def violation(self, i: Any, y: jax.Array) -> jax.Array:
        """Return the largest violation over the points."""
        return jnp.zeros((), y.dtype) if self.free else jnp.max(self._each(lambda found, y: found.violation(y), y))

    def _each(self, function: Callable, *each: jax.Array) -> jax.Array:
        level = self.level
        return jax.vmap(lambda x, *y: function(level.problem.lower_set_at(x), *y))(level.points, *map(level.split, each))


@dataclass(frozen=True)
class Negative:
    """Minus a loss; equal for equal losses, so that compiled code is shared."""

    loss: Loss

    @property
    def is_blackbox(self) -> bool:
        """Whether the loss has no gradients."""
        return is_blackbox(self.loss)

    def __call__(self, *arguments: Any) -> jax.Array:
        """Return minus the loss."""
        return -self.loss(*arguments)


def check_descent(problem: WithLowerLoss, descent: Callable) -> None:
    """Compare a user's `lower_descent` with what it stands for: two gradient steps on one sample, at x0 and y0."""
    x, y = problem.start, problem.start_below
    batch, stepsize, steps = one_sample(problem.lower_data), 0.1, 2
    level = LowerLevel(problem, x[None])
    call = "lower_descent(x, y, batch, stepsize, steps)"
    found = call_user(descent, "lower_descent", call, *problem.trees(level.points[0], y), batch, stepsize, steps)
    wanted = y
    for _ in range(steps):
        wanted = wanted - stepsize * jax.grad(level.value)(wanted, batch)
    apart = float(np.max(np.abs(problem.lower_layout.ravel(found) - wanted)))
    if not apart <= 1e-8 * (1 + float(np.max(np.abs(wanted)))):
        raise InputError(
            f"lower_descent: after {steps} steps from y0 it is {apart:.3g} away from gradient steps of `lower`; they must agree"
        )
