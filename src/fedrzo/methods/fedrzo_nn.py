"""FedRZO_nn: randomised zeroth-order locally-projected federated averaging (the paper's Algorithm 1).

Y. Qiu, U. V. Shanbhag, F. Yousefian: "Zeroth-Order Federated Methods for Stochastic MPECs and Nondifferentiable Nonconvex
Hierarchical Optimization", Section 2.
"""

from __future__ import annotations

from typing import Any

import jax

from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.estimators import estimate
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import State, at, check_zeroth_order, method, set_fields, static
from fedrzo.methods.scalarplan import check_communication
from fedrzo.methods.scalars import SendsScalars
from fedrzo.support.numbers import Schedule, count


@method
class FedRZOnn(SendsScalars):
    """Federated averaging with local zeroth-order steps and a Moreau term for each client's private set.

    Needs loss values only. The loss may be nonsmooth and nonconvex, clients may differ in data and in sets, and no
    set leaves its client: iterates are infeasible by the smoothing times the loss's slope.

    Args:
        stepsize: the paper's gamma; a number, or a function of the round.
        smoothing: eta, the radius of the sphere directions are drawn from, and the parameter of the Moreau term.
        local_steps: T_{r+1} - T_r, the local steps of a round; a number, or a function of the round.
        batch_size: samples per loss value, or `"full"`.
        directions: directions that each estimate averages over (the paper uses one).
        communication: `"vectors"`: clients send their x; `"scalars"`: they send the slopes along their directions, from which
            the server rebuilds it; `"auto"`: scalars where a client's set is known and they are fewer (see `methods/scalars.py`).
        scalars: filled in by `prepare`.
    """

    stepsize: Schedule
    smoothing: Any
    local_steps: Schedule = 1
    batch_size: int | str = static(default=1)
    directions: int = static(default=1)
    communication: str = static(default="vectors")
    scalars: Any = None

    def __post_init__(self) -> None:
        check_communication(self)
        check_zeroth_order(self)
        set_fields(self, directions=count(self.directions, "directions"))

    def round(self, federation: Federation, state: Any, r: Any) -> Any:
        """Algorithm 1, lines 2-10."""
        if self.scalars is not None:
            return self.round_of_scalars(federation, state, r)
        x = federation.average(self.client_steps, state.x)  # lines 3 and 9: broadcast, then the mean of what returns
        return State(x)

    def client_steps(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Algorithm 1, lines 4-8: what client i does in round r."""
        del memory
        steps = at(self.local_steps, client.own_round)

        def step(k: Any, sample: Any, keys: jax.Array, x: jax.Array) -> jax.Array:
            return self.local_step(client, k, sample, keys, x)[0]

        x = take_steps(client, key, steps, self.batch_size, step, x, also=self.draw)  # line 4; and 5: xi_{i,k}
        return Reply(x, **self.counts(client, steps, 0))

    def local_step(
        self, client: Client, k: Any, sample: Any, keys: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Algorithm 1, lines 5-7; returns x, the slopes along its directions, and nothing solved below."""
        del k
        g, slopes = estimate(client, keys, x, sample, self.smoothing)  # lines 5 and 6: v_{i,k}, g_{i,k}
        return self.descend(x, g, client.project(x), client.own_round), slopes, 0  # line 7

    def counts(self, client: Client, steps: Any, solved: Any) -> dict[str, Any]:
        """Return what a reply counts after so many local steps."""
        del solved
        return {"evaluations": 2 * self.directions * steps * client.cost(self.batch_size), "steps": steps}
