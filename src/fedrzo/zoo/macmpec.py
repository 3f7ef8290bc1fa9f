"""Bilevel problems of the collection MacMPEC, with their lower levels as minimisations."""

import functools
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.problems.bilevel import Bilevel
from fedrzo.sets import Ball, Box, Halfspace, Intersection, Polyhedron, Set, Simplex
from fedrzo.zoo.entry import AT_THE_ANSWER, INF, MACMPEC, NO_START, Entry, bilevel, by_name, described, entry

OTHER_VALLEY = "from the collection's x = 4 every descent ends in the local minimum at x = 5, where f = 25"
PORTFOLIOS = {1: 1.502e-5, 2: 1.457e-5, 3: 6.265e-6, 4: 2.177e-6, 6: 2.361e-6}
_entry = functools.partial(entry, MACMPEC)


def _near_and_below(x: jax.Array) -> Set:
    """Return the Y(x) of outrata31: a ball and a half-plane that both move with x."""
    plane = Halfspace(jnp.array([-0.333, 1.0]), 1 - 0.1 * x[0])
    return Intersection(Ball(0.0, jnp.sqrt(9 + 0.1 * x[0])), plane, Box(0.0, INF))


def _positive_part(x: jax.Array, y: jax.Array) -> tuple:
    """The lower level of jr1 and jr2, for which y(x) = max(0, x)."""
    return 0.5 * y[0] ** 2, -x[0] * y[0]


def _positive_parts(x: jax.Array, y: jax.Array) -> tuple:
    """The lower level of qpec1 and qpec2: twenty followers, ten of which answer y = max(0, x)."""
    return 0.5 * jnp.sum(y**2), -x @ y[:10]


def _root(x: jax.Array) -> Set:
    """Return the Y(x) of dempe: y^2 <= x."""
    side = jnp.sqrt(jnp.maximum(x, 0))
    return Box(-side, side)


@functools.cache
def portfolio_table() -> tuple[np.ndarray, ...]:
    """Return the rows of portfl-i: 12 of F, then for each problem R, the portfolio to explain, and the best r."""
    text = resources.files("fedrzo.zoo").joinpath("tables/portfl-i.csv").read_text()
    return tuple(np.array(line.split(","), float) for line in text.splitlines() if not line.startswith("#"))


def _portfolio(number: int) -> Entry:
    """Return portfl-i-`number`: its values are so small that its gap should be read beside that of its start, about 1e-4."""
    name, place = f"portfl-i-{number}", 12 + 3 * list(PORTFOLIOS).index(number)
    F, (R, wanted, best) = np.stack(portfolio_table()[:12]), portfolio_table()[place : place + 3]

    def misfit(s: jax.Array, r: jax.Array, part: slice) -> jax.Array:
        return jnp.sum((F[:, part].T @ s - R[part] - r[part]) ** 2)

    def upper(r: jax.Array, s: jax.Array) -> tuple[Any, ...]:
        return jnp.sum((s - wanted) ** 2), jnp.sum(r**2)

    def lower(r: jax.Array, s: jax.Array) -> tuple[Any, ...]:
        return misfit(s, r, slice(31)), misfit(s, r, slice(31, 62))

    def make() -> Bilevel:
        return bilevel(name, upper, lower, np.zeros(62), np.full(12, 1 / 12), constraint=Box(0.0, INF),
                       lower_constraint=Simplex(1.0), modulus=7.8e-4, smoothness=0.83)  # fmt: skip

    published = PORTFOLIOS[number]
    about = "Which changes of 62 returns make a given portfolio of 12 assets the best one?"
    return Entry(name, described(make, about, MACMPEC, published), published, MACMPEC, (best, None))


ENTRIES = by_name(
    _entry(
        "outrata31", "Outrata 1994: y in a ball and a half-plane that both move with x", 3.2077,
        ([4.060406], [2.682244, 1.487147]),
        lambda x, y: (0.5 * (y[0] - 3) ** 2, 0.5 * (y[1] - 4) ** 2),
        lambda x, y: (
            (0.5 + 0.1 * x[0]) * y[0] ** 2, (0.5 + 0.05 * x[0]) * y[1] ** 2, -(3 + 1.333 * x[0]) * y[0], -x[0] * y[1]
        ),
        [0.0], [1.0, 1.0], constraint=[Box(0.0, INF), Box(-INF, 10.0)],
        lower_constraint=_near_and_below, lower_domain=Box(0.0, 10.0), modulus=1.0, smoothness=3.0,
    ),
    _entry(
        "stackelberg1", "Henderson and Quandt 1958: a Stackelberg duopoly", -3266.67, ([280 / 3], [80 / 3]),
        lambda x, y: (0.5 * x[0] ** 2, 0.5 * x[0] * y[0], -95 * x[0]),
        lambda x, y: (y[0] ** 2, (0.5 * x[0] - 100) * y[0]),
        [0.0], [0.0], constraint=[Box(0.0, INF), Box(-INF, 200.0)],
        lower_constraint=Box(0.0, INF), modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "bard1", "Bard 1988: the best x is where Y(x) shrinks to a point", 17.0, ([1.0], [0.0]),
        lambda x, y: ((x[0] - 5) ** 2, (2 * y[0] + 1) ** 2),
        lambda x, y: ((y[0] - 1) ** 2, -1.5 * x[0] * y[0]),
        [3.0], [3.0], start=OTHER_VALLEY, constraint=[Box(1.0, INF), Box(0.0, 5.0)],
        lower_constraint=lambda x: Box(jnp.maximum(2 * x - 8, 0), jnp.minimum(3 * x - 3, 7 - x)),
        lower_domain=Box(1.0, 5.0), modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "gauvin", "Gauvin and Savard 1994: y at most 20 - x", 20.0, ([2.0], [14.0]),
        lambda x, y: (x[0] ** 2, (y[0] - 10) ** 2),
        lambda x, y: (4 * (x[0] - 30) * y[0], 4 * y[0] ** 2),
        [7.5], [0.0], constraint=[Box(0.0, INF), Box(-INF, 15.0)],
        lower_constraint=lambda x: Box(0.0, 20 - x), modulus=8.0, smoothness=8.0,
    ),
    _entry(
        "jr1", "Ralph's first: (x - 1)^2 + y^2 with y = max(0, x)", 0.5, ([0.5], [0.5]),
        lambda x, y: ((x[0] - 1) ** 2, y[0] ** 2), _positive_part, [2.0], [0.0],
        lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0, start=NO_START,
    ),
    _entry(
        "jr2", "Ralph's second: (y - 1)^2 + x^2 with y = max(0, x), which has a kink uphill of the start", 0.5, ([0.5], [0.5]),
        lambda x, y: ((y[0] - 1) ** 2, x[0] ** 2), _positive_part, [-1.0], [0.0],
        lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0, start=NO_START,
    ),
    _entry(
        "desilva", "De Silva 1978: y is the projection of x onto a box", -1.0, ([0.5, 0.5], [0.5, 0.5]),
        lambda x, y: (x[0] ** 2 - 2 * x[0], x[1] ** 2 - 2 * x[1], y[0] ** 2, y[1] ** 2),
        lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
        [0.0, 0.0], [1.0, 1.0], constraint=[Box(0.0, INF), Box(-INF, 2.0)],
        lower_constraint=Box(0.5, 1.5), modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "qpec1", "Twenty followers, ten of which answer y = max(0, x)", 80.0, (-np.ones(10), np.zeros(20)),
        lambda x, y: (jnp.sum((x + 1) ** 2), jnp.sum((y[:10] + 2) ** 2), jnp.sum((y[10:] + 2) ** 2)), _positive_parts,
        np.ones(10), np.ones(20), lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0,
    ),
    _entry(
        "qpec2", "The followers of qpec1 with a leader who wants them larger than x", 45.0,
        (np.full(10, 1.5), np.repeat([1.5, 0.0], 10)),
        lambda x, y: (jnp.sum((x - 1) ** 2), jnp.sum((y[:10] - 2) ** 2), jnp.sum((y[10:] - 2) ** 2)), _positive_parts,
        np.ones(10), np.ones(20), lower_constraint=Box(0.0, INF), modulus=1.0, smoothness=1.0,
    ),
    *(_portfolio(number) for number in PORTFOLIOS),
    _entry(
        # BOLIB (Dempe1992b) lists 31.25, at the inflection x = 1 of a function that falls towards x = 0 all the way.
        "dempe", "Dempe 1992: y^2 at most x, with an infinite slope at the solution and an inflection before it", 28.25,
        ([0.0], [0.0]),
        lambda x, y: ((x[0] - 3.5) ** 2, (y[0] + 4) ** 2), lambda x, y: ((y[0] - 3) ** 2,),
        [4.0], [0.0], start=f"{AT_THE_ANSWER} once it is moved into x >= 0", constraint=Box(0.0, INF),
        lower_constraint=_root, lower_domain=Box(0.0, INF), modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "sl1", "The leader moves the right sides of a quadratic program of two unknowns", 1e-4, ([10.0, 0.01, 0.0], [2.01, 0.0]),
        lambda x, y: ((y[0] - 2) ** 2, y[1] ** 2), lambda x, y: (0.01 * y[0] ** 2, y[1] ** 2),
        [20.0, 5.0, 0.5], [7.0, 25.0], constraint=[Box([10.0, 0.01, 0.0], INF), Box(-INF, [INF, 10.0, 1.0])],
        lower_constraint=lambda x: Polyhedron([[-10.0, -1.0], [-1.0, 0.0], [0.0, -1.0]],
                                              -jnp.stack([10 + x[0], 2 + x[1], 50 * x[2]])),
        modulus=0.02, smoothness=2.0, start=NO_START,
    ),
)  # fmt: skip
