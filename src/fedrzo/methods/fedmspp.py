"""FedMSPP: federated minibatch stochastic proximal point, a minibatch version of FedProx.

X.-T. Yuan, P. Li: "On Convergence of FedProx: Local Dissimilarity Invariant Bounds, Non-smoothness and Beyond", NeurIPS 2022
(arXiv 2206.05187). Restated from memory; the class says what could not be verified.
"""

from typing import Any

import jax

from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, State, at, batch, checked, method
from fedrzo.support.numbers import Schedule, count, positive


@method
class FedMSPP(Method):
    """One proximal point of a fresh minibatch's loss per client and round, and the average of these points.

    The proximal point is solved for by gradient steps on the one minibatch of the round. Steps below 2/(L + 1/eta) converge to
    it where the minibatch's loss is convex and L-smooth. Where clients differ, the average of exact proximal points lies off
    the solution by an amount that falls with eta.

    The listing followed is the paper's minibatch extension of FedProx. Its abstract confirms that extension, guarantees that
    assume no likeness of clients and no smoothness, and a linear speedup in minibatch and clients. Not verified, for want of its
    text: how eta changes over the rounds, how accurately the proximal point is solved for (here by a number of gradient
    steps), and whether a minibatch is drawn with replacement (here it is). Tested: without noise, convergence to the minimiser
    of the mean of Moreau envelopes, O(eta) from the solution; with noise, a variance divided by the number of clients.

    Args:
        proximal: eta of the term |w - w_t|^2 / (2 eta); a number or a function of the round. Small values stay near w_t.
        stepsize: of the gradient steps that solve for the proximal point; a number or a function of the round.
        local_steps: how many of these; a number or a function of the round.
        batch_size: samples of the minibatch, or `"full"`.
    """

    proximal: Schedule = checked(positive)
    stepsize: Schedule = checked(positive)
    local_steps: Schedule = checked(count, default=10)
    batch_size: int | str = checked(batch, default=1, static=True)

    needs_gradients = True

    def round(self, federation: Federation, state: State, r: Any) -> State:
        """Server: broadcast w_{t-1}, then w_t is the weighted mean of the proximal points."""
        return State(federation.average(self.proximal_point, state.x))

    def proximal_point(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Client: w_i near argmin over w of the minibatch's mean loss + |w - w_{t-1}|^2 / (2 eta_t)."""
        minibatch = client.sample(key, self.batch_size)  # drawn once and kept for the whole round
        eta, length = at(self.proximal, client.own_round), at(self.stepsize, client.own_round)
        steps = at(self.local_steps, client.own_round)
        x = client.project(x)

        def inner_step(_: Any, w: jax.Array) -> jax.Array:
            w = client.project(w)
            return w - length * (client.gradient(w, minibatch) + (w - x) / eta)

        w = jax.lax.fori_loop(0, steps, inner_step, x)
        return Reply(w, gradients=steps * client.cost(self.batch_size), steps=steps)
