"""Published mathematical programs with equilibrium constraints whose lower level is a strongly monotone VI.

From MacMPEC (S. Leyffer's collection), with the best values known there. All are deterministic: clients hold unequal shares of
the objective, which average to it, and each keeps a constraint on x to itself where there are several. Stated values are best
known, not proved.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets, vi
from fedrzo.data.client_data import ClientData
from fedrzo.methods import FedRZO2s, Method
from fedrzo.problems.base import Problem
from fedrzo.problems.two_stage import TwoStage
from fedrzo.zoo.gnash import OUTPUT, GnashLoss, GnashMap

SHARES = (0.4, 1.0, 1.6)  # three clients' shares of the objective; their mean is 1
POSITIVE = sets.Box(0.0, np.inf)
ACCURATE = vi.Accelerated()
ROUGH = vi.Accelerated(tolerance=1e-5)  # projections onto intersections of curved sets are exact to 1e-6 only
NO_START = "none published"
RIGHT_VALLEY = "none published; a draw from which descent ends in the best of many valleys (0.10 to 0.31)"


@dataclass(frozen=True)
class Entry:
    """A problem from the literature with its best known value, and what it takes to solve it here."""

    name: str  # as in its collection
    make: Callable[[], Problem]  # builds the problem; its x0 is the start
    published: float  # the best known value, in the collection's units. Best known is not proved: smaller is no error
    method: Method  # what solves it, with its step sizes
    rounds: int  # how many rounds that takes
    # The collection's loss over the problem's. Iterates leave X by smoothing times the loss's slope, so losses in the thousands
    # are divided by this to keep that distance small.
    scale: float = 1.0
    start: str = ""  # where the start comes from, if it is not the collection's


@dataclass(frozen=True)
class Shared:
    """The loss of a client that holds a share of a deterministic objective; equal for equal objectives."""

    loss: Callable[[jax.Array, jax.Array], jax.Array]

    def __call__(self, x: jax.Array, y: jax.Array, share: jax.Array) -> jax.Array:
        """Return the client's share of the objective."""
        return share * self.loss(x, y)


def _problem(
    name: str, loss: Any, map: Any, x0: Any, y0: Any, constraint: Any = None, lower: Any = None, **more: Any
) -> TwoStage:
    """Build a problem whose clients hold shares of the objective."""
    clients = ClientData([np.array([share]) for share in SHARES])
    x0, y0 = np.atleast_1d(np.asarray(x0, float)), np.atleast_1d(np.asarray(y0, float))
    return TwoStage(Shared(loss), map, clients, x0, y0, constraint, lower, name=name, **more)


def _entry(
    name: str, about: str, published: float, steps: tuple[float, float, int], *stated: Any, solver: vi.Solver = ACCURATE,
    start: str = "", **more: Any,
) -> Entry:  # fmt: skip
    """Return a problem with what solves it: its step size, smoothing and rounds.

    `stated` and `more` are what `_problem` takes. Functions among them are made once, so that problems share compiled code.
    """

    def make() -> TwoStage:
        return _problem(name, *stated, **more)

    make.__doc__ = f"{about} (MacMPEC; f* = {published:g})."
    stepsize, smoothing, rounds = steps
    return Entry(name, make, published, FedRZO2s(stepsize, smoothing, 10, solver=solver), rounds, start=start)


def _interval(lo: float, hi: float) -> list[sets.Set]:
    """One client knows the lower bound, one the upper bound, one neither."""
    return [sets.Box(lo, np.inf), sets.Box(-np.inf, hi), sets.Reals()]


def _gnash(name: str, gamma: float, published: float) -> Entry:
    return _entry(
        name, f"A leader and four Cournot firms, demand exponent {gamma}", published, (0.5, 0.5, 60),
        GnashLoss(gamma), GnashMap(gamma), 75.0, np.full(4, 30.0), _interval(0, OUTPUT), sets.Box(0.0, OUTPUT),
        lower_domain=sets.Box(0.1, OUTPUT), modulus=0.13, smoothness=1.0,
    )  # fmt: skip


def _disc(x: jax.Array, share: Any) -> sets.Set:
    """Return a disc cut by a half-plane and the orthant, both depending on x."""
    rows = np.array([[-0.333, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    side = jnp.stack([1 - 0.1 * x[0], 0.0 * x[0], 0.0 * x[0]])
    return sets.Intersection(sets.Ball(0.0, jnp.sqrt(9 + 0.1 * x[0])), sets.Polyhedron(rows, side))


@functools.cache
def qpec_data() -> dict[str, np.ndarray]:
    """Return the data of qpec-100-1 (Jiang, Ralph: QPECgen)."""
    with resources.files("fedrzo.zoo").joinpath("tables/qpec-100-1.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        return {name: stored[name] for name in stored.files}


def qpec_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the quadratic objective."""
    d = qpec_data()
    quadratic = 0.5 * x @ (d["Pxx"] @ x) + 0.5 * y @ (d["Pyy"] @ y) + x @ (d["Pxy"] @ y)
    return quadratic + d["c"] @ x + d["d"] @ y


def qpec_map(x: jax.Array, y: jax.Array, share: Any) -> jax.Array:
    """Return N x + M y + q, of which the lower level is the linear complementarity problem."""
    return qpec_data()["N"] @ x + qpec_data()["M"] @ y + qpec_data()["q"]


def qpec_100_1() -> TwoStage:
    """A generated LCP of 100 unknowns; two clients know one row of X each (MacMPEC; f* = 0.0990028)."""
    rows = [sets.Halfspace(row, -a) for row, a in zip(qpec_data()["Ax"], qpec_data()["a"], strict=True)]
    x0 = np.random.default_rng(5).normal(size=5)
    return _problem("qpec-100-1", qpec_loss, qpec_map, x0, np.zeros(100), [*rows, sets.Reals()], POSITIVE)


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        _gnash("gnash10", 1.0, -230.823),
        _gnash("gnash11", 1.1, -129.912),
        _gnash("gnash12", 1.3, -36.9331),
        _gnash("gnash13", 1.5, -7.06178),
        _gnash("gnash14", 1.7, -0.179046),
        _entry(
            "outrata31-vi", "Outrata 1994: y in a disc and a half-plane that both move with x, as a VI", 3.2077, (0.3, 0.15, 20),
            lambda x, y: 0.5 * (y[0] - 3) ** 2 + 0.5 * (y[1] - 4) ** 2,
            lambda x, y, share: jnp.stack([(1 + 0.2 * x[0]) * y[0] - (3 + 1.333 * x[0]), (1 + 0.1 * x[0]) * y[1] - x[0]]),
            10.0, np.ones(2), _interval(0, 10), _disc,
            solver=ROUGH, lower_domain=sets.Box(0.0, 10.0), modulus=1.0, smoothness=3.0, monitor=ROUGH,
        ),
        _entry(
            "nash1", "A map without a potential, over a set that moves with x", 0.0, (0.1, 0.05, 100),
            lambda x, y: 0.5 * jnp.sum((x - y) ** 2),
            lambda x, y, share: jnp.array([[2, 8 / 3], [5 / 4, 2]]) @ y - jnp.array([34, 24.25]),
            np.zeros(2), np.zeros(2), _interval(0, 10), lambda x, share: sets.Box(-jnp.inf, 15 - x[::-1]),
        ),
        _entry(
            "stackelberg1-vi", "Henderson and Quandt: a leader and one follower, as a VI", -3266.67, (0.2, 0.5, 60),
            lambda x, y: 0.5 * x[0] ** 2 + 0.5 * x[0] * y[0] - 95 * x[0],
            lambda x, y, share: 2 * y + 0.5 * x - 100, 0.0, 0.0, _interval(0, 200), POSITIVE,
        ),
        _entry(
            "gauvin-vi", "A follower bounded by 20 - x, as a VI", 20.0, (0.05, 0.05, 60),
            lambda x, y: x[0] ** 2 + (y[0] - 10) ** 2,
            lambda x, y, share: 4 * (x + 2 * y - 30), 7.5, 0.0, _interval(0, 15), lambda x, share: sets.Box(0.0, 20 - x),
        ),
        _entry(
            "jr1-vi", "(x - 1)^2 + y^2 with y = max(0, x), as a VI", 0.5, (0.05, 0.05, 60),
            lambda x, y: (x[0] - 1) ** 2 + y[0] ** 2, lambda x, y, share: y - x, 2.0, 0.0, None, POSITIVE, start=NO_START,
        ),
        _entry(
            "jr2-vi", "(y - 1)^2 + x^2 with y = max(0, x), as a VI", 0.5, (0.05, 0.05, 60),
            lambda x, y: (y[0] - 1) ** 2 + x[0] ** 2, lambda x, y, share: y - x, 2.0, 0.0, None, POSITIVE, start=NO_START,
        ),
        _entry(
            "qpec1-vi", "Ten times y = max(0, x), as a VI", 80.0, (0.01, 0.05, 100),
            lambda x, y: jnp.sum((x + 1) ** 2) + jnp.sum((y + 2) ** 2),
            lambda x, y, share: y - jnp.concatenate([x, jnp.zeros_like(x)]), np.ones(10), np.ones(20), None, POSITIVE,
        ),
        Entry("qpec-100-1", qpec_100_1, 0.0990028, FedRZO2s(2e-3, 0.05, 10, solver=ACCURATE), 200, start=RIGHT_VALLEY),
    )
}  # fmt: skip
