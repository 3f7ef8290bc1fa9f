"""FedRZO_2s: two-stage randomised implicit zeroth-order federated averaging (the paper's Algorithms 4 and 5).

Y. Qiu, U. V. Shanbhag, F. Yousefian: "Zeroth-Order Federated Methods for Stochastic MPECs and Nondifferentiable Nonconvex
Hierarchical Optimization", Section 4. Algorithm 5 and its alternatives are in `fedrzo.vi`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import vi
from fedrzo.federation import directions
from fedrzo.federation.client import Client, take_steps
from fedrzo.federation.estimators import slope
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import State, at, check_zeroth_order, method, set_fields, static
from fedrzo.methods.scalarplan import check_communication
from fedrzo.methods.scalars import SendsScalars
from fedrzo.problems.solver_trial import left_by, try_solver
from fedrzo.problems.two_stage import TwoStage, check_solver
from fedrzo.support.numbers import Schedule

LONG_RUN = 1000  # iterations, at least, after which lower solutions are looked at
FRACTION = 0.1  # of the way from y0: where more is left, y does not follow x, and the estimate does not either


@method
class FedRZO2s(SendsScalars):
    """Zeroth-order federated averaging of losses that each scenario's own equilibrium enters.

    Every client draws its own scenarios and solves their variational inequalities itself: nothing but x is communicated.

    Args:
        stepsize: the paper's gamma; a number, or a function of the round.
        smoothing: eta, the radius of the sphere directions are drawn from, and the parameter of the Moreau term.
        local_steps: T_{r+1} - T_r, the local steps of a round; a number, or a function of the round.
        batch_size: scenarios per local step, or `"full"`; each is solved at x+v and at x-v.
        solver: the lower-level solver; Algorithm 5, with the theory's alpha and tau, if not given.
        communication: `"vectors"`, `"scalars"` or `"auto"`, as for `FedRZOnn`.
        scalars: filled in by `prepare`.
    """

    stepsize: Schedule
    smoothing: Any
    local_steps: Schedule = 1
    batch_size: int | str = static(default=1)
    solver: Any = vi.Projection()
    communication: str = static(default="vectors")
    scalars: Any = None

    solves = (TwoStage,)

    def __post_init__(self) -> None:
        check_communication(self)
        check_zeroth_order(self)
        set_fields(self, solver=check_solver(self.solver, "solver"))

    def check(self, problem: Any) -> None:
        """Refuse combinations that cannot work, and try the lower-level solver at x0."""
        super().check(problem)
        self.solver.check(*problem.hardest())
        try_solver(problem, self.solver)

    def round(self, federation: Federation, state: Any, r: Any) -> Any:
        """Algorithm 4, lines 2-10."""
        if self.scalars is not None:
            return self.round_of_scalars(federation, state, r)
        x = federation.average(self.client_steps, state.x)  # lines 3 and 9: broadcast, then the mean of what returns
        return State(x)

    def client_steps(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> Reply:
        """Algorithm 4, lines 4-8: what client i does in round r."""
        del memory
        steps = at(self.local_steps, client.round)

        def step(j: Any, scenarios: Any, keys: jax.Array, carry: tuple) -> tuple[jax.Array, jax.Array]:
            x, _, taken = self.local_step(client, j, scenarios, keys, carry[0])
            return x, carry[1] + taken

        # Line 4; and 5: xi_{i,k}
        x, solved = take_steps(client, key, steps, self.batch_size, step, (x, jnp.zeros((), x.dtype)), also=self.draw)
        return Reply(x, **self.counts(client, steps, solved))

    def local_step(
        self, client: Client, k: Any, scenarios: Any, keys: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Algorithm 4, lines 5-7, k counting from T_r; returns x, the slope along v, and the lower-level steps per scenario."""
        eta, n = self.smoothing, x.size
        first = iterations_before(self.local_steps, client.round)  # T_r
        v = directions.sphere(keys[0], n, eta, x.dtype)  # line 5: v_{i,k}
        # Line 5: y at both points. Algorithm 5 asks for k > 0, and k starts at 0 here: it is given k + 1.
        plus, minus, taken = client.implicit(jnp.stack([x + v, x - v]), scenarios, self.solver, first + k + 1)
        found = slope(n, eta, plus - minus)
        return self.descend(x, found * v, client.project(x), client.round), found[None], taken  # lines 6 and 7

    def counts(self, client: Client, steps: Any, solved: Any) -> dict[str, Any]:
        """Return what a reply counts after so many local steps."""
        size = client.cost(self.batch_size)
        return {"evaluations": 2 * steps * size, "steps": jnp.round(solved * size).astype(jnp.int32)}

    def doubt(self, problem: Any, x: np.ndarray, rounds: int) -> str | None:
        """Say that the solver leaves lower solutions far from the truth at the end of a run.

        Algorithm 5 is meant to take more steps the longer a run goes on: it is looked at as in a run of some length.
        """
        iterations = max(int(iterations_before(self.local_steps, rounds)), LONG_RUN)
        error, share = left_by(problem, self.solver, np.asarray(x), iterations)
        if (error <= float(self.smoothing) and share <= FRACTION) or (np.isinf(error) and not problem.modulus > 0):
            return None  # well; or warned of before the run, since the map is not monotone
        return (
            f"solver: at the end {self.solver!r} may leave y {error:.3g} from its solution, {100 * share:.0f} % of the way from "
            f"y0, where the smoothing is {float(self.smoothing):g}, so that x may be wrong; give it more steps, or use "
            "fz.vi.Accelerated()"
        )

    def diagnose(self, state: State, before: np.ndarray) -> str | None:
        """Say what may have gone wrong where x is lost."""
        del state
        last = np.array2string(before, precision=4, threshold=8)
        return (
            f"x is no longer finite after x = {last}: near it Y(x, xi) is empty, a lower solve diverges, or the stepsize is "
            "too long; give a lower_domain, a smaller solver stepsize, or a smaller stepsize"
        )


def iterations_before(local_steps: Schedule, r: Any) -> Any:
    """Return T_r, the local steps of all rounds before r. Clients work it out, so that nothing but x travels."""
    if not callable(local_steps):
        return r * local_steps
    return jax.lax.fori_loop(0, r, lambda q, total: total + jnp.asarray(local_steps(q), jnp.int32), jnp.int32(0))
