"""What a single-level method needs to serve as a lower level: who may, constants, a plan of rounds and steps."""

import copy
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.federation.client import FULL, Client, check_batch_size
from fedrzo.methods.base import Method, at, batch, checked, method, static
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import StepConstants, single_level
from fedrzo.problems.lower_level import WithLowerLoss
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.support.fields import set_fields
from fedrzo.support.numbers import Schedule, count, positive

DRAWN = 16  # samples of a lower step, by default, if they are drawn
ROUNDING = 1e-16  # relative: an error so small is rounding


class LowerPlan(NamedTuple):
    """What a lower level does in one upper round: how many rounds, how many local steps in each."""

    rounds: Any
    local_steps: Any


class GradientState(NamedTuple):
    """What the server keeps."""

    x: Any  # the average
    # Mu and L, on a lower level whose owner corrects them as it goes; clients are sent them with x. Else None.
    curvature: Any = None


class TunedMethod(Method):
    """A method whose steps are made from the constants of the loss, where the user gives none."""

    constants: StepConstants | None

    @property
    def known(self) -> StepConstants:
        """The constants, which `prepare` has filled in by now."""
        assert self.constants is not None
        return self.constants

    def knowing(self, curvature: Any) -> Any:
        """Return this method with the mu and L that a round came with, if any, in place of its own."""
        if curvature is None or self.constants is None:
            return self
        known = copy.copy(self)  # its fields have been checked, and may be traced by now
        set_fields(known, constants=self.constants._replace(modulus=curvature[0], smoothness=curvature[1]))
        return known


@method
class GradientMethod(TunedMethod):
    """Federated averaging of local gradient steps, of whatever kind: shared by `LocalSGD`, `FedAC` and `LFD`.

    Every local step starts with a projection onto the client's set: on a lower level, onto Y(x). The last step of a round
    is sent unprojected and the receiver projects the average, which makes one step per round an exact projected gradient
    step; projecting before averaging would be biased wherever clients differ and a constraint is active.
    """

    stepsize: Schedule | None = checked(positive, default=None)
    local_steps: Schedule | None = checked(count, default=None)
    rounds: Schedule | None = checked(count, default=None)
    batch_size: int | str = checked(batch, default=1, static=True)
    tolerance: float = checked(positive, default=1e-2)
    schedule: str | None = static(default=None)

    needs_gradients = True
    schedules: ClassVar[tuple[str, ...]] = ("theorem",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule is not None and self.schedule not in self.schedules:
            known = " or ".join(f'"{name}"' for name in self.schedules)
            raise InputError(f"schedule: found {self.schedule!r}; pass None or {known}")

    def init(self, problem: Problem, key: jax.Array) -> Any:
        """Start at x0."""
        return GradientState(jnp.asarray(problem.x0), curvature_at(problem))

    def prepare(self, problem: Problem) -> Any:
        """Estimate the constants that the schedules need, where the user gave none."""
        if self.constants is not None or (self.stepsize is not None and self.schedule is None):
            return self
        return dataclasses.replace(self, constants=single_level(problem))  # type: ignore[call-arg]

    def steps(self, r: Any) -> Any:
        """Return the local steps of each round, where no schedule says otherwise."""
        return 1 if self.local_steps is None else at(self.local_steps, r)

    def plan(self, r: Any) -> LowerPlan:
        """Return how many rounds, and local steps in each, a lower level takes in upper round r."""
        if self.schedule is not None:
            total = self.total_steps(r)
            rounds = jnp.ceil(self.scheduled_rounds(total)).astype(jnp.int32)
            return LowerPlan(rounds, jnp.ceil(total / rounds).astype(jnp.int32))
        steps = self.steps(r)
        if self.rounds is not None:
            return LowerPlan(at(self.rounds, r), steps)
        if self.constants is None:
            raise InputError(f"rounds: {type(self).__name__} as a lower level needs rounds where a stepsize is given")
        # Enough steps to bring a first error down by `tolerance`, and slowly more as the upper level comes to rest, but none
        # after those that leave nothing but rounding: a single one where all curvatures are equal.
        needed = jnp.maximum(self.steps_to(self.tolerance) / steps, (r + 1.0) ** (2 / 3))
        needed = jnp.minimum(needed, jnp.maximum(self.steps_to(ROUNDING) / steps, 1.0))
        return LowerPlan(jnp.ceil(needed).astype(jnp.int32), steps)

    def steps_to(self, tolerance: Any) -> Any:
        """Return how many steps of 2/(mu+L), without noise, bring a first error down by a factor."""
        mu, L = self.known.modulus, self.known.smoothness
        contraction = (L - mu) / (L + mu)
        return jnp.log(1 / tolerance) / -jnp.log(jnp.maximum(contraction, ROUNDING**2))

    @property
    def reduction(self) -> Any:
        """By what factor the steps of a plan bring a first error down, without noise."""
        return self.tolerance

    def scheduled_rounds(self, total: Any) -> Any:
        """Return how many rounds a schedule spreads so many steps over: m, unless a method needs fewer."""
        return self.known.clients

    def total_steps(self, r: Any) -> Any:
        """Return Theorem 2's number of lower steps in round r, n (r+1)^(2/3) / m; at least m, so that no round is empty."""
        c = self.known
        return jnp.maximum(jnp.ceil(c.dim * (r + 1.0) ** (2 / 3) / c.clients), c.clients)


def local_schedule(method: Any, client: Client) -> tuple[Any, Any]:
    """Return the number of local steps of this round, and the index of its first step since the start of the solve."""
    steps = method.plan(client.round).local_steps if method.schedule else method.steps(client.round)
    if method.schedule or client.level.nested or not callable(method.local_steps):  # as many in every round of this solve
        return steps, client.own_round * steps
    return steps, jax.lax.fori_loop(0, client.round, lambda r, total: total + method.steps(r), 0)


def check_serves(method: Any, rounds: Any) -> None:
    """Refuse what cannot solve a lower level, whatever the problem; `rounds` is how many it is given, None for its own plan."""
    if isinstance(method, Method) and not method.serves_below:
        raise InputError(f"lower: {type(method).__name__} cannot solve a lower level; use fz.FedRZOnn or fz.FedZO")
    if not isinstance(method, Method) or Nonsmooth not in method.solves:
        raise InputError(f"lower: found {type(method).__name__}; pass a single-level method such as fz.LocalSGD()")
    communication: Any = getattr(method, "communication", "vectors")
    if communication != "vectors":
        raise InputError(f'lower: found communication {communication!r}; below, only "vectors" is available')
    if isinstance(getattr(method, "stepsize", None), str):
        raise InputError('lower: found stepsize "auto"; only the stepsize of the upper level is searched for: pass a number')
    if getattr(method, "privacy", None) is not None:
        raise InputError("lower: found privacy=; give it to the upper level's method, and declare lower_data public")
    if not hasattr(method, "plan") and rounds is None:
        raise InputError(f"lower_rounds: {type(method).__name__} has no plan of its own; say how many rounds")


def check_solves(method: Any, problem: WithLowerLoss) -> None:
    """Refuse a method that cannot solve the lower level of this problem."""
    name = type(method).__name__
    check_batch_size(getattr(method, "batch_size", 1), problem.lower_data)
    if (method.needs_gradients or getattr(method, "by_gradients", False)) and problem.lower_blackbox:
        raise InputError(f"lower: {name} needs gradients, the lower loss is a black box; use fz.FedRZOnn, closing=False")
    if problem.lower_constrained and not method.handles_constraints:
        raise InputError(f"lower: {name} cannot project onto Y(x); use fz.LocalSGD, fz.FedAC or fz.LFD")


def usual_batch(data: Any) -> int | str:
    """Return the batch size of a lower level's steps if the user names none: all samples, or some if they are drawn."""
    return FULL if data.stored else DRAWN


def with_constants(method: Any, constants: StepConstants) -> Any:
    """Return a lower method with the constants of its problem, where it takes any and was given none."""
    if getattr(method, "constants", constants) is not None:
        return method
    return dataclasses.replace(method, constants=constants)


def run_lower(federation: Any, method: Any, y: jax.Array, r: Any, rounds: Schedule | None, curvature: Any = None) -> jax.Array:
    """Run a method on a lower-level view of the federation in upper round r, from y; its memory and state start afresh.

    It runs so many `rounds`, or those of its own plan where that is None. `curvature` is mu and L as they are known by now, for
    methods whose steps are made of them; where it is None they step by their own.
    """
    start = method.init(Start(y, curvature), federation.key())
    planner = method.knowing(curvature) if isinstance(method, TunedMethod) else method
    total = planner.plan(r).rounds if rounds is None else at(rounds, r)
    return federation.repeat(total, lambda inner, state: method.round(inner, state, r), start).x


class Start(NamedTuple):
    """A problem as far as a method's `init` needs it: where to start, and mu and L where they are corrected on the way."""

    x0: jax.Array
    curvature: Any = None


def curvature_at(problem: Problem) -> Any:
    """Return the mu and L that a lower level's owner starts a solve with; None on a problem of its own."""
    return problem.curvature if isinstance(problem, Start) else None
