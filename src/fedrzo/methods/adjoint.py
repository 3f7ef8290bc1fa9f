"""How the upper loss changes with x through the lower level: the adjoint of its solution, solved by federated rounds.

With z the point that the lower level is solved at, y = P(y - a h'(z, y)), where P projects onto Y(z), h is the mean lower loss
and a = 1/L. With J the derivative of P there and H the mean Hessian in y, the gradient of f(z, y(z)) is that of f in x, plus

    (dP/dz)'w - a (d2_xy h) J w,   where w = b + (I - a H) J w   and b is the mean gradient of f in y.

Only means over clients enter: a round sends w down, and its products with every client's own Hessian up. (I - a H) J is not
symmetric, but it has the eigenvalues of J^1/2 (I - a H) J^1/2, which lie between 0 and 1 - mu/L: so that Nesterov's steps, with
the one momentum that this interval asks for, converge by 1 - 1/sqrt(kappa) a round, whatever set Y is.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.federation.client import Client, take_coded_steps
from fedrzo.federation.estimators import by_slopes
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import at as at_round
from fedrzo.methods.closing import Closing
from fedrzo.methods.fedac import FedAC
from fedrzo.methods.hypergradient import Oracles
from fedrzo.problems.curvature import StepConstants

TOLERANCE = 0.03  # by what factor a first error is brought down, where the lower method's plan does not say
LEAST = 0.5  # and at least, whatever it says


class Adjoint(NamedTuple):
    """What clients need in order to differentiate through the lower level."""

    at: jax.Array  # y - a h'(y), whose projection is y
    w: jax.Array
    length: jax.Array  # a
    error: jax.Array | None  # a bound on the error of w, which clients are not sent


def solve_adjoint(below: Any, owner: Any, closed: Closing, start: jax.Array) -> Adjoint:
    """Solve for w where the lower level's solve was closed; `below` is the view of that level.

    All clients take part, as in the lower level itself: the w of a cohort would go with the cohort's part of the cross products,
    and the mean of their product is not the product of the means.

    Where `owner.envelope`, the lower loss is minus the upper one: b is normal to Y at y, so that J b = 0, and w is b itself
    (Danskin's theorem, with the multipliers of Y(x) where it depends on x).
    """
    mu, L = closed.curvature
    length = 1 / L
    at = closed.y - length * closed.gradient
    b = below.average(owner.upper_slope, at)
    if owner.envelope:
        return Adjoint(at, b, length, jnp.zeros_like(length))
    root = jnp.sqrt(L / mu)
    momentum = (root - 1) / (root + 1)

    def step(inner: Federation, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        w, last, _ = carry
        ahead = w + momentum * (w - last)
        new = b + inner.average(owner.adjoint_step, ahead, at, length)
        return new, w, jnp.linalg.norm(new - ahead)

    constants = StepConstants(mu, L, 1, 1)
    accuracy = jnp.minimum(getattr(owner.lower, "reduction", TOLERANCE), LEAST)  # as good as y
    rounds = jnp.maximum(jnp.ceil(FedAC(constants=constants).steps_to(accuracy)), 1).astype(jnp.int32)
    w, _, moved = below.repeat(rounds, step, (start, start, jnp.zeros_like(length)))
    return Adjoint(at, w, length, (L / mu - 1) * moved)  # the step contracts by 1 - mu/L


class AdjointSteps:
    """The client steps of `solve_adjoint`, for methods that own a lower level."""

    def upper_slope(self, client: Client, key: jax.Array, memory: Any, at: jax.Array) -> Reply:
        """Return this client's gradient of the upper loss in y, over all its data."""
        oracles = Oracles.of(client)
        size = oracles.upper.level.data.full_batch
        _, slope = oracles.upper_gradients(client.points[0], client.project(at), oracles.upper.sample(key, size))
        return Reply(slope / lower_share(client), gradients=oracles.upper.cost(size))

    def adjoint_step(self, client: Client, key: jax.Array, memory: Any, w: jax.Array, at: jax.Array, length: Any) -> Reply:
        """Return (I - a H) J w, with this client's own H."""
        y, u = projected(client, at, w)
        found, cost = _products(client, y, u)
        return Reply(u - length * found.curved, gradients=cost, steps=1)

    def client_descent(self, client: Client, key: jax.Array, found: Adjoint, words: jax.Array) -> Reply:
        """Algorithm 2, lines 6-10 with gradients: of the upper loss at x+v and the delayed y, and the client's adjoint part."""
        owner: Any = self
        r, point = client.round, client.points[0]
        v = owner.offset(point, words)
        y, through, cost = self.through_lower(client, found)
        own = jax.random.fold_in(jax.random.wrap_key_data(words), client.id)  # as `FedRZO.decode` has it

        def local_step(k: Any, sample: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            direct = client.mean(jax.grad(client.level.value), x + v, y, sample)
            keys = owner.draw(jax.random.fold_in(own, k))
            g, slopes = by_slopes(client, keys, x, direct + lower_share(client) * through, owner.smoothing)
            return owner.descend(x, g, client.project(x), r), slopes

        steps, slopes = at_round(owner.local_steps, r), owner.slopes_per_step
        x, code = take_coded_steps(client, key, steps, owner.batch_size, local_step, point - v, slopes=slopes)
        level = client.level.lower_level(client.points)
        violation = None if level.sets.free else level.sets.violation(client.index, y)
        return Reply((x, violation), gradients=cost + steps * client.cost(owner.batch_size), code=code)

    def through_lower(self, client: Client, found: Adjoint) -> tuple[jax.Array, jax.Array, Any]:
        """Return y, this client's part of what the upper loss owes to x through y, and how many sample gradients it took."""
        level, x = client.level, client.points[0]
        y, u = projected(client, found.at, found.w)
        products, cost = _products(client, y, u)
        moves = jax.vjp(lambda x: level.lower_level(x).sets.project(client.index, found.at), x)[1](found.w)[0]
        return y, moves - found.length * products.cross, cost


def lower_share(client: Client) -> Any:
    """Return a client's weight in means of the lower level, relative to its weight in those of the upper one."""
    problem, i = client.level.problem if client.level.nested else client.level, client.index
    if problem.lower_weights is None:
        return 1.0
    return jnp.asarray(problem.lower_weights)[i] / jnp.asarray(problem.client_weights)[i]


def projected(client: Client, at: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return P(at) and J w; the derivative of a projection is symmetric."""
    level = client.level if client.level.nested else client.level.lower_level(client.points)
    y, pull = jax.vjp(lambda at: level.sets.project(client.index, at), at)
    return y, pull(w)[0]


def _products(client: Client, y: jax.Array, u: jax.Array) -> tuple[Any, Any]:
    """Return the products of the lower loss's second derivatives with u over all data, the same draws in a round."""
    oracles = Oracles.of(client)
    size = oracles.lower.level.data.full_batch
    batch = oracles.lower.sample(jax.random.fold_in(client.private, client.round), size)
    return oracles.products(client.points[0], y, u, batch), 2 * oracles.lower.cost(size)
