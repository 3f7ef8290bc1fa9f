"""FedZO: federated averaging of one-sided zeroth-order steps, with several directions for each.

W. Fang, Z. Yu, Y. Jiang, Y. Shi, C. N. Jones, Y. Zhou: "Communication-Efficient Stochastic Zeroth-Order Optimization for
Federated Learning", IEEE Transactions on Signal Processing 70 (2022).
"""

from typing import Any

import jax

from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.estimators import estimate_one_sided
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, State, at, batch, checked, method, stepsize_or_auto
from fedrzo.support.numbers import Schedule, constant, count, whole


@method
class FedZO(Method):
    """Local steps along the mean of several one-sided estimates; clients return how far they moved.

    Its theory asks for smooth losses, and it knows no constraints: both are what FedRZO_nn adds.

    Args:
        stepsize: the authors' eta; a number, or a function of the round.
        smoothing: mu, how far from x the loss is asked for.
        local_steps: H, the local steps of a round; a number, or a function of the round.
        batch_size: b1, samples per loss value, or `"full"`.
        directions: b2, directions per step, uniform on the unit sphere; they cost b2 + 1 loss values.
    """

    stepsize: Schedule = checked(stepsize_or_auto)
    smoothing: float = checked(constant)
    local_steps: Schedule = checked(count, default=1)
    batch_size: int | str = checked(batch, default=1, static=True)
    directions: int = checked(whole, default=20, static=True)

    handles_constraints = False

    def round(self, federation: Federation, state: State, r: Any) -> State:
        """Broadcast x, let clients move, add the mean of their displacements."""
        return State(state.x + federation.average(self.client_steps, state.x))

    def client_steps(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Take H steps x <- x - eta g and return the displacement."""
        eta = at(self.stepsize, client.own_round)
        steps = at(self.local_steps, client.own_round)

        def local_step(k: Any, sample: Any, step_key: jax.Array, x: jax.Array) -> jax.Array:
            return x - eta * estimate_one_sided(client, step_key, x, sample, self.smoothing, self.directions)

        moved = take_steps(client, key, steps, self.batch_size, local_step, x, also=lambda step_key: step_key) - x
        evaluations = (self.directions + 1) * steps * client.cost(self.batch_size)
        return Reply(moved, evaluations=evaluations, steps=steps)
