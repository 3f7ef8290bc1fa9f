"""What a theorem prescribes, and the search for the iterations that a target takes."""

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedrzo.errors import InputError
from fedrzo.support.numbers import constant, whole

LEVY = math.sqrt(2 * math.pi)  # of Levy concentration on the sphere, which bounds an estimate's second moment
FAR = 10**40  # iterations: a target that takes more than this is taken to be out of reach


@dataclass(frozen=True, repr=False)
class Plan:
    """What a theorem says about a method, for a number of iterations.

    Attributes:
        method: whose.
        clients: m.
        dim: n.
        smoothing: eta.
        iterations: K: the budget, or where a target was given the K_epsilon at which the bound first meets it.
        local_steps: H.
        rounds: R, so many that R rounds of H steps are at least K.
        prescribed: the theorem's gamma for K, whether or not it is admissible.
        limits: the admissible step-size limit, condition by condition; the least counts.
        stepsize: gamma: the prescribed one, or the limit where that is less; or what the caller gave.
        terms: the right-hand side of the bound on E||grad f_eta(x_k*)||^2 at `stepsize`, term by term. Without a gap its
            term is NaN, and so is the bound.
        epsilon: the target, if one was given.
        constants: what the terms are made of.
    """

    method: str
    clients: int
    dim: int
    smoothing: float
    iterations: int
    local_steps: int
    rounds: int
    prescribed: float
    limits: Mapping[str, float]
    stepsize: float
    terms: Mapping[str, float]
    epsilon: float | None = None
    constants: Mapping[str, float] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """The largest step size for which the bound is proved."""
        return min(self.limits.values())

    @property
    def admissible(self) -> bool:
        """Whether the step size is within the limit; where not, the bound says nothing."""
        return self.stepsize <= self.limit * (1 + 1e-12)

    @property
    def bound(self) -> float:
        """The bound on E||grad f_eta(x_k*)||^2: the sum of the terms."""
        return math.fsum(self.terms.values())

    def __repr__(self) -> str:
        target = "" if self.epsilon is None else f" for E||grad||^2 <= {self.epsilon:.4g}"
        capped = "" if self.prescribed <= self.stepsize else f" (prescribed {self.prescribed:.4g})"
        limits = ", ".join(f"{name} {value:.3g}" for name, value in self.limits.items())
        within = "at most" if self.admissible else "NOT at most"
        lines = [
            f"{self.method}: m = {self.clients}, n = {self.dim}, eta = {self.smoothing:g}",
            f"iterations   {self.iterations:,}{target}",
            f"stepsize     {self.stepsize:.4g}{capped}, {within} {self.limit:.4g} ({limits})",
            f"local steps  {self.local_steps:,}",
            f"rounds       {self.rounds:,}",
            *self._more(),
            f"bound        {self.bound:.4g} = {' + '.join(f'{value:.3g} ({name})' for name, value in self.terms.items())}",
        ]
        return "\n".join(lines)

    def _more(self) -> list[str]:
        return []


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def solve(
    at: Callable[[int, float | None, int | None], AnyPlan], budget: int | None, epsilon: float | None, gap: float | None,
    stepsize: float | None, local_steps: int | None,
) -> AnyPlan:  # fmt: skip
    """Return the plan for a budget, or for the first number of iterations at which the bound meets a target.

    Where the caller chose the step size or H, no number of iterations need reach a target.
    """
    gamma = None if stepsize is None else constant(stepsize, "stepsize")
    H = None if local_steps is None else whole(local_steps, "local_steps")
    if (budget is None) == (epsilon is None):
        found = "neither" if budget is None else "both"
        raise InputError(f"budget, epsilon: found {found}; pass a budget of iterations or a target epsilon, one of them")
    if budget is not None:
        return at(whole(budget, "budget"), gamma, H)
    if gap is None:
        raise InputError("gap: found None; a target needs f_eta(x0) - inf f_eta, or a bound on it")
    if gamma is not None or H is not None:
        raise InputError("epsilon: found a target beside a stepsize or local_steps; pass a budget, or leave those out")
    return first(lambda K: at(K, None, None), constant(epsilon, "epsilon"))


def first(at: Callable[[int], AnyPlan], epsilon: float) -> AnyPlan:
    """Return the plan at a K whose bound meets the target while that of K - 1 does not, found by bisection.

    The bound falls with K but for jumps where H = ceil((K/m^3)^(1/4)) grows by one; a smaller K may meet the target there.
    """
    low, high = 0, 1
    while at(high).bound > epsilon:
        low, high = high, 2 * high
        if high > FAR:
            raise InputError(f"epsilon: {epsilon:g} takes more than 1e40 iterations; choose a larger one, or other constants")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle).bound <= epsilon else (middle, high)
    return at(high)


def prescribe(m: int, n: int, eta: float, L0: float, K: int, given: int | None) -> tuple[float, int]:
    """Return gamma = sqrt(eta m / (K n^1.5 L0^3)) and H = ceil((K/m^3)^(1/4)), or the H that was given.

    They are those of part (ii) of Proposition 1 and Theorem 2.

    In Theorem 3 (iii) the statement prints gamma = sqrt(m/K), its proof the above; all dependence on n and eta in what
    follows is that of the latter, which is used.
    """
    gamma = math.sqrt(eta * m / (K * n**1.5 * L0**3))
    return gamma, max(1, math.ceil((K / m**3) ** 0.25 - 1e-9)) if given is None else given


def check(**values: Any) -> dict[str, Any]:
    """Return m and n as whole, everything else as positive numbers, or say which is not."""
    return {name: whole(value, name) if name in ("clients", "dim") else constant(value, name) for name, value in values.items()}


def check_dissimilarity(dissimilarity: Any) -> tuple[float, float]:
    """Return B1 and B2 of the bounded set-dissimilarity, Assumption 1 (iii); (0, 0) says that there are no sets."""
    try:
        b1, b2 = (float(value) for value in dissimilarity)
    except (TypeError, ValueError):
        raise InputError(f"dissimilarity: found {dissimilarity!r}; pass the pair (B1, B2)") from None
    if not (b1 >= 0 and b2 >= 0 and math.isfinite(b1 + b2)):
        raise InputError(f"dissimilarity: found {dissimilarity!r}; pass two numbers that are not negative")
    return b1, b2


def check_optional(value: Any, argument: str) -> float | None:
    """Return a number that is not negative, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise InputError(f"{argument}: found {value!r}; pass a number that is not negative")
    return float(value)
