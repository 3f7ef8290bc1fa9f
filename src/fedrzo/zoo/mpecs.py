"""Published mathematical programs with equilibrium constraints whose lower level is a strongly monotone VI.

From MacMPEC, with the best values known there. All are deterministic: clients hold unequal shares of the objective, which
average to it, and each keeps a constraint on x to itself where there are several.
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
from fedrzo.problems.two_stage import TwoStage
from fedrzo.zoo.entry import INSIDE_X, MACMPEC, NO_START, Entry, Solution, by_name, described
from fedrzo.zoo.gnash import OUTPUT, GnashLoss, GnashMap

SHARES = (0.4, 1.0, 1.6)  # three clients' shares of the objective; their mean is 1
POSITIVE = sets.Box(0.0, np.inf)
TWO_FIRMS = np.array([[2, 8 / 3], [5 / 4, 2]])  # of nash1 and flp2: what two firms do to each other
ROUGH = vi.Accelerated(tolerance=1e-5)  # projections onto intersections of curved sets are exact to 1e-6 only
RIGHT_VALLEY = "none published; a draw from which descent ends in the best of many valleys (0.10 to 0.31)"


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


def _entry(name: str, about: str, published: float, solution: Solution, *stated: Any, start: str = "", **more: Any) -> Entry:
    """Return a problem; `stated` and `more` are what `_problem` takes, functions made once so that compiled code is shared."""
    make = described(lambda: _problem(name, *stated, **more), about, MACMPEC, published)
    return Entry(name, make, published, MACMPEC, solution, start=start)


def _interval(lo: float, hi: float) -> list[sets.Set]:
    """One client knows the lower bound, one the upper bound, one neither."""
    return [sets.Box(lo, np.inf), sets.Box(-np.inf, hi), sets.Reals()]


def _gnash(number: int, gamma: float, output: float, published: float, x: float, y: list[float]) -> Entry:
    """Return a leader and four Cournot firms, of which none makes more than `output`."""
    return _entry(
        f"gnash{number}", f"A leader and four Cournot firms of output {output:g}, demand exponent {gamma}", published, ([x], y),
        GnashLoss(gamma), GnashMap(gamma), min(75.0, output), np.full(4, min(30.0, output)), _interval(0, output),
        sets.Box(0.0, output), lower_domain=sets.Box(0.1, output), modulus=0.13, smoothness=1.0,
        start="" if output > 75 else INSIDE_X,
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
    return _problem(
        "qpec-100-1", qpec_loss, qpec_map, x0, np.zeros(100), [*rows, sets.Reals()], POSITIVE, modulus=0.0038, smoothness=0.763
    )


ENTRIES = by_name(
    _gnash(10, 1.0, OUTPUT, -230.823, 47.035955, [34.853506, 46.414312, 61.377394, 81.483096]),
    _gnash(11, 1.1, OUTPUT, -129.912, 34.994199, [28.546536, 39.476306, 53.636682, 72.713261]),
    _gnash(12, 1.3, OUTPUT, -36.9331, 18.133225, [19.151074, 29.065047, 41.907245, 59.243081]),
    _gnash(13, 1.5, OUTPUT, -7.06178, 7.551972, [12.599424, 21.731383, 33.534821, 49.451833]),
    _gnash(14, 1.7, OUTPUT, -0.179046, 1.066333, [7.840873, 16.347042, 27.302686, 42.029447]),
    _gnash(15, 1.0, 50.0, -354.699, 50.0, [40.267719, 50.0, 50.0, 50.0]),
    _gnash(16, 1.1, 40.0, -241.442, 40.0, [34.667385, 40.0, 40.0, 40.0]),
    _gnash(17, 1.3, 30.0, -90.7491, 25.258441, [24.195379, 30.0, 30.0, 30.0]),
    _gnash(18, 1.5, 25.0, -25.6982, 13.199918, [16.393903, 25.0, 25.0, 25.0]),
    _gnash(19, 1.7, 20.0, -6.11671, 6.369333, [11.33275, 19.500266, 20.0, 20.0]),
    _entry(
        "outrata31-vi", "Outrata 1994: y in a disc and a half-plane that both move with x, as a VI", 3.2077,
        ([4.060406], [2.682244, 1.487147]),
        lambda x, y: 0.5 * (y[0] - 3) ** 2 + 0.5 * (y[1] - 4) ** 2,
        lambda x, y, share: jnp.stack([(1 + 0.2 * x[0]) * y[0] - (3 + 1.333 * x[0]), (1 + 0.1 * x[0]) * y[1] - x[0]]),
        10.0, np.ones(2), _interval(0, 10), _disc,
        lower_domain=sets.Box(0.0, 10.0), modulus=1.0, smoothness=3.0, monitor=ROUGH,
    ),
    _entry(
        "nash1", "A map without a potential, over a set that moves with x", 0.0, ([9.5, 5.5], [9.5, 5.5]),
        lambda x, y: 0.5 * jnp.sum((x - y) ** 2),
        lambda x, y, share: TWO_FIRMS @ y - jnp.array([34, 24.25]),
        np.zeros(2), np.zeros(2), _interval(0, 10), lambda x, share: sets.Box(-jnp.inf, 15 - x[::-1]),
    ),
    _entry(
        "flp2", "Fukushima, Luo and Pang 1998: the map of nash1 over the orthant, moved by x", 0.0, ([7.0, 7.5], [0.5, 0.5]),
        lambda x, y: 0.5 * jnp.sum((jnp.sum(x) + y - 15) ** 2),
        lambda x, y, share: TWO_FIRMS[:, ::-1] @ x + TWO_FIRMS @ y - jnp.array([36.0, 25.0]),
        np.zeros(2), np.zeros(2), _interval(0, 10), POSITIVE, start=NO_START, modulus=0.04, smoothness=4.0,
    ),
    _entry(
        "stackelberg1-vi", "Henderson and Quandt: a leader and one follower, as a VI", -3266.67, ([280 / 3], [80 / 3]),
        lambda x, y: 0.5 * x[0] ** 2 + 0.5 * x[0] * y[0] - 95 * x[0],
        lambda x, y, share: 2 * y + 0.5 * x - 100, 0.0, 0.0, _interval(0, 200), POSITIVE,
    ),
    _entry(
        "gauvin-vi", "A follower bounded by 20 - x, as a VI", 20.0, ([2.0], [14.0]),
        lambda x, y: x[0] ** 2 + (y[0] - 10) ** 2,
        lambda x, y, share: 4 * (x + 2 * y - 30), 7.5, 0.0, _interval(0, 15), lambda x, share: sets.Box(0.0, 20 - x),
    ),
    _entry(
        "jr1-vi", "(x - 1)^2 + y^2 with y = max(0, x), as a VI", 0.5, ([0.5], [0.5]),
        lambda x, y: (x[0] - 1) ** 2 + y[0] ** 2, lambda x, y, share: y - x, 2.0, 0.0, None, POSITIVE, start=NO_START,
    ),
    _entry(
        "jr2-vi", "(y - 1)^2 + x^2 with y = max(0, x), as a VI", 0.5, ([0.5], [0.5]),
        lambda x, y: (y[0] - 1) ** 2 + x[0] ** 2, lambda x, y, share: y - x, 2.0, 0.0, None, POSITIVE, start=NO_START,
    ),
    _entry(
        "qpec1-vi", "Ten times y = max(0, x), as a VI", 80.0, (-np.ones(10), np.zeros(20)),
        lambda x, y: jnp.sum((x + 1) ** 2) + jnp.sum((y + 2) ** 2),
        lambda x, y, share: y - jnp.concatenate([x, jnp.zeros_like(x)]), np.ones(10), np.ones(20), None, POSITIVE,
    ),
    Entry("qpec-100-1", qpec_100_1, 0.0990028, MACMPEC, ([-0.469071, -0.018665, 0.567044, 0.102218, -0.81055], None),
          start=RIGHT_VALLEY),
)  # fmt: skip
