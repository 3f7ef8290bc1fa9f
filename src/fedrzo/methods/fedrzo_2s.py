"""FedRZO_2s: two-stage randomised implicit zeroth-order federated averaging (the paper's Algorithms 4 and 5).

Y. Qiu, U. V. Shanbhag, F. Yousefian: "Zeroth-Order Federated Methods for Stochastic MPECs and Nondifferentiable Nonconvex
Hierarchical Optimization", Section 4. Algorithm 5 and its alternatives are in `fedrzo.vi`.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import vi
from fedrzo.federation import directions
from fedrzo.federation.client import Client, take_coded_steps
from fedrzo.federation.estimators import by_slopes, from_slopes, in_ball, slope
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import State, at, checked, method
from fedrzo.methods.fedrzo import ORACLES, VALUES, WAYS, FedRZO
from fedrzo.methods.private import private_steps
from fedrzo.privacy.privacy import Privacy, a_promise
from fedrzo.problems.courtesy import ask
from fedrzo.problems.solver_trial import left_by, try_solver
from fedrzo.problems.two_stage import TwoStage
from fedrzo.support.numbers import Schedule, constant, whole
from fedrzo.vi.base import check_solver

LONG_RUN = 1000  # iterations, at least, after which lower solutions are looked at
FRACTION = 0.1  # of the way from y0: where more is left, y does not follow x, and the estimate does not either


@method
class FedRZO2s(FedRZO):
    """Zeroth-order federated averaging of losses that each scenario's own equilibrium enters.

    Every client draws its own scenarios and solves their variational inequalities itself: nothing but x is communicated.

    Args:
        stepsize: the paper's gamma; a number, or a function of the round.
        smoothing: eta, the radius of the sphere directions are drawn from, and the parameter of the Moreau term.
        local_steps: T_{r+1} - T_r, the local steps of a round; a number, or a function of the round.
        batch_size: scenarios per local step, or `"full"`; each is solved at x+v and at x-v.
        solver: the lower-level solver. Algorithm 5 is `fz.vi.Projection()`, which `from_theory` names; where none is named,
            `fz.vi.Accelerated()` takes far fewer steps, and is accurate from the first round on.
        communication: `"vectors"`, `"scalars"` or `"auto"`, as for `FedRZOnn`.
        oracle: `"values"`; or `"gradients"`: the gradient at a point drawn in the ball around x, by the adjoint of each
            scenario's projected equation at its solution. Each scenario is then solved once.
        directions: directions that each estimate averages over, as for `FedRZOnn`.
        moreau: the parameter of the sets' Moreau term; the smoothing, as in the paper, if not given. x comes to rest that times
            the slope of the loss outside of a set, so that a loss of another scale wants another one.
        privacy: as for `FedRZOnn`; a record is a scenario. `modulus` and `smoothness` have to be given.
    """

    solver: vi.Solver = checked(check_solver, default=vi.Accelerated())
    communication: str = checked(WAYS, default="vectors", static=True)
    oracle: str = checked(ORACLES, default=VALUES, static=True)
    directions: int = checked(whole, default=1, static=True)
    moreau: float | None = checked(constant, default=None)
    privacy: Privacy | None = checked(a_promise, default=None)

    solves = (TwoStage,)
    of_theorem: ClassVar[dict[str, Any]] = {"solver": vi.Projection()}

    def check(self, problem: TwoStage) -> None:
        """Refuse combinations that cannot work, and try the lower-level solver at x0."""
        super().check(problem)
        self.solver.check(*problem.hardest())
        if self.privacy is None or self.privacy.simulation:  # it looks at scenarios
            ask(lambda: try_solver(problem, self.solver))

    def init(self, problem: TwoStage, key: jax.Array) -> State:
        """Line 1."""
        return State(problem.start)

    def round(self, federation: Federation, state: State, r: Any) -> State:
        """Algorithm 4, lines 2-10."""
        x = federation.average(self.client_steps, state.x)  # lines 3 and 9: broadcast, then the mean of what returns
        return State(x)

    def client_steps(self, client: Client, key: jax.Array, memory: Any, x: jax.Array) -> Reply:
        """Algorithm 4, lines 4-8: what client i does in round r."""
        if self.privacy is not None:
            return self.private_client_steps(client, key, memory, x)
        r = client.round
        first = iterations_before(self.local_steps, r)  # T_r

        def local_step(j: Any, scenarios: Any, keys: jax.Array, carry: tuple) -> tuple[tuple, jax.Array]:
            x, solved = carry
            estimate = self.estimate_by_adjoint if self.by_gradients else self.estimate
            # Algorithm 5 asks for k > 0, and k = T_r + j starts at 0 here: it is given k + 1.
            g, slopes, taken = estimate(client, keys, x, scenarios, first + j + 1)
            return (self.descend(x, g, client.project(x), r), solved + taken), slopes  # line 7

        steps, begin = at(self.local_steps, r), (x, jnp.zeros((), x.dtype))
        ended, code = take_coded_steps(  # line 4
            client, key, steps, self.batch_size, local_step, begin, also=self.draw, slopes=self.directions
        )
        (x, solved), size = ended, client.cost(self.batch_size)
        taken = jnp.round(solved * size).astype(jnp.int32)
        return Reply(x, steps=taken, code=code, **self.spent(steps, size))

    def private_client_steps(self, client: Client, key: jax.Array, clip: Any, x: jax.Array) -> Reply:
        """Return the same by private slopes; how many steps its scenarios' solves took stays with the client."""
        r = client.round
        first, steps = iterations_before(self.local_steps, r), at(self.local_steps, r)

        def slopes(j: Any, keys: jax.Array, x: jax.Array) -> Any:
            v = jax.vmap(lambda key: directions.sphere(key, x.size, self.smoothing, x.dtype))(keys)
            points = jnp.concatenate([x + v, x - v])

            def of(rows: jax.Array) -> jax.Array:
                scenarios = client.level.data.batch(rows, client.index, client.id)
                plus, minus = jnp.split(client.level.implicit(points, scenarios, self.solver, first + j + 1, client.index)[0], 2)
                return (plus - minus).T / (2 * self.smoothing)

            return of

        def move(x: jax.Array, found: jax.Array, keys: jax.Array) -> jax.Array:
            return self.descend(x, from_slopes(found, keys, x, self.smoothing), client.project(x), r)  # line 7

        x, code, clip = private_steps(self, client, key, clip, steps, x, slopes, move)
        return Reply(x, clip, code=code, **self.spent(steps, client.cost(self.batch_size)))

    def estimate(self, client: Client, keys: jax.Array, x: jax.Array, scenarios: Any, k: Any) -> tuple[Any, Any, Any]:
        """Algorithm 4, lines 5 and 6: the estimate, its slope, and the lower-level steps per scenario."""
        v = jax.vmap(lambda key: directions.sphere(key, x.size, self.smoothing, x.dtype))(keys)  # line 5: v_{i,k}
        *losses, taken = client.implicit(jnp.concatenate([x + v, x - v]), scenarios, self.solver, k)  # line 5: y at all points
        plus, minus = jnp.split(jnp.stack(losses), 2)
        found = slope(x.size, self.smoothing, plus - minus)  # line 6: times v
        return found @ v / len(v), found, taken

    def estimate_by_adjoint(self, client: Client, keys: jax.Array, x: jax.Array, scenarios: Any, k: Any) -> tuple[Any, Any, Any]:
        """Return the same of the gradient at a point drawn in the ball around x."""
        point = x + in_ball(keys, x, self.smoothing)
        gradient, taken = client.implicit_gradient(point, scenarios, self.solver, k)
        return *by_slopes(client, keys, x, gradient, self.smoothing), taken

    def doubt(self, problem: TwoStage, x: np.ndarray, rounds: int) -> str | None:
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
