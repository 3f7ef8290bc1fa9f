"""FedRZO_nn: randomised zeroth-order locally-projected federated averaging (the paper's Algorithm 1).

Y. Qiu, U. V. Shanbhag, F. Yousefian: "Zeroth-Order Federated Methods for Stochastic MPECs and Nondifferentiable Nonconvex
Hierarchical Optimization", Section 2.
"""

from typing import Any

import jax

from fedrzo.federation.client import Client, take_coded_steps
from fedrzo.federation.estimators import estimate_in_ball, estimate_two_sided, from_slopes
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import State, at, checked, method
from fedrzo.methods.fedrzo import ORACLES, VALUES, WAYS, FedRZO
from fedrzo.methods.private import on_sphere, private_steps
from fedrzo.privacy.privacy import Privacy, a_promise
from fedrzo.support.numbers import constant, whole


@method
class FedRZOnn(FedRZO):
    """Federated averaging with local zeroth-order steps and a Moreau term for each client's private set.

    Needs loss values only, unless gradients are asked for. The loss may be nonsmooth and nonconvex, clients may differ in data
    and in sets, and no set leaves its client: iterates are infeasible by the smoothing times the loss's slope.

    Args:
        stepsize: the paper's gamma; a number, or a function of the round.
        smoothing: eta, the radius of the sphere directions are drawn from, and the parameter of the Moreau term.
        local_steps: T_{r+1} - T_r, the local steps of a round; a number, or a function of the round.
        batch_size: samples per loss value, or `"full"`.
        directions: directions that each estimate averages over (the paper uses one). With gradients they matter where scalars
            travel: so many slopes of each gradient are sent.
        communication: `"vectors"`: clients send their x; `"scalars"`: they send the slopes along their directions, from which
            the server rebuilds it; `"auto"`: scalars where a client's set is known and they are fewer (see `by_scalars.py`).
        oracle: `"values"`, the paper's estimator; or `"gradients"`: the gradient at a point drawn in the ball of radius eta
            around x, whose mean is that of the same smoothed loss and whose variance does not grow with n.
        moreau: the parameter of the sets' Moreau term; the smoothing, as in the paper, if not given. x comes to rest that times
            the slope of the loss outside of a set, so that a loss of another scale wants another one.
        privacy: `fz.Privacy(epsilon=2.0, ...)`: each record's slopes are clipped, and noise is added before anything leaves its
            client; see docs/privacy.md.
    """

    directions: int = checked(whole, default=1, static=True)
    communication: str = checked(WAYS, default="vectors", static=True)
    oracle: str = checked(ORACLES, default=VALUES, static=True)
    moreau: float | None = checked(constant, default=None)
    privacy: Privacy | None = checked(a_promise, default=None)

    def round(self, federation: Federation, state: State, r: Any) -> State:
        """Algorithm 1, lines 2-10."""
        x = federation.average(self.client_steps, state.x)  # lines 3 and 9: broadcast, then the mean of what returns
        return State(x)

    def client_steps(self, client: Client, key: jax.Array, memory: Any, x: jax.Array) -> Reply:
        """Algorithm 1, lines 4-8: what client i does in round r."""
        if self.privacy is not None:
            return self.private_client_steps(client, key, memory, x)
        r = client.own_round
        estimate = estimate_in_ball if self.by_gradients else estimate_two_sided

        def local_step(k: Any, sample: Any, keys: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            g, slopes = estimate(client, keys, x, sample, self.smoothing)  # lines 5 and 6: v_{i,k}, g_{i,k}
            return self.descend(x, g, client.project(x), r), slopes  # line 7

        steps = at(self.local_steps, r)
        x, code = take_coded_steps(  # line 4; and 5: xi_{i,k}
            client, key, steps, self.batch_size, local_step, x, also=self.draw, slopes=self.directions
        )
        return Reply(x, steps=steps, code=code, **self.spent(steps, client.cost(self.batch_size)))

    def private_client_steps(self, client: Client, key: jax.Array, clip: Any, x: jax.Array) -> Reply:
        """Return the same by private slopes; in place of lines 5 and 6, noisy means of records' clipped ones."""
        r = client.round
        steps = at(self.local_steps, r)

        def slopes(k: Any, keys: jax.Array, x: jax.Array) -> Any:
            return on_sphere(client, keys, x, self.smoothing)

        def move(x: jax.Array, found: jax.Array, keys: jax.Array) -> jax.Array:
            return self.descend(x, from_slopes(found, keys, x, self.smoothing), client.project(x), r)  # line 7

        x, code, clip = private_steps(self, client, key, clip, steps, x, slopes, move)
        return Reply(x, clip, steps=steps, code=code, **self.spent(steps, client.cost(self.batch_size)))
