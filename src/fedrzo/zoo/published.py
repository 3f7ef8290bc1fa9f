"""Published bilevel and minimax problems with their best known values, and the paper's own small examples.

S. Leyffer: "MacMPEC: AMPL collection of MPECs", 2000, with lower levels as minimisations; S. Zhou, A. B. Zemkoho, A. Tin:
"BOLIB: Bilevel Optimization LIBrary of test problems", 2018. Published values are best known, not proved: a smaller one found
here is no error. None of the problems is federated: their objectives are taken as sums of terms of which each client holds an
unequal share, so that the mean over clients is the published one; where X has several sides, each client knows only some of
them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import ClientData
from fedrzo.methods import FedAC, FedRZObl
from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.minimax import Minimax
from fedrzo.sets import Ball, Box, Halfspace, Intersection, Polyhedron, Set, Simplex
from fedrzo.zoo.mpecs import NO_START, Entry

Terms = Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]]
INF = np.inf
OFF_THE_ANSWER = "the collection's start, x = 1, is the solution"
OTHER_VALLEY = "from the collection's x = 4 every descent ends in the local minimum at x = 5, where f = 25"
INSIDE_X = "the collection's start, projected onto X"


@dataclass(frozen=True)
class Shared:
    """A loss made of terms; a batch says how much of each term is the client's."""

    terms: Terms
    scale: float = 1.0

    def __call__(self, x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
        """Return the client's share of the loss."""
        return jnp.mean(batch @ jnp.stack(self.terms(x, y))) / self.scale


def _shares(terms: Terms, x0: Any, y0: Any, clients: int) -> ClientData:
    """Give client i between half and one and a half of each term, so that the mean over clients is one."""
    with jax.enable_x64(True):  # as in a run: constants in the terms keep the precision they are first traced in
        count = len(jax.eval_shape(terms, x0, y0))
    i, k = np.arange(clients)[:, None], np.arange(count)
    return ClientData(list((0.5 + (i + k) % clients / (clients - 1))[:, None]))


def _bilevel(
    name: str, upper: Terms, lower: Terms, x0: Any, y0: Any, scale: float = 1.0, clients: int = 2, **more: Any
) -> Bilevel:
    """Return a bilevel problem whose terms are shared out among the clients."""
    x0, y0 = np.asarray(x0, float), np.asarray(y0, float)
    data, lower_data = _shares(upper, x0, y0, clients), _shares(lower, x0, y0, clients)
    return Bilevel(Shared(upper, scale), Shared(lower), data, x0, y0, lower_data=lower_data, name=name, **more)


# Its lower level has a condition number of 1,000, and y must be known better than to the smoothing.
PORTFL = FedRZObl(4e-5, 1e-4, batch_size="full", lower=FedAC(batch_size="full", rounds=80))


def _solver(stepsize: float, smoothing: float, local_steps: int = 1, lower_rounds: int | None = None) -> FedRZObl:
    """Return FedRZO_bl with all of a client's terms in every loss value, so that directions are the only noise."""
    return FedRZObl(stepsize, smoothing, local_steps, batch_size="full", lower_rounds=lower_rounds)


def _entry(
    name: str, about: str, published: float, method: FedRZObl, rounds: int, *stated: Any, start: str = "", **more: Any
) -> Entry:
    """Return a problem with what solves it; `stated` and `more` are what `_bilevel` takes, functions of x and y made once."""

    def make() -> Bilevel:
        return _bilevel(name, *stated, **more)

    make.__doc__ = about
    return Entry(name, make, published, method, rounds, more.get("scale", 1.0), start)


def _near_and_below(x: jax.Array) -> Set:
    """Return the Y(x) of outrata31: a ball and a half-plane that both move with x."""
    plane = Halfspace(jnp.array([-0.333, 1.0]), 1 - 0.1 * x[0])
    return Intersection(Ball(0.0, jnp.sqrt(9 + 0.1 * x[0])), plane, Box(0.0, INF))


def _positive_part(x: jax.Array, y: jax.Array) -> tuple:
    """The lower level of jr1 and jr2, for which y(x) = max(0, x)."""
    return 0.5 * y[0] ** 2, -x[0] * y[0]


def portfl() -> Bilevel:
    """Which changes of 62 returns make a given portfolio of 12 assets the best one? (MacMPEC portfl-i-1; f* = 1.502e-5)."""
    text = resources.files("fedrzo.zoo").joinpath("tables/portfl-i-1.csv").read_text()
    *assets, R, wanted = [np.array(line.split(","), float) for line in text.splitlines() if not line.startswith("#")]
    F = np.stack(assets)
    return _bilevel(
        "portfl-i-1",
        lambda r, s: (jnp.sum((s - wanted) ** 2), jnp.sum(r**2)),
        lambda r, s: (jnp.sum((F[:, :31].T @ s - R[:31] - r[:31]) ** 2), jnp.sum((F[:, 31:].T @ s - R[31:] - r[31:]) ** 2)),
        np.zeros(62), np.full(12, 1 / 12), constraint=Box(0.0, INF),
        lower_constraint=Simplex(1.0), modulus=7.8e-4, smoothness=0.83,
    )  # fmt: skip


def paper_minimax() -> Minimax:
    """The paper's: min over x in [-1, 1], max over y in [-1, 1] with x + y <= 0, of x^2 + y; -1/4 at (1/2, -1/2)."""
    # Linear in y, so there is no modulus to give: with these, steps of length one go from end to end of [-1, 1] in two.
    return _minimax("paper_minimax", lambda x, y: (x[0] ** 2, y[0]), modulus=1.0, smoothness=1.0)


def paper_minimax_reversed() -> Minimax:
    """The paper's example with max and min exchanged, as a minimisation of minus the value; -2 at (x, y) = (-1, 1)."""
    # The outer variable is y, in whose place x stands.
    return _minimax("paper_minimax_reversed", lambda y, x: (-(x[0] ** 2), -y[0]), modulus=2.0, smoothness=2.0)


def _minimax(name: str, terms: Terms, **constants: Any) -> Minimax:
    """Return a minimax problem on [-1, 1]^2 with outer + inner <= 0, which no inner value meets beyond outer = 1."""
    zero = np.zeros(1)
    return Minimax(
        Shared(terms), _shares(terms, zero, zero, 2), zero, zero, [Box(-1.0, INF), Box(-INF, 1.0)],
        lower_constraint=lambda outer: Box(-1.0, jnp.minimum(1.0, -outer)), lower_domain=Box(-1.0, 1.0), name=name, **constants,
    )  # fmt: skip


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        _entry(
            "outrata31", "Outrata 1994: y in a ball and a half-plane that both move with x (MacMPEC; f* = 3.2077).",
            3.2077, _solver(0.2, 0.1), 100,
            lambda x, y: (0.5 * (y[0] - 3) ** 2, 0.5 * (y[1] - 4) ** 2),
            lambda x, y: (
                (0.5 + 0.1 * x[0]) * y[0] ** 2, (0.5 + 0.05 * x[0]) * y[1] ** 2, -(3 + 1.333 * x[0]) * y[0], -x[0] * y[1]
            ),
            [0.0], [1.0, 1.0], constraint=[Box(0.0, INF), Box(-INF, 10.0)],
            lower_constraint=_near_and_below, lower_domain=Box(0.0, 10.0), modulus=1.0, smoothness=3.0,
        ),
        _entry(
            "stackelberg1", "Henderson and Quandt 1958: a Stackelberg duopoly (MacMPEC; f* = -9800/3).",
            -3266.67, _solver(0.2, 0.2, local_steps=2), 60,
            lambda x, y: (0.5 * x[0] ** 2, 0.5 * x[0] * y[0], -95 * x[0]),
            lambda x, y: (y[0] ** 2, (0.5 * x[0] - 100) * y[0]),
            [0.0], [0.0], constraint=[Box(0.0, INF), Box(-INF, 200.0)],
            lower_constraint=Box(0.0, INF), modulus=2.0, smoothness=2.0,
        ),
        _entry(
            "bard1", "Bard 1988: the best x is where Y(x) shrinks to a point (MacMPEC; f* = 17).",
            17.0, _solver(0.02, 0.02), 300,
            lambda x, y: ((x[0] - 5) ** 2, (2 * y[0] + 1) ** 2),
            lambda x, y: ((y[0] - 1) ** 2, -1.5 * x[0] * y[0]),
            [3.0], [3.0], scale=10.0, start=OTHER_VALLEY, constraint=[Box(1.0, INF), Box(0.0, 5.0)],
            lower_constraint=lambda x: Box(jnp.maximum(2 * x - 8, 0), jnp.minimum(3 * x - 3, 7 - x)),
            lower_domain=Box(1.0, 5.0), modulus=2.0, smoothness=2.0,
        ),
        _entry(
            "gauvin", "Gauvin and Savard 1994: y at most 20 - x (MacMPEC; f* = 20).",
            20.0, _solver(0.05, 0.1, local_steps=2), 60,
            lambda x, y: (x[0] ** 2, (y[0] - 10) ** 2),
            lambda x, y: (4 * (x[0] - 30) * y[0], 4 * y[0] ** 2),
            [7.5], [0.0], constraint=[Box(0.0, INF), Box(-INF, 15.0)],
            lower_constraint=lambda x: Box(0.0, 20 - x), modulus=8.0, smoothness=8.0,
        ),
        _entry(
            "jr1", "Ralph's first: (x - 1)^2 + y^2 with y = max(0, x) (MacMPEC; f* = 1/2).", 0.5, _solver(0.1, 0.05), 60,
            lambda x, y: ((x[0] - 1) ** 2, y[0] ** 2), _positive_part, [2.0], [0.0],
            lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0, start=NO_START,
        ),
        _entry(
            "jr2",
            "Ralph's second: (y - 1)^2 + x^2 with y = max(0, x), which has a kink uphill of the start (MacMPEC; f* = 1/2).",
            0.5, _solver(0.1, 0.05), 100,
            lambda x, y: ((y[0] - 1) ** 2, x[0] ** 2), _positive_part, [-1.0], [0.0],
            lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0, start=NO_START,
        ),
        _entry(
            "desilva", "De Silva 1978: y is the projection of x onto a box (MacMPEC; f* = -1).", -1.0, _solver(0.03, 0.02), 400,
            lambda x, y: (x[0] ** 2 - 2 * x[0], x[1] ** 2 - 2 * x[1], y[0] ** 2, y[1] ** 2),
            lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
            [0.0, 0.0], [1.0, 1.0], constraint=[Box(0.0, INF), Box(-INF, 2.0)],
            lower_constraint=Box(0.5, 1.5), modulus=2.0, smoothness=2.0,
        ),
        _entry(
            "qpec1", "Twenty followers, ten of which answer y = max(0, x) (MacMPEC; f* = 80).", 80.0, _solver(0.02, 0.05), 400,
            lambda x, y: (jnp.sum((x + 1) ** 2), jnp.sum((y[:10] + 2) ** 2), jnp.sum((y[10:] + 2) ** 2)),
            lambda x, y: (0.5 * jnp.sum(y**2), -x @ y[:10]),
            np.ones(10), np.ones(20), lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0,
        ),
        Entry("portfl-i-1", portfl, 1.502e-5, PORTFL, 8000),
        _entry(
            "ClarkWesterberg1990a", "Clark and Westerberg 1990: three pieces, each with its own local minimum (BOLIB; f* = 5).",
            5.0, _solver(0.05, 0.05), 200,
            lambda x, y: ((x[0] - 3) ** 2, (y[0] - 2) ** 2),
            lambda x, y: (y[0] ** 2, 25 - 10 * y[0]),
            [0.0], [1.0], start=OFF_THE_ANSWER, constraint=[Box(0.0, INF), Box(-INF, 8.0)],
            lower_constraint=lambda x: Box((x - 2) / 2, jnp.minimum(2 * x + 1, 7 - x / 2)),
            lower_domain=Box(0.0, 8.0), modulus=2.0, smoothness=2.0,
        ),
        _entry(
            "ShimizuAiyoshi1981Ex2",
            "Shimizu and Aiyoshi 1981: the solution is a corner of X, whose sides belong to three clients (BOLIB; f* = 225).",
            225.0, _solver(0.1, 0.1), 2000,
            lambda x, y: ((x[0] - 30) ** 2, (x[1] - 20) ** 2, -20 * y[0], 20 * y[1]),
            lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
            [6.4, 11.8], [1.0, 1.0], scale=100.0, clients=3, start=INSIDE_X,
            constraint=[Halfspace([-1.0, -2.0], -30.0), Halfspace([1.0, 1.0], 25.0), Halfspace([0.0, 1.0], 15.0)],
            lower_constraint=Box(0.0, 10.0), modulus=2.0, smoothness=2.0,
        ),
        _entry(
            "MuuQuy2003Ex1", "Muu and Quy 2003: y in a polygon that grows with x (BOLIB; f* = -2.0769).",
            -2.0769, _solver(0.05, 0.05, lower_rounds=10), 100,
            lambda x, y: (x[0] ** 2 - 4 * x[0], jnp.sum(y**2)),
            lambda x, y: (y[0] ** 2, 0.5 * y[1] ** 2, y[0] * y[1], (1 - 3 * x[0]) * y[0], (1 + x[0]) * y[1]),
            [2.0], [0.0, 0.0], constraint=[Box(0.0, INF), Box(-INF, 2.0)], modulus=0.38, smoothness=2.62,
            lower_constraint=lambda x: Polyhedron([[2.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], jnp.append(1 + 2 * x, jnp.zeros(2))),
        ),
        _entry(
            "Yezza1996Ex41", "Yezza 1996: y between 0 and x, so that no y is left below x = 0 (BOLIB; f* = 1/2).",
            0.5, _solver(0.05, 0.05), 300,
            lambda x, y: (0.5 * (y[0] - 2) ** 2, 0.5 * (y[0] - x[0] + 2) ** 2),
            lambda x, y: (0.5 * y[0] ** 2, x[0] - y[0]),
            [0.0], [0.0], constraint=Box(0.0, INF), lower_constraint=lambda x: Box(0.0, x),
            lower_domain=Box(0.0, INF), modulus=1.0, smoothness=1.0, start=INSIDE_X,
        ),
        _entry(
            "Outrata1990Ex1a", "Outrata 1990: a badly conditioned lower level over a polygon (BOLIB; f* = -8.92).",
            -8.92, _solver(0.1, 0.05, lower_rounds=20), 300,
            lambda x, y: (0.5 * (y[0] - 3) ** 2, 0.5 * (y[1] - 4) ** 2, 0.1 * jnp.sum(x**2) - 12.5),
            lambda x, y: (0.5 * (y[0] - 2 * y[1]) ** 2, 0.5 * y[1] ** 2, -y @ x),
            [0.0, 0.0], [2.0, 2.0], modulus=0.1716, smoothness=5.83,
            lower_constraint=Polyhedron([[-0.333, 1.0], [1.0, -0.333], [-1.0, 0.0], [0.0, -1.0]], [2.0, 2.0, 0.0, 0.0]),
        ),
        Entry("paper_minimax", paper_minimax, -0.25, _solver(0.02, 0.01), 300),
        Entry("paper_minimax_reversed", paper_minimax_reversed, -2.0, _solver(0.02, 0.01), 300),
        _entry(
            # In the box [-a, a] the best x is max(-1, -a): 1/8 at (-1, -1/2) with a = (2, 1/2).
            "paper_appendix_projection",
            "The paper's appendix: |x + 1 - y|^2 / 2 where y is the nearest point of x with y >= 0; flat wherever x >= 0.",
            0.125, _solver(0.01, 0.05), 1000,
            lambda x, y: (0.5 * (x[0] + 1 - y[0]) ** 2, 0.5 * (x[1] + 1 - y[1]) ** 2),
            lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
            [0.0, 0.0], [0.0, 0.0], constraint=[Box([-2.0, -0.5], INF), Box(-INF, [2.0, 0.5])],
            lower_constraint=Box(0.0, INF), modulus=2.0, smoothness=2.0,
        ),
    )
}  # fmt: skip
