"""SCAFFOLD: local steps corrected by control variates, so that clients that differ do not drift apart.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020. The updates are the published ones; the step sizes of its theory are not restated here.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, at, batch, checked, method
from fedrzo.problems.base import Problem
from fedrzo.support.numbers import Schedule, constant, count, positive


class ScaffoldState(NamedTuple):
    """The server's x, and c, which is the weighted mean of all clients' controls."""

    x: jax.Array
    c: jax.Array


def _option(value: Any, argument: str) -> int:
    if value not in (1, 2) or isinstance(value, bool):
        raise InputError(f"{argument}: found {value!r}; pass 1 (a gradient at x) or 2 (the mean of those used)")
    return int(value)


@method
class Scaffold(Method):
    """Local gradient steps, each corrected by the difference between the server's and the client's control variate.

    Controls start at zero and stay with their clients; a client that does not take part keeps its own. With full
    gradients the fixed point is a stationary point of the mean loss, whatever the clients' differences and local steps.

    Args:
        stepsize: eta_l, of the local steps; a number, or a function of the round.
        local_steps: K, local steps per round; a number, or a function of the round.
        batch_size: samples per gradient, or `"full"`.
        server_stepsize: eta_g, by which the server scales the mean of the clients' moves.
        option: how a client renews its control: 1, by one more gradient at x; 2, by the mean of the gradients it used.
    """

    stepsize: Schedule = checked(positive)
    local_steps: Schedule = checked(count)
    batch_size: int | str = checked(batch, default=1, static=True)
    server_stepsize: float = checked(constant, default=1.0)
    option: int = checked(_option, default=2, static=True)

    needs_gradients = True
    handles_constraints = False

    def init(self, problem: Problem, key: jax.Array) -> ScaffoldState:
        """Start at x0 with no correction."""
        x = jnp.asarray(problem.x0)
        return ScaffoldState(x, jnp.zeros_like(x))

    def init_memory(self, problem: Problem) -> jax.Array:
        """Return a client's first control, c_i = 0."""
        return jnp.zeros_like(jnp.asarray(problem.x0))

    def round(self, federation: Federation, state: ScaffoldState, r: Any) -> ScaffoldState:
        """Send x and c to the clients of the round; add the means of what they return."""
        replies = federation.gather(self.client_steps, state.x, state.c)
        dy, dc = replies.mean()
        x = state.x + self.server_stepsize * dy
        # The listing's |S|/N: those who are away did not move their controls, so the mean over all moves by their share.
        return ScaffoldState(x, state.c + replies.share.astype(dc.dtype) * dc)

    def client_steps(self, client: Client, key: jax.Array, memory: jax.Array, x: jax.Array, c: jax.Array) -> Reply:
        """Corrected local steps, then a new control; the client's memory is c_i."""
        eta, steps = at(self.stepsize, client.own_round), at(self.local_steps, client.own_round)

        def local_step(t: Any, batch: Any, y: jax.Array) -> jax.Array:
            return y - eta * (client.gradient(y, batch) - memory + c)  # y_i <- y_i - eta_l (g_i(y_i) - c_i + c)

        y = take_steps(client, key, steps, self.batch_size, local_step, x)
        # c_i+ <- (1) g_i(x), or (2) c_i - c + (x - y_i) / (K eta_l), which is the mean of the gradients above
        if self.option == 1:
            control = client.gradient(x, client.sample(jax.random.fold_in(key, steps), self.batch_size))
        else:
            control = memory - c + (x - y) / (steps * eta)
        gradients = (steps + (self.option == 1)) * client.cost(self.batch_size)
        return Reply((y - x, control - memory), memory=control, gradients=gradients, steps=steps)
