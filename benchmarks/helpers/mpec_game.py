"""The Cournot games of `benchmarks/mpec.py` and their exact answers, in NumPy alone: a leader, N followers, S scenarios.

An industry of one size is divided among more and more firms, so that games of all sizes have answers of one size. Firm j
produces y_j in [0, cap_j] at the marginal cost d_j + k_j y_j / cap_j; the leader produces x in [0, 15] before the demand
p = a - b (x + sum of y) is known, of which (a, b) is a scenario. All of the numbers are drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

INDUSTRY = 12.0  # what all followers together can produce
INTERCEPT, SLOPE = (7.5, 12.5), (0.4, 0.6)
LEADER = (1.0, 0.1)  # its marginal cost is the first, and the second for every unit of x
HIGHEST = 15.0  # x
CLIENTS = 10
PIECE = 2**21  # numbers that the reference has in memory at a time
NEWTON = 100  # steps; they end by themselves after some ten
GRID = 31  # points of a first look at the leader's loss, which need not be convex


class Game(NamedTuple):
    """All that is known of a game."""

    first: np.ndarray  # d: the marginal cost of a firm's first unit
    rise: np.ndarray  # k / cap: by how much it rises with output
    caps: np.ndarray
    scenarios: np.ndarray  # rows of a and b

    @property
    def size(self) -> tuple[int, int]:
        """How many followers and scenarios there are."""
        return len(self.caps), len(self.scenarios)


def draw(followers: int, scenarios: int, seed: int = 0) -> Game:
    """Draw a game. Some firms are too costly to produce at all, some would produce more than they can."""
    rng = np.random.default_rng([seed, followers, scenarios])
    weights = rng.uniform(0.5, 1.5, followers)
    caps = INDUSTRY * weights / weights.sum()
    first, steepness = rng.uniform(0.5, 4.0, followers), rng.uniform(0.5, 4.0, followers)
    demand = np.stack([rng.uniform(*INTERCEPT, scenarios), rng.uniform(*SLOPE, scenarios)], axis=1)
    return Game(first, steepness / caps, caps, demand)


def shares(scenarios: np.ndarray) -> list[np.ndarray]:
    """Divide the scenarios among clients, of which the last has ten times as many as the first."""
    clients = min(CLIENTS, len(scenarios))
    cuts = np.cumsum(np.arange(1, clients)) / np.sum(np.arange(1, clients + 1)) * len(scenarios)
    ends = np.maximum(np.round(cuts).astype(int), np.arange(1, clients))  # nobody is left without
    return np.split(scenarios, ends)


def outputs(game: Game, total: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return what each firm produces where the total output is known, a row for each scenario."""
    price = (a - b * total)[:, None]
    return np.clip((price - game.first) / (game.rise + b[:, None]), 0.0, game.caps)


def equilibrium(game: Game, x: float, demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the total output and all followers' outputs for some scenarios.

    x + sum of y(Q) - Q falls in Q and is made of straight pieces. Newton's method, kept inside a bracket by bisection, ends on
    the very piece of the answer, which it then has exactly.
    """
    a, b = demand.T
    low, high = np.full(len(a), x), np.full(len(a), x + game.caps.sum())
    total = np.clip((low + high) / 2, low, high)
    for _ in range(NEWTON):
        y = outputs(game, total, a, b)
        left = x + y.sum(axis=1) - total
        low, high = np.where(left >= 0, total, low), np.where(left <= 0, total, high)
        inside = (y > 0) & (y < game.caps)
        slope = -1.0 - b * np.sum(np.where(inside, 1 / (game.rise + b[:, None]), 0.0), axis=1)
        step = total - left / slope
        following = np.where((step >= low) & (step <= high), step, (low + high) / 2)
        if np.max(np.abs(following - total)) <= 1e-14 * (1 + np.max(total)):
            break
        total = following
    return total, outputs(game, total, a, b)


def loss(game: Game, x: float) -> float:
    """Return the leader's mean loss with all followers in equilibrium: minus its profit."""
    rows = max(1, PIECE // len(game.caps))
    revenue = 0.0
    for start in range(0, len(game.scenarios), rows):
        demand = game.scenarios[start : start + rows]
        total, _ = equilibrium(game, x, demand)
        revenue += float(np.sum(x * (demand[:, 0] - demand[:, 1] * total)))
    return LEADER[0] * x + LEADER[1] * x**2 / 2 - revenue / len(game.scenarios)


def optimum(game: Game) -> tuple[float, float]:
    """Return the leader's best output and its loss: the best point of a grid, and a golden section around it."""
    grid = np.linspace(0.0, HIGHEST, GRID)
    best = int(np.argmin([loss(game, x) for x in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    golden = (5**0.5 - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    values = loss(game, left), loss(game, right)
    while high - low > 1e-7:  # a loss that is flat there is known to the square of it
        if values[0] <= values[1]:
            high, right = right, left
            left = high - golden * (high - low)
            values = loss(game, left), values[0]
        else:
            low, left = left, right
            right = low + golden * (high - low)
            values = values[1], loss(game, right)
    x = float((low + high) / 2)
    return x, loss(game, x)
