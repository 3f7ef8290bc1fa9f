"""Published bilevel and minimax problems with their best known values, from MacMPEC, BOLIB and the paper.

S. Leyffer: "MacMPEC: AMPL collection of MPECs", 2000. S. Zhou, A. B. Zemkoho, A. Tin: "BOLIB: Bilevel Optimization LIBrary of
test problems", 2018. None of them is federated: here every objective is a sum of terms of which each client holds an unequal
share, so that the mean over clients is the published one, and where X has several sides each client knows only some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.clientdata import ClientData
from fedrzo.hierarchical import Bilevel, Minimax
from fedrzo.methods import FedRZObl, LocalSGD
from fedrzo.sets import Ball, Box, Halfspace, Intersection, Polyhedron, Simplex
from fedrzo.zoo.entry import Entry

INF = np.inf
Terms = Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]]


class Shared:
    """A loss made of terms; a batch says how much of each term is the client's."""

    def __init__(self, terms: Terms, scale: float = 1.0) -> None:
        self.terms = terms
        self.scale = scale

    def __call__(self, x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
        """Return the client's share of the loss."""
        return jnp.mean(batch @ jnp.stack(self.terms(x, y))) / self.scale


def shares(terms: Terms, x0: Any, y0: Any, clients: int) -> ClientData:
    """Give client i between half and one and a half of each term, so that the mean over clients is one."""
    with jax.enable_x64(True):  # as in a run: constants in the terms keep the precision they are first traced in
        count = len(jax.eval_shape(terms, x0, y0))
    i, k = np.arange(clients)[:, None], np.arange(count)
    return ClientData(list((0.5 + (i + k) % clients / (clients - 1))[:, None]))


def bilevel(
    name: str, upper: Terms, lower: Terms, x0: Any, y0: Any, scale: float = 1.0, clients: int = 2, **more: Any
) -> Bilevel:
    """Return a bilevel problem whose terms are shared out among the clients."""
    x0, y0 = np.asarray(x0, float), np.asarray(y0, float)
    data, lower_data = shares(upper, x0, y0, clients), shares(lower, x0, y0, clients)
    return Bilevel(Shared(upper, scale), Shared(lower), data, x0, y0, lower_data=lower_data, name=name, **more)


def outrata31() -> Bilevel:
    """Outrata 1994: y in a ball and a half-plane that both move with x (MacMPEC; f* = 3.2077)."""

    def upper(x: jax.Array, y: jax.Array) -> tuple:
        return 0.5 * (y[0] - 3) ** 2, 0.5 * (y[1] - 4) ** 2

    def lower(x: jax.Array, y: jax.Array) -> tuple:
        x = x[0]
        return (0.5 + 0.1 * x) * y[0] ** 2, (0.5 + 0.05 * x) * y[1] ** 2, -(3 + 1.333 * x) * y[0], -x * y[1]

    def allowed(x: jax.Array) -> Intersection:
        plane = Halfspace(jnp.array([-0.333, 1.0]), 1 - 0.1 * x[0])
        return Intersection(Ball(0.0, jnp.sqrt(9 + 0.1 * x[0])), plane, Box(0.0, INF))

    return bilevel(
        "outrata31", upper, lower, [0.0], [1.0, 1.0], constraint=[Box(0.0, INF), Box(-INF, 10.0)],
        lower_constraint=allowed, lower_domain=Box(0.0, 10.0), modulus=1.0, smoothness=3.0,
    )  # fmt: skip


def stackelberg1() -> Bilevel:
    """Henderson and Quandt 1958: a Stackelberg duopoly (MacMPEC; f* = -9800/3)."""
    return bilevel(
        "stackelberg1",
        lambda x, y: (0.5 * x[0] ** 2, 0.5 * x[0] * y[0], -95 * x[0]),
        lambda x, y: (y[0] ** 2, (0.5 * x[0] - 100) * y[0]),
        [0.0], [0.0], constraint=[Box(0.0, INF), Box(-INF, 200.0)],
        lower_constraint=Box(0.0, INF), modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def bard1() -> Bilevel:
    """Bard 1988: the best x is where Y(x) shrinks to a point (MacMPEC; f* = 17)."""
    return bilevel(
        "bard1",
        lambda x, y: ((x[0] - 5) ** 2, (2 * y[0] + 1) ** 2),
        lambda x, y: ((y[0] - 1) ** 2, -1.5 * x[0] * y[0]),
        [3.0], [3.0], scale=10.0, constraint=[Box(1.0, INF), Box(0.0, 5.0)],
        lower_constraint=lambda x: Box(jnp.maximum(2 * x - 8, 0), jnp.minimum(3 * x - 3, 7 - x)),
        lower_domain=Box(1.0, 5.0), modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def gauvin() -> Bilevel:
    """Gauvin and Savard 1994: y at most 20 - x (MacMPEC; f* = 20)."""
    return bilevel(
        "gauvin",
        lambda x, y: (x[0] ** 2, (y[0] - 10) ** 2),
        lambda x, y: (4 * (x[0] - 30) * y[0], 4 * y[0] ** 2),
        [7.5], [0.0], constraint=[Box(0.0, INF), Box(-INF, 15.0)],
        lower_constraint=lambda x: Box(0.0, 20 - x), modulus=8.0, smoothness=8.0,
    )  # fmt: skip


def _positive_part(x: jax.Array, y: jax.Array) -> tuple:
    """The lower level of jr1 and jr2, for which y(x) = max(0, x)."""
    return 0.5 * y[0] ** 2, -x[0] * y[0]


def jr1() -> Bilevel:
    """Ralph's first: (x - 1)^2 + y^2 with y = max(0, x) (MacMPEC; f* = 1/2)."""
    return bilevel(
        "jr1", lambda x, y: ((x[0] - 1) ** 2, y[0] ** 2), _positive_part, [2.0], [0.0],
        lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0,
    )  # fmt: skip


def jr2() -> Bilevel:
    """Ralph's second: (y - 1)^2 + x^2 with y = max(0, x), which has a kink uphill of the start (MacMPEC; f* = 1/2)."""
    return bilevel(
        "jr2", lambda x, y: ((y[0] - 1) ** 2, x[0] ** 2), _positive_part, [-1.0], [0.0],
        lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0,
    )  # fmt: skip


def desilva() -> Bilevel:
    """De Silva 1978: y is the projection of x onto a box (MacMPEC; f* = -1)."""
    return bilevel(
        "desilva",
        lambda x, y: (x[0] ** 2 - 2 * x[0], x[1] ** 2 - 2 * x[1], y[0] ** 2, y[1] ** 2),
        lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
        [0.0, 0.0], [1.0, 1.0], constraint=[Box(0.0, INF), Box(-INF, 2.0)],
        lower_constraint=Box(0.5, 1.5), modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def qpec1() -> Bilevel:
    """Twenty followers, ten of which answer y = max(0, x) (MacMPEC; f* = 80)."""
    return bilevel(
        "qpec1",
        lambda x, y: (jnp.sum((x + 1) ** 2), jnp.sum((y[:10] + 2) ** 2), jnp.sum((y[10:] + 2) ** 2)),
        lambda x, y: (0.5 * jnp.sum(y**2), -x @ y[:10]),
        np.ones(10), np.ones(20), lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0,
    )  # fmt: skip


def portfl() -> Bilevel:
    """Which changes of 62 returns make a given portfolio of 12 assets the best one? (MacMPEC portfl-i-1; f* = 1.502e-5)."""
    text = resources.files("fedrzo.zoo").joinpath("tables/portfl-i-1.csv").read_text()
    *assets, index, wanted = [
        np.array(line.split(","), float) for line in text.splitlines() if not line.startswith("#")
    ]
    F, R = np.stack(assets), index
    return bilevel(
        "portfl-i-1",
        lambda r, s: (jnp.sum((s - wanted) ** 2), jnp.sum(r**2)),
        lambda r, s: (jnp.sum((F[:, :31].T @ s - R[:31] - r[:31]) ** 2), jnp.sum((F[:, 31:].T @ s - R[31:] - r[31:]) ** 2)),
        np.zeros(62), np.full(12, 1 / 12), constraint=Box(0.0, INF),
        lower_constraint=Simplex(1.0), modulus=7.8e-4, smoothness=0.83,
    )  # fmt: skip


def clark_westerberg() -> Bilevel:
    """Clark and Westerberg 1990: three pieces, each with its own local minimum (BOLIB; f* = 5)."""
    return bilevel(
        "ClarkWesterberg1990a",
        lambda x, y: ((x[0] - 3) ** 2, (y[0] - 2) ** 2),
        lambda x, y: (y[0] ** 2, 25 - 10 * y[0]),
        [0.0], [1.0], constraint=[Box(0.0, INF), Box(-INF, 8.0)],
        lower_constraint=lambda x: Box((x - 2) / 2, jnp.minimum(2 * x + 1, 7 - x / 2)),
        lower_domain=Box(0.0, 8.0), modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def shimizu_aiyoshi() -> Bilevel:
    """Shimizu and Aiyoshi 1981: the solution is a corner of X, whose sides belong to three clients (BOLIB; f* = 225)."""
    sides = [Halfspace([-1.0, -2.0], -30.0), Halfspace([1.0, 1.0], 25.0), Halfspace([0.0, 1.0], 15.0)]
    return bilevel(
        "ShimizuAiyoshi1981Ex2",
        lambda x, y: ((x[0] - 30) ** 2, (x[1] - 20) ** 2, -20 * y[0], 20 * y[1]),
        lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
        Intersection(*sides).project(np.ones(2)), [1.0, 1.0], scale=100.0, clients=3, constraint=sides,
        lower_constraint=Box(0.0, 10.0), modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def muu_quy() -> Bilevel:
    """Muu and Quy 2003: y in a polygon that grows with x (BOLIB; f* = -2.0769)."""

    def lower(x: jax.Array, y: jax.Array) -> tuple:
        return y[0] ** 2, 0.5 * y[1] ** 2, y[0] * y[1], (1 - 3 * x[0]) * y[0], (1 + x[0]) * y[1]

    return bilevel(
        "MuuQuy2003Ex1", lambda x, y: (x[0] ** 2 - 4 * x[0], jnp.sum(y**2)), lower, [2.0], [0.0, 0.0],
        constraint=[Box(0.0, INF), Box(-INF, 2.0)],
        lower_constraint=lambda x: Polyhedron(np.array([[2.0, 1], [-1, 0], [0, -1]]), jnp.array([1, 0, 0]) + 2 * x * jnp.eye(3)[0]),
        modulus=0.38, smoothness=2.62,
    )  # fmt: skip


def yezza() -> Bilevel:
    """Yezza 1996: y between 0 and x, so that no y is left below x = 0 (BOLIB; f* = 1/2)."""
    return bilevel(
        "Yezza1996Ex41",
        lambda x, y: (0.5 * (y[0] - 2) ** 2, 0.5 * (y[0] - x[0] + 2) ** 2),
        lambda x, y: (0.5 * y[0] ** 2, x[0] - y[0]),
        [0.0], [0.0], constraint=Box(0.0, INF), lower_constraint=lambda x: Box(0.0, x),
        lower_domain=Box(0.0, INF), modulus=1.0, smoothness=1.0,
    )  # fmt: skip


def outrata1990() -> Bilevel:
    """Outrata 1990: a badly conditioned lower level over a polygon (BOLIB Outrata1990Ex1a; f* = -8.92)."""
    polygon = Polyhedron([[-0.333, 1.0], [1.0, -0.333], [-1.0, 0.0], [0.0, -1.0]], [2.0, 2.0, 0.0, 0.0])
    return bilevel(
        "Outrata1990Ex1a",
        lambda x, y: (0.5 * (y[0] - 3) ** 2, 0.5 * (y[1] - 4) ** 2, 0.1 * jnp.sum(x**2) - 12.5),
        lambda x, y: (0.5 * (y[0] - 2 * y[1]) ** 2, 0.5 * y[1] ** 2, -y @ x),
        [0.0, 0.0], [2.0, 2.0], lower_constraint=polygon, modulus=0.1716, smoothness=5.83,
    )  # fmt: skip


def paper_minimax() -> Minimax:
    """The paper's: min over x in [-1, 1], max over y in [-1, 1] with x + y <= 0, of x^2 + y; -1/4 at (1/2, -1/2)."""
    return _minimax("paper_minimax", lambda x, y: (x[0] ** 2, y[0]))


def paper_minimax_reversed() -> Minimax:
    """The paper's example with max and min exchanged, as a minimisation of minus the value; -2 at (x, y) = (-1, 1).

    The outer variable is y, in whose place x stands.
    """
    return _minimax("paper_minimax_reversed", lambda y, x: (-(x[0] ** 2), -y[0]))


def _minimax(name: str, terms: Terms) -> Minimax:
    """Return a minimax problem on [-1, 1]^2 with outer + inner <= 0, which no inner value meets beyond outer = 1."""
    zero = np.zeros(1)
    return Minimax(
        Shared(terms), shares(terms, zero, zero, 2), zero, zero, [Box(-1.0, INF), Box(-INF, 1.0)],
        lower_constraint=lambda outer: Box(-1.0, jnp.minimum(1.0, -outer)), lower_domain=Box(-1.0, 1.0),
        # The first order is linear in its inner variable. These stand in for constants that it does not have: steps of
        # length one reach the end of [-1, 1] at once. In the reversed order both are 2.
        modulus=2.0, smoothness=2.0, name=name,
    )  # fmt: skip


def paper_projection() -> Bilevel:
    """The paper's appendix: |x + 1 - y|^2 / 2 where y is the nearest point of x with y >= 0; flat wherever x >= 0.

    In the box [-a, a] the best x is max(-1, -a): 1/8 at (-1, -1/2) with a = (2, 1/2).
    """
    a = np.array([2.0, 0.5])
    return bilevel(
        "paper_appendix_projection",
        lambda x, y: (0.5 * (x[0] + 1 - y[0]) ** 2, 0.5 * (x[1] + 1 - y[1]) ** 2),
        lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
        [0.0, 0.0], [0.0, 0.0], constraint=[Box(-a, INF), Box(-INF, a)],
        lower_constraint=Box(0.0, INF), modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def _solver(stepsize: float, smoothing: float, **more: Any) -> FedRZObl:
    """Return FedRZO_bl with all of a client's terms in every loss value, so that directions are the only noise."""
    return FedRZObl(stepsize, smoothing, batch_size="full", **more)


OFF_THE_ANSWER = "the collection's start, x = 1, is the solution"
OTHER_VALLEY = "from the collection's x = 4 every descent ends in the local minimum at x = 5, where f = 25"
INSIDE_X = "the collection's start, projected onto X"

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("outrata31", outrata31, 3.2077, _solver(0.2, 0.05), 100),
        Entry("stackelberg1", stackelberg1, -3266.67, _solver(0.2, 0.2, local_steps=2), 60),
        Entry("bard1", bard1, 17.0, _solver(0.02, 0.02), 300, scale=10.0, start=OTHER_VALLEY),
        Entry("gauvin", gauvin, 20.0, _solver(0.05, 0.1, local_steps=2), 60),
        Entry("jr1", jr1, 0.5, _solver(0.1, 0.05), 60, start="none published"),
        Entry("jr2", jr2, 0.5, _solver(0.1, 0.05), 100, start="none published"),
        Entry("desilva", desilva, -1.0, _solver(0.03, 0.02), 400),
        Entry("qpec1", qpec1, 80.0, _solver(0.02, 0.05), 400),
        Entry("portfl-i-1", portfl, 1.502e-5, _solver(4e-5, 1e-4, lower=LocalSGD(rounds=40, batch_size="full")), 8000),
        Entry("ClarkWesterberg1990a", clark_westerberg, 5.0, _solver(0.05, 0.05), 200, start=OFF_THE_ANSWER),
        Entry("ShimizuAiyoshi1981Ex2", shimizu_aiyoshi, 225.0, _solver(0.1, 0.1), 2000, scale=100.0, start=INSIDE_X),
        Entry("MuuQuy2003Ex1", muu_quy, -2.0769, _solver(0.05, 0.05), 100),
        Entry("Yezza1996Ex41", yezza, 0.5, _solver(0.05, 0.05), 300, start=INSIDE_X),
        Entry("Outrata1990Ex1a", outrata1990, -8.92, _solver(0.05, 0.05), 1000),
        Entry("paper_minimax", paper_minimax, -0.25, _solver(0.02, 0.01), 300),
        Entry("paper_minimax_reversed", paper_minimax_reversed, -2.0, _solver(0.02, 0.01), 300),
        Entry("paper_appendix_projection", paper_projection, 0.125, _solver(0.05, 0.05), 500),
    )
}
