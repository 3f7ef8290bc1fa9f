"""FedRZO_nn: randomised zeroth-order locally-projected federated averaging (the paper's Algorithm 1).

Y. Qiu, U. V. Shanbhag, F. Yousefian: "Zeroth-Order Federated Methods for Stochastic MPECs and Nondifferentiable Nonconvex
Hierarchical Optimization", Section 2.
"""

from __future__ import annotations

from typing import Any

import jax

from fedrzo.client import Client
from fedrzo.errors import InputError
from fedrzo.federation import Federation, Reply
from fedrzo.methods.base import (
    Method,
    Schedule,
    State,
    at,
    check_zeroth_order,
    count,
    method,
    set_fields,
    static,
)
from fedrzo.smoothing import estimate


@method
class FedRZOnn(Method):
    """Federated averaging with local zeroth-order steps and a Moreau term for each client's private set.

    Needs loss values only. The loss may be nonsmooth and nonconvex, clients may differ in data and in sets, and no
    set leaves its client: iterates are infeasible by O(smoothing).

    Args:
        stepsize: the paper's gamma; a number, or a function of the round.
        smoothing: eta, the radius of the sphere directions are drawn from, and the parameter of the Moreau term.
        local_steps: T_{r+1} - T_r, the local steps of a round; a number, or a function of the round.
        batch_size: samples per loss value, or `"full"`.
        directions: directions that each estimate averages over (the paper uses one).
        communication: `"vectors"`: clients send their x.
    """

    stepsize: Schedule
    smoothing: Any
    local_steps: Schedule = 1
    batch_size: int | str = static(default=1)
    directions: int = static(default=1)
    communication: str = static(default="vectors")

    def __post_init__(self) -> None:
        if self.communication != "vectors":
            raise InputError(f'communication: found {self.communication!r}; only "vectors" is available')
        check_zeroth_order(self)
        set_fields(self, directions=count(self.directions, "directions"))

    @classmethod
    def from_theory(
        cls, problem: Any, budget: int, smoothing: float = 0.1, constants: Any = None, **fields: Any
    ) -> FedRZOnn:
        """Return this method with the step size and the local steps that Proposition 1 prescribes.

        Args:
            problem: what is to be solved.
            budget: K, local iterations of each client; run ceil(K / local_steps) rounds.
            smoothing: eta.
            constants: those that are known, such as `{"lipschitz": 1.0}`, as `fz.theory.for_problem` takes them; the others
                are estimated, with a warning.
            fields: other fields of the method.
        """
        from fedrzo.theory.problem import prescribed

        return prescribed(cls, problem, budget, smoothing, constants, fields)

    def round(self, federation: Federation, state: State, r: Any) -> State:
        """Algorithm 1, lines 2-10."""
        del r  # clients read it off their own clock
        x = federation.average(self.client_steps, state.x)  # lines 3 and 9: broadcast, then the mean of what returns
        return State(x)

    def client_steps(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Algorithm 1, lines 4-8: what client i does in round r."""
        del memory
        eta = self.smoothing
        gamma = at(self.stepsize, client.own_round)
        steps = at(self.local_steps, client.own_round)

        def local_step(k: Any, x: jax.Array) -> jax.Array:
            step_key = jax.random.fold_in(key, k)
            sample = client.sample(step_key, self.batch_size)  # line 5: xi_{i,k}
            g = estimate(client, step_key, x, sample, eta, self.directions)  # lines 5 and 6: v_{i,k} and g_{i,k}
            return x - gamma * (g + (x - client.project(x)) / eta)  # line 7

        x = jax.lax.fori_loop(0, steps, local_step, x)
        evaluations = 2 * self.directions * steps * client.cost(self.batch_size)
        return Reply(x, evaluations=evaluations, steps=steps)
