"""The server programs that look at a point: distances to the clients' sets, their pull, and the lower level there.

Only scalars leave a client one by one (its distance to its set, its slopes in y); the pull of the sets is averaged.
"""

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.certificates.sampling import Lower, draw
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Cost, Federation, Reply
from fedrzo.methods.base import Method, method, static
from fedrzo.problems.base import Problem

SWEEPS, AT_ONCE = 4000, 50
CLOSE = 1e-6  # how near to x every client's point must be, relative to 1 + |x|
PROBES = 4  # directions whose two points join x where the lower level's quality is looked at


class Facts(NamedTuple):
    """What is known of a point without sampling directions."""

    x: jax.Array  # the point
    start: Any  # where lower solves start, if the server solves them
    distances: jax.Array  # from x to each client's set
    pull: jax.Array  # the mean of the clients' (x - P_i(x))/eta, the gradient of the Moreau term
    loss: jax.Array  # the mean size of the clients' losses at x, for the rounding error
    error: jax.Array  # the bound on ||y - y(x)||
    slope: jax.Array  # the largest slope of a client's loss in y
    # Of each client's own lower levels, the worst scenario's; 0 where the server solves it, for the bound tells it.
    residual: jax.Array
    shift: jax.Array  # by how much such a client's error of y can move its loss; likewise


@method
class Inspection(Lower):
    """Distances to the clients' sets, their pull, and how well the lower level is solved at x and at points around it."""

    smoothing: Any
    batch_size: int | str = static(default="full")
    lower: Any = None
    constants: Any = None
    differentiable: bool = static(default=True)
    moreau: Any = None  # the parameter of the Moreau term, where it is not the smoothing
    newton: bool = static(default=False)

    solves = (Problem,)

    def init(self, problem: Problem, key: jax.Array) -> Facts:
        """Start at the problem's x0."""
        x = problem.start
        start = problem.start_below if self.federated else None
        nothing = jnp.zeros((), x.dtype)
        return Facts(x, start, jnp.zeros(problem.clients, x.dtype), jnp.zeros_like(x), *[nothing] * 5)

    def round(self, federation: Federation, state: Facts, r: Any) -> Facts:
        """Ask for distances one by one, for the pull and the loss as means, then look at the lower level."""
        x = state.x
        distances = federation.gather(self.distance, x).values
        pull = federation.average(self.pull, x)
        found = state._replace(distances=distances, pull=pull)
        if self.lower is None:
            return found._replace(loss=federation.average(self.loss, x))
        v = draw(federation.key(), PROBES, x, self.smoothing)
        points = jnp.concatenate([x[None], x + v, x - v])
        if not self.federated:
            # The worst client, not the mean, for each figure.
            seen = jnp.max(federation.gather(self.scenarios, points).values, axis=0)
            return found._replace(loss=seen[0], error=seen[1], slope=seen[2], residual=seen[3], shift=seen[4])
        y, error = self.solve(federation, points, state.start)
        seen = jnp.max(federation.gather(self.slopes, y).values, axis=0)
        return found._replace(loss=seen[0], error=error, slope=seen[1])

    def distance(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Return the distance to this client's set: one number."""
        return Reply(jnp.linalg.norm(x - client.project(x)))

    def pull(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Return the gradient of this client's Moreau term."""
        return Reply((x - client.project(x)) / (self.smoothing if self.moreau is None else self.moreau))

    def loss(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Return the size of this client's loss."""
        value = jnp.abs(client.loss(x, client.sample(key, self.batch_size)))
        return Reply(value, evaluations=client.cost(self.batch_size))

    def slopes(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Return the loss at x, and the largest slope in y of this client's loss over the points."""
        solutions, _ = self.received(client, y)
        batch = client.sample(key, self.batch_size)
        value = jnp.abs(client.loss(client.points[0], solutions[0], batch))
        if not self.differentiable:
            return Reply(jnp.stack([value, jnp.full_like(value, jnp.nan)]), evaluations=client.cost(self.batch_size))
        rise = jax.grad(client.level.value, argnums=1)
        slopes = jax.vmap(lambda x, y: jnp.linalg.norm(client.mean(rise, x, y, batch)))(client.points, solutions)
        size = client.cost(self.batch_size)
        return Reply(jnp.stack([value, jnp.max(slopes)]), evaluations=size, gradients=len(slopes) * size)

    def scenarios(self, client: Client, key: jax.Array, memory: None, points: jax.Array) -> Reply:
        """Return, the largest over the points: mean |loss|, largest bound, slope and residual, mean of slope times bound."""
        problem = client.level

        def figures(batch: Any) -> jax.Array:
            values, found = problem.implicit(points, batch, self.lower, 1, client.index)
            slopes = jnp.full_like(values, jnp.nan)
            if self.differentiable:
                rise = jax.vmap(jax.vmap(jax.grad(problem.value, argnums=1), (None, 0, problem.scenario_axis)), (0, 0, None))
                slopes = jnp.linalg.norm(rise(points, found.y, batch), axis=-1)
            bound = problem.bounds(points, batch, found)
            return jnp.stack([jnp.abs(values), bound, slopes, found.residual, slopes * bound])

        mean, worst = client.mean_and_worst(figures, client.sample(key, self.batch_size))
        # The loss moves by the mean over scenarios of what each can move; an error is the worst scenario's own.
        seen = jnp.stack([mean[0], worst[1], worst[2], worst[3], mean[4]])
        size = client.cost(self.batch_size) * len(points)
        return Reply(jnp.max(seen, axis=1), evaluations=size, gradients=size if self.differentiable else 0)


class Point(NamedTuple):
    """A sweep's point, and how far the clients' own points were from the one before, on average."""

    x: jax.Array
    apart: jax.Array


@method
class Nearest(Method):
    """Dykstra's method for the product of the clients' sets and the points that all clients share.

    Each client keeps its own correction p_i and sends a projected point z_i, of which the server sees the mean. Corrections are
    normal to the sets at z_i, and their mean is what x has moved since the start: where all z_i are x, x is the nearest point.
    Neither an x that stands still nor one that lies in all sets shows as much.
    """

    solves = (Problem,)

    def init(self, problem: Problem, key: jax.Array) -> Point:
        """Start at the problem's x0."""
        return Point(problem.start, jnp.asarray(jnp.inf, problem.start.dtype))

    def init_memory(self, problem: Problem) -> Any:
        """Start without a correction."""
        return jnp.zeros_like(problem.start)

    def round(self, federation: Federation, state: Point, r: Any) -> Point:
        """Run one sweep."""
        return Point(*federation.average(self.visit, state.x))

    def visit(self, client: Client, key: jax.Array, memory: jax.Array, x: jax.Array) -> Reply:
        """Project the corrected point, and remember what that took away."""
        start = x + memory
        nearest = client.project(start)
        return Reply((nearest, jnp.linalg.norm(nearest - x)), memory=start - nearest)


def distance_to_all(problem: Problem, engine: Any, key: jax.Array) -> tuple[float, bool, Cost]:
    """Return the distance from the problem's x0 to the intersection of its clients' sets, whether it was found, and the cost."""
    start = np.asarray(problem.x0, float)
    close = CLOSE * (1 + np.linalg.norm(start)) * float(np.min(problem.client_weights))
    if start.dtype != problem.layout.dtype:  # single precision ends earlier
        close *= 100
    with contextlib.closing(engine.start([Nearest()], problem, [key], None)) as session:
        for _ in range(SWEEPS // AT_ONCE):
            session.advance(AT_ONCE)
            [state] = session.states()
            if state.apart <= close:
                break
        distance = float(np.linalg.norm(np.asarray(state.x, float) - start))
        return distance, bool(state.apart <= close), session.costs()[0]
