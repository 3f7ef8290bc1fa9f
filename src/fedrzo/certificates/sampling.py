"""The server program that samples a certificate's directions, by the federation's own calls, and the checks of what it is asked.

Differences of losses leave a client, one number for each direction, and are averaged; single-level and two-stage clients rebuild
the directions from a seed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo import vi
from fedrzo.certificates.interval import BLOCKS
from fedrzo.errors import InputError
from fedrzo.federation import directions
from fedrzo.federation.client import FULL, Client, check_batch_size
from fedrzo.federation.estimators import slope
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, batch, method, static
from fedrzo.methods.closing import LowerClosing, close
from fedrzo.methods.fedac import suited
from fedrzo.methods.fedrzo import ORACLES, check_gradients
from fedrzo.methods.fedrzo_bl import EMPTY
from fedrzo.methods.lower import run_lower, with_constants
from fedrzo.methods.through_lower import ThroughLower, check_below
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import FLOOR, StepConstants, lower_level
from fedrzo.problems.questions import BY_CLIENTS, BY_SERVER
from fedrzo.support.numbers import constant, whole
from fedrzo.vi.base import check_solver

DRAWN = 64  # samples per loss value where they are drawn on demand
AGAIN = 8  # times that the one direction there is where n = 1 is asked about: a black box may be noisy
ACCURATE = 1e-16  # by what factor the lower level's first error is brought down
HESSIANS = 4e7  # entries of all clients' lower Hessians and projections' derivatives at once, at most
AT_A_TIME = 8  # directions that a client evaluates together


def direction(key: jax.Array, j: Any, x: jax.Array, smoothing: Any) -> jax.Array:
    """Return direction j of a key; whoever knows the key can rebuild it."""
    return directions.sphere(jax.random.fold_in(key, j), x.size, smoothing, x.dtype)


def draw(key: jax.Array, count: int, x: jax.Array, smoothing: Any) -> jax.Array:
    """Return the first directions of a key, one per row."""
    return jax.vmap(lambda j: direction(key, j, x, smoothing))(jnp.arange(count))


class Lower(LowerClosing, ThroughLower, Method):
    """What the programs share on problems with a lower level."""

    lower: Any
    constants: Any
    newton: bool  # whether the server solves the lower level by Newton steps instead

    again = 2  # an error of y counts n/eta times, so only rounding may be left

    @property
    def federated(self) -> bool:
        """Whether the lower level is solved by federated rounds (Bilevel, Minimax) rather than by each client."""
        return isinstance(self.lower, Method)

    def solve(self, federation: Federation, points: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Solve the lower level at several points at once; a bound on the error of all solutions together comes along.

        A residual of the normal map is the length of an element of the gradient plus the normal cone at y, as that of `close` is:
        over the modulus, it bounds the error. The level may bend less at y than where its modulus was measured.
        """
        if self.newton:
            zero = self.solve_below(federation.lower(points, self), start, points.shape[0]).zero
            mu, L = self.constants.modulus, self.constants.smoothness
            least = jnp.linalg.eigvalsh((zero.best_slope + zero.best_slope.transpose(0, 2, 1)) / 2)[:, 0]
            return zero.best_y.ravel(), jnp.linalg.norm(zero.residual / jnp.clip(least, FLOOR * L, mu))
        lower_federation = federation.lower(points, self.lower)
        y = run_lower(lower_federation, self.lower, jnp.tile(start, points.shape[0]), 0, None)
        y, error, *_ = close(lower_federation, self, y, (self.constants.modulus, self.constants.smoothness))
        return y, error

    def ask(self, view: Federation, step: Callable[..., Reply], *shared: Any) -> tuple[Any, Any]:
        """Run one communication and return the mean alone, so that no client shows its own gradient or Hessian."""
        return view.average(step, *shared), 1.0

    def received(self, client: Client, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the y that a client was sent, a row for each point, and whether they show that some Y(x) is empty."""
        level = client.level.lower_level(client.points)
        y = y if self.newton else level.sets.project(client.index, y)
        return level.split(y), level.sets.violation(client.index, y) > EMPTY


class Means(NamedTuple):
    """The blocks' mean estimates of the smoothed gradient so far, one per row; `lower_error` bounds the error of any y used."""

    x: jax.Array
    start: Any
    means: jax.Array
    lower_error: jax.Array


@method
class Sampling(Lower):
    """Estimates along `repeats` more directions in each round for each of the blocks; a message asks for one of every block.

    From values they are two-point estimates, from gradients those at points drawn in the ball.
    """

    smoothing: Any
    repeats: Any = 1
    batch_size: int | str = static(default="full")
    lower: Any = None
    constants: Any = None
    oracle: str = static(default="values")
    blocks: int = static(default=BLOCKS)
    newton: bool = static(default=False)

    solves = (Problem,)

    def init(self, problem: Problem, key: jax.Array) -> Means:
        """Start with empty blocks at the problem's x0, which is the point in question."""
        x = problem.start
        start = problem.start_below if self.federated else None
        return Means(x, start, jnp.zeros((self.blocks, x.size), x.dtype), jnp.zeros((), x.dtype))

    def healthy(self, state: Means) -> Any:
        """Tell whether all losses were finite."""
        return jnp.all(jnp.isfinite(state.means))

    def round(self, federation: Federation, state: Means, r: Any) -> Means:
        """Add to all blocks."""
        x, eta = state.x, self.smoothing

        def add(inner: Federation, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total, error = carry
            key = inner.key()
            if self.oracle == "gradients":
                return total + inner.average(self.gradients, x, jax.random.key_data(key)), error
            v = draw(key, self.blocks, x, eta)
            if self.federated:
                y, bound = self.solve(inner, jnp.concatenate([x + v, x - v]), state.start)
                gaps, error = inner.average(self.gaps_with_y, y), jnp.maximum(error, bound)
            else:
                gaps = inner.average(self.gaps, x, jax.random.key_data(key))
            return total + slope(x.size, eta, gaps)[:, None] * v, error

        total, error = federation.repeat(self.repeats, add, (jnp.zeros_like(state.means), state.lower_error))
        return Means(x, state.start, state.means + (total / self.repeats - state.means) / (r + 1), error)

    @property
    def certain(self) -> bool:
        """Whether nothing that is random is left where n = 1: v and -v give one estimate, of all samples and of exact solves."""
        return self.oracle == "values" and FULL == self.batch_size == getattr(self.lower, "batch_size", FULL)

    def gaps(self, client: Client, key: jax.Array, memory: None, x: jax.Array, words: jax.Array) -> Reply:
        """Return this client's loss at x+v minus that at x-v for each direction; every direction has samples of its own."""
        shared = jax.random.wrap_key_data(words)

        def one(j: jax.Array) -> tuple[jax.Array, jax.Array]:
            v = direction(shared, j, x, self.smoothing)  # one by one: all of them may be too many to hold
            batch = client.sample(jax.random.fold_in(key, j), self.batch_size)
            if self.lower is None:
                return client.difference(x, v, batch), jnp.zeros((), x.dtype)
            plus, minus, taken = client.implicit(jnp.stack([x + v, x - v]), batch, self.lower, 1)
            return plus - minus, taken

        gaps, taken = jax.lax.map(one, jnp.arange(self.blocks), batch_size=AT_A_TIME)
        size = client.cost(self.batch_size)
        return Reply(gaps, evaluations=2 * self.blocks * size, steps=jnp.round(jnp.sum(taken) * size).astype(jnp.int32))

    def gradients(self, client: Client, key: jax.Array, memory: None, x: jax.Array, words: jax.Array) -> Reply:
        """Return this client's gradient at a point for each block, drawn in the ball around x: the same for all clients."""
        shared = jax.random.wrap_key_data(words)

        def one(j: jax.Array) -> jax.Array:
            v = directions.ball(jax.random.fold_in(shared, j), x.size, self.smoothing, x.dtype)
            return client.gradient(x + v, client.sample(jax.random.fold_in(key, j), self.batch_size))

        found = jax.lax.map(one, jnp.arange(self.blocks), batch_size=AT_A_TIME)
        return Reply(found, gradients=self.blocks * client.cost(self.batch_size))

    def gaps_with_y(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Return the same where the lower solutions at all points come from the server; NaN where some Y(x) is empty."""
        solutions, empty = self.received(client, y)
        pairs = [jnp.stack(jnp.split(rows, 2), 1) for rows in (client.points, solutions)]

        def one(item: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            points, ys, j = item
            batch = client.sample(jax.random.fold_in(key, j), self.batch_size)
            return client.loss(points[0], ys[0], batch) - client.loss(points[1], ys[1], batch)

        gaps = jax.lax.map(one, (*pairs, jnp.arange(self.blocks)), batch_size=AT_A_TIME)
        return Reply(jnp.where(empty, jnp.nan, gaps), evaluations=2 * self.blocks * client.cost(self.batch_size))


def check_numbers(directions: Any, width: Any, max_directions: Any, confidence: Any, threshold: Any) -> None:
    """Refuse numbers that say nothing."""
    if directions is not None:
        whole(directions, "directions")
    whole(max_directions, "max_directions")
    check_confidence(confidence)
    if width is not None:
        constant(width, "width")
    if threshold is not None:
        constant(threshold, "threshold")
        if width is None:
            raise InputError("threshold: found one without a width; only an adaptive sample has pilots: pass width=")


def check_confidence(confidence: Any) -> None:
    """Refuse a confidence that is none."""
    if constant(confidence, "confidence") >= 1:
        raise InputError(f"confidence: found {confidence!r}; pass a number between 0 and 1, such as 0.95")


def check_oracle(problem: Problem, smoothing: Any, oracle: Any) -> None:
    """Refuse gradients where they cannot be had; of the problem as it was stated, which is looked at once."""
    if ORACLES(oracle, "oracle") != "gradients":
        return
    if problem.hierarchical:
        raise InputError('oracle: found "gradients", but the error of a lower level is bounded for values only: leave it out')
    check_gradients(problem, constant(smoothing, "smoothing"))


def sampling_program(problem: Problem, smoothing: Any, batch_size: Any, lower: Any, oracle: str = "values") -> Sampling:
    """Return what samples directions at the problem's x0; refuse what cannot work on this problem."""
    smoothing = constant(smoothing, "smoothing")
    chosen = batch((FULL if problem.data.stored else DRAWN) if batch_size is None else batch_size, "batch_size")
    check_batch_size(chosen, problem.data)
    newton = lower is None and _newton_fits(problem)
    return Sampling(smoothing, 1, chosen, *_lower(problem, lower), oracle=oracle, newton=newton)


def _newton_fits(problem: Any) -> bool:
    """Return whether the server can solve the lower level by Newton steps, with few enough Hessians at a time."""
    if problem.lower_solved_by != BY_SERVER:
        return False
    q = problem.layouts["y0"].size
    if q > vi.LARGEST or 2 * (2 * BLOCKS * q**2) * problem.clients > HESSIANS:  # and as many derivatives of projections
        return False
    try:
        check_below(problem, "certify")
    except InputError:
        return False
    return True


def _lower(problem: Any, lower: Any) -> tuple[Any, StepConstants | None]:
    """Return what solves the lower level, and the constants that bound its error where the server solves it."""
    if problem.lower_solved_by is None:
        if lower is not None:
            raise InputError("lower: found one, but the problem has no lower level; leave it out")
        return None, None
    if problem.lower_solved_by == BY_CLIENTS:
        return problem.monitor if lower is None else check_solver(lower, "lower"), None
    if problem.lower_blackbox:
        raise InputError("lower: the lower loss is a black box; its error is bounded by gradients, so it must be JAX code")
    if lower is None and not problem.lower_data.stored:
        raise InputError(
            "lower: lower data drawn on demand allow no exact solve; pass a method, such as fz.LocalSGD(), or store samples"
        )
    constants = lower_level(problem)
    chosen = suited(problem, constants, ACCURATE) if lower is None else lower
    if not isinstance(chosen, Method) or not hasattr(chosen, "plan"):
        raise InputError(f"lower: found {type(chosen).__name__}; pass a method such as fz.LocalSGD() or fz.FedAC()")
    check_batch_size(getattr(chosen, "batch_size", 1), problem.lower_data)
    return with_constants(chosen, constants), constants
