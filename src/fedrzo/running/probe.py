"""Clients' losses at points that the server asks about, as calls of the federation: every number is charged."""

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.simulation.compiled import Clock, Keys, Ledger, SimulatedFederation, Tally, everyone
from fedrzo.engines.simulation.spread import Spread
from fedrzo.federation.client import FULL, Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, at, method, static
from fedrzo.methods.closing import close
from fedrzo.methods.lower import run_lower
from fedrzo.problems.base import Problem
from fedrzo.problems.questions import BY_CLIENTS, BY_SERVER

LEAST = 64  # samples per client that a loss is judged on, unless there are fewer


@method
class LossProbe(Method):
    """Asks each client for its loss, with the Moreau term of its set, at some points.

    That is the function which the FedRZO family minimises, but for the smoothing. All points see the same samples. Lower
    levels are solved by the owner's own means.
    """

    owner: Any  # a method of the FedRZO family
    batch_size: int | str = static(default=1)  # samples per client

    @classmethod
    def of(cls, owner: Any, problem: Problem) -> Self:
        """Choose the samples: as many as a client uses in a round, but not few; all of them if there are no more."""
        used = 1 if owner.batch_size == FULL else int(owner.batch_size) * int(at(owner.local_steps, np.int32(0)))
        most, data = max(LEAST, used), problem.data
        everything = data.stored and (owner.batch_size == FULL or int(np.max(data.sizes)) <= most)
        return cls(owner, FULL if everything else most)

    def ask(self, federation: Federation, points: jax.Array, y: jax.Array | None, r: Any) -> jax.Array:
        """Return one row per client: its penalised loss at each point, one per row.

        A bilevel problem's lower level starts at y, for each point, and is solved as accurately as in round r.
        """
        if y is None:
            return federation.gather(self.losses, points, r).values
        owner = self.owner
        lower = federation.lower(points, owner.lower)
        y = run_lower(lower, owner.lower, y.ravel(), r, owner.lower_rounds)
        if owner.closing:
            y = close(lower, owner, y, owner.curvature).y
        return federation.gather(self.implicit_losses, y).values

    def losses(self, client: Client, key: jax.Array, memory: None, points: jax.Array, r: Any) -> Reply:
        """Return the losses of a single-level problem, or of a two-stage one, whose clients solve their own lower level."""
        samples, size = client.sample(key, self.batch_size), client.cost(self.batch_size)
        steps: Any = 0
        if client.level.lower_solved_by == BY_CLIENTS:
            k = (r + 1) * at(self.owner.local_steps, r)
            *_, taken = found = client.implicit(points, samples, self.owner.solver, k)
            values, steps = found[:-1], jnp.round(taken * size).astype(jnp.int32)
        else:
            values = jax.lax.map(lambda x: client.loss(x, samples), points)
        return Reply(values + self._moreau(client, points), evaluations=len(points) * size, steps=steps)

    def implicit_losses(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Return the losses of a bilevel problem at the points sent before and their lower solutions."""
        points, level = client.points, client.level.lower_level(client.points)
        y = level.split(level.sets.project(client.index, y))
        samples = client.sample(key, self.batch_size)
        values = jax.lax.map(lambda pair: client.loss(*pair, samples), (points, y))
        evaluations = len(points) * client.cost(self.batch_size)
        return Reply(values + self._moreau(client, points), evaluations=evaluations)

    def _moreau(self, client: Client, points: jax.Array) -> jax.Array:
        away = points - jax.vmap(client.project)(points)
        return jnp.sum(away**2, axis=1) / (2 * self.owner.moreau_parameter)


def begin_below(problem: Problem, pairs: Any, count: int) -> Any:
    """Return where lower solves start, for each point: from the means of pairs of former solutions, or from y0.

    None is returned for problems without a lower level that all clients share.
    """
    if problem.lower_solved_by != BY_SERVER:
        return None
    if pairs is None:
        return jnp.tile(problem.start_below, (count, 1))
    return jnp.mean(pairs.reshape(len(pairs), -1, problem.start_below.size), axis=1)[:, None]


@functools.partial(jax.jit, static_argnames="many")
def ask(probe: LossProbe, problem: Problem, key: jax.Array, points: Any, y: Any, r: Any, *, many: bool) -> tuple[Any, Tally]:
    """Ask all clients in a simulated federation; returns what they said and what it cost.

    With `many`, points and y have a leading axis of runs, which ask one by one. Equal keys see equal samples.
    """

    def one(points: jax.Array, y: Any) -> tuple[jax.Array, Tally]:
        keys = Keys.of(key, problem.clients)
        # No round in the key's path: what is asked after other rounds is asked on the same samples, and can be compared.
        clock = Clock(problem, keys.private, keys.directions, r)
        ledger = Ledger(Tally.zero(), {"": None})
        weights = jnp.asarray(problem.client_weights)
        federation = SimulatedFederation(problem, everyone(problem), weights, clock, ledger, Spread())
        return probe.ask(federation, points, y, r), ledger.tally

    return (jax.vmap(one) if many else one)(points, y)
