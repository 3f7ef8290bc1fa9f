"""What the three methods of the FedRZO family have in common, besides how their rounds travel (`scalars.py`)."""

from __future__ import annotations

import inspect
import math
from typing import Any, Self

import jax

from fedrzo.methods.base import Method, at
from fedrzo.support.arguments import check_fit, named
from fedrzo.theory.problem import prescribed


class FedRZO(Method):
    """A local zeroth-order step, and step sizes from the theory."""

    stepsize: Any
    smoothing: Any
    local_steps: Any

    @classmethod
    @named
    def from_theory(
        cls, problem: Any, budget: int, smoothing: float = 0.1, constants: Any = None, **fields: Any
    ) -> Self:
        """Return this method with the step size and the local steps that the theory prescribes.

        That is Proposition 1 for FedRZO_nn, Theorem 2 for FedRZO_bl and Theorem 3 for FedRZO_2s.

        Args:
            problem: what is to be solved.
            budget: K, local iterations of each client; run ceil(K / local_steps) rounds.
            smoothing: eta.
            constants: those that are known, such as `{"lipschitz": 1.0}`, as `fz.theory.for_problem` takes them; the others
                are estimated, with a warning.
            fields: other fields of the method.
        """
        # Here, since it takes time to estimate constants.
        filled_in = dict.fromkeys(("stepsize", "smoothing", "local_steps"))
        check_fit(cls.__name__, inspect.signature(cls.__init__), (cls,), filled_in | fields)
        return prescribed(cls, problem, budget, smoothing, constants, fields)

    def descend(self, x: jax.Array, g: jax.Array, nearest: jax.Array, r: Any) -> jax.Array:
        """Move by an estimate and towards the nearest point of a client's set: the last line of a local step."""
        return x - at(self.stepsize, r) * (g + (x - nearest) / self.smoothing)

    def longest_step(self, constrained: bool) -> float:
        """Return twice the smoothing where there are sets.

        Without the estimate, `descend` takes x - P(x) to (1 - stepsize/smoothing)(x - P(x)): it contracts as long as that factor
        is above -1, whatever the set, and whichever of the clients' sets it is.
        """
        return 2 * float(self.smoothing) if constrained else math.inf

    def precision_of(self, problem: Any) -> Any:
        """Return the type of x."""
        return problem.start.dtype
