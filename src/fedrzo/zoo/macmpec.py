"""Bilevel problems of MacMPEC, each with its lower level as a minimisation.

S. Leyffer: "MacMPEC: AMPL collection of MPECs", 2000.
"""

from __future__ import annotations

from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.problems.bilevel import Bilevel
from fedrzo.sets import Ball, Box, Halfspace, Intersection, Simplex
from fedrzo.zoo.entry import bilevel

INF = np.inf


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
