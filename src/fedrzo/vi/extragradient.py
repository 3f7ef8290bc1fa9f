"""The extragradient method of Korpelevich (1976)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.sets.base import Set
from fedrzo.support.fields import checked
from fedrzo.vi.base import Map, Solution, Solver, answer, optional, optional_whole, reached, residual_of_step


@dataclass(frozen=True, repr=False)
class Extragradient(Solver):
    """Half a step to foresee the map, then the step itself with the map found there: O(kappa) steps a digit.

    Args:
        stepsize: below 1/L; 1/(2 L) if not given.
        tolerance: stop as soon as the error bound is below it.
        steps: take exactly so many evaluations of the map instead; they come in pairs.
        max_steps: give up after so many.
    """

    stepsize: float | None = checked(optional, default=None)
    tolerance: float | None = checked(optional, default=1e-8)
    steps: int | None = checked(optional_whole, default=None)
    max_steps: int | None = checked(optional_whole, default=1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tolerance is None and self.steps is None:
            raise InputError("solver: found neither tolerance nor steps; pass one of them")

    def advance(self, map: Map, set: Set, y: jax.Array, mu: Any, L: Any) -> jax.Array:
        """Take one step: two evaluations of the map."""
        alpha = self.alpha(L)
        return set.project(y - alpha * foresee(map, set, y, alpha)[1])

    def plan(self, mu: float, L: float, k: int) -> tuple[float, int]:
        """Return the stepsize, and half as many steps as evaluations of the map."""
        return self.alpha(L), max((self.steps or 0) // 2, 1)

    def longest(self, mu: float, L: float) -> tuple[str, float]:
        """Return the stepsize below which the method converges."""
        return "1/L", 1 / L

    def alpha(self, L: Any) -> Any:
        """Return the stepsize in use."""
        return 0.5 / L if self.stepsize is None else self.stepsize

    def solve(self, map: Map, set: Set, y0: jax.Array, mu: Any, L: Any, k: Any = 1) -> Solution:
        """See `Solver.solve`. The answer is the last foreseen point, which lies in Y and whose residual is known."""
        alpha = self.alpha(L)

        def step(carry: Any) -> Any:
            t, y, *_ = carry
            ahead, g_ahead, residual = foresee(map, set, y, alpha)
            return t + 2, set.project(y - alpha * g_ahead), ahead, residual

        def unsolved(carry: Any) -> Any:
            t, _, y, residual = carry
            if self.steps is not None:
                return t < self.steps
            return ~reached(y, residual, mu, self.tolerance) & (t < self.max_steps)

        start = (jnp.int32(0), y0, y0, jnp.asarray(jnp.inf, y0.dtype))
        t, _, y, residual = jax.lax.while_loop(unsolved, step, start)
        return answer(y, residual, mu, t)


def foresee(map: Map, set: Set, y: jax.Array, alpha: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return P(y - alpha G(y)), the map there, and its residual."""
    g = map(y)
    ahead = set.project(y - alpha * g)
    g_ahead = map(ahead)
    return ahead, g_ahead, residual_of_step(y, g, ahead, g_ahead, alpha)
