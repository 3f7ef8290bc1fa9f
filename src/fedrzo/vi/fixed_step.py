"""Methods of a fixed stepsize: the paper's Algorithm 5 and the extragradient method of Korpelevich (1976)."""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.sets.base import Set
from fedrzo.support.fields import checked
from fedrzo.vi.base import SIGN, Map, Solution, Solver, answer, foresee, needed_tau, optional, optional_whole, reached


@dataclass(frozen=True, repr=False)
class Projection(Solver):
    """y <- P_Y(y - alpha G(y)), the paper's Algorithm 5.

    It takes t_k = ceil(tau ln(k + 1)) steps at the upper iteration k, unless a fixed count or a tolerance is given. The
    distance to the solution falls by the factor sqrt(1 - 1/kappa^2) a step: O(kappa^2) steps a digit.

    Args:
        stepsize: alpha; mu/L^2 if not given.
        tau: -1/ln(1 - 1/kappa^2) if not given, the least that the theory allows.
        tolerance: stop as soon as the error bound is below it, whatever k is.
        steps: take exactly so many, whatever k is.
        max_steps: give up after so many, where a tolerance is given.
    """

    stepsize: float | None = checked(optional, default=None)
    tau: float | None = checked(optional, default=None)
    tolerance: float | None = checked(optional, default=None)
    steps: int | None = checked(optional_whole, default=None)
    max_steps: int | None = checked(optional_whole, default=100_000)

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.tau, self.tolerance, self.steps)) > 1:
            raise InputError("solver: found more than one of tau, tolerance and steps; pass one")
        super().__post_init__()

    def check(self, mu: float, L: float) -> None:
        """Refuse a default stepsize that mu does not allow; warn of a tau below the theory's."""
        if self.stepsize is None and not mu > 0:
            raise InputError(
                f"map: not strongly monotone in y (modulus {mu:.3g}), so that the solver's usual stepsize mu/L^2 is none; {SIGN}"
            )
        least = float(needed_tau(mu, L)) if mu > 0 else float("inf")
        if self.tau is not None and self.tau < least * (1 - 1e-9):
            warnings.warn(
                f"solver: tau is {self.tau:g}, the theory needs at least -1/ln(1 - 1/kappa^2) = {least:.4g} for its rate "
                f"(kappa = L/mu = {L / mu:.4g}); lower solutions stay inaccurate",
                stacklevel=2,
            )

    def alpha(self, mu: Any, L: Any) -> Any:
        """Return the stepsize in use."""
        return mu / L**2 if self.stepsize is None else self.stepsize

    def advance(self, map: Map, set: Set, y: jax.Array, mu: Any, L: Any) -> jax.Array:
        """Take one step."""
        return set.project(y - self.alpha(mu, L) * map(y), near=y)  # Algorithm 5, line 4

    def plan(self, mu: float, L: float, k: int) -> tuple[float, int]:
        """Return alpha and t_k."""
        return self.alpha(mu, L), int(self.count(mu, L, k))

    def longest(self, mu: float, L: float) -> tuple[str, float]:
        """Return the stepsize below which the method is a contraction."""
        return "2 mu/L^2", 2 * mu / L**2

    def count(self, mu: Any, L: Any, k: Any) -> Any:
        """Return t_k: at least one step, also where kappa is 1 and the theory's tau is 0."""
        if self.steps is not None:
            return jnp.asarray(self.steps, jnp.int32)
        tau = needed_tau(mu, L) if self.tau is None else self.tau
        return jnp.maximum(jnp.ceil(tau * jnp.log1p(jnp.asarray(k, float))), 1).astype(jnp.int32)  # Algorithm 5, line 2

    def solve(self, map: Map, set: Set, y0: jax.Array, mu: Any, L: Any, k: Any = 1) -> Solution:
        """Algorithm 5; see `Solver.solve`."""
        alpha = self.alpha(mu, L)
        if self.tolerance is not None:
            return self._to_tolerance(map, set, y0, mu, alpha)
        steps = self.count(mu, L, k)
        # Line 3; the last step apart, since its length tells the error.
        before = jax.lax.fori_loop(0, steps - 1, lambda t, y: self.advance(map, set, y, mu, L), y0)
        y, _, residual = foresee(map, set, before, alpha)
        return answer(y, residual, mu, steps)  # line 6

    def _to_tolerance(self, map: Map, set: Set, y0: jax.Array, mu: Any, alpha: Any) -> Solution:
        def step(carry: Any) -> Any:
            t, y, g, _ = carry
            return t + 1, *foresee(map, set, y, alpha, g)

        def unsolved(carry: Any) -> Any:
            t, y, _, residual = carry
            return ~reached(y, residual, mu, self.tolerance) & (t < self.max_steps)

        start = (jnp.int32(0), y0, map(y0), jnp.asarray(jnp.inf, y0.dtype))
        t, y, _, residual = jax.lax.while_loop(unsolved, step, start)
        return answer(y, residual, mu, t)


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
        ahead, g_ahead, _ = foresee(map, set, y, alpha)
        return set.project(y - alpha * g_ahead, near=ahead)

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
            return t + 2, set.project(y - alpha * g_ahead, near=ahead), ahead, residual

        def unsolved(carry: Any) -> Any:
            t, _, y, residual = carry
            if self.steps is not None:
                return t < self.steps
            return ~reached(y, residual, mu, self.tolerance) & (t < self.max_steps)

        start = (jnp.int32(0), y0, y0, jnp.asarray(jnp.inf, y0.dtype))
        t, _, y, residual = jax.lax.while_loop(unsolved, step, start)
        return answer(y, residual, mu, t)
