"""Local SGDA and its momentum version: local descent in x and ascent in y at once, for minimax problems.

Y. Deng, M. Mahdavi: "Local Stochastic Gradient Descent Ascent: Convergence Analysis and Communication Efficiency", AISTATS
2021; momentum: P. Sharma, R. Panda, G. Joshi, P. K. Varshney: "Federated Minimax Optimization: Improved Convergence Analyses
and Algorithms", ICML 2022 (arXiv 2203.04850). The momentum version is restated from memory; the class says what could not be
verified.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import Method, at, batch, checked, method
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.minimax import Minimax
from fedrzo.support.numbers import Schedule, constant, count, positive


class SGDAState(NamedTuple):
    """What the server keeps and what travels, both ways."""

    x: jax.Array  # the minimising variable
    y: jax.Array  # the maximising one
    dx: jax.Array | None = None  # the direction of descent, with momentum only
    dy: jax.Array | None = None  # the direction of ascent, likewise


@method
class LocalSGDA(Method):
    """Simultaneous local gradient steps, down in x and up in y; both are averaged once a round.

    Every local step starts with a projection of x onto the client's set and of y onto Y(x). The last step of a round is sent
    unprojected and the receiver projects the average, as in `LocalSGD`. Where Y(x) moves with x, the step in x takes no
    account of it: stationary points of max_y f(., y) are the aim for a fixed Y only. Several local steps leave a bias that
    grows with the stepsizes and with the clients' differences.

    The listing followed is Local SGDA of Deng and Mahdavi, and with momentum that of Sharma et al. The abstract of the latter
    confirms a momentum-based version with the guarantees of the plain one. Not verified, for want of its text: the form of the
    momentum, that directions are averaged with the iterates, that the gradient mixed in is the one at the new point, and where
    directions start (here at zero). Tested with momentum and one local step: the saddle point is a fixed point, reached
    linearly, however clients differ; directions have beta alpha / (2 - beta alpha) of a gradient's variance, divided by the
    number of clients.

    Args:
        stepsize: eta_x; a number, or a function of the round.
        ascent: eta_y, the stepsize in y; likewise. It should be the larger one, y having to follow x.
        local_steps: local steps per round; a number, or a function of the round.
        batch_size: samples per gradient, or `"full"`; one sample gradient is one in x and y together.
        momentum: beta_x; None for none. Directions dx, dy are then kept and averaged too, which doubles what is sent:
            x - alpha eta_x dx and y + alpha eta_y dy, then dx <- (1 - beta alpha) dx + beta alpha (gradient at the new
            point), and dy likewise.
        ascent_momentum: beta_y; `momentum` if not given.
        damping: alpha, which shortens steps and lengthens the memory of the directions; with momentum only.
    """

    stepsize: Schedule = checked(positive)
    ascent: Schedule = checked(positive)
    local_steps: Schedule = checked(count, default=1)
    batch_size: int | str = checked(batch, default=1, static=True)
    momentum: Any = checked(constant, default=None)
    ascent_momentum: Any = checked(constant, default=None)
    damping: float = checked(constant, default=0.1)

    solves = (Minimax,)
    needs_gradients = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum is None and self.ascent_momentum is not None:
            raise InputError(f"ascent_momentum: found {self.ascent_momentum!r} without momentum; pass momentum too")
        for name in ("momentum", "ascent_momentum"):
            if (beta := getattr(self, name)) is not None and isinstance(beta * self.damping, float) and beta * self.damping > 1:
                raise InputError(f"{name}: found {beta:g} with damping {self.damping:g}; their product must be at most 1")

    def check(self, problem: Minimax) -> None:
        """Refuse what is no minimax problem, or has no gradients."""
        if isinstance(problem, self.solves) and is_blackbox(problem.loss_fn):
            raise InputError("loss: LocalSGDA needs gradients, a black box has none; use fz.FedRZObl with lower=fz.FedRZOnn(...)")
        super().check(problem)

    def init(self, problem: Minimax, key: jax.Array) -> SGDAState:
        """Start at x0 and y0, at rest."""
        x, y = jnp.asarray(problem.x0, float), jnp.asarray(problem.y0, float)
        return SGDAState(x, y) if self.momentum is None else SGDAState(x, y, jnp.zeros_like(x), jnp.zeros_like(y))

    def round(self, federation: Federation, state: SGDAState, r: Any) -> SGDAState:
        """Send x and y (with momentum, also dx and dy), local steps, average all of them."""
        return federation.average(self.client_steps, state)

    def client_steps(self, client: Client, key: jax.Array, memory: None, state: SGDAState) -> Reply:
        """Local steps of client i: descent and ascent at the same point, from one backward pass."""
        down, up = at(self.stepsize, client.round), at(self.ascent, client.round)
        steps = at(self.local_steps, client.round)

        def step(t: Any, sample: Any, state: SGDAState) -> SGDAState:
            x, y = project(client, state)
            if self.momentum is None:
                # x_i <- x_i - eta_x grad_x f_i(x_i, y_i), y_i <- y_i + eta_y grad_y f_i(x_i, y_i)
                gx, gy = both_gradients(client, x, y, sample)
                return SGDAState(x - down * gx, y + up * gy)
            # Move along dx and dy, then mix into each the gradient at the new point.
            alpha = self.damping
            x, y = x - alpha * down * state.dx, y + alpha * up * state.dy
            gx, gy = both_gradients(client, *project(client, SGDAState(x, y)), sample)
            beta_y = self.momentum if self.ascent_momentum is None else self.ascent_momentum
            keep_x, keep_y = 1 - self.momentum * alpha, 1 - beta_y * alpha
            return SGDAState(x, y, keep_x * state.dx + (1 - keep_x) * gx, keep_y * state.dy + (1 - keep_y) * gy)

        state = take_steps(client, key, steps, self.batch_size, step, state)
        return Reply(state, gradients=steps * client.cost(self.batch_size), steps=steps)

    def healthy(self, state: SGDAState) -> Any:
        """Tell whether both variables are finite."""
        return jnp.all(jnp.isfinite(state.x)) & jnp.all(jnp.isfinite(state.y))

    def diagnose(self, state: SGDAState, before: np.ndarray) -> str | None:
        """Say which of the two ran away first, where it was y."""
        if np.isfinite(state.x).all():
            return "y is no longer finite; use a smaller ascent, or check that the loss is concave in y"
        return None


def project(client: Client, state: SGDAState) -> tuple[jax.Array, jax.Array]:
    """Return x in the client's set and y in Y at that x."""
    x = client.project(state.x)
    return x, client.level.lower_set_at(client.level.into_domain(x)).project(state.y)


def both_gradients(client: Client, x: jax.Array, y: jax.Array, sample: Any) -> tuple[jax.Array, jax.Array]:
    """Return the gradients in x and in y of the mean loss over a batch."""
    return client.mean(jax.grad(client.level.value, argnums=(0, 1)), x, y, sample)
