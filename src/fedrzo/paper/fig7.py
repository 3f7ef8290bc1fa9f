"""The paper's Figure 7 (appendix): an implicit function that is neither convex nor differentiable."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.data.client_data import ClientData
from fedrzo.paper.claims import exact
from fedrzo.paper.record import Record, Setting
from fedrzo.paper.reproduction import Reproduction
from fedrzo.problems.bilevel import Bilevel
from fedrzo.results.figure import Surface
from fedrzo.running.health import losses_at

TITLE = "An implicit function that is neither convex nor differentiable"
MINUTES = (0.1, 0.1)  # quick: of processor time, with nothing cached; full: on two cores
EDGE, POINTS, QUICK_POINTS = 2.0, 61, 31


def upper(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """Half the squared distance from x + 1 to y; the batch is a client's share of it."""
    return 0.5 * jnp.mean(batch) * jnp.sum((x + 1 - y) ** 2)


def lower(x: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    """The squared distance from y to x."""
    return jnp.mean(batch) * jnp.sum((y - x) ** 2)


def example() -> Bilevel:
    """Return the appendix's problem for n = 2, shared by two clients."""
    shares = ClientData([np.array([0.5]), np.array([1.5])])
    orthant = sets.Box(0.0, np.inf)
    return Bilevel(
        upper, lower, shares, np.ones(2), np.ones(2), constraint=sets.Box(-EDGE, EDGE), lower_constraint=orthant,
        modulus=2.0, smoothness=2.0, name="orthant",
    )  # fmt: skip


def values(problem: Bilevel, points: np.ndarray) -> np.ndarray:
    """Return f at each row, its lower level solved as in any run."""
    with problem.precision():
        return np.asarray(losses_at(problem, points))


def run(reproduction: Reproduction) -> Record:
    """Evaluate the surface on a grid and judge what the appendix says of it."""
    count = reproduction.choose(QUICK_POINTS, POINTS)
    reproduction.budget(f"{count**2:,} values, each with its lower level solved", MINUTES)
    axis = np.linspace(-EDGE, EDGE, count)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    problem = example()
    found = values(problem, grid)
    surface = Surface(
        "f over [-2, 2]^2", axis.tolist(), axis.tolist(), found.reshape(count, count).tolist(), ("x_1", "x_2", "f(x)"),
        caption="The implicit function of the appendix for n = 2: flat where x >= 0, kinked along both axes.",
    )  # fmt: skip
    return reproduction.record(TITLE, SETTINGS, [], [surface], claims=_claims(problem, grid, found))


SETTINGS = [
    Setting("n", 2, "printed in the paper"),
    Setting("X", f"[-{EDGE:g}, {EDGE:g}]^2", "not printed: any a_i > 1 shows both the valley and the plain"),
    Setting("clients", 2, "the example is not federated; two clients hold 1/4 and 3/4 of both losses"),
]


def _claims(problem: Bilevel, grid: np.ndarray, found: np.ndarray) -> list[Any]:
    closed_form = np.sum(np.where(grid >= 0, 0.5, 0.5 * (grid + 1) ** 2), axis=-1)
    error = float(np.abs(found - closed_form).max())
    ends = values(problem, np.array([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]]))
    step = 1e-4
    near = values(problem, np.array([[step, 1.0], [0.0, 1.0], [-step, 1.0]]))
    right, left = (near[0] - near[1]) / step, (near[1] - near[2]) / step
    slopes = np.abs(np.diff(found.reshape(int(len(grid) ** 0.5), -1), axis=1)) / (grid[1, 0] - grid[0, 0])
    return [
        exact("The implicit function is the appendix's closed form", "largest difference on the grid", error, error < 1e-8),
        exact("f is not convex", "f(0) minus the mean of f(1) and f(-1), positive if not convex; the paper: n/4",
              ends[2] - (ends[0] + ends[1]) / 2, ends[2] > (ends[0] + ends[1]) / 2 + 0.4),
        exact("f is not differentiable where some x_i = 0", "jump of the slope in x_1 at (0, 1); the closed form: 1",
              left - right, abs(left - right - 1) < 1e-2),
        exact("f is Lipschitz in each coordinate with L = max(1, |1 - a|, |1 - a/2|)",
              "largest slope between neighbours on the grid; L = 1 at a = 2", float(slopes.max()), slopes.max() <= 1 + 1e-6),
    ]  # fmt: skip
