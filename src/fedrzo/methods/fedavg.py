"""FedAvg: federated averaging, also with the step sizes and rounds of three analyses that the paper compares with.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017. The schedules, rows of the paper's table of known rates, are restated from memory; they have
the orders of that table, and no constant of their authors is claimed:

* PR-SGD: H. Yu, S. Yang, S. Zhu: "Parallel Restarted SGD with Faster Convergence and Less Communication", AAAI 2019.
* Cooperative SGD: J. Wang, G. Joshi: "Cooperative SGD: A Unified Framework for the Design and Analysis of Local-Update SGD
  Algorithms", JMLR 2021.
* LUPA-SGD: F. Haddadpour, M. M. Kamani, M. Mahdavi, V. Cadambe: "Local SGD with Periodic Averaging: Tighter Analysis and
  Adaptive Synchronization", NeurIPS 2019.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.client import FULL, Client, take_steps
from fedrzo.federation.protocol import Reply
from fedrzo.methods.base import at, checked, method, static
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.methods.lower import LowerPlan, local_schedule
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import StepConstants, single_level
from fedrzo.support.numbers import Schedule, count, positive

# Powers and quotients of whole numbers may miss a whole number by rounding (of float32, where x is); this much is forgiven.
ROUNDING = 1e-6
# A schedule takes K^a / m^b local steps a round: a and b.
POWERS = {"PR-SGD": (1 / 4, 3 / 4), "Cooperative SGD": (1 / 2, 3 / 2), "LUPA-SGD": (2 / 3, 1 / 3)}


def _epochs(value: Any, argument: str) -> Any:
    if callable(value):
        raise InputError(f"{argument}: found a function; pass a positive number, or a function as local_steps")
    return positive(value, argument)


@method
class FedAvg(LocalSGD):
    """Local SGD steps on each client, and their average, weighted as the problem says (`weights="samples"` in the original).

    Several constant local steps leave the average off the solution where clients differ; one local step, or steps of
    decreasing length, do not.

    Args:
        stepsize: a number or a function of the round; by default that of the schedule, or as for `LocalSGD`.
        local_steps: local steps per round; by default those of the schedule, or 1.
        batch_size: samples per gradient (drawn with replacement), or `"full"`.
        epochs: E, passes over a client's own samples instead of local_steps: ceil(E N_i / batch_size) steps.
        schedule: with K the budget, m the clients (all taking part), mu and L the constants:
            `"PR-SGD"`: steps sqrt(m/K)/L, K^(1/4)/m^(3/4) of them a round, so m^(3/4) K^(3/4) rounds;
            `"Cooperative SGD"`: steps sqrt(m/K)/L, K^(1/2)/m^(3/2) a round, so m^(3/2) K^(1/2) rounds;
            `"LUPA-SGD"`: 4/(mu (t + a)) at step t with a = 8 kappa + tau, tau = K^(2/3)/m^(1/3) a round, so
            m^(1/3) K^(1/3) rounds.
        budget: K, the local steps that a schedule is made for, over all rounds; see `rounds_for`.
        rounds: rounds per call as a lower level; by default the schedule's, or as for `LocalSGD`.
        tolerance: see `LocalSGD`.
        constants: mu, L, m, n; estimated where not given. Only `"LUPA-SGD"` and steps made from constants need mu.
    """

    _: dataclasses.KW_ONLY
    epochs: float | None = checked(_epochs, default=None)
    schedule: str | None = static(default=None)
    budget: int = checked(count, default=None)
    rounds: Schedule | None = checked(count, default=None)
    tolerance: float = checked(positive, default=1e-2)
    constants: StepConstants | None = None

    schedules: ClassVar[tuple[str, ...]] = tuple(POWERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.schedule is None) != (self.budget is None):
            raise InputError(
                f"budget: found {self.budget!r} with schedule {self.schedule!r}; give both, or neither: "
                "the budget is how many local steps a schedule is made for"
            )
        if self.epochs is not None and (self.local_steps is not None or self.schedule is not None):
            raise InputError(f"epochs: found {self.epochs:g} beside local_steps or a schedule; give one of the three")

    def check(self, problem: Problem) -> None:
        """Refuse epochs over samples without end."""
        super().check(problem)
        if self.epochs is not None:
            _samples(problem.data, 0)

    def prepare(self, problem: Problem) -> Any:
        """Estimate the constants that are needed and not given; no strong convexity is asked for where mu is not used."""
        if self.constants is not None or self.schedule in (None, "LUPA-SGD"):
            return super().prepare(problem)
        return dataclasses.replace(self, constants=single_level(problem, convex=False))

    def rounds_for(self, problem: Problem) -> int:
        """Return how many rounds a schedule spreads its budget over, for the clients of a problem."""
        if self.schedule is None:
            raise InputError("schedule: found None; only a schedule with a budget says how many rounds it takes")
        return int(np.ceil(self.budget / np.asarray(self.scheduled_steps(problem.clients))))

    def scheduled_steps(self, m: Any) -> Any:
        """Return a schedule's local steps per round, so that rounds grow with m and K as in the paper's table."""
        assert self.schedule is not None
        a, b = POWERS[self.schedule]
        steps = (self.budget * 1.0) ** a / m**b
        return jnp.maximum(jnp.floor(steps * (1 + ROUNDING)), 1).astype(jnp.int32)

    def steps(self, r: Any) -> Any:
        """Return the local steps of each round, where they are the same for all clients."""
        if self.schedule is None or self.local_steps is not None:
            return super().steps(r)
        return self.scheduled_steps(self.known.clients)

    def plan(self, r: Any) -> LowerPlan:
        """Return the rounds and local steps of one call as a lower level."""
        if self.schedule is None:
            return super().plan(r)
        steps = self.steps(r)
        rounds = jnp.ceil(self.budget / steps).astype(jnp.int32) if self.rounds is None else at(self.rounds, r)
        return LowerPlan(rounds, steps)

    def step_length(self, r: Any, t: Any, steps: Any) -> Any:
        """Return the length of step t since the start, in round r of so many local steps."""
        if self.stepsize is not None or self.schedule is None:
            return super().step_length(r, t, steps)
        c = self.known
        if self.schedule == "LUPA-SGD":
            return 4 / (c.modulus * (t + 8 * c.kappa + steps))
        return jnp.sqrt(c.clients / self.budget) / c.smoothness

    def work(self, client: Client, key: jax.Array) -> tuple[Any, Any]:
        """Return the client's local steps of this round, and the index of its first one since the start."""
        if self.epochs is None:
            return local_schedule(self, client)
        samples = _samples(client.level.data, client.index)
        passes = self.epochs * samples / (samples if self.batch_size == FULL else self.batch_size)
        steps = jnp.ceil(passes * (1 - ROUNDING)).astype(jnp.int32)
        return steps, client.own_round * steps

    def client_steps(self, client: Client, key: jax.Array, memory: None, x: jax.Array, curvature: Any = None) -> Reply:
        """ClientUpdate: local steps y <- y - lr G(y) from the server's x."""
        self = self.knowing(curvature)
        steps, first = self.work(client, key)
        x = client.project(x)

        def local_step(t: Any, batch: Any, y: jax.Array) -> jax.Array:
            y = client.project(y)
            gradient = self.local_gradient(client, batch, y, x)
            return y - self.step_length(client.own_round, first + t, steps) * gradient

        y = take_steps(client, key, steps, self.batch_size, local_step, x)
        return Reply(y, gradients=steps * client.cost(self.batch_size), steps=steps)

    def local_gradient(self, client: Client, batch: Any, y: jax.Array, x: jax.Array) -> jax.Array:
        """Return G(y) on a batch; x is where the round began."""
        return client.gradient(y, batch)


def _samples(data: Any, client: Any) -> Any:
    """Return how many samples a client has."""
    if not data.stored:
        raise InputError("epochs: found a number, but a Sampler has no end to pass over; pass local_steps")
    return jnp.asarray(data.sizes)[client]
