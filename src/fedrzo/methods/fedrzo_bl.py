"""FedRZO_bl: randomised implicit delay-enabled zeroth-order federated averaging (the paper's Algorithm 2).

Y. Qiu, U. V. Shanbhag, F. Yousefian: "Zeroth-Order Federated Methods for Stochastic MPECs and Nondifferentiable Nonconvex
Hierarchical Optimization", Section 3.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import directions
from fedrzo.catchup import Either
from fedrzo.client import Client, check_batch_size
from fedrzo.errors import InputError
from fedrzo.federation import Federation, Gathered, Reply, weighted_mean
from fedrzo.hierarchical import Bilevel
from fedrzo.methods.base import (
    Method,
    Schedule,
    at,
    check_zeroth_order,
    count,
    method,
    set_fields,
    static,
)
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.methods.lower import LowerClosing, close, run_lower
from fedrzo.methods.scalarplan import check_communication, planned
from fedrzo.problems import Nonsmooth
from fedrzo.smoothing import slope

EMPTY = 1e-4  # a projection onto Y(x) that misses a constraint by more than this says that Y(x) is empty
WILD = 1e8  # a lower solution, or a bound on its error, as large as this is divergence


class BilevelState(NamedTuple):
    """What the server keeps.

    Attributes:
        x: the upper variable.
        y: the last pair of lower solutions, end to end.
        start: where lower solves begin without a warm start.
        lower_error: a bound on the error of y.
        violation: by how much y breaks a constraint; positive only where Y is empty.
    """

    x: jax.Array
    y: jax.Array
    start: jax.Array
    lower_error: jax.Array
    violation: jax.Array


def middle(points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x and v from x+v and x-v, which is what the server sends."""
    plus, minus = points
    return (plus + minus) / 2, (plus - minus) / 2


@jax.jit
def take(method: Any, replies: Gathered, points: jax.Array, r: jax.Array) -> tuple[jax.Array, Any]:
    """Return the mean of where clients' steps led, rebuilt from their slopes or as they sent it, and of how Y is broken."""
    sent, violation = replies.values
    weights = replies.weights.astype(points.dtype)

    def add(i: Any, total: jax.Array) -> jax.Array:
        end = method.replay(points, sent.small[i], replies.ids[i], r)
        return total + weights[i] * (end if sent.large is None else jnp.where(sent.sends_large[i], sent.large[i], end))

    x = jax.lax.fori_loop(0, sent.small.shape[0], add, jnp.zeros_like(points[0]))
    return x, None if violation is None else weighted_mean(violation, replies.weights)


@method
class FedRZObl(LowerClosing, Method):
    """Zeroth-order federated averaging of an implicit function, whose lower level is itself solved by federated rounds.

    Both losses may differ between clients; y may be constrained by a set that depends on x. The lower level is solved at
    x+v and x-v at the global step only, both in the same messages; local steps use those delayed solutions.

    Args:
        stepsize: the paper's gamma; a number, or a function of the round.
        smoothing: eta.
        local_steps: upper-level local steps per round; a number, or a function of the round.
        batch_size: samples per upper loss value, or `"full"`.
        lower: the method that solves the lower level: `LocalSGD`, `FedAC`, `LFD`, or `FedRZOnn` where there is no gradient.
        lower_rounds: rounds of the lower method per upper round (a number or a function of the round); by default the
            method's own plan.
        warm_start: start each lower solve from the last one's solutions instead of y0.
        closing: end each lower solve by one exact projected gradient step, whose length bounds the error. It costs two
            communications and one gradient over each client's lower data.
        communication: `"vectors"`, `"scalars"` or `"auto"`, as for `FedRZOnn`: all local steps share one direction, so that a
            client without a set for x sends one number. Downwards x+v and x-v travel as vectors.
        scalars: filled in by `prepare`.
    """

    stepsize: Schedule
    smoothing: Any
    local_steps: Schedule = 1
    batch_size: int | str = static(default=1)
    lower: Any = LocalSGD(batch_size="full")
    lower_rounds: Schedule | None = None
    warm_start: bool = static(default=True)
    closing: bool = static(default=True)
    constants: Any = None
    communication: str = static(default="vectors")
    scalars: Any = None

    solves = (Bilevel,)

    def __post_init__(self) -> None:
        check_communication(self)
        if isinstance(self.lower, Method) and not self.lower.serves_below:
            raise InputError(
                f"lower: {type(self.lower).__name__} cannot solve a lower level; use fz.FedRZOnn or fz.FedZO"
            )
        if not isinstance(self.lower, Method) or Nonsmooth not in self.lower.solves:
            raise InputError(
                f"lower: found {type(self.lower).__name__}; pass a single-level method such as fz.LocalSGD()"
            )
        below: Any = getattr(self.lower, "communication", "vectors")
        if below != "vectors":
            raise InputError(f'lower: found communication {below!r}; below, only "vectors" is available')
        if not hasattr(self.lower, "plan") and self.lower_rounds is None:
            raise InputError(f"lower_rounds: {type(self.lower).__name__} has no plan of its own; say how many rounds")
        check_zeroth_order(self)
        set_fields(self, lower_rounds=None if self.lower_rounds is None else count(self.lower_rounds, "lower_rounds"))

    @classmethod
    def from_theory(
        cls, problem: Any, budget: int, smoothing: float = 0.1, constants: Any = None, **fields: Any
    ) -> FedRZObl:
        """Return this method with the step size and the local steps that Theorem 2 prescribes.

        Args:
            problem: what is to be solved.
            budget: K, local iterations of each client; run ceil(K / local_steps) rounds.
            smoothing: eta.
            constants: those that are known, such as `{"lipschitz": 1.0}`, as `fz.theory.for_problem` takes them; the others
                are estimated, with a warning.
            fields: other fields of the method.
        """
        from fedrzo.theory.problem import prescribed

        return prescribed(cls, problem, budget, smoothing, constants, fields)

    def check(self, problem: Any) -> None:
        """Refuse combinations that cannot work, before anything starts."""
        super().check(problem)
        name = type(self.lower).__name__
        check_batch_size(getattr(self.lower, "batch_size", 1), problem.lower_data)
        if self.lower.needs_gradients and getattr(problem.lower_fn, "is_blackbox", False):
            raise InputError(
                f"lower: {name} needs gradients, the lower loss is a black box; use fz.FedRZOnn, closing=False"
            )
        if self.closing and getattr(problem.lower_fn, "is_blackbox", False):
            raise InputError("closing: it takes a gradient, the lower loss is a black box; pass closing=False")
        constrained = problem.lower_set is not None or problem.lower_set_fn is not None
        if constrained and not self.lower.handles_constraints:
            raise InputError(f"lower: {name} cannot project onto Y(x); use fz.LocalSGD, fz.FedAC or fz.LFD")

    def prepare(self, problem: Any) -> FedRZObl:
        """Estimate the lower level's constants where they are needed and not given."""
        needed = self.closing or hasattr(self.lower, "constants")
        if self.constants is not None or not needed or getattr(problem.lower_fn, "is_blackbox", False):
            return self
        from fedrzo.constants import lower_level

        constants = lower_level(problem)
        lower = self.lower
        if getattr(lower, "constants", constants) is None:
            lower = dataclasses.replace(lower, constants=constants)
        return dataclasses.replace(self, lower=lower, constants=constants)

    def for_cohort(self, problem: Any, size: int) -> FedRZObl:
        """Decide how rounds travel: one number where there are no sets, since all steps then add up along one direction."""
        steps = 1 if problem.sets.free else self.local_steps
        return planned(self, problem, size, steps, slopes=1, rebuilt=False)

    def init(self, problem: Any, key: jax.Array) -> BilevelState:
        """Line 1; lower solves start at y0 for both points."""
        del key
        nothing = jnp.zeros((), jnp.result_type(float))
        pair = jnp.tile(jnp.asarray(problem.y0, float), 2)
        return BilevelState(jnp.asarray(problem.x0, float), pair, pair, nothing, nothing)

    def round(self, federation: Federation, state: BilevelState, r: Any) -> BilevelState:
        """Algorithm 2, lines 2-11."""
        v = directions.sphere(federation.key(), state.x.size, self.smoothing, state.x.dtype)  # line 3
        points = jnp.stack([state.x + v, state.x - v])
        below = federation.lower(points, self.lower)  # line 5, first half: both points travel here, once
        begin = state.y if self.warm_start else state.start
        y, error = run_lower(below, self.lower, begin, r, self.lower_rounds), state.lower_error  # line 4
        if self.closing:
            y, error = close(below, self, y, self.constants)
        if self.scalars is None:
            x, violation = federation.average(self.client_steps, y)  # line 5, second half: both solutions; and line 11
        else:
            x, violation = take(self, federation.gather(self.client_scalars, y), points, jnp.int32(r))
        return BilevelState(x, y, state.start, error, state.violation if violation is None else violation)

    def client_steps(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Algorithm 2, lines 6-10: what client i does in round r with the delayed lower solutions."""
        del memory
        x, _, violation = self.local_steps_from(client, key, y, 1)
        return Reply((x, violation), evaluations=self._evaluations(client))

    def client_scalars(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """The same, but the slopes are sent: one number, their sum, where nothing else moves x."""
        del memory
        x, slopes, violation = self.local_steps_from(client, key, y, self.scalars.steps)
        value = Either(slopes, x, jnp.logical_not(self.scalars.tell(client)))
        return Reply((value, violation), evaluations=self._evaluations(client))

    def local_steps_from(
        self, client: Client, key: jax.Array, y: jax.Array, numbers: int
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Return where the local steps lead, their slopes (added up, if there is room for one number), and how Y is broken."""
        x, v = middle(client.points)
        level = client.level.lower_level(client.points)
        y = level.sets.project(client.index, y)
        y_plus, y_minus = level.split(y)

        def local_step(k: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, slopes = carry
            sample = client.sample(jax.random.fold_in(key, k), self.batch_size)  # line 7
            difference = client.loss(x + v, y_plus, sample) - client.loss(x - v, y_minus, sample)
            found = slope(x.size, self.smoothing, difference)  # line 8: times v
            slopes = slopes.at[jnp.minimum(k, numbers - 1)].add(found)
            return self.descend(x, found * v, client.project(x), client.round), slopes  # line 9

        steps = at(self.local_steps, client.round)
        x, slopes = jax.lax.fori_loop(0, steps, local_step, (x, jnp.zeros(numbers, x.dtype)))
        # Positive where Y is empty, which the server must learn of; nothing is sent where y has no constraint.
        return x, slopes, None if level.sets.free else level.sets.violation(client.index, y)

    def descend(self, x: jax.Array, g: jax.Array, nearest: jax.Array, r: Any) -> jax.Array:
        """Line 9: move by an estimate and towards the nearest point of a client's set."""
        return x - at(self.stepsize, r) * (g + (x - nearest) / self.smoothing)

    def _evaluations(self, client: Client) -> Any:
        return 2 * at(self.local_steps, client.round) * client.cost(self.batch_size)

    def replay(self, points: jax.Array, slopes: jax.Array, client: Any, r: Any) -> jax.Array:
        """Return where a client's local steps led, from its slopes."""
        x, v = middle(points)

        def step(k: Any, x: jax.Array) -> jax.Array:
            return self.descend(x, slopes[k] * v, self.scalars.project(client, x), r)

        return jax.lax.fori_loop(0, self.scalars.steps, step, x)

    def metrics(self, state: BilevelState) -> dict[str, Any]:
        """Return the bound on the lower level's error."""
        return {"lower_error": state.lower_error} if self.closing else {}

    def healthy(self, state: BilevelState) -> Any:
        """Tell whether x is finite, the lower level has not run away, and Y(x) is not empty."""
        tame = (state.lower_error < WILD) & (jnp.max(jnp.abs(state.y)) < WILD)
        return jnp.all(jnp.isfinite(state.x)) & tame & (state.violation < EMPTY)

    def diagnose(self, state: BilevelState, before: np.ndarray) -> str | None:
        """Say what went wrong in a state that is not healthy."""
        if state.violation >= EMPTY:
            at_x = np.array2string(before, precision=4, threshold=8)
            return (
                f"lower_constraint: Y(x) is empty near x = {at_x} (the nearest y breaks it by {state.violation:.3g}); "
                "give a lower_domain on which it is not"
            )
        largest = float(np.abs(state.y).max())
        if not (state.lower_error < WILD and largest < WILD):
            return (
                f"the lower level diverges: its largest entry is {largest:.3g}, the bound on its error "
                f"{state.lower_error:.3g}; use a smaller lower stepsize, or give modulus and smoothness"
            )
        return None
