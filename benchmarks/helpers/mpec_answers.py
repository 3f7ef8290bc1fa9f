"""What the published problems of `benchmarks/mpec.py` are judged by: best known values, and losses with exact lower solutions.

Written with NumPy and SciPy alone, apart from both the library and CasADi. The values are those of MacMPEC and BOLIB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from fedrzo.zoo.mpecs import qpec_data

Vector = np.ndarray
COSTS, BETAS = np.array([10.0, 8.0, 6.0, 4.0, 2.0]), np.array([1.2, 1.1, 1.0, 0.9, 0.8])


def stackelberg1(x: Vector) -> float:
    y = max(0.0, (100 - 0.5 * x[0]) / 2)
    return 0.5 * x[0] ** 2 + 0.5 * x[0] * y - 95 * x[0]


def bard1(x: Vector) -> float:
    low, high = max(2 * x[0] - 8, 0.0), min(3 * x[0] - 3, 7 - x[0])
    y = min(max(1 + 0.75 * x[0], low), high)
    return (x[0] - 5) ** 2 + (2 * y + 1) ** 2


def desilva(x: Vector) -> float:
    y = np.clip(x, 0.5, 1.5)
    return float(x @ x - 2 * x.sum() + y @ y)


def gnash10(x: Vector) -> float:
    steep, power = 5.0 ** (-1 / BETAS), (1 + BETAS[0]) / BETAS[0]

    def answers(total: float) -> Vector:
        price = 5000 / total
        return np.clip((price - COSTS[1:]) / (steep[1:] + price / total), 0, 150)

    total = brentq(lambda q: x[0] + answers(q).sum() - q, 1.0, 750.0, xtol=1e-12)
    return float(COSTS[0] * x[0] + steep[0] / power * x[0] ** power - x[0] * 5000 / total)


def qpec1(x: Vector) -> float:
    return float(np.sum((x + 1) ** 2) + np.sum((np.maximum(x, 0) + 2) ** 2) + 40)


def qpec_100_1(x: Vector) -> float:
    d = qpec_data()
    y = complementary(d["M"], d["N"] @ x + d["q"])
    quadratic = 0.5 * x @ d["Pxx"] @ x + 0.5 * y @ d["Pyy"] @ y + x @ d["Pxy"] @ y
    return float(quadratic + d["c"] @ x + d["d"] @ y)


def muu_quy(x: Vector) -> float:
    """Its lower level minimises a convex function over a triangle: the best of its inside, its sides and its corners."""
    H, g, top = np.array([[2.0, 1.0], [1.0, 1.0]]), np.array([1 - 3 * x[0], 1 + x[0]]), 1 + 2 * x[0]
    ends = [np.zeros(2), np.array([top / 2, 0.0]), np.array([0.0, top])]
    points = [*ends, np.linalg.solve(H, -g)]
    for start, end in ((ends[0], ends[1]), (ends[1], ends[2]), (ends[2], ends[0])):
        ray = end - start
        points.append(start + np.clip(-ray @ (H @ start + g) / (ray @ H @ ray), 0, 1) * ray)
    inside = [y for y in points if min(*y, top - 2 * y[0] - y[1]) >= -1e-9]
    y = min(inside, key=lambda y: 0.5 * y @ H @ y + g @ y)
    return float(x[0] ** 2 - 4 * x[0] + y @ y)


def complementary(M: Vector, q: Vector) -> Vector:
    """Return the y >= 0 with M y + q >= 0 and y (M y + q) = 0, by Newton's method on the smaller of both."""
    y = np.zeros(len(q))
    for _ in range(100):
        slack = M @ y + q
        if np.max(np.abs(np.minimum(y, slack))) < 1e-11:
            return y
        free = y > slack
        y = np.zeros(len(q))
        y[free] = np.linalg.solve(M[np.ix_(free, free)], -q[free])
    raise ArithmeticError("no solution of the linear complementarity problem in 100 steps")


BEST: dict[str, tuple[float, Callable[[Vector], float]]] = {
    "stackelberg1": (-9800 / 3, stackelberg1), "bard1": (17.0, bard1), "desilva": (-1.0, desilva), "gnash10": (-230.823, gnash10),
    "qpec1": (80.0, qpec1), "qpec-100-1": (0.0990028, qpec_100_1), "MuuQuy2003Ex1": (-2.0769, muu_quy),
}  # fmt: skip
BOXES = {"stackelberg1": (0, 200), "bard1": (1, 5), "desilva": (0, 2), "gnash10": (0, 150), "MuuQuy2003Ex1": (0, 2)}


@functools.cache
def _sides() -> tuple[Vector, Vector]:
    return qpec_data()["Ax"], qpec_data()["a"]


def outside(name: str, x: Vector) -> float:
    """Return by how much x breaks its own constraints."""
    if name == "qpec-100-1":
        A, a = _sides()
        return float(np.max(np.maximum(A @ x + a, 0)))
    low, high = BOXES.get(name, (-np.inf, np.inf))
    return float(np.max(np.maximum(np.maximum(low - x, x - high), 0)))
