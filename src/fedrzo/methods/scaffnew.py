"""Scaffnew: ProxSkip for federated learning, which communicates at random and rarely.

K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik: "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
Acceleration! Finally!", ICML 2022.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.client import FULL, Client, take_steps
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, State, at, batch, checked, method
from fedrzo.methods.lower import LowerPlan
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import StepConstants, client_smoothness, single_level
from fedrzo.support.numbers import Schedule, constant, count

# Where the common coin branches off the key of a call; larger than any client's id, whose keys branch off there too.
COIN = np.uint32(0xC0111E57)


def _probability(value: Any, argument: str) -> Any:
    p = constant(value, argument)
    if isinstance(p, float) and p > 1:
        raise InputError(f"{argument}: found {p!r}; pass a number above 0 and at most 1")
    return p


@method
class Scaffnew(Method):
    """Local gradient steps corrected by controls h_i that sum to zero; a coin that all clients share says when to average.

    The listing tosses the coin after every local step. Here a round is what lies between two heads: the number of local steps is
    drawn from the geometric distribution, untruncated, by a key that all clients have. For smooth strongly convex losses, full
    gradients and the default settings, about sqrt(kappa) log(1/e) rounds bring the error down to e, whatever the clients'
    differences.

    Args:
        stepsize: gamma; by default 1/L, with L the largest smoothness of any one client's loss.
        probability: p, of heads; by default sqrt(gamma mu), which is 1/sqrt(kappa) at gamma = 1/L.
        batch_size: samples per gradient, or `"full"`.
        rounds: rounds per call as a lower level; by default enough to shrink a first error by `tolerance`.
        tolerance: see `rounds`. The first error includes that of the controls, which start at zero in every call.
        constants: mu, L, m, n; estimated where not given. On a lower level they are those of the mean loss: give a `stepsize`
            there if one client's loss is much more curved than the mean.
    """

    stepsize: float | None = checked(constant, default=None)
    probability: float | None = checked(_probability, default=None)
    batch_size: int | str = checked(batch, default=FULL, static=True)
    rounds: Schedule | None = checked(count, default=None)
    tolerance: float = checked(constant, default=1e-4)
    constants: StepConstants | None = None

    needs_gradients = True
    handles_constraints = False
    needs_everyone = True  # an average over some clients only would leave controls that do not sum to zero

    def prepare(self, problem: Problem) -> Self:
        """Estimate the constants where something is to be made of them."""
        if self.constants is not None or (self.stepsize is not None and self.probability is not None):
            return self
        # Between two averages a client is alone with its own curvature, which may be far above the mean's.
        constants = single_level(problem)._replace(smoothness=client_smoothness(problem))
        return dataclasses.replace(self, constants=constants)

    @property
    def gamma(self) -> Any:
        """The length of a local step."""
        return 1 / self.known().smoothness if self.stepsize is None else self.stepsize

    @property
    def p(self) -> Any:
        """The probability of heads, that is, of an average after a local step."""
        if self.probability is not None:
            return self.probability
        return jnp.minimum(jnp.sqrt(self.gamma * self.known().modulus), 1.0)

    def known(self) -> StepConstants:
        """Return the constants, or say that there are none."""
        if self.constants is None:
            raise InputError("constants: Scaffnew needs mu and L here; pass constants, or stepsize, probability and rounds")
        return self.constants

    def plan(self, r: Any) -> LowerPlan:
        """Return how many rounds a lower level takes in upper round r, and their local steps on average."""
        if self.rounds is not None:
            return LowerPlan(at(self.rounds, r), 1 / self.p)
        # The squared error shrinks, in the mean, by 1 - min(gamma mu, p^2) a step, and a round has 1/p of them.
        shrink = -jnp.log1p(-jnp.minimum(jnp.minimum(self.gamma * self.known().modulus, self.p**2), 0.999))
        needed = jnp.maximum(2 * self.p * jnp.log(1 / self.tolerance) / shrink, (r + 1.0) ** (2 / 3))
        return LowerPlan(jnp.ceil(needed).astype(jnp.int32), 1 / self.p)

    def init_memory(self, problem: Problem) -> tuple[jax.Array, jax.Array]:
        """Return what a client keeps: what it sent last, and h_i = 0."""
        nothing = jnp.zeros_like(jnp.asarray(problem.x0))
        return nothing, nothing

    def round(self, federation: Federation, state: State, r: Any) -> State:
        """Send the last average, let the clients step until heads, and average."""
        return State(federation.average(self.client_steps, state.x))  # heads: x_i,t+1 = mean of x_hat_j,t+1

    def flips(self, common: jax.Array, dtype: Any = float) -> jax.Array:
        """Draw the number of tosses until heads, in the precision of x; the same for all who share the key."""
        return jax.random.geometric(jax.random.fold_in(common, COIN), jnp.asarray(self.p, dtype), dtype=jnp.int32)

    def client_steps(self, client: Client, key: jax.Array, memory: tuple, x: jax.Array) -> Reply:
        """Renew h_i by the average that has arrived, then local steps until the common coin shows heads."""
        x_hat, h = memory
        # h_i <- h_i + p/gamma (x_i - x_hat_i) of the last heads; at the start nothing was sent yet. On tails it is nought.
        h = jnp.where(client.own_round > 0, h + self.p / self.gamma * (x - x_hat), h)
        steps = self.flips(client.common, x.dtype)

        def local_step(t: Any, batch: Any, x: jax.Array) -> jax.Array:
            # x_hat_i = x_i - gamma (grad f_i(x_i) - h_i); on tails x_i = x_hat_i
            return x - self.gamma * (client.gradient(x, batch) - h)

        x_hat = take_steps(client, key, steps, self.batch_size, local_step, x)
        return Reply(x_hat, memory=(x_hat, h), gradients=steps * client.cost(self.batch_size), steps=steps)
