"""Local SGD (the paper's Algorithm 3), by its own name and as a lower-level solver.

A. Khaled, K. Mishchenko, P. Richtarik: "Tighter Theory for Local SGD on Identical and Heterogeneous Data", AISTATS 2020.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedrzo.federation.client import FULL, Client, take_steps
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import at, method
from fedrzo.methods.lower import ROUNDING, GradientMethod, GradientState, local_schedule
from fedrzo.problems.curvature import StepConstants


@method
class LocalSGD(GradientMethod):
    """Local gradient steps, averaged once a round.

    As a lower level it takes, by default, one local step per round: with `batch_size="full"` of length 2/(mu+L), which
    converges linearly whatever the clients' differences; with sampled batches, of decreasing length. Several constant local
    steps are faster only where clients are alike: otherwise their average stays off the solution, at any step count.

    Args:
        stepsize: a number or a function of the round; by default made from the constants.
        local_steps: local steps per round; 1 by default.
        rounds: rounds per call as a lower level; by default enough to shrink a first error by `tolerance`.
        batch_size: samples per gradient, or `"full"`.
        tolerance: see `rounds`; steps of decreasing length take 2 kappa / sqrt(tolerance) rounds for it, full gradients only
            kappa log(1/tolerance), and go to the square of it.
        schedule: None; `"algorithm3"`: the paper's a_r = max{m, 4 kappa, r} + 1, steps 1/(mu a_r), T = 2 a_r ln a_r of them
            in m rounds, meant for identical clients; `"theorem"`: Theorem 2's count of steps, n (r+1)^(2/3) / m, in m rounds.
        constants: mu, L, m, n; estimated where not given.
    """

    constants: StepConstants | None = None

    schedules: ClassVar[tuple[str, ...]] = ("algorithm3", "theorem")

    def total_steps(self, r: Any) -> Any:
        """Return T of the paper's schedules in upper round r; Algorithm 3, line 1."""
        if self.schedule == "theorem":
            return super().total_steps(r)
        a = self.scale(r)
        return 2 * a * jnp.log(a)

    def scale(self, r: Any) -> Any:
        """Algorithm 3, line 1: a_r = max{m, 4 kappa, r} + 1."""
        return jnp.maximum(jnp.maximum(self.known.clients, 4 * self.known.kappa), r) + 1

    @property
    def reduction(self) -> Any:
        """See `GradientMethod`: full gradients go to the square of the tolerance."""
        return jnp.maximum(self.tolerance**2, ROUNDING) if self.batch_size == FULL else self.tolerance

    def steps_to(self, tolerance: Any) -> Any:
        """Return how many steps bring a first error down by a factor: steps of decreasing length take more for less."""
        if self.batch_size == FULL:
            return super().steps_to(jnp.maximum(tolerance**2, ROUNDING))
        # The product of 1 - mu / (L + mu t / 2) over t < T is about (1 + T / (2 kappa))^-2.
        return 2 * self.known.kappa * (tolerance**-0.5 - 1)

    def step_length(self, r: Any, t: Any, steps: Any) -> Any:
        """Return the length of step t since the start of the solve (or run), in round r of so many local steps."""
        if self.stepsize is not None:
            return at(self.stepsize, r)
        c = self.known
        if self.schedule == "algorithm3":
            return 1 / (c.modulus * self.scale(r))  # Algorithm 3, line 1
        if self.schedule == "theorem":
            total = self.total_steps(r)
            return jnp.minimum(1 / (4 * c.smoothness), 2 * jnp.log(total + 1) / (c.modulus * total))
        if self.batch_size == FULL:
            return 2 / (c.modulus + c.smoothness)
        return 1 / (c.smoothness + c.modulus * t / 2)

    def round(self, federation: Federation, state: GradientState, r: Any) -> GradientState:
        """Algorithm 3, lines 2-9."""
        return state._replace(x=federation.average(self.client_steps, *state))  # lines 3, 6 and 8

    def client_steps(self, client: Client, key: jax.Array, memory: None, y: jax.Array, curvature: Any = None) -> Reply:
        """Algorithm 3, lines 4-7."""
        self = self.knowing(curvature)
        steps, first = local_schedule(self, client)
        r = client.round if self.schedule else client.own_round
        reply = Reply(y, gradients=steps * client.cost(self.batch_size), steps=steps)
        if self.batch_size == FULL and client.level.nested and client.level.data.equal_size is not None:
            length = self.step_length(r, first, steps)  # the same for all steps, as there is no noise
            return reply._replace(value=client.level.descend(y, client.batch(None, FULL), length, steps))

        def local_step(t: Any, batch: Any, y: jax.Array) -> jax.Array:
            y = client.project(y)
            gradient = client.gradient(y, batch)
            return y - self.step_length(r, first + t, steps) * gradient  # line 5

        return reply._replace(value=take_steps(client, key, steps, self.batch_size, local_step, y))  # line 4
