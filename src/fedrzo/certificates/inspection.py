"""The server program that looks at a point: distances to the clients' sets, their pull, and the lower level there.

Only scalars leave a client one by one (its distance to its set, its slopes in y); the pull of the sets is averaged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.certificates.sampling import Lower, draw
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import method, static
from fedrzo.problems.base import Problem

PROBES = 4  # directions whose two points join x where the lower level's quality is looked at


class Facts(NamedTuple):
    """What is known of a point without sampling directions.

    Attributes:
        x: the point.
        start: where lower solves start, if the server solves them.
        distances: from x to each client's set.
        pull: the mean of the clients' (x - P_i(x))/eta, the gradient of the Moreau term.
        loss: the mean size of the clients' losses at x, for the rounding error.
        error: the bound on ||y - y(x)||.
        slope: the largest slope of a client's loss in y.
        residual: of each client's own lower levels, the worst scenario's; 0 where the server solves it, for the bound tells it.
        shift: by how much such a client's error of y can move its loss; likewise.
    """

    x: jax.Array
    start: Any
    distances: jax.Array
    pull: jax.Array
    loss: jax.Array
    error: jax.Array
    slope: jax.Array
    residual: jax.Array
    shift: jax.Array


@method
class Inspection(Lower):
    """Distances to the clients' sets, their pull, and how well the lower level is solved at x and at points around it."""

    smoothing: Any
    batch_size: int | str = static(default="full")
    lower: Any = None
    constants: Any = None
    differentiable: bool = static(default=True)

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
        return Reply((x - client.project(x)) / self.smoothing)

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
                rise = jax.vmap(
                    jax.vmap(jax.grad(problem.value, argnums=1), (None, 0, problem.scenario_axis)), (0, 0, None)
                )
                slopes = jnp.linalg.norm(rise(points, found.y, batch), axis=-1)
            bound = problem.bounds(points, batch, found)
            return jnp.stack([jnp.abs(values), bound, slopes, found.residual, slopes * bound])

        mean, worst = client.mean_and_worst(figures, client.sample(key, self.batch_size))
        # The loss moves by the mean over scenarios of what each can move; an error is the worst scenario's own.
        seen = jnp.stack([mean[0], worst[1], worst[2], worst[3], mean[4]])
        size = client.cost(self.batch_size) * len(points)
        return Reply(jnp.max(seen, axis=1), evaluations=size, gradients=size if self.differentiable else 0)
