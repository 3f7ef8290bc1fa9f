"""Bilevel problems of BOLIB.

S. Zhou, A. B. Zemkoho, A. Tin: "BOLIB: Bilevel Optimization LIBrary of test problems", 2018.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.problems.bilevel import Bilevel
from fedrzo.sets import Box, Halfspace, Polyhedron
from fedrzo.zoo.entry import bilevel

INF = np.inf


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
        [6.4, 11.8], [1.0, 1.0], scale=100.0, clients=3, constraint=sides,
        lower_constraint=Box(0.0, 10.0), modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def muu_quy() -> Bilevel:
    """Muu and Quy 2003: y in a polygon that grows with x (BOLIB; f* = -2.0769)."""

    def lower(x: jax.Array, y: jax.Array) -> tuple:
        return y[0] ** 2, 0.5 * y[1] ** 2, y[0] * y[1], (1 - 3 * x[0]) * y[0], (1 + x[0]) * y[1]

    def allowed(x: jax.Array) -> Polyhedron:
        return Polyhedron([[2.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], jnp.concatenate([1 + 2 * x, jnp.zeros(2)]))

    return bilevel(
        "MuuQuy2003Ex1", lambda x, y: (x[0] ** 2 - 4 * x[0], jnp.sum(y**2)), lower, [2.0], [0.0, 0.0],
        constraint=[Box(0.0, INF), Box(-INF, 2.0)], lower_constraint=allowed, modulus=0.38, smoothness=2.62,
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
