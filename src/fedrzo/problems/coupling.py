"""Upper constraints that involve y: g(x, y) <= 0, kept by an exact penalty on what breaks them."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.support.arguments import call_user, check_function, describe
from fedrzo.support.compiling import trial
from fedrzo.support.numbers import constant
from fedrzo.support.pytrees import replaced


class Coupled(Problem):
    """A problem whose loss has `penalty` times the sum of the positive parts of `coupling` added to it.

    Beyond some penalty, which no one knows before, the constraints hold where that sum is least. `fz.solve` finds one.
    """

    arrays = (*Problem.arrays, "penalty")
    of_scenarios: ClassVar[bool] = False  # whether the constraints get a scenario as their last argument
    coupling_fn: Callable | None = None

    def _set_coupling(self, coupling: Callable | None, penalty: float) -> None:
        self.coupling_fn = None if coupling is None else check_function(coupling, "coupling")
        self.penalty = 0.0 if coupling is None else constant(penalty, "penalty")

    @property
    def coupled(self) -> bool:
        """Whether there are upper constraints that involve y."""
        return self.coupling_fn is not None

    def value(self, *arguments: Any) -> jax.Array:
        """Return the loss of one batch, the last argument, at flat x and y, with the penalty."""
        value = super().value(*arguments)
        return value + self.penalty * self.violation(*arguments)["violation"] if self.coupled else value

    def violation(self, x: jax.Array, y: jax.Array, batch: Any = None) -> dict[str, jax.Array]:
        """Return by how much the constraints are broken, added up, as a column; none where there are none."""
        if self.coupling_fn is None:
            return {}
        more = (batch,) if self.of_scenarios else ()
        return {"violation": jnp.sum(jnp.maximum(self.coupling_fn(*self.trees(x, y), *more), 0))}

    @property
    def bare(self) -> Self:
        """This problem as its loss is monitored: without the penalty."""
        return replaced(self, coupling_fn=None) if self.coupled else self

    def penalised(self, penalty: float) -> Self:
        """Return this problem with another penalty."""
        return replaced(self, penalty=np.float64(penalty))

    def check_coupling(self, *arguments: Any) -> None:
        """Try the constraints where the run starts."""
        if self.coupling_fn is None:
            return
        call = "coupling(x, y, xi)" if self.of_scenarios else "coupling(x, y)"
        found = call_user(trial(self.coupling_fn), "coupling", call, *arguments, wrap=True)
        if found is None or not jax.tree_util.all_leaves([found]) or not jnp.issubdtype(jnp.result_type(found), jnp.floating):
            raise InputError(f"coupling: {call} returns {describe(found)}; it must return numbers that are to be at most 0")
        if not np.all(np.isfinite(found)):
            raise InputError(f"coupling: found {np.asarray(found)} at x0; it must be finite there: check x0, y0, or the function")
