"""The games behind gnash10 to gnash19, against a solver of their own: bisection on the total output."""

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

import fedrzo as fz
from fedrzo.zoo import gnash, published


def game(x, demand=gnash.DEMAND, gamma=1.0, output=gnash.OUTPUT):
    """The followers' reply by bisection on the total output, the leader's loss, in plain Python."""
    c, beta, steep = gnash.COSTS, gnash.BETAS, gnash.CAPACITY ** (-1 / gnash.BETAS[1:])

    def price(Q):
        return (demand / Q) ** (1 / gamma)

    def replies(Q):
        return np.clip((price(Q) - c[1:]) / (steep + price(Q) / (gamma * Q)), 0, output)

    Q = brentq(lambda Q: x + replies(Q).sum() - Q, x + 1e-6, x + 700, xtol=1e-12)
    cost = c[0] * x + beta[0] / (1 + beta[0]) * gnash.CAPACITY ** (-1 / beta[0]) * x ** ((1 + beta[0]) / beta[0])
    return cost - x * price(Q)


GAMES = [entry for entry in published.ENTRIES.values() if entry.name.startswith("gnash")]


@pytest.mark.parametrize("entry", GAMES, ids=lambda entry: entry.name)
def test_no_other_output_is_better_for_the_leader(entry):
    """All x, since there is one: a grid, and a scalar search around its best point."""
    problem = entry.make()
    gamma, output = problem.loss_fn.loss.gamma, float(problem.lower_set.hi)
    grid = np.linspace(1e-3, output, 60)
    place = np.argmin([game(x, gamma=gamma, output=output) for x in grid])
    around = grid[max(place - 1, 0)], grid[min(place + 1, 59)]
    best = minimize_scalar(lambda x: game(x, gamma=gamma, output=output), bounds=around, method="bounded")
    assert best.fun == pytest.approx(entry.published, rel=1e-5)
    assert best.x == pytest.approx(entry.solution[0][0], abs=1e-3)


@pytest.mark.slow("long runs to published values")
def test_random_demand_agrees_with_a_fine_sample_average():
    """Reference: 3 clients x 100 evenly spread demands, followers by bisection, x by a scalar search."""
    spread = 0.8 + 0.4 * (np.arange(100) + 0.5) / 100
    demands = np.concatenate([mean * 5000 * spread for mean in (0.9, 1.0, 1.1)])
    best = minimize_scalar(lambda x: np.mean([game(x, d) for d in demands]), bounds=(1, 150), method="bounded")
    method = fz.FedRZO2s(lambda r: 1.0 / (1 + 0.1 * r), 0.5, 10, batch_size=4, solver=fz.vi.Accelerated())
    x = fz.run(method, gnash.gnash_random(), 60, eval_every=60, progress=False).x[0]
    reached = np.mean([game(x, d) for d in demands])
    assert reached - best.fun <= 1e-3 * abs(best.fun)
    # A leader who plans for the mean demand would do the same here only by accident: the game is not linear in it.
    assert abs(best.x - 47.036) > 0.01
