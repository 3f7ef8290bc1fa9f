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

from fedrzo.errors import InputError
from fedrzo.federation import directions
from fedrzo.federation.catch_up import Either, Missed
from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.estimators import slope
from fedrzo.federation.protocol import Federation, Gathered, Reply, weighted_mean
from fedrzo.methods.base import at, check_zeroth_order, method, set_fields, static
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.methods.lower import LowerClosing, check_serves, check_solves, close, run_lower
from fedrzo.methods.scalarplan import Record, check_communication, planned
from fedrzo.methods.scalars import SendsScalars, initial_state, lost_track, padded, take
from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.curvature import lower_level
from fedrzo.support.numbers import Schedule, count

EMPTY = 1e-4  # a projection onto Y(x) that misses a constraint by more than this says that Y(x) is empty
WILD = 1e8  # a lower solution, or a bound on its error, as large as this is divergence


class BilevelState(NamedTuple):
    """What the server keeps.

    Attributes:
        x: the upper variable.
        y: the last pair of lower solutions, end to end.
        start: where lower solves begin without a warm start.
        lower_error: a bound on the error of y.
        curvature: mu and L of the lower level, corrected where closing steps show other ones; None where the user gave both.
        violation: by how much y breaks a constraint; positive only where Y is empty.
        records: where scalars travel, the latest rounds' (see `ScalarState`).
        first: for each client the first of them that it has not replayed.
    """

    x: jax.Array
    y: jax.Array
    start: jax.Array
    lower_error: jax.Array
    violation: jax.Array
    curvature: Any = None
    records: Any = None
    first: Any = None


def middle(points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x and v from x+v and x-v, which is what the server sends."""
    plus, minus = points
    return (plus + minus) / 2, (plus - minus) / 2


@method
class FedRZObl(LowerClosing, SendsScalars):
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
        closing: end each lower solve by one exact projected gradient step, whose ends bound the error. It costs two
            communications and two gradients over each client's lower data.
        communication: `"vectors"`, `"scalars"` or `"auto"`, as for `FedRZOnn`: all local steps share one direction, so that a
            client without a set for x sends one number, and rebuilds x+v and x-v from everybody's.
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
    knows_lower_error = True

    def __post_init__(self) -> None:
        check_communication(self)
        check_serves(self.lower, self.lower_rounds)
        check_zeroth_order(self)
        set_fields(self, lower_rounds=None if self.lower_rounds is None else count(self.lower_rounds, "lower_rounds"))

    def check(self, problem: Any) -> None:
        """Refuse combinations that cannot work, before anything starts."""
        super().check(problem)
        check_solves(self.lower, problem)
        if self.closing and problem.lower_blackbox:
            raise InputError("closing: it takes a gradient, the lower loss is a black box; pass closing=False")

    def prepare(self, problem: Any) -> FedRZObl:
        """Estimate the lower level's constants where they are needed and not given."""
        needed = self.closing or hasattr(self.lower, "constants")
        if self.constants is not None or not needed or problem.lower_blackbox:
            return self
        constants = lower_level(problem)
        lower = self.lower
        if getattr(lower, "constants", constants) is None:
            lower = dataclasses.replace(lower, constants=constants)
        return dataclasses.replace(self, lower=lower, constants=constants)

    def for_cohort(self, problem: Any, size: int) -> FedRZObl:
        """Decide how rounds travel: one number where there are no sets, since all steps then add up along one direction."""
        steps = 1 if problem.sets.free else self.local_steps
        return planned(self, problem, size, steps, slopes=1, rebuilt=True)

    def init(self, problem: Any, key: jax.Array) -> BilevelState:
        """Line 1; lower solves start at y0 for both points."""
        del key
        nothing = jnp.zeros((), jnp.result_type(float))
        pair = jnp.tile(jnp.asarray(problem.y0, float), 2)
        curvature = self.curvature if self.closing and problem.estimated else None
        state = BilevelState(jnp.asarray(problem.x0, float), pair, pair, nothing, nothing, curvature)
        if self.scalars is None:
            return state
        return state._replace(**initial_state(self.scalars, state.x, 1, problem.clients)._asdict())

    def init_memory(self, problem: Any) -> Any:
        """Return what a client that rebuilds x starts from: x0, and that it has not lost track."""
        x = super().init_memory(problem)
        return None if x is None else (x, jnp.bool_(False))

    def round(self, federation: Federation, state: BilevelState, r: Any) -> BilevelState:
        """Algorithm 2, lines 2-11."""
        words = jax.random.key_data(federation.key())
        points = self.points(state.x, words)  # line 3
        below = federation.lower(points, self.lower, *self.told(state, words, r))  # line 5, first half: sent once
        begin = state.y if self.warm_start else state.start
        y = run_lower(below, self.lower, begin, r, self.lower_rounds, state.curvature)  # line 4
        state = state._replace(y=y)
        if self.closing:
            y, error, seen = close(below, self, y, self.curvature if state.curvature is None else state.curvature)
            state = state._replace(y=y, lower_error=error, curvature=None if state.curvature is None else seen)
        if self.scalars is not None:
            return self.take_scalars(state, federation.gather(self.client_scalars, y), words, r)
        x, violation = federation.average(self.client_steps, y)  # line 5, second half: both solutions; and line 11
        return state._replace(x=x, violation=state.violation if violation is None else violation)

    @property
    def curvature(self) -> jax.Array:
        """The lower level's mu and L at the start: those of its method, by which it steps."""
        known = getattr(self.lower, "constants", None) or self.constants
        return jnp.stack([jnp.asarray(c, float) for c in (known.modulus, known.smoothness)])

    def points(self, x: jax.Array, words: jax.Array) -> jax.Array:
        """Line 3: x+v and x-v; who has x needs the words of a key to rebuild them."""
        v = directions.sphere(jax.random.wrap_key_data(words), x.size, self.smoothing, x.dtype)
        return jnp.stack([x + v, x - v])

    def told(self, state: BilevelState, words: jax.Array, r: Any) -> tuple:
        """Return how clients get the points, where these do not travel themselves: a step, and what it needs."""
        if self.scalars is None:
            return ()
        missed = Missed(state.records, state.x, state.first, r) if self.scalars.kept else state.x
        return self.client_points, missed, words

    def take_scalars(self, state: BilevelState, replies: Gathered, words: jax.Array, r: Any) -> BilevelState:
        """Line 11 from slopes: replay what every client did, and average."""
        arrays = padded((replies.values, replies.weights, replies.ids), self.scalars.participants)
        (sent, violation), weights, ids = arrays
        if violation is not None:
            state = state._replace(violation=weighted_mean(violation, weights))
        return take(self, state, sent, weights, ids, words, jnp.int32(r))

    def client_points(self, client: Client, key: jax.Array, memory: Any, shared: Any, words: jax.Array) -> Reply:
        """Rebuild the average from what it was and what all clients sent since, and from it the points."""
        del client, key
        if not self.scalars.kept:
            return Reply(self.points(shared, words))
        x = shared.catch_up(memory[0], self.replay)
        return Reply(self.points(x, words), memory=(x, lost_track(shared, x)))

    def client_steps(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Algorithm 2, lines 6-10: what client i does in round r with the delayed lower solutions."""
        del memory
        x, _, violation = self.local_steps_from(client, key, y, 1)
        return Reply((x, violation), evaluations=self._evaluations(client))

    def client_scalars(self, client: Client, key: jax.Array, memory: Any, y: jax.Array) -> Reply:
        """The same, but the slopes are sent: one number, their sum, where nothing else moves x."""
        lost = jnp.bool_(False) if memory is None else memory[1]
        x, slopes, violation = self.local_steps_from(client, key, y, self.scalars.steps)
        value = Either(slopes[:, None], x, lost | jnp.logical_not(self.scalars.tell(client)))
        return Reply((value, violation), evaluations=self._evaluations(client))

    def local_steps_from(
        self, client: Client, key: jax.Array, y: jax.Array, numbers: int
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Return where the local steps lead, their slopes (added up, if there is room for one number), and how Y is broken."""
        x, v = middle(client.points)
        level = client.level.lower_level(client.points)
        y = level.sets.project(client.index, y)
        y_plus, y_minus = level.split(y)

        def local_step(k: Any, sample: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, slopes = carry
            difference = client.loss(x + v, y_plus, sample) - client.loss(x - v, y_minus, sample)
            found = slope(x.size, self.smoothing, difference)  # line 8: times v
            slopes = slopes.at[jnp.minimum(k, numbers - 1)].add(found)
            return self.descend(x, found * v, client.project(x), client.round), slopes  # line 9

        steps = at(self.local_steps, client.round)
        begin = (x, jnp.zeros(numbers, x.dtype))
        x, slopes = take_steps(client, key, steps, self.batch_size, local_step, begin)  # line 6; and 7: xi_{i,k}
        # Positive where Y is empty, which the server must learn of; nothing is sent where y has no constraint.
        return x, slopes, None if level.sets.free else level.sets.violation(client.index, y)

    def _evaluations(self, client: Client) -> Any:
        return 2 * at(self.local_steps, client.round) * client.cost(self.batch_size)

    def replay_steps(self, x: jax.Array, record: Record, i: Any, r: Any) -> jax.Array:
        """Return where the local steps of the record's i-th client led, from its slopes."""
        x, v = middle(self.points(x, record.key))

        def step(k: Any, y: jax.Array) -> jax.Array:
            return self.descend(y, record.slopes[i, k] * v, self.scalars.project(record.ids[i], y), r)

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
