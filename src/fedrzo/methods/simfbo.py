"""SimFBO and ShroFBO: federated bilevel optimisation with one communication and no inner loop.

Y. Yang, P. Xiao, K. Ji: "SimFBO: Towards Simple, Flexible and Communication-efficient Federated Bilevel Learning", NeurIPS
2023 (arXiv 2305.19442). Restated from memory; the class says what could not be verified.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import at, batch, checked, method, static
from fedrzo.methods.hypergradient import HypergradientMethod, Oracles, Point, into_ball, length, local_sum, retreat
from fedrzo.problems.bilevel import Bilevel
from fedrzo.support.numbers import Schedule, constant, count, positive


def _steps(value: Any, argument: str) -> Any:
    """Return local steps: the same for all clients, or one number each."""
    return tuple(count(n, argument) for n in value) if isinstance(value, tuple | list) else count(value, argument)


@method
class SimFBO(HypergradientMethod):
    """Local steps on x, y and v at once, each from the old iterates; the server steps along the mean of what they add up to.

    v follows the solution of (d2_yy g) v = grad_y f, a quadratic summed over the clients. One round is one communication of
    n + 2q floats each way. All weights a_i^k of the listing are 1. Several local steps of clients that differ settle at a
    distance from the solution that grows with the step sizes.

    The listing followed is the paper's SimFBO, with ShroFBO as `normalised`. Its abstract confirms one communication a round
    for all three variables, an update of the server's own, clients drawn without replacement, a linear speedup, and a variant
    for unequal local work. Not verified, for want of its text: that local steps start from old iterates throughout; where v is
    projected (here at the server only), and the radius; the weights of clients that take part (here their weighted mean); the
    factor that ShroFBO restores (here the mean number of steps). Tested: with one local step the solution is a fixed point,
    reached linearly, however clients differ; with several, an error in proportion to their length; a variance divided by the
    number of clients.

    Args:
        stepsize: eta_x of the local steps; a number, or a function of the round.
        lower_stepsize: eta_y.
        system_stepsize: eta_v; eta_y by default.
        local_steps: tau; a number, a function of the round, or one number per client.
        batch_size: samples per derivative and level, or `"full"`; the three derivatives of g share a batch.
        server_stepsize: gamma_x, applied to the mean of the clients' sums of directions; eta_x by default, which makes the
            server's point the mean of the clients' last ones.
        server_lower_stepsize: gamma_y; eta_y by default.
        server_system_stepsize: gamma_v; eta_v by default.
        radius: r, of the ball that the server keeps v in: at least a bound on |grad_y f| over the modulus of g.
        normalised: ShroFBO: each client divides its sums by its number of steps and the server multiplies by their mean, so
            that clients which do more steps do not count for more.
    """

    stepsize: Schedule = checked(positive)
    lower_stepsize: Schedule = checked(positive)
    system_stepsize: Schedule | None = checked(positive, default=None)
    local_steps: Schedule | tuple[int, ...] = checked(_steps, default=1)
    batch_size: int | str = checked(batch, default=1, static=True)
    server_stepsize: Schedule | None = checked(positive, default=None)
    server_lower_stepsize: Schedule | None = checked(positive, default=None)
    server_system_stepsize: Schedule | None = checked(positive, default=None)
    radius: float = checked(constant, default=1e3)
    normalised: bool = static(default=False)

    def check(self, problem: Bilevel) -> None:
        """Refuse what is outside the method's assumptions, or a wrong number of step counts."""
        super().check(problem)
        if isinstance(self.local_steps, tuple) and len(self.local_steps) != problem.clients:
            raise InputError(
                f"local_steps: found {len(self.local_steps)} numbers for {problem.clients} clients; give one each, or one for all"
            )

    def lengths(self, r: Any) -> Point:
        """Return eta_x, eta_y, eta_v."""
        v = length(self, r, "system_stepsize", "lower_stepsize")
        return Point(at(self.stepsize, r), at(self.lower_stepsize, r), v)

    def server_lengths(self, r: Any) -> Point:
        """Return gamma_x, gamma_y, gamma_v."""
        return Point(
            length(self, r, "server_stepsize", "stepsize"),
            length(self, r, "server_lower_stepsize", "lower_stepsize"),
            length(self, r, "server_system_stepsize", "system_stepsize", "lower_stepsize"),
        )

    def round(self, federation: Federation, state: Point, r: Any) -> Point:
        """Broadcast, local steps, one server step on each variable, v back into its ball."""
        total = federation.average(self.client_steps, state)
        if self.normalised:
            steps = self.local_steps
            mean = jnp.mean(jnp.asarray(steps, float)) if isinstance(steps, tuple) else at(steps, r)
            total = jax.tree.map(lambda s: mean * s, total)
        moved = retreat(state, self.server_lengths(r), total)
        return moved._replace(v=into_ball(moved.v, self.radius))

    def client_steps(self, client: Client, key: jax.Array, memory: None, point: Point) -> Reply:
        """Local steps k = 0 .. tau_i - 1; s_i^x, s_i^y and s_i^v, the sums of the directions, are sent."""
        oracles, several = Oracles.of(client), isinstance(self.local_steps, tuple)
        steps = jnp.asarray(self.local_steps)[client.id] if several else at(self.local_steps, client.round)  # type: ignore[arg-type]

        def directions(k: Any, here: Point) -> Point:
            return oracles.directions(here, oracles.draw(jax.random.fold_in(key, k), self.batch_size))

        total = local_sum(directions, point, self.lengths(client.round), steps)
        if self.normalised:
            total = jax.tree.map(lambda s: s / steps, total)
        return Reply(total, gradients=steps * oracles.cost(1, 2, self.batch_size), steps=steps)
