"""What the rest of the library asks of a problem, with the answers of one that has a single level.

Nobody else asks of which class a problem is, but for methods, which name the classes that they solve.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import vi
from fedrzo.errors import InputError
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.inputs import Data, Loss, PyTree, check_loss, one_sample
from fedrzo.support.pytrees import Layout

# Who solves a lower level: the server by a method, one for all clients; or each client by a solver of `vi`, for each scenario.
BY_SERVER, BY_CLIENTS = "server", "clients"


class Stated(NamedTuple):
    """A loss that a problem was stated with."""

    argument: str  # its name, `"loss"` or `"lower"`
    loss: Loss  # the function
    data: Data  # of which it gets batches
    source: str  # the name of that argument
    layout: Layout  # of the variable that it is looked at in: x, or y
    start: np.ndarray  # of that variable
    # returns what the loss gets before its batch, for a flat value of that variable
    trees: Callable[[Any], tuple[PyTree, ...]]


class Questions:
    """The base of `Problem`: each of these is a class attribute, a property or a method, for a subclass to answer otherwise."""

    loss_fn: Loss
    data: Data
    layout: Layout
    x0: np.ndarray
    test: PyTree
    metrics: tuple[tuple[str, Callable], ...]

    theorem: ClassVar[str] = "nonsmooth"  # the function of `fz.theory` that prescribes steps
    usual: ClassVar[str] = "FedRZOnn"  # the method to take where none is named
    lower_solved_by: ClassVar[str | None] = None  # BY_SERVER, BY_CLIENTS, or None where there is no lower level
    zero_sum: ClassVar[bool] = False  # whether the lower loss is minus the upper one
    takes_batches: ClassVar[bool] = True  # whether the loss is a mean over a batch, rather than that of one scenario
    measured_gradients = 0  # that measuring a lower level's constants took
    given: tuple[float | None, float | None] = None, None  # the lower level's mu and L, from the user
    lower_constrained = False  # whether there are constraints on y
    lower_blackbox = False  # whether the lower loss has no gradients
    domain: Any = None  # a flat set outside of which the losses are not defined
    lower_domain: Any = None  # likewise for the lower level, and within `domain`
    client_weights: Any  # each client's weight in means
    lower_weights: Any = None  # likewise in those of the lower level, if it has data of its own and sizes count

    hidden = False  # whether nobody may look at the clients' records: losses are not monitored

    penalty: Any = 0.0  # what breaking coupling constraints by one costs

    def penalised(self, penalty: float) -> Self:
        """Return this problem with another penalty; it has none."""
        return self

    @property
    def coupled(self) -> bool:
        """Whether there are upper constraints that involve y."""
        return False

    def violation(self, *point: Any) -> dict[str, jax.Array]:
        """Return by how much such constraints are broken, as a column; none where there are none."""
        return {}

    def merit(self, row: Any) -> Any:
        """Return what a monitored row is judged by: its loss, and the penalty for the constraints that it breaks."""
        return row["loss"] + self.penalty * row["violation"] if self.coupled else row["loss"]

    def weights_in(self, view: str) -> Any:
        """Return the clients' weights in means of a view: `""`, or `"lower"` for the lower level."""
        return self.client_weights if view == "" or self.lower_weights is None else self.lower_weights

    @property
    def bare(self) -> Self:
        """This problem as its loss is monitored."""
        return self

    @property
    def hierarchical(self) -> bool:
        """Whether there is a lower level."""
        return self.lower_solved_by is not None

    @property
    def dtype(self) -> np.dtype:
        """The type that x is computed in."""
        return self.layout.dtype

    @property
    def start(self) -> jax.Array:
        """The starting point in that type."""
        return jnp.asarray(self.x0)

    @property
    def layouts(self) -> dict[str, Layout]:
        """How the variables lie in flat vectors, by the names of their starting points."""
        return {"x0": self.layout}

    @property
    def stated(self) -> tuple[Stated, ...]:
        """The losses that the problem was stated with, the upper one first."""
        return (Stated("loss", self.loss_fn, self.data, "data", self.layout, self.x0, self.trees),)

    @property
    def whole(self) -> bool:
        """Whether the loss gets a client's samples in one batch wherever it is to get all of them: a black box."""
        return is_blackbox(self.loss_fn)

    def trees(self, *point: Any) -> tuple[PyTree, ...]:
        """Return flat vectors, x and y where there is one, as the pytrees that a user's functions get."""
        x, *below = point
        layouts = list(self.layouts.values())[1:]
        return (self.defined(x), *(layout.unravel(flat) for layout, flat in zip(layouts, below, strict=True)))

    def defined(self, x: jax.Array) -> PyTree:
        """Return the point at which functions of x are evaluated: its projection onto `domain`, if one is given.

        The projection is not converted to units of x and back, since rounding could move it out of the domain.
        """
        if self.domain is None:
            return self.layout.unravel(x)
        return self.layout.unravel_plain(self.domain.project(self.layout.plain(x)))

    @property
    def remark(self) -> str | None:
        """What every result of this problem is to say."""
        return None if self.domain is None else "outside of its domain the loss is that of the nearest point inside"

    @property
    def domains(self) -> tuple[Any, ...]:
        """The sets that x has to keep to whoever asks, since the problem is not defined outside; a lower one is within both."""
        inner = self.domain if self.lower_domain is None else self.lower_domain
        return () if inner is None else (inner,)

    def onto(self, domain: Any, x: jax.Array) -> jax.Array:
        """Project a flat x onto a set that is not in its units."""
        flat = domain.project(self.layout.plain(x))
        return flat if self.layout.scale is None else flat / np.asarray(self.layout.scale, flat.dtype)

    def value(self, *arguments: Any) -> jax.Array:
        """Return the loss of one batch, the last argument, at a flat x, or at flat x and y where there is a lower level."""
        *point, batch = arguments
        return self.loss_fn(*self.trees(*point), batch)

    def with_lower(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """Return the flat vectors that the loss is monitored at: x, and an accurate y where there is one for all scenarios."""
        return (x,)

    def on_test(self, *point: jax.Array) -> dict[str, jax.Array]:
        """Return what is monitored on the test batch, at a flat x, and a flat y where there is one lower level for all."""
        if self.test is None:
            return {}
        metrics = {name: jnp.asarray(metric(*self.trees(*point), self.test)) for name, metric in self.metrics}
        return {"test_loss": self.bare.value(*point, self.test)} | metrics

    def solved_at(self, points: jax.Array) -> Callable[[PyTree], tuple[jax.Array, jax.Array | None]]:
        """Return the function of a batch that gives the loss at each row of `points`, and the accurate y behind it, if any.

        What does not depend on the batch, such as one lower level for all, is solved when this is called.
        """
        return lambda batch: (jax.vmap(self.value, (0, None))(points, batch), None)

    def losses_at(self, points: jax.Array) -> Callable[[PyTree], jax.Array]:
        """Return the function of a batch that gives the loss at each row of `points`, lower levels solved accurately."""
        solved = self.solved_at(points)
        return lambda batch: solved(batch)[0]

    @property
    def start_below(self) -> jax.Array:
        """Where lower solves start, in the type they are computed in."""
        raise self._no_lower()

    def lower_level(self, points: jax.Array) -> Any:
        """Return the one lower level of all clients at one x, or at several, one per row: a `LowerLevel`."""
        raise self._no_lower()

    def _no_lower(self) -> InputError:
        kind = type(self).__name__
        return InputError(f"lower: found {kind}, which has no lower level; declare solves = (fz.Bilevel,)")

    def alone(self, batch: PyTree) -> PyTree:
        """Return what `value` is to get of a batch of one."""
        return batch

    def as_stated(self) -> Self:
        """Return this problem without what was measured of it: rounding may differ between machines."""
        return self

    def without_constants(self) -> Self:
        """Return this problem as if the user had not given the lower level's mu and L, for measuring them."""
        return self

    def constants_at(self, x: np.ndarray) -> vi.Constants | None:
        """Return mu and L of the lower level near a flat x; None where there is no lower level."""
        return None

    def check_curvature(self) -> None:
        """Refuse a lower loss that bends the wrong way at x0."""

    def try_losses(self) -> float:
        """Try the losses at the start, before the first round; return the upper one on a sample of the first client."""
        values = []
        for level in self.stated:
            trees = level.trees(jnp.asarray(level.start, self.dtype))
            call = f"{level.argument}({'x, y' if len(trees) == 2 else 'x'}, batch)"
            values.append(check_loss(level.loss, level.argument, call, *trees, one_sample(level.data)))
        return values[0]

    def inside_lower(self) -> Self:
        """Return this problem with y0 moved into Y(x0) if need be."""
        return self

    def lower_empty(self, x: jax.Array) -> bool:
        """Tell whether Y(x) is empty."""
        return False
