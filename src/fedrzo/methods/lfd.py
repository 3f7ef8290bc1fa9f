"""LFD, local federated descent: decreasing steps for clients that differ.

F. Haddadpour, M. Mahdavi: "On the Convergence of Local Descent Methods in Federated Learning", 2019. Restated from memory: the
form below is the standard one for strongly convex losses (steps 4/(mu (t + a))); no constant of the authors is claimed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.client import Client
from fedrzo.federation import Federation, Reply
from fedrzo.methods.base import Schedule, State, at, method, static
from fedrzo.methods.lower import GradientMethod, Plan, local_schedule


@method
class LFD(GradientMethod):
    """Local gradient steps of decreasing length, averaged once a round; clients' data may differ.

    Args:
        stepsize: a number or a function of the round; by default 4/(mu (t + a)) at local step t, with a = 8 kappa + H.
        local_steps: local steps per round; 1 by default.
        rounds: rounds per call as a lower level.
        batch_size: samples per gradient, or `"full"`.
        tolerance: see `LocalSGD`.
        schedule: None, or `"theorem"`: T of Theorem 2 in m^(1/3) T^(1/3) rounds (the paper's Remark 4, case 3).
        constants: mu, L, m, n; estimated where not given.
    """

    stepsize: Schedule | None = None
    local_steps: Schedule | None = None
    rounds: Schedule | None = None
    batch_size: int | str = static(default=1)
    tolerance: Any = 1e-2
    schedule: str | None = static(default=None)
    constants: Any = None

    def plan(self, r: Any) -> Plan:
        """Return the rounds and local steps of one call."""
        if self.schedule is None:
            return super().plan(r)
        total = self.theorem_steps(r)
        rounds = jnp.ceil((self.constants.clients * total) ** (1 / 3)).astype(jnp.int32)
        return Plan(rounds, jnp.ceil(total / rounds).astype(jnp.int32))

    def steps_to(self, tolerance: Any) -> Any:
        """Return how many steps bring a first error down by a factor."""
        # The product of 1 - 4 / (t + a) over t < T is about (a / (T + a))^4, with a = 8 kappa.
        return 8 * self.constants.kappa * (tolerance**-0.25 - 1)

    def round(self, federation: Federation, state: State, r: Any) -> State:
        """Broadcast, local steps, average."""
        del r
        return State(federation.average(self.client_steps, state.x))

    def client_steps(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """Local steps of decreasing length."""
        del memory
        steps, first = local_schedule(self, client)

        def length(t: Any) -> Any:
            if self.stepsize is not None:
                return at(self.stepsize, client.own_round)
            return 4 / (self.constants.modulus * (first + t + 8 * self.constants.kappa + steps))

        def local_step(t: Any, y: jax.Array) -> jax.Array:
            y = client.project(y)
            return y - length(t) * client.gradient(y, client.sample(jax.random.fold_in(key, t), self.batch_size))

        y = jax.lax.fori_loop(0, steps, local_step, y)
        return Reply(y, gradients=steps * client.cost(self.batch_size), steps=steps)
