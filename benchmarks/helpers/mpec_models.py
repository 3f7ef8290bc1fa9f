"""The problems of `benchmarks/mpec.py` as CasADi takes them: lower levels by their optimality conditions, in complementary pairs.

Nothing of fedrzo is used, so that a peer's environment need not have it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np

from helpers import mpec_game

PART = 32  # firms whose outputs have a sum of their own
TABLES = Path(__file__).parents[2] / "src" / "fedrzo" / "zoo" / "tables"


class Model:
    """A mathematical program with complementarity constraints, put together piece by piece.

    Both sides of a pair must be bounded below by zero, as variables or by a constraint of their own.
    """

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.start: list[np.ndarray] = []
        self.bounds: list[tuple[np.ndarray, np.ndarray]] = []
        self.rows: list[Any] = []
        self.limits: list[tuple[np.ndarray, np.ndarray]] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.objective: Any = 0

    def variable(self, size: int, low: Any = -math.inf, high: Any = math.inf, start: Any = 0.0) -> Any:
        """Return new variables with bounds and a start."""
        made = ca.SX.sym(f"v{len(self.variables)}", size)
        self.variables.append(made)
        self.start.append(np.array(np.broadcast_to(start, size), float))
        self.bounds.append((np.array(np.broadcast_to(low, size), float), np.array(np.broadcast_to(high, size), float)))
        return made

    def constrain(self, expression: Any, low: float = 0.0, high: float = 0.0) -> None:
        """Keep each entry of an expression between two numbers."""
        size = expression.shape[0]
        self.rows.append(expression)
        self.limits.append((np.full(size, low), np.full(size, high)))

    def complementary(self, one: Any, other: Any) -> None:
        """Have one of two numbers vanish; both are kept above zero by other means."""
        self.pairs.append((one, other))

    def slack(self, expression: Any) -> Any:
        """Return new variables above zero that are equal to an expression."""
        made = self.variable(expression.shape[0], 0.0)
        self.constrain(expression - made)
        return made

    def solves(self, gradient: Any, y: Any, *inequalities: tuple[Any, Any]) -> None:
        """Have y solve the lower level with this gradient, where each h >= 0 is given with its derivative in y, transposed."""
        for h, transposed in inequalities:
            multiplier = self.variable(h.shape[0], 0.0)
            self.complementary(multiplier, self.slack(h))
            gradient = gradient - transposed @ multiplier
        self.constrain(gradient)


def published(name: str) -> tuple[Model, Any]:
    """Return a problem of the collections, and its upper variables; the starts are those of the zoo."""
    model = Model()
    return model, PUBLISHED[name](model)


def stackelberg1(m: Model) -> Any:
    x, y = m.variable(1, 0.0, 200.0), m.variable(1, 0.0)
    m.complementary(y, m.slack(2 * y + 0.5 * x - 100))
    m.objective = 0.5 * x**2 + 0.5 * x * y - 95 * x
    return x


def bard1(m: Model) -> Any:
    x, y = m.variable(1, 1.0, 5.0, 3.0), m.variable(1, start=3.0)
    sides = [(3 * x - y - 3, ca.DM(-1)), (-x + 0.5 * y + 4, ca.DM(0.5)), (7 - x - y, ca.DM(-1)), (y, ca.DM(1))]
    m.solves(2 * (y - 1) - 1.5 * x, y, *sides)
    m.objective = (x - 5) ** 2 + (2 * y + 1) ** 2
    return x


def desilva(m: Model) -> Any:
    x, y = m.variable(2, 0.0, 2.0), m.variable(2, start=1.0)
    m.solves(2 * (y - x), y, (y - 0.5, ca.DM.eye(2)), (1.5 - y, -ca.DM.eye(2)))
    m.objective = ca.sumsqr(x) - 2 * ca.sum1(x) + ca.sumsqr(y)
    return x


def gnash10(m: Model) -> Any:
    costs, betas, capacity, demand = np.array([10.0, 8.0, 6.0, 4.0, 2.0]), np.array([1.2, 1.1, 1.0, 0.9, 0.8]), 5.0, 5000.0
    x, y = m.variable(1, 0.0, 150.0, 75.0), m.variable(4, 0.0, 150.0, 30.0)
    total = x + ca.sum1(y)
    price = demand / total
    gradient = ca.DM(costs[1:]) + ca.DM(capacity ** (-1 / betas[1:])) * y - price + y * price / total
    m.solves(gradient, y, (y, ca.DM.eye(4)), (150 - y, -ca.DM.eye(4)))
    power = (1 + betas[0]) / betas[0]
    m.objective = costs[0] * x + capacity ** (-1 / betas[0]) / power * x**power - x * price
    return x


def qpec1(m: Model) -> Any:
    x, y = m.variable(10, start=1.0), m.variable(20, 0.0, start=1.0)
    m.complementary(y, m.slack(y - ca.vertcat(x, ca.DM.zeros(10))))
    m.objective = ca.sumsqr(x + 1) + ca.sumsqr(y + 2)
    return x


def qpec_100_1(m: Model) -> Any:
    with np.load(TABLES / "qpec-100-1.npz", allow_pickle=False) as stored:
        d = {name: ca.DM(stored[name]) for name in stored.files}
    x, y = m.variable(5, start=np.random.default_rng(5).normal(size=5)), m.variable(100, 0.0)
    m.constrain(d["Ax"] @ x + d["a"], -math.inf, 0.0)
    m.complementary(y, m.slack(d["N"] @ x + d["M"] @ y + d["q"]))
    quadratic = ca.bilin(d["Pxx"], x, x) / 2 + ca.bilin(d["Pyy"], y, y) / 2 + ca.bilin(d["Pxy"], x, y)
    m.objective = quadratic + ca.dot(d["c"], x) + ca.dot(d["d"], y)
    return x


def muu_quy(m: Model) -> Any:
    x, y = m.variable(1, 0.0, 2.0, 2.0), m.variable(2)
    gradient = ca.vertcat(2 * y[0] + y[1] + 1 - 3 * x, y[1] + y[0] + 1 + x)
    m.solves(gradient, y, (1 + 2 * x - 2 * y[0] - y[1], ca.DM([-2, -1])), (y, ca.DM.eye(2)))
    m.objective = x**2 - 4 * x + ca.sumsqr(y)
    return x


PUBLISHED = {
    "stackelberg1": stackelberg1, "bard1": bard1, "desilva": desilva, "gnash10": gnash10, "qpec1": qpec1,
    "qpec-100-1": qpec_100_1, "MuuQuy2003Ex1": muu_quy,
}  # fmt: skip


def cournot(game: mpec_game.Game) -> tuple[Model, Any]:
    """Return a game. The outputs of some firms at a time have their sum as a variable, and so do those of all.

    Without the sums, derivatives would be dense; with one sum of all firms, CasADi takes long to find out that they are not.
    """
    model = Model()
    x = model.variable(1, 0.0, mpec_game.HIGHEST)
    followers, revenue = len(game.caps), 0
    first, rise, caps = ca.DM(game.first), ca.DM(game.rise), ca.DM(game.caps)
    parts = [slice(start, min(start + PART, followers)) for start in range(0, followers, PART)]
    for a, b in game.scenarios:
        y = model.variable(followers, 0.0, game.caps)
        total, sums = model.variable(1, 0.0), model.variable(len(parts), 0.0)
        above, below = model.variable(followers, 0.0), model.variable(followers, 0.0)  # multipliers of y <= cap and y >= 0
        model.constrain(x + ca.sum1(sums) - total)
        model.constrain(ca.vertcat(*(ca.sum1(y[part]) for part in parts)) - sums)
        model.constrain(first + (rise + b) * y - a + b * total + above - below)
        model.complementary(below, y)
        model.complementary(above, caps - y)
        revenue += x * (a - b * total)
    model.objective = mpec_game.LEADER[0] * x + mpec_game.LEADER[1] * x**2 / 2 - revenue / len(game.scenarios)
    return model, x
