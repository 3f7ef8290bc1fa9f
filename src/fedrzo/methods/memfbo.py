"""MemFBO: federated bilevel optimisation with gradients only, no products with second derivatives.

Y. Yang, P. Xiao, S. Ma, K. Ji: "First-Order Federated Bilevel Learning", AAAI 2025. Restated from memory; the class says
what could not be verified.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import at, batch, checked, method
from fedrzo.methods.hypergradient import HypergradientMethod, Oracles, length, local_sum, retreat
from fedrzo.problems.bilevel import Bilevel
from fedrzo.support.numbers import Schedule, count, positive


class MemState(NamedTuple):
    """What the server keeps: x, y that minimises f + lam g, and z that minimises g."""

    x: jax.Array
    y: jax.Array
    z: jax.Array


@method
class MemFBO(HypergradientMethod):
    """Local steps on x, y and z of f(x, y) + lam (g(x, y) - g(x, z)), all at once, then one server step on each.

    One round is one communication of n + 2q floats each way. The surrogate's stationary points are off those of the problem by
    O(1/lam); a larger lam wants shorter steps on y. Several local steps of clients that differ settle at a distance that grows
    with the step sizes.

    The paper's listing was not seen. Its abstract confirms a single loop in which all variables are updated at once, first
    derivatives alone, and a linear speedup; elsewhere it speaks of a Lagrangian. Not verified: that it is the penalty form of
    the value function used here, which other first-order bilevel methods share; whether the multiplier is updated, too (here it
    is given); the coupling of step sizes, which is this library's, and all constants. Tested: with one local step the
    surrogate's solution is a fixed point, reached linearly, however clients differ, and off the problem's by O(1/lam); a
    variance divided by the number of clients.

    Args:
        stepsize: eta_x of the local steps; a number, or a function of the round.
        lower_stepsize: eta_z, of the steps on z.
        multiplier: lam; a number, or a (slowly increasing) function of the round.
        penalised_stepsize: eta_y, of the steps on y; eta_z / lam by default, so that y and z drift alike during local steps.
            Otherwise their difference does, and lam times that moves x, away to infinity where clients differ enough.
        local_steps: tau; a number, or a function of the round.
        batch_size: samples per gradient and level, or `"full"`; both gradients of g share a batch.
        server_stepsize: gamma_x, applied to the mean of the clients' sums of directions; eta_x by default, which makes the
            server's point the mean of the clients' last ones.
        server_lower_stepsize: gamma_z; eta_z by default.
        server_penalised_stepsize: gamma_y; eta_y by default.
    """

    stepsize: Schedule = checked(positive)
    lower_stepsize: Schedule = checked(positive)
    multiplier: Schedule = checked(positive, default=10.0)
    penalised_stepsize: Schedule | None = checked(positive, default=None)
    local_steps: Schedule = checked(count, default=1)
    batch_size: int | str = checked(batch, default=1, static=True)
    server_stepsize: Schedule | None = checked(positive, default=None)
    server_lower_stepsize: Schedule | None = checked(positive, default=None)
    server_penalised_stepsize: Schedule | None = checked(positive, default=None)

    def init(self, problem: Bilevel, key: jax.Array) -> MemState:
        """Start at x0, with y and z at y0."""
        y = jnp.asarray(problem.y0, float)
        return MemState(jnp.asarray(problem.x0, float), y, y)

    def lengths(self, r: Any) -> MemState:
        """Return eta_x, eta_y, eta_z."""
        z = at(self.lower_stepsize, r)
        y = z / at(self.multiplier, r) if self.penalised_stepsize is None else at(self.penalised_stepsize, r)
        return MemState(at(self.stepsize, r), y, z)

    def server_lengths(self, r: Any) -> MemState:
        """Return gamma_x, gamma_y, gamma_z."""
        given = self.server_penalised_stepsize
        return MemState(
            length(self, r, "server_stepsize", "stepsize"),
            self.lengths(r).y if given is None else at(given, r),
            length(self, r, "server_lower_stepsize", "lower_stepsize"),
        )

    def round(self, federation: Federation, state: MemState, r: Any) -> MemState:
        """Broadcast, local steps, one server step on each variable."""
        return retreat(state, self.server_lengths(r), federation.average(self.client_steps, state))

    def client_steps(self, client: Client, key: jax.Array, memory: None, point: MemState) -> Reply:
        """Local steps; the sums of the three directions are sent."""
        oracles, r = Oracles.of(client), client.round
        steps, lam = at(self.local_steps, r), at(self.multiplier, r)

        def directions(k: Any, here: MemState) -> MemState:
            upper, lower = oracles.draw(jax.random.fold_in(key, k), self.batch_size)
            f_x, f_y = oracles.upper_gradients(here.x, here.y, upper)
            g_x, g_y = oracles.lower_gradients(here.x, here.y, lower)
            free_x, free_z = oracles.lower_gradients(here.x, here.z, lower)
            return MemState(f_x + lam * (g_x - free_x), f_y + lam * g_y, free_z)

        total = local_sum(directions, point, self.lengths(r), steps)
        return Reply(total, gradients=steps * oracles.cost(1, 2, self.batch_size), steps=steps)
