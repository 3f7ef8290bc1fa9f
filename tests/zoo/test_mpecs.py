"""The games behind gnash10 to gnash19, against a solver of their own: bisection on the total output."""

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

import fedrzo as fz
from fedrzo.zoo import gnash, mpecs

def random_game(x, demand):
    """The followers' reply by bisection on the total output, the leader's loss, in plain Python."""
    c, beta, steep = gnash.COSTS, gnash.BETAS, gnash.CAPACITY ** (-1 / gnash.BETAS[1:])

    def replies(Q):
        price = demand / Q
        return np.clip((price - c[1:]) / (steep + price / Q), 0, gnash.OUTPUT)

    Q = brentq(lambda Q: x + replies(Q).sum() - Q, x + 1e-6, x + 700, xtol=1e-12)
    cost = c[0] * x + beta[0] / (1 + beta[0]) * gnash.CAPACITY ** (-1 / beta[0]) * x ** ((1 + beta[0]) / beta[0])
    return cost - x * demand / Q


@pytest.mark.slow("long runs to published values")
def test_random_demand_agrees_with_a_fine_sample_average():
    """Reference: 3 clients x 100 evenly spread demands, followers by bisection, x by a scalar search."""
    spread = 0.8 + 0.4 * (np.arange(100) + 0.5) / 100
    demands = np.concatenate([mean * 5000 * spread for mean in (0.9, 1.0, 1.1)])
    best = minimize_scalar(lambda x: np.mean([random_game(x, d) for d in demands]), bounds=(1, 150), method="bounded")
    method = fz.FedRZO2s(lambda r: 1.0 / (1 + 0.1 * r), 0.5, 10, batch_size=4, solver=fz.vi.Accelerated())
    x = fz.run(method, gnash.gnash_random(), 60, eval_every=60, progress=False).x[0]
    reached = np.mean([random_game(x, d) for d in demands])
    assert reached - best.fun <= 1e-3 * abs(best.fun)
    # A leader who plans for the mean demand would do the same here only by accident: the game is not linear in it.
    assert abs(best.x - 47.036) > 0.01
