"""QuasiNewton: BFGS on the mean of the clients' losses, for losses with kinks, gradients and a full batch on every client.

The server's part, and where it comes from, is in `descent.py`. One round is one communication: a few points down; their losses,
gradients and distances from the clients' sets up.

A client's set enters by its Moreau term, the squared distance over twice a parameter, and a multiplier that stays with the
client (M. R. Hestenes: "Multiplier and gradient methods", JOTA 4 (1969), 303-320): without one, a point comes to rest outside of
a set by the parameter times the loss's slope, as with FedRZO; with it, the distance goes to zero and the parameter stays large.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.federation.client import FULL, Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, checked, method, within
from fedrzo.methods.descent import Descent, after, begin, trials
from fedrzo.methods.through_lower import UNSOLVED, ThroughLower, check_below
from fedrzo.problems.base import Problem
from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.problems.questions import BY_CLIENTS, BY_SERVER
from fedrzo.problems.two_stage import TwoStage
from fedrzo.support.numbers import constant, whole


class Multiplier(NamedTuple):
    """The memory of a client with a set."""

    pull: jax.Array  # in units of a gradient
    settles: jax.Array  # how often it has changed


class State(NamedTuple):
    """The server's state."""

    x: jax.Array  # the best point so far
    descent: Descent
    words: jax.Array  # data of the key of the smoothing directions, which are the same in all rounds
    below: Any = None  # where lower solves start, in the variable of the normal map; None on one level


@method
class QuasiNewton(ThroughLower, Method):
    """BFGS with a weak Wolfe search; where it ends, it goes on from points drawn in shrinking balls.

    Needs gradients, all of a client's samples in each round and every client in every round; clients' sets stay private. It
    finds minima to many digits where first-order methods crawl, at a few gradients over all data a round. The points in balls
    around x have the role of the paper's smoothing, which is the mean of the loss over such a ball: here the loss itself is
    minimised, and the ball is searched for a way on.

    Args:
        stepsize: the length of a first step, and the radius of the largest ball that points are drawn in.
        smoothing: eta, the radius of the ball that the loss is averaged over; if not given, the loss itself is minimised.
        directions: pairs of opposite points in that ball, the same in all rounds, so that the average is one function.
        moreau: the parameter of the sets' Moreau term at the start; the stepsize if not given.
        multipliers: 1, or 0 for the Moreau term alone, whose minimiser is outside of the sets by the parameter times the slope.
    """

    stepsize: float = checked(constant)
    smoothing: float | None = checked(constant, default=None)
    directions: int = checked(whole, default=4, static=True)
    moreau: float | None = checked(constant, default=None)
    multipliers: float = checked(within(lambda value: value in (0, 1), "1, or 0 for the Moreau term alone"), default=1.0)

    solves = (Nonsmooth, Bilevel, TwoStage)
    needs_gradients = True
    needs_everyone = True
    serves_below = False
    batch_size: ClassVar[str] = FULL

    @property
    def moreau_parameter(self) -> Any:
        """The parameter of the sets' Moreau term at the start."""
        return self.stepsize if self.moreau is None else self.moreau

    def check(self, problem: Problem) -> None:
        """Refuse data that are drawn, of which no client has all."""
        if not problem.data.stored:
            raise InputError("data: QuasiNewton compares losses over all samples, which a Sampler has not; use fz.FedRZOnn")
        super().check(problem)
        if problem.hierarchical:
            if problem.lower_solved_by == BY_SERVER:
                check_below(problem, type(self).__name__)
            if self.smoothing is not None:
                raise InputError("smoothing: found a number for a problem with a lower level; leave it out")

    def init(self, problem: Problem, key: jax.Array) -> State:
        """Start at x0."""
        x = problem.start
        below = problem.start_below if problem.lower_solved_by == BY_SERVER else None
        return State(x, begin(x, self.stepsize, self.moreau_parameter), jax.random.key_data(key), below)

    def init_memory(self, problem: Any) -> Multiplier | None:
        """Return a multiplier of zero for a set of x."""
        return None if problem.nested or problem.sets.free else Multiplier(jnp.zeros_like(problem.start), jnp.int32(0))

    def healthy(self, state: State) -> Any:
        """Return whether the loss is finite at the current point."""
        return jnp.isfinite(state.descent.value) & jnp.all(jnp.isfinite(state.x))

    def diagnose(self, state: State, before: Any) -> str | None:
        """Return that the lower level is not solved, if that is why a state is not healthy."""
        return None if state.below is None else UNSOLVED

    def round(self, federation: Federation, state: State, r: Any) -> State:
        """Look at a few points and go on from what is seen; a look that a client missed is of no use and is asked for again."""
        d = state.descent
        z = trials(d, federation.key())
        sent = (d.settles, d.moreau, state.words)
        if state.below is None:
            seen = federation.gather(self.look, z, None, *sent)
            (values, slopes, pulled, squares), share, below = seen.mean(), seen.share, None
        else:
            view = federation.lower(z, self)
            solved = self.solve_below(view, state.below, z.shape[0])
            seen = federation.gather(self.look, z, solved.zero.best_y, *sent)
            values, (f_x, f_y), pulled, squares = seen.mean()
            slopes, across = self.hypergradients(view, solved, f_x, f_y)
            values, share = (
                jnp.where(solved.fine > 0, values, jnp.nan),
                jnp.minimum(jnp.minimum(solved.share, across), seen.share),
            )
            below = solved.zero.best_z
        gradients = slopes if pulled is None else slopes + pulled
        settling = (pulled is not None) & (jnp.asarray(self.multipliers) > 0)
        away = jnp.zeros_like(values) if pulled is None else jnp.sqrt(squares)
        new = after(d, z, values, gradients, away, self.stepsize, settling)
        if below is not None:  # the next lower solves start at the solution nearest to where the descent is
            below = below[jnp.argmin(jnp.where(jnp.isfinite(values), jnp.sum((z - new.z) ** 2, axis=1), jnp.inf))]
        after_this = State(new.x, new, state.words, below)
        return jax.tree.map(lambda new, old: jnp.where(share > 1 - 1e-6, new, old), after_this, state)

    def look(
        self, client: Client, key: jax.Array, kept: Multiplier | None, z: jax.Array, y: Any, settles: Any, moreau: Any, words: Any
    ) -> Reply:  # fmt: skip
        """Return this client's loss and its gradient at each row of z (and of y), the pull of its set, the squared distance."""
        level, samples, steps = client.level, client.sample(key, FULL), jnp.int32(0)
        if level.lower_solved_by == BY_CLIENTS:
            values, slopes, taken = client.mean(lambda z, batch: self.through_scenarios(client, z, batch), z, samples)
            steps = jnp.round(jnp.sum(taken) * client.cost(FULL)).astype(jnp.int32)
        elif y is None:
            values, slopes = client.mean(lambda z, batch: self.slopes(level, words, z, batch), z, samples)
        else:
            both = jax.value_and_grad(level.value, (0, 1))
            values, slopes = client.mean(lambda z, y, batch: jax.vmap(lambda x, y: both(x, y, batch))(z, y), z, y, samples)
        counted = z.shape[0] * (1 if self.smoothing is None else 2 * self.directions) * client.cost(FULL)
        if kept is None:
            return Reply((values, slopes, None, None), gradients=counted, steps=steps)
        shifted = z + moreau * kept.pull
        pulled = (shifted - jax.vmap(client.project)(shifted)) / moreau
        values = values + moreau / 2 * jnp.sum(pulled**2 - kept.pull**2, axis=1)
        # The distance to a point of the set, which is the nearest one once multipliers have settled.
        squares = moreau**2 * jnp.sum((pulled - kept.pull) ** 2, axis=1)
        pull = jnp.where(settles > kept.settles, pulled[0], kept.pull)  # all rows are equal where multipliers change
        return Reply((values, slopes, pulled, squares), Multiplier(pull, settles), gradients=counted, steps=steps)

    def through_scenarios(self, client: Client, z: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the mean loss over scenarios, its gradient, and the mean number of lower steps, at each row of z."""

        def one(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            values, gradients, found = client.level.with_gradients(x, batch, client.level.monitor, 1, client.index)
            return jnp.mean(values), jnp.mean(gradients, axis=0), jnp.mean(found.steps.astype(x.dtype))

        return jax.vmap(one)(z)

    def slopes(self, level: Any, words: jax.Array, z: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
        """Return the loss of a batch and its gradient at each row of z, or their means over a ball around it."""
        both = jax.value_and_grad(level.value)
        if self.smoothing is None:
            return jax.vmap(lambda x: both(x, batch))(z)
        key, n = jax.random.wrap_key_data(words), z.shape[1]
        noise = jax.random.normal(key, (self.directions, n), z.dtype)
        radii = jax.random.uniform(jax.random.fold_in(key, 0), (self.directions, 1), z.dtype) ** (1 / n)
        v = self.smoothing * radii * noise / jnp.linalg.norm(noise, axis=1, keepdims=True)

        def averaged(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = jax.vmap(lambda point: both(point, batch))(x + jnp.concatenate([v, -v]))
            return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), found)

        return jax.vmap(averaged)(z)
