"""What the three methods of the FedRZO family have in common."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.federation.estimators import from_slopes
from fedrzo.methods.base import at, batch, checked, method, one_of, stepsize_or_auto
from fedrzo.methods.by_scalars import ByScalars
from fedrzo.methods.private import WithPrivacy
from fedrzo.methods.scalar_plan import plan_for
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.slopes import refuse_wrong_gradients
from fedrzo.support.arguments import check_fit, checked_signature
from fedrzo.support.numbers import Schedule, constant, count
from fedrzo.theory.problem import for_problem

Project = Callable[[jax.Array], jax.Array]
WAYS = one_of("vectors", "scalars", "auto")  # how a round travels
VALUES, GRADIENTS = "values", "gradients"
ORACLES = one_of(VALUES, GRADIENTS)  # what an estimate is made of


@method
class FedRZO(WithPrivacy):
    """A local step on the smoothed loss, step sizes from the theory, and what `ByScalars` asks of a method."""

    stepsize: Schedule = checked(stepsize_or_auto)
    smoothing: float = checked(constant)
    local_steps: Schedule = checked(count, default=1)
    batch_size: int | str = checked(batch, default=1, static=True)

    takes_x: ClassVar[str] = "client_steps"  # the client step that is sent x
    of_theorem: ClassVar[dict[str, Any]] = {}  # fields that the theory prescribes besides, unless the user gives them

    @property
    def by_gradients(self) -> bool:
        """Whether estimates are made of gradients near x instead of loss values."""
        return getattr(self, "oracle", VALUES) == GRADIENTS

    def check(self, problem: Problem) -> None:
        """Refuse a black box where gradients are asked for."""
        super().check(problem)
        if self.by_gradients:
            check_gradients(problem, float(self.smoothing))

    def spent(self, estimates: Any, cost: Any) -> dict[str, Any]:
        """Return what so many estimates take, each on a batch of that cost, as a reply counts it."""
        if self.by_gradients:
            return {"gradients": estimates * cost}
        return {"evaluations": 2 * self.slopes_per_step * estimates * cost}

    @classmethod
    @checked_signature()
    def from_theory(
        cls,
        problem: Problem,
        budget: int,
        smoothing: float = 0.1,
        constants: Mapping[str, Any] | None = None,
        **fields: Any,
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
        check_fit(cls.__name__, inspect.signature(cls), (), filled_in | fields)
        if not isinstance(problem, cls.solves):
            wanted = " or ".join(kind.__name__ for kind in cls.solves)
            raise InputError(f"problem: found {type(problem).__name__}; {cls.__name__} solves {wanted}")
        if constants is not None and not isinstance(constants, Mapping):
            raise InputError(f'constants: found {type(constants).__name__}; pass a mapping, such as {{"lipschitz": 1.0}}')
        for name in ("stepsize", "local_steps", "epsilon", "budget", "smoothing"):
            if name in {**(constants or {}), **fields}:
                raise InputError(
                    f"{name}: found among constants or fields; the theorem prescribes it for a budget and a smoothing: "
                    "leave it out"
                )
        looked_at = problem if fields.get("privacy") is None else problem.hiding()
        found = for_problem(looked_at, smoothing, budget=budget, **(constants or {}))
        fields = cls.of_theorem | fields
        return cls(stepsize=found.stepsize, smoothing=found.smoothing, local_steps=found.local_steps, **fields)

    def descend(self, x: jax.Array, g: jax.Array, nearest: jax.Array, r: Any) -> jax.Array:
        """Move by an estimate and towards the nearest point of a client's set: the last line of a local step."""
        return x - at(self.stepsize, r) * (g + (x - nearest) / self.moreau_parameter)

    def longest_step(self, constrained: bool) -> float:
        """Return twice the Moreau term's parameter where there are sets.

        Without the estimate, `descend` takes x - P(x) to (1 - stepsize/parameter)(x - P(x)): it contracts as long as that factor
        is above -1, whatever the set, and whichever of the clients' sets it is.
        """
        return 2 * float(self.moreau_parameter) if constrained else math.inf

    @property
    def moreau_parameter(self) -> Any:
        """What the Moreau term of a set is made with: the smoothing, as in the paper, unless another number was given."""
        moreau = getattr(self, "moreau", None)
        return self.smoothing if moreau is None else moreau

    def for_cohort(self, problem: Problem, size: int) -> Any:
        """Return this method, wrapped where its rounds travel as scalars."""
        communication: Any = getattr(self, "communication", "vectors")
        if self.by_gradients and communication == "auto":  # a few slopes are not the gradient: only who asks for them gets them
            communication = "vectors"
        plan = plan_for(communication, problem, size, self.coded_steps(problem), self.slopes_per_step)
        return self if plan is None else ByScalars(self, plan)

    def coded_steps(self, problem: Problem) -> Any:
        """Return how many local steps of a round have slopes of their own in its code."""
        return self.local_steps

    @property
    def slopes_per_step(self) -> int:
        """How many slopes an estimate takes."""
        return getattr(self, "directions", 1)

    def draw(self, step_key: jax.Array) -> jax.Array:
        """Return the keys of a local step's directions."""
        return jax.vmap(lambda j: jax.random.fold_in(step_key, j))(jnp.arange(self.slopes_per_step))

    def decode(self, x: jax.Array, code: jax.Array, key: jax.Array, client: Any, project: Project, r: Any) -> jax.Array:
        """Return where a client's local steps led from x, by its id and the slopes that it found, steps by directions.

        The key is that of the call; the client's own is this one folded with its id.
        """
        key = jax.random.fold_in(key, client)

        def step(k: Any, x: jax.Array) -> jax.Array:
            g = from_slopes(code[k], self.draw(jax.random.fold_in(key, k)), x, self.smoothing)
            return self.descend(x, g, project(x), r)

        return jax.lax.fori_loop(0, code.shape[0], step, x)


def check_gradients(problem: Problem, smoothing: float) -> None:
    """Refuse a black box where gradients are asked for, and gradients that are not those of the values."""
    for level in problem.stated:
        if is_blackbox(level.loss):
            raise InputError(f'oracle: found "gradients", but {level.argument} is a black box; use oracle="values"')
    with problem.precision():
        refuse_wrong_gradients(problem, smoothing)
