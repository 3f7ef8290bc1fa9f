"""FedRZO_bl: randomised implicit delay-enabled zeroth-order federated averaging (the paper's Algorithm 2).

Y. Qiu, U. V. Shanbhag, F. Yousefian: "Zeroth-Order Federated Methods for Stochastic MPECs and Nondifferentiable Nonconvex
Hierarchical Optimization", Section 3.
"""

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation import directions
from fedrzo.federation.client import Client, take_coded_steps
from fedrzo.federation.estimators import slope
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.adjoint import AdjointSteps, solve_adjoint
from fedrzo.methods.base import Method, at, checked, method, static
from fedrzo.methods.closing import LowerClosing, start_closing
from fedrzo.methods.fedac import suited
from fedrzo.methods.fedrzo import ORACLES, VALUES, WAYS, FedRZO, Project
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.methods.lower import check_serves, check_solves, run_lower, usual_batch, with_constants
from fedrzo.methods.private import private_steps, record_by_record
from fedrzo.privacy.privacy import Privacy, a_promise
from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.curvature import StepConstants, lower_level
from fedrzo.problems.lower_level import WithLowerLoss
from fedrzo.support.numbers import Schedule, constant, count, whole

EMPTY = 1e-4  # a projection onto Y(x) that misses a constraint by more than this says that Y(x) is empty
CLOSE, NEAR = 1e-4, 0.03  # what lower solves bring an error down by; n/eta times that error is one of values, not of gradients
DIVERGED = 1e8  # a lower solution, or a bound on its error, as large as this is divergence


class BilevelState(NamedTuple):
    """What the server keeps."""

    x: jax.Array  # the upper variable
    y: jax.Array  # the last pair of lower solutions, end to end; with gradients, the last one
    start: jax.Array  # where lower solves begin without a warm start
    lower_error: jax.Array  # a bound on the error of y
    violation: jax.Array  # by how much y breaks a constraint; positive only where Y is empty
    # Mu and L of the lower level, corrected where closing steps show other ones; None where the user gave both.
    curvature: Any = None
    # With gradients, where the adjoint starts, and a bound on its error; else None.
    adjoint: Any = None
    adjoint_error: Any = None


def middle(points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x and v from x+v and x-v, which is what the server sends."""
    plus, minus = points
    return (plus + minus) / 2, (plus - minus) / 2


@method
class FedRZObl(LowerClosing, AdjointSteps, FedRZO):
    """Zeroth-order federated averaging of an implicit function, whose lower level is itself solved by federated rounds.

    Both losses may differ between clients; y may be constrained by a set that depends on x. The lower level is solved at
    x+v and x-v at the global step only, both in the same messages; local steps use those delayed solutions.

    Args:
        stepsize: the paper's gamma; a number, or a function of the round.
        smoothing: eta.
        local_steps: upper-level local steps per round; a number, or a function of the round.
        batch_size: samples per upper loss value, or `"full"`.
        lower: the method that solves the lower level: `LocalSGD`, `FedAC`, `LFD`, or `FedRZOnn` where there is no gradient.
            By default steps along full gradients, or along 16 drawn samples of a `Sampler`: `LocalSGD`, or `FedAC` if the
            condition number is above 30 (not if the problem has a `lower_descent` of its own, which is `LocalSGD`'s).
        lower_rounds: rounds of the lower method per upper round (a number or a function of the round); by default the
            method's own plan.
        warm_start: start each lower solve from the last one's solutions instead of y0.
        closing: end each lower solve by one exact projected gradient step, whose ends bound the error. It costs two
            communications and two gradients over each client's lower data.
        communication: `"vectors"`, `"scalars"` or `"auto"`, as for `FedRZOnn`: all local steps share one direction, so that a
            client without a set for x sends one number, and rebuilds x from everybody's. The lower level's vectors stay.
        oracle: `"values"`; or `"gradients"`: the lower level is solved at one point, x+v with v drawn in the ball, then its
            adjoint by further rounds (`methods/adjoint.py`); local steps follow gradients.
        directions: with gradients and scalars, how many slopes of each local step's gradient are sent.
        moreau: the parameter of the sets' Moreau term; the smoothing, as in the paper, if not given. x comes to rest that times
            the slope of the loss outside of a set, so that a loss of another scale wants another one.
        privacy: as for `FedRZOnn`, for the upper level's records; only where `lower_data` is given, and declared public.
        envelope: filled in: whether the lower loss is minus the upper one, so that the adjoint takes no rounds.
    """

    lower: Method | None = None
    lower_rounds: Schedule | None = checked(count, default=None)
    warm_start: bool = static(default=True)
    closing: bool = static(default=True)
    constants: StepConstants | None = None
    communication: str = checked(WAYS, default="vectors", static=True)
    oracle: str = checked(ORACLES, default=VALUES, static=True)
    directions: int = checked(whole, default=1, static=True)
    moreau: float | None = checked(constant, default=None)
    envelope: bool = static(default=False)
    privacy: Privacy | None = checked(a_promise, default=None)

    solves = (Bilevel,)
    knows_lower_error = True
    takes_x = "client_points"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower is not None:
            check_serves(self.lower, self.lower_rounds)

    def check(self, problem: WithLowerLoss) -> None:
        """Refuse combinations that cannot work, before anything starts."""
        super().check(problem)
        check_solves(self.lower or LocalSGD(batch_size=usual_batch(problem.lower_data)), problem)
        if self.closing and problem.lower_blackbox:
            raise InputError("closing: it takes a gradient, the lower loss is a black box; pass closing=False")
        if self.by_gradients and not self.closing:
            raise InputError('closing: found False; oracle="gradients" starts from the gradient that closing takes: leave it on')

    def prepare(self, problem: WithLowerLoss) -> Self:
        """Estimate the lower level's constants where they are needed and not given."""
        needed = self.closing or self.lower is None or hasattr(self.lower, "constants")
        self = dataclasses.replace(self, envelope=self.by_gradients and problem.zero_sum)
        if not needed or problem.lower_blackbox or (self.constants is not None and self.lower is not None):
            return self
        constants = self.constants or lower_level(problem)
        error = NEAR if self.by_gradients else CLOSE
        lower = suited(problem, constants, error) if self.lower is None else with_constants(self.lower, constants)
        return dataclasses.replace(self, lower=lower, constants=constants)

    def coded_steps(self, problem: WithLowerLoss) -> Any:
        """Return one where there are no sets for x and all steps add up along one direction."""
        return 1 if problem.sets.free and not self.by_gradients else self.local_steps

    @property
    def slopes_per_step(self) -> int:
        """How many slopes a local step is made of: from values one, since all have the same direction."""
        return self.directions if self.by_gradients else 1

    def init(self, problem: WithLowerLoss, key: jax.Array) -> BilevelState:
        """Line 1; lower solves start at y0 for both points."""
        nothing = jnp.zeros((), jnp.result_type(float))
        y = jnp.asarray(problem.y0, float)
        pair = y if self.by_gradients else jnp.tile(y, 2)
        curvature = self.curvature if self.closing and problem.estimated else None
        adjoint = (jnp.zeros_like(y), nothing) if self.by_gradients else ()
        return BilevelState(jnp.asarray(problem.x0, float), pair, pair, nothing, nothing, curvature, *adjoint)

    def round(self, federation: Federation, state: BilevelState, r: Any) -> BilevelState:
        """Algorithm 2, lines 2-11."""
        words = jax.random.key_data(federation.key())
        points = self.points(state.x, words)  # line 3
        # Line 5, first half: x travels, once, and the key that v is drawn from.
        lower_federation = federation.lower(points, self.lower, self.client_points, state.x, words)
        begin = state.y if self.warm_start else state.start
        y = run_lower(lower_federation, self.lower, begin, r, self.lower_rounds, state.curvature)  # line 4
        if self.closing:
            known = self.curvature if state.curvature is None else state.curvature
            y, closing = start_closing(lower_federation, self, y, known)
        if self.by_gradients:
            start = state.adjoint if self.warm_start else jnp.zeros_like(state.adjoint)
            found = solve_adjoint(lower_federation, self, closing(), start)
            state = state._replace(adjoint=found.w, adjoint_error=found.error)
            x, violation = federation.average(self.client_steps, found._replace(error=None), words)
        else:
            x, violation = federation.average(self.client_steps, y)  # line 5, second half: both solutions; and line 11
        if self.closing:
            y, error, seen, _ = closing()
            state = state._replace(lower_error=error, curvature=None if state.curvature is None else seen)
        return state._replace(x=x, y=y, violation=state.violation if violation is None else violation)

    @property
    def curvature(self) -> jax.Array:
        """The lower level's mu and L at the start: those of its method, by which it steps."""
        known: Any = getattr(self.lower, "constants", None) or self.constants
        return jnp.stack([jnp.asarray(c, float) for c in (known.modulus, known.smoothness)])

    def points(self, x: jax.Array, words: jax.Array) -> jax.Array:
        """Line 3: x+v and x-v, or x+v alone with gradients; who has x needs the words of a key to rebuild them."""
        if self.by_gradients:
            return (x + self.offset(x, words))[None]
        v = directions.sphere(jax.random.wrap_key_data(words), x.size, self.smoothing, x.dtype)
        return jnp.stack([x + v, x - v])

    def offset(self, x: jax.Array, words: jax.Array) -> jax.Array:
        """Return v, drawn in the ball."""
        return directions.ball(jax.random.wrap_key_data(words), x.size, self.smoothing, x.dtype)

    def client_points(self, client: Client, key: jax.Array, memory: None, x: jax.Array, words: jax.Array) -> Reply:
        """Line 3 on a client: the points at which its lower level is looked at."""
        return Reply(self.points(x, words))

    def client_steps(self, client: Client, key: jax.Array, memory: Any, y: Any, words: Any = None) -> Reply:
        """Algorithm 2, lines 6-10: what client i does in round r with the delayed lower solutions, or with their adjoint."""
        if self.by_gradients:
            return self.client_descent(client, key, y, words)
        r = client.round
        x, v = middle(client.points)
        level = client.level.lower_level(client.points)
        y = level.sets.project(client.index, y)
        y_plus, y_minus = level.split(y)

        def difference(x: jax.Array, sample: Any) -> jax.Array:
            return client.loss(x + v, y_plus, sample) - client.loss(x - v, y_minus, sample)

        def local_step(k: Any, sample: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = slope(x.size, self.smoothing, difference(x, sample))  # line 8: times v
            return self.descend(x, found * v, client.project(x), r), found  # line 9

        def slopes(k: Any, keys: jax.Array, x: jax.Array) -> Any:
            return lambda rows: record_by_record(client, lambda batch: difference(x, batch), rows)[:, None] / (2 * self.smoothing)

        def move(x: jax.Array, found: jax.Array, keys: jax.Array) -> jax.Array:
            return self.descend(x, found[0] * v, client.project(x), r)

        steps = at(self.local_steps, r)
        if self.privacy is None:
            x, code = take_coded_steps(client, key, steps, self.batch_size, local_step, x)  # line 6; and 7: xi_{i,k}
        else:
            x, code, memory = private_steps(self, client, key, memory, steps, x, slopes, move)
        # Positive where Y is empty, which the server must learn of; nothing is sent where y has no constraint.
        violation = None if level.sets.free else level.sets.violation(client.index, y)
        return Reply((x, violation), memory, evaluations=2 * steps * client.cost(self.batch_size), code=code)

    def decode(self, x: jax.Array, code: jax.Array, key: jax.Array, client: Any, project: Project, r: Any) -> jax.Array:
        """Return where a client's local steps led; from values, all have one direction, that of the key which is sent with x."""
        if self.by_gradients:
            return super().decode(x, code, key, client, project, r)
        x, v = middle(self.points(x, jax.random.key_data(key)))
        return jax.lax.fori_loop(0, code.shape[0], lambda k, x: self.descend(x, code[k, 0] * v, project(x), r), x)

    def metrics(self, state: BilevelState) -> dict[str, Any]:
        """Return the bound on the lower level's error."""
        found = {"lower_error": state.lower_error} if self.closing else {}
        return found | ({"adjoint_error": state.adjoint_error} if self.by_gradients and not self.envelope else {})

    def healthy(self, state: BilevelState) -> Any:
        """Tell whether x is finite, the lower level has not run away, and Y(x) is not empty."""
        bounded = (state.lower_error < DIVERGED) & (jnp.max(jnp.abs(state.y)) < DIVERGED)
        return jnp.all(jnp.isfinite(state.x)) & bounded & (state.violation < EMPTY)

    def diagnose(self, state: BilevelState, before: np.ndarray) -> str | None:
        """Say what went wrong in a state that is not healthy."""
        if state.violation >= EMPTY:
            at_x = np.array2string(before, precision=4, threshold=8)
            return (
                f"lower_constraint: Y(x) is empty near x = {at_x} (the nearest y breaks it by {state.violation:.3g}); "
                "give a lower_domain on which it is not"
            )
        largest = float(np.abs(state.y).max())
        if not (state.lower_error < DIVERGED and largest < DIVERGED):
            return (
                f"the lower level diverges: its largest entry is {largest:.3g}, the bound on its error "
                f"{state.lower_error:.3g}; use a smaller lower stepsize, or give modulus and smoothness"
            )
        return None
