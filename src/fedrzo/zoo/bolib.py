"""Bilevel problems of the collection BOLIB, but for Outrata's and those whose upper constraints involve y."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.sets import Box, Halfspace, Polyhedron, Set
from fedrzo.zoo.entry import AT_THE_ANSWER, BOLIB, INF, INSIDE_X, by_name, entry

NO_Y_THERE = "Y(x) is empty at the collection's start"
_entry = functools.partial(entry, BOLIB)


def _nearest(x: jax.Array, y: jax.Array) -> tuple:
    """A lower level of two unknowns, which answers by the point of Y(x) that is nearest to x."""
    return (y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2


# Bard1988Ex2: what either of two firms makes of its two resources, and what it may make at most.
RECIPES = np.kron(np.eye(2), [[0.4, 0.7], [0.6, 0.3]])
MOST = np.array([20.0, 20.0, 40.0, 40.0])


def _resources(x: jax.Array) -> Set:
    rows = np.vstack([RECIPES, np.eye(4), -np.eye(4)])
    return Polyhedron(rows, jnp.concatenate([x, MOST, jnp.zeros(4)]))


# CalamaiVicente1994c is CalamaiVicente1994b in the variables a(x), ten times y, and two more: a badly conditioned copy.
TURNED = np.array([[331, 27, -108, -36], [27, 259, -36, -12]]) / 25
WEIGHTS = np.array([[986, 162, -648, -216], [162, 554, -216, -72], [-648, -216, 1514, -162], [-216, -72, -162, 1946]]) / 10
SLOPE = np.array([214.0, 238.0, 248.0, 416.0]) / 25
ENDS = np.array([1.5, 3.0])


def _calamai(a: jax.Array, factor: float) -> Set:
    low = jnp.maximum(a - 1, 1 - a) / factor
    return Box(low, jnp.maximum(low, (ENDS - a) / factor))  # beyond the edge of X, where there is none, as at the edge


def _muu(x: jax.Array) -> Set:
    return Polyhedron(np.vstack([[2.0, 1.0, -1.0], -np.eye(3)]), jnp.append(2 * x[1] - x[0] - 2, jnp.zeros(3)))


def _tight(x: jax.Array) -> Set:
    """Return the Y(x) of SinhaMaloDeb2014TP6, which shrinks to a point at x = 17/9."""
    sides = jnp.stack([12 - 4 * x[0], 4 * x[0] - 4, 4 - 4 * x[0], 4 + 4 * x[0], 0 * x[0], 0 * x[0]])
    return Polyhedron([[5.0, 4.0], [-5.0, 4.0], [-4.0, 5.0], [4.0, 5.0], [-1.0, 0.0], [0.0, -1.0]], sides)


def _single(x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    return y[0] ** 2, 2 * (x[0] - 1) * y[0]


ENTRIES = by_name(
    _entry(
        "ClarkWesterberg1990a", "Clark and Westerberg 1990: three pieces, each with its own local minimum", 5.0, ([1.0], [3.0]),
        lambda x, y: ((x[0] - 3) ** 2, (y[0] - 2) ** 2), lambda x, y: (y[0] ** 2, 25 - 10 * y[0]),
        [0.0], [1.0], start=AT_THE_ANSWER, constraint=[Box(0.0, INF), Box(-INF, 8.0)],
        lower_constraint=lambda x: Box((x - 2) / 2, jnp.minimum(2 * x + 1, 7 - x / 2)),
        lower_domain=Box(0.0, 8.0), modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "ShimizuAiyoshi1981Ex2", "Shimizu and Aiyoshi 1981: the solution is a corner of X, whose sides belong to three clients",
        225.0, ([20.0, 5.0], [10.0, 5.0]),
        lambda x, y: ((x[0] - 30) ** 2, (x[1] - 20) ** 2, -20 * y[0], 20 * y[1]), _nearest,
        [6.4, 11.8], [1.0, 1.0], clients=3, start=INSIDE_X,
        constraint=[Halfspace([-1.0, -2.0], -30.0), Halfspace([1.0, 1.0], 25.0), Halfspace([0.0, 1.0], 15.0)],
        lower_constraint=Box(0.0, 10.0), modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "MuuQuy2003Ex1", "Muu and Quy 2003: y in a polygon that grows with x", -2.0769, ([11 / 13], [10 / 13, 0.0]),
        lambda x, y: (x[0] ** 2 - 4 * x[0], jnp.sum(y**2)),
        lambda x, y: (y[0] ** 2, 0.5 * y[1] ** 2, y[0] * y[1], (1 - 3 * x[0]) * y[0], (1 + x[0]) * y[1]),
        [2.0], [0.0, 0.0], constraint=[Box(0.0, INF), Box(-INF, 2.0)], modulus=0.38, smoothness=2.62,
        lower_constraint=lambda x: Polyhedron([[2.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], jnp.append(1 + 2 * x, jnp.zeros(2))),
    ),
    _entry(
        "MuuQuy2003Ex2", "Muu and Quy 2003: a leader of two and a follower of three unknowns", 0.6426,
        ([11 / 18, 7 / 18], [0.0, 0.0, 11 / 6]),
        lambda x, y: (y[0] ** 2, y[2] ** 2 - y[0] * y[2], -4 * y[1], 4 * x[1] - 7 * x[0]),
        lambda x, y: (y[0] ** 2 + y[0] * y[1], 0.5 * y[1] ** 2, 0.5 * y[2] ** 2, (1 - 3 * x[0]) * y[0], (1 + x[1]) * y[1]),
        [0.0, 1.0], [1.0, 1.0, 3.0], constraint=[Box(0.0, INF), Halfspace([1.0, 1.0], 1.0)],
        lower_constraint=_muu, modulus=0.38, smoothness=2.62, verified=0.638889,
    ),
    _entry(
        "Yezza1996Ex41", "Yezza 1996: y between 0 and x, so that no y is left below x = 0", 0.5, ([3.0], [1.0]),
        lambda x, y: (0.5 * (y[0] - 2) ** 2, 0.5 * (y[0] - x[0] + 2) ** 2), lambda x, y: (0.5 * y[0] ** 2, x[0] - y[0]),
        [0.0], [0.0], constraint=Box(0.0, INF), lower_constraint=lambda x: Box(0.0, x),
        lower_domain=Box(0.0, INF), modulus=1.0, smoothness=1.0, start=INSIDE_X,
    ),
    _entry(
        # MacMPEC has it as bilevel2, with the same value; it is reached by many x.
        "Bard1988Ex2", "Bard 1988: a leader shares 40 units out among two firms of two products each", -6600.0,
        ([7.907173, 4.360757, 11.092828, 16.639242], [2.267929, 10.0, 27.73207, 0.0]),
        lambda x, y: (-(200 - y[0] - y[2]) * (y[0] + y[2]), -(160 - y[1] - y[3]) * (y[1] + y[3])),
        lambda x, y: (jnp.sum((y[:2] - np.array([4.0, 13.0])) ** 2), jnp.sum((y[2:] - np.array([35.0, 2.0])) ** 2)),
        [5.0, 5.0, 15.0, 15.0], np.zeros(4), constraint=[Box(0.0, [10.0, 5.0, 15.0, 20.0]), Halfspace(np.ones(4), 40.0)],
        lower_constraint=_resources, lower_domain=Box(0.0, INF), modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "CalamaiVicente1994b", "Calamai and Vicente 1994: two intervals for y that move with x, with several valleys", 0.3125,
        ([1.25, 0.5, 1.0, 1.0], [0.25, 0.5]),
        lambda x, y: (0.5 * jnp.sum((x - 1) ** 2), 0.5 * jnp.sum(y**2)), lambda x, y: (0.5 * jnp.sum(y**2), -x[:2] @ y),
        np.ones(4), [0.25, 0.5], constraint=[Halfspace([1.0, 0.0, 0.0, 0.0], 1.25), Halfspace([0.0, 1.0, 0.0, 0.0], 2.0)],
        lower_constraint=lambda x: _calamai(x[:2], 1), modulus=1.0, smoothness=1.0,
    ),
    _entry(
        "CalamaiVicente1994c", "Calamai and Vicente 1994: CalamaiVicente1994b in other, badly scaled variables", 0.3125,
        ([0.13085, 0.05195, 0.1022, 0.0674], [0.025, 0.05]),
        lambda x, y: (x @ WEIGHTS @ x, 2 - SLOPE @ x, 50 * jnp.sum(y**2)),
        lambda x, y: (50 * jnp.sum(y**2), -10 * (TURNED @ x) @ y),
        np.zeros(4), [0.12, 0.12], start=NO_Y_THERE, constraint=[Halfspace(TURNED[0], 1.25), Halfspace(TURNED[1], 2.0)],
        lower_constraint=lambda x: _calamai(TURNED @ x, 10), modulus=100.0, smoothness=100.0,
    ),
    _entry(
        "FalkLiu1995", "Falk and Liu 1995: desilva with another leader", -2.1962, ([0.75, 0.75], [0.75, 0.75]),
        lambda x, y: ((x[0] - 1.5) ** 2, (x[1] - 1.5) ** 2, y[0] ** 2, y[1] ** 2 - 4.5), _nearest,
        [0.0, 0.0], [1.0, 1.0], lower_constraint=Box(0.5, 1.5), modulus=2.0, smoothness=2.0, verified=-2.25,
    ),
    _entry(
        "HatzEtal2013", "Hatz and others 2013: -x + 2 max(0, x), an absolute value", 0.0, ([0.0], [0.0, 0.0]),
        lambda x, y: (-x[0], 2 * y[0], y[1]), lambda x, y: ((x[0] - y[0]) ** 2, y[1] ** 2),
        [1.0], [1.0, 1.0], lower_constraint=Box(0.0, INF), modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "LamparielloSagratella2017Ex32", "Lampariello and Sagratella 2017: y = 1 - x", 0.5, ([0.5], [0.5]),
        lambda x, y: (x[0] ** 2, y[0] ** 2), _single, [1.0], [1.0], modulus=2.0, smoothness=2.0,
    ),
    _entry(
        "MacalHurter1997", "Macal and Hurter 1997: y = 50 x - 500, a steep answer", 81.327, ([10.0163934], [0.819672]),
        lambda x, y: ((x[0] - 1) ** 2, (y[0] - 1) ** 2), lambda x, y: (0.5 * y[0] ** 2, (500 - 50 * x[0]) * y[0]),
        [1.0], [1.0], modulus=1.0, smoothness=1.0,
    ),
    _entry(
        "SinhaMaloDeb2014TP6", "Sinha, Malo and Deb 2014: the best x is where a polygon Y(x) shrinks to a point", -1.209,
        ([17 / 9], [8 / 9, 0.0]),
        lambda x, y: ((x[0] - 1) ** 2, 2 * y[0], -2 * x[0]),
        lambda x, y: ((2 * y[0] - 4) ** 2, (2 * y[1] - 1) ** 2, x[0] * y[0]),
        [1.0], [1.0, 0.0], constraint=[Box(0.0, INF), Box(-INF, 17 / 9)], lower_constraint=_tight,
        lower_domain=Box(0.0, 17 / 9), modulus=8.0, smoothness=8.0,
    ),
    _entry(
        "OutrataCervinka2009", "Outrata and Cervinka 2009: y in a cone; all x between (0, 0) and (0, 2) are best", 0.0,
        ([0.0, 1.0], [-0.5, -0.5]),
        lambda x, y: (-2 * x[0], -0.5 * x[1], -y[1]),
        lambda x, y: (0.5 * y[0] ** 2, 0.5 * y[1] ** 2, (1 + x[0]) * y[0], (x[1] - 1) * y[1]),
        [-1.0, 1.0], [0.0, -1.0], start=f"{AT_THE_ANSWER} once it is projected onto X",
        constraint=Halfspace([1.0, 0.0], 0.0),
        lower_constraint=Polyhedron([[0.0, 1.0], [-1.0, 1.0], [1.0, 1.0]], np.zeros(3)), modulus=1.0, smoothness=1.0,
    ),
)  # fmt: skip
