"""Outrata's bilevel problems of 1990 and 1993, as in BOLIB: polygons for y, fixed or turned by x.

J. V. Outrata: "On the numerical solution of a class of Stackelberg problems", Zeitschrift fuer Operations Research 34 (1990), and
"Necessary optimality conditions for Stackelberg problems", JOTA 76 (1993). Values are given to two digits there, and three of
them are not the least.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.sets import Box, Polyhedron, Set
from fedrzo.zoo.entry import BOLIB, INF, Entry, Solution, by_name, entry

FIXED = Polyhedron([[-0.333, 1.0], [1.0, -0.333], [-1.0, 0.0], [0.0, -1.0]], [2.0, 2.0, 0.0, 0.0])
FLAT, STEEP = np.array([[1.0, -2.0], [-2.0, 5.0]]), np.array([[1.0, 3.0], [3.0, 10.0]])
MIXED = np.array([[-1.0, 2.0], [3.0, -3.0]])


def _turned(x: jax.Array, first: jax.Array, second: jax.Array) -> Set:
    """Return a polygon two of whose sides turn with x."""
    low, high, one = 0.1 * x[0] - 0.333, -0.1 * x[0] - 0.333, jnp.ones(())
    sides = jnp.stack([jnp.stack([low, one]), jnp.stack([one, high])])
    return Polyhedron(jnp.concatenate([sides, -jnp.eye(2)]), jnp.stack([first, second, 0 * x[0], 0 * x[0]]))


def _growing(x: jax.Array) -> Set:
    return _turned(x, x[0], 2 + 0 * x[0])


def _shrinking(x: jax.Array) -> Set:
    return _turned(x, 2 - 0.1 * x[0], 2 - 0.1 * x[0])


def _planar(
    letter: str, published: float, solution: Solution, H: np.ndarray, L: np.ndarray, r: float, x0: Any, **more: Any
) -> Entry:
    """Return one of the problems 1a to 1e: y'Hy/2 - y'Lx over a polygon, and a leader who pays r |x|^2 for it."""
    mu, most = np.linalg.eigvalsh(H)
    return entry(
        BOLIB, f"Outrata1990Ex1{letter}", "Outrata 1990: a badly conditioned lower level over a polygon", published, solution,
        lambda x, y: (0.5 * (y[0] - 3) ** 2, 0.5 * (y[1] - 4) ** 2, r * jnp.sum(x**2) - 12.5),
        lambda x, y: (0.5 * y[0] * (H[0] @ y), 0.5 * y[1] * (H[1] @ y), -y @ (L @ x)),
        x0, [2.0, 2.0], lower_constraint=FIXED, modulus=float(mu), smoothness=float(most), **more,
    )  # fmt: skip


def _scalar(
    name: str, about: str, published: float, solution: Solution, bends: tuple[float, float], most: float,
    Y: Set | Callable[[jax.Array], Set], x0: float = 0.0, **more: Any,
) -> Entry:  # fmt: skip
    """Return a problem with one x that turns the lower loss; `bends` says how fast its Hessian grows with x, to `most`."""
    a, b = bends
    return entry(
        BOLIB, name, f"Outrata: {about}", published, solution,
        lambda x, y: (0.5 * (y[0] - 3) ** 2, 0.5 * (y[1] - 4) ** 2),
        lambda x, y: (
            0.5 * (1 + a * x[0]) * y[0] ** 2, 0.5 * (1 + b * x[0]) * y[1] ** 2, -(3 + 1.333 * x[0]) * y[0], -x[0] * y[1]
        ),
        [x0], [0.0, 0.0], lower_constraint=Y, modulus=1.0, smoothness=most,
        **({"constraint": Box(0.0, INF), "lower_domain": Box(0.0, INF)} | more),
    )  # fmt: skip


ENTRIES = by_name(
    _planar("a", -8.92, ([1.031567, 3.097797], [2.597048, 1.792937]), FLAT, np.eye(2), 0.1, [0.0, 0.0]),
    _planar("b", -7.56, ([0.278839, 0.474812], [2.343819, 1.03249]), FLAT, np.eye(2), 1.0, [0.0, 0.0], verified=-7.578458),
    # The best y is a corner, (2.9985, 2.9985), which many x lead to.
    _planar("c", -12.0, ([37.914293, 31.257141], [2.998501, 2.998501]), STEEP, np.eye(2), 0.0, [0.0, 0.0], verified=-11.998499),
    _planar("d", -3.6, ([2.0, 0.0], [2.0, 0.0]), STEEP, np.eye(2), 0.1, [6.0, -3.0]),
    _planar("e", -3.15, ([-0.4, 0.8], [2.0, 0.0]), STEEP, MIXED, 0.1, [6.0, -3.0], verified=-3.92),
    # Every x that is large enough has the corner as its answer.
    _scalar("Outrata1990Ex2a", "y in a fixed polygon, 1990", 0.5, ([10.0], [2.998501, 2.998501]), (0.0, 0.0), 1.0, FIXED, 1.0),
    _scalar("Outrata1990Ex2c", "a lower loss that bends with x over a polygon, 1990", 1.86, ([3.456162], [1.707089, 2.568461]),
            (1.0, 0.1), 21.0, FIXED),
    _scalar("Outrata1990Ex2d", "y in a polygon that turns and grows with x, 1990", 0.92, ([2.856343], [3.880746, 3.040157]),
            (0.0, 0.0), 1.0, _growing, verified=0.8485),
    _scalar("Outrata1990Ex2e", "the polygon of Outrata1990Ex2d with a loss that bends with x, 1990", 0.9,
            ([3.998535], [1.665009, 3.887224]), (1.0, 0.0), 21.0, _growing),
    _scalar("Outrata1993Ex31", "y in a polygon that turns and shrinks to a point as x grows, 1993", 1.56,
            ([1.909518], [2.978588, 2.232151]), (0.2, 0.1), 5.0, _shrinking,
            constraint=[Box(0.0, INF), Box(-INF, 20.0)], lower_domain=Box(0.0, 20.0)),
)  # fmt: skip
