"""FedAC: accelerated federated averaging for strongly convex losses.

H. Yuan, T. Ma: "Federated Accelerated Stochastic Gradient Descent", NeurIPS 2020.
"""

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import at, checked, method, one_of
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.methods.lower import ROUNDING, GradientMethod, curvature_at, local_schedule, usual_batch
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import StepConstants, single_level
from fedrzo.problems.lower_level import WithLowerLoss
from fedrzo.support.numbers import positive

# The condition number from which acceleration is worth the second vector that it sends: for four digits FedAC takes
# about 13 sqrt(kappa) rounds, gradient steps 4.6 kappa.
ILL_CONDITIONED = 30.0


class FedACState(NamedTuple):
    """The server's x is the aggregate sequence, which is the output; w is the main sequence. Curvature: see `GradientState`."""

    x: jax.Array
    w: jax.Array
    curvature: Any = None


@method
class FedAC(GradientMethod):
    """Two sequences per client, both averaged once a round.

    The couplings are those of the paper. Its analysis weighs the middle point so that the terms linear in the gradient cancel.
    With theta = 1/alpha (variant I) or 1/(2 alpha) (variant II), this is 1/beta = theta (1 - 1/alpha) / (1 - theta/alpha). The
    authors' code has beta = 2 alpha^2/(alpha - 1) for variant II. That makes 1/beta, the weight of w, smaller by the factor
    1 - 1/(2 alpha^2): by 6e-3 for alpha = 9, by 3e-7 for alpha = 1,200 (a9a, eta = 0.1, K = 64). Variant I is the same in both.

    Args:
        stepsize: eta, at most 1/L, which is the default; a number or a function of the round.
        local_steps: K, local steps per round.
        schedule: None, or `"theorem"`: T of Theorem 2 in m^(1/3) rounds (the paper's Remark 4, case 2).
        variant: `"I"`: alpha = 1/(gamma mu), beta = alpha + 1; `"II"`: alpha = 3/(2 gamma mu) - 1/2, beta =
            (2 alpha^2 - 1)/(alpha - 1). Both with gamma = max(eta, sqrt(eta/(mu K))).

    The other arguments are those of `LocalSGD`.
    """

    tolerance: float = checked(positive, default=1e-4)
    variant: str = checked(one_of("I", "II"), default="I", static=True)
    constants: StepConstants | None = None

    def init(self, problem: Problem, key: jax.Array) -> FedACState:
        """Start both sequences at x0."""
        return FedACState(jnp.asarray(problem.x0), jnp.asarray(problem.x0), curvature_at(problem))

    def prepare(self, problem: Problem) -> Self:
        """Estimate the constants; the coupling needs mu even where a stepsize is given."""
        if self.constants is not None:
            return self
        return dataclasses.replace(self, constants=single_level(problem))

    def scheduled_rounds(self, total: Any) -> Any:
        """Return m^(1/3)."""
        return self.known.clients ** (1 / 3)

    def coupling(self, eta: Any, steps: Any) -> tuple[Any, Any, Any]:
        """Return gamma, alpha and beta for a stepsize and a number of local steps."""
        mu = self.known.modulus
        gamma = jnp.maximum(eta, jnp.sqrt(eta / (mu * steps)))
        if self.variant == "I":
            alpha = 1 / (gamma * mu)
            return gamma, alpha, alpha + 1
        alpha = 3 / (2 * gamma * mu) - 0.5
        return gamma, alpha, (2 * alpha**2 - 1) / (alpha - 1)

    def eta(self, r: Any) -> Any:
        """Return the length of the steps in one of its rounds."""
        return 1 / self.known.smoothness if self.stepsize is None else at(self.stepsize, r)

    def steps_to(self, tolerance: Any) -> Any:
        """Return how many steps, without noise, bring a first error down by a factor, where the loss is quadratic.

        The error's slowest part falls like n (1 - 1/alpha)^n, up to a factor; the logarithm of n is bounded from above.
        """
        _, alpha, _ = self.coupling(self.eta(0), self.steps(0))
        orders = jnp.log(1 / tolerance)
        return (orders + jnp.log(1 + 4 * orders)) / -jnp.log(jnp.maximum(1 - 1 / alpha, ROUNDING**2))

    def round(self, federation: Federation, state: FedACState, r: Any) -> FedACState:
        """Broadcast both sequences, local steps, average both."""
        x, w = federation.average(self.client_steps, *state)
        return state._replace(x=x, w=w)

    def client_steps(
        self, client: Client, key: jax.Array, memory: None, x: jax.Array, w: jax.Array, curvature: Any = None
    ) -> Reply:
        """Accelerated local steps; x is the authors' w_ag."""
        self = self.knowing(curvature)
        steps, _ = local_schedule(self, client)
        eta = self.eta(client.own_round)
        gamma, alpha, beta = self.coupling(eta, steps)

        def local_step(t: Any, batch: Any, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, w = map(client.project, pair)
            middle = w / beta + (1 - 1 / beta) * x
            gradient = client.gradient(middle, batch)
            return middle - eta * gradient, (1 - 1 / alpha) * w + middle / alpha - gamma * gradient

        pair = take_steps(client, key, steps, self.batch_size, local_step, (x, w))
        return Reply(pair, gradients=steps * client.cost(self.batch_size), steps=steps)


def suited(problem: WithLowerLoss, constants: StepConstants, error: float) -> GradientMethod:
    """Return the solver of a lower level with these constants if the user names none; it reduces a first error by `error`."""
    batch_size = usual_batch(problem.lower_data)
    own = problem.lower_descent is not None and not problem.lower_constrained  # the user's faster steps are plain ones
    if constants.kappa > ILL_CONDITIONED and not own:
        return FedAC(batch_size=batch_size, tolerance=error, constants=constants)
    return LocalSGD(batch_size=batch_size, tolerance=error**0.5, constants=constants)
