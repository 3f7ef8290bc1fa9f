"""Published mathematical programs with equilibrium constraints whose lower level is a strongly monotone VI.

From MacMPEC (S. Leyffer's collection), with the best values known there. All are deterministic: clients hold unequal shares of
the objective, which average to it, and each keeps a constraint on x to itself where there are several. Stated values are best
known, not proved.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets, vi
from fedrzo.data.client_data import ClientData
from fedrzo.methods import FedRZO2s
from fedrzo.problems.two_stage import TwoStage
from fedrzo.zoo.entry import Entry
from fedrzo.zoo.gnash import OUTPUT, GnashLoss, GnashMap

SHARES = (0.4, 1.0, 1.6)  # three clients' shares of the objective; their mean is 1
POSITIVE = sets.Box(0.0, np.inf)
ACCURATE = vi.Accelerated()
ROUGH = vi.Accelerated(tolerance=1e-5)  # projections onto intersections of curved sets are exact to 1e-6 only


def shared(loss: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable:
    """Return the loss of a client that holds a share of a deterministic objective."""
    return _Shared(loss)


class _Shared:
    def __init__(self, loss: Callable) -> None:
        self.loss = loss

    def __call__(self, x: jax.Array, y: jax.Array, share: jax.Array) -> jax.Array:
        return share * self.loss(x, y)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and self.loss == other.loss

    def __hash__(self) -> int:
        return hash((_Shared, self.loss))


def _problem(
    name: str, loss: Any, map: Any, x0: Any, y0: Any, constraint: Any = None, lower: Any = None, **more: Any
) -> Any:
    """Build a problem whose clients hold shares of the objective."""
    clients = ClientData([np.array([share]) for share in SHARES])
    x0, y0 = np.atleast_1d(np.asarray(x0, float)), np.atleast_1d(np.asarray(y0, float))
    return TwoStage(shared(loss), map, clients, x0, y0, constraint, lower, name=name, **more)


def _interval(lo: float, hi: float) -> list[sets.Set]:
    """One client knows the lower bound, one the upper bound, one neither."""
    return [sets.Box(lo, np.inf), sets.Box(-np.inf, hi), sets.Reals()]


GNASH = {  # name: exponent of the demand, best known value
    "gnash10": (1.0, -230.823),
    "gnash11": (1.1, -129.912),
    "gnash12": (1.3, -36.9331),
    "gnash13": (1.5, -7.06178),
    "gnash14": (1.7, -0.179046),
}


def gnash(name: str) -> Callable[[], TwoStage]:
    """Return the maker of one of gnash10 to gnash14."""
    gamma = GNASH[name][0]

    def make() -> TwoStage:
        return _problem(
            name, GnashLoss(gamma), GnashMap(gamma), 75.0, np.full(4, 30.0), _interval(0, OUTPUT), sets.Box(0.0, OUTPUT),
            lower_domain=sets.Box(0.1, OUTPUT), modulus=0.13, smoothness=1.0,
        )  # fmt: skip

    make.__doc__ = f"A leader and four Cournot firms, demand exponent {gamma} (MacMPEC; f* = {GNASH[name][1]})."
    return make


# The others: small, or made by QPECgen.
def outrata31_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the distance of y to (3, 4), squared and halved."""
    return 0.5 * (y[0] - 3) ** 2 + 0.5 * (y[1] - 4) ** 2


def outrata31_map(x: jax.Array, y: jax.Array, share: Any) -> jax.Array:
    """Return the gradient of the lower quadratic."""
    x = x[0]
    return jnp.stack([(1 + 0.2 * x) * y[0] - (3 + 1.333 * x), (1 + 0.1 * x) * y[1] - x])


def outrata31_set(x: jax.Array, share: Any) -> sets.Set:
    """Return a disc cut by a half-plane and the orthant, both depending on x."""
    rows = np.array([[-0.333, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    side = jnp.stack([1 - 0.1 * x[0], 0.0 * x[0], 0.0 * x[0]])
    return sets.Intersection(sets.Ball(0.0, jnp.sqrt(9 + 0.1 * x[0])), sets.Polyhedron(rows, side))


def nash1_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return half the squared distance of x and y."""
    return 0.5 * jnp.sum((x - y) ** 2)


def nash1_map(x: jax.Array, y: jax.Array, share: Any) -> jax.Array:
    """Return an affine map without a potential."""
    return jnp.array([[2, 8 / 3], [5 / 4, 2]]) @ y - jnp.array([34, 24.25])


def nash1_set(x: jax.Array, share: Any) -> sets.Set:
    """Return y_1 <= 15 - x_2, y_2 <= 15 - x_1."""
    return sets.Box(-jnp.inf, 15 - x[::-1])


def stackelberg1_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the leader's loss."""
    return 0.5 * x[0] ** 2 + 0.5 * x[0] * y[0] - 95 * x[0]


def stackelberg1_map(x: jax.Array, y: jax.Array, share: Any) -> jax.Array:
    """Return the follower's optimality condition."""
    return 2 * y + 0.5 * x - 100


def gauvin_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return a squared distance."""
    return x[0] ** 2 + (y[0] - 10) ** 2


def gauvin_map(x: jax.Array, y: jax.Array, share: Any) -> jax.Array:
    """Return the lower gradient."""
    return 4 * (x + 2 * y - 30)


def gauvin_set(x: jax.Array, share: Any) -> sets.Set:
    """Return 0 <= y <= 20 - x."""
    return sets.Box(0.0, 20 - x)


def jr1_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return (x - 1)^2 + y^2."""
    return (x[0] - 1) ** 2 + y[0] ** 2


def jr2_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return (y - 1)^2 + x^2."""
    return (y[0] - 1) ** 2 + x[0] ** 2


def jr_map(x: jax.Array, y: jax.Array, share: Any) -> jax.Array:
    """Return y - x, whose solution over y >= 0 is max(0, x)."""
    return y - x


def qpec1_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return squared distances to -1 and to -2."""
    return jnp.sum((x + 1) ** 2) + jnp.sum((y + 2) ** 2)


def qpec1_map(x: jax.Array, y: jax.Array, share: Any) -> jax.Array:
    """Return y - (x, 0), whose solution over y >= 0 is (max(0, x), 0)."""
    return y - jnp.concatenate([x, jnp.zeros_like(x)])


class Qpec:
    """The data of qpec-100-1 (Jiang, Ralph: QPECgen); one instance, so all compare equal."""

    def __init__(self) -> None:
        with resources.files("fedrzo.zoo").joinpath("tables/qpec-100-1.npz").open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            self.data = {name: stored[name] for name in stored.files}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class QpecLoss(Qpec):
    """The quadratic objective."""

    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Return its value."""
        d = self.data
        quadratic = 0.5 * x @ (d["Pxx"] @ x) + 0.5 * y @ (d["Pyy"] @ y) + x @ (d["Pxy"] @ y)
        return quadratic + d["c"] @ x + d["d"] @ y


class QpecMap(Qpec):
    """The lower level: a linear complementarity problem."""

    def __call__(self, x: jax.Array, y: jax.Array, share: Any) -> jax.Array:
        """Return N x + M y + q."""
        return self.data["N"] @ x + self.data["M"] @ y + self.data["q"]


def outrata31() -> TwoStage:
    """Outrata 1994: y in a disc and a half-plane that both move with x, as a VI (MacMPEC; f* = 3.2077)."""
    return _problem(
        "outrata31-vi", outrata31_loss, outrata31_map, 10.0, np.ones(2), _interval(0, 10), outrata31_set,
        lower_domain=sets.Box(0.0, 10.0), modulus=1.0, smoothness=3.0, monitor=ROUGH,
    )  # fmt: skip


def nash1() -> TwoStage:
    """A map without a potential, over a set that moves with x (MacMPEC; f* = 0)."""
    return _problem("nash1", nash1_loss, nash1_map, np.zeros(2), np.zeros(2), _interval(0, 10), nash1_set)


def stackelberg1() -> TwoStage:
    """Henderson and Quandt: a leader and one follower, as a VI (MacMPEC; f* = -3266.67)."""
    return _problem("stackelberg1-vi", stackelberg1_loss, stackelberg1_map, 0.0, 0.0, _interval(0, 200), POSITIVE)


def gauvin() -> TwoStage:
    """A follower bounded by 20 - x, as a VI (MacMPEC; f* = 20)."""
    return _problem("gauvin-vi", gauvin_loss, gauvin_map, 7.5, 0.0, _interval(0, 15), gauvin_set)


def jr1() -> TwoStage:
    """(x - 1)^2 + y^2 with y = max(0, x), as a VI (MacMPEC; f* = 0.5)."""
    return _problem("jr1-vi", jr1_loss, jr_map, 2.0, 0.0, None, POSITIVE)


def jr2() -> TwoStage:
    """(y - 1)^2 + x^2 with y = max(0, x), as a VI (MacMPEC; f* = 0.5)."""
    return _problem("jr2-vi", jr2_loss, jr_map, 2.0, 0.0, None, POSITIVE)


def qpec1() -> TwoStage:
    """Ten times y = max(0, x), as a VI (MacMPEC; f* = 80)."""
    return _problem("qpec1-vi", qpec1_loss, qpec1_map, np.ones(10), np.ones(20), None, POSITIVE)


def qpec_100_1() -> TwoStage:
    """A generated LCP of 100 unknowns; two clients know one row of X each (MacMPEC; f* = 0.0990028)."""
    map = QpecMap()
    rows = [sets.Halfspace(row, -a) for row, a in zip(map.data["Ax"], map.data["a"], strict=True)]
    x0 = np.random.default_rng(5).normal(size=5)
    return _problem("qpec-100-1", QpecLoss(), map, x0, np.zeros(100), [*rows, sets.Reals()], POSITIVE)


def _entry(make: Callable[[], TwoStage], name: str, published: float, stepsize: Any, smoothing: float, rounds: int,
           start: str = "", solver: vi.Solver = ACCURATE) -> Entry:  # fmt: skip
    return Entry(name, make, published, FedRZO2s(stepsize, smoothing, 10, solver=solver), rounds, start=start)


NO_START = "none published"
RIGHT_VALLEY = "none published; a draw from which descent ends in the best of many valleys (0.10 to 0.31)"

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *(_entry(gnash(name), name, published, 0.5, 0.5, 60) for name, (_, published) in GNASH.items()),
        _entry(outrata31, "outrata31-vi", 3.2077, 0.3, 0.15, 20, solver=ROUGH),
        _entry(nash1, "nash1", 0.0, 0.1, 0.05, 100),
        _entry(stackelberg1, "stackelberg1-vi", -3266.67, 0.2, 0.5, 60),
        _entry(gauvin, "gauvin-vi", 20.0, 0.05, 0.05, 60),
        _entry(jr1, "jr1-vi", 0.5, 0.05, 0.05, 60, NO_START),
        _entry(jr2, "jr2-vi", 0.5, 0.05, 0.05, 60, NO_START),
        _entry(qpec1, "qpec1-vi", 80.0, 0.01, 0.05, 100),
        _entry(qpec_100_1, "qpec-100-1", 0.0990028, 2e-3, 0.05, 200, RIGHT_VALLEY),
    )
}
