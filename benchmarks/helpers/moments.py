"""The second moment of an estimate in n: directions on a sphere against normal ones, differences of two sides and of one.

The paper prefers a sphere, since its bound on the second moment grows as n and the one known for normal directions as n^2. Here
both are drawn, on the losses with L0 = 1 that are worst for them: a linear one for two sides, the norm at its tip for one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from helpers.averaging import fit

DIMENSIONS = [16, 64, 256]
DRAWS = 4000
SMOOTHING = 0.5


def linear(x: np.ndarray) -> np.ndarray:
    """A loss of slope one, at rows."""
    return x[:, 0]


def cone(x: np.ndarray) -> np.ndarray:
    """The norm, at rows."""
    return np.linalg.norm(x, axis=1)


CASES = {"two sides": linear, "one side": cone}


def second_moments(dims: list[int] = DIMENSIONS, draws: int = DRAWS) -> dict[str, Any]:
    """Measure E||g||^2 at x = 0 for each dimension, and fit its power of n; one entry per case and kind of direction."""
    found = {}
    for case in CASES:
        for kind in ("sphere", "normal"):
            drawn = [squares(kind, case, n, draws) for n in dims]
            found[f"{kind}, {case}"] = dataclasses.asdict(fit(dims, drawn, np.mean))
    return found


def squares(kind: str, case: str, dim: int, draws: int, seed: int = 0) -> np.ndarray:
    """Draw the squared norm of estimates: (f(x + h u) - f(x - h u)) u / (2 h), or (f(x + h u) - f(x)) u / h.

    On the sphere of radius sqrt(n) they are the paper's, with h = eta / sqrt(n). So both kinds of u have n as their mean square,
    and both kinds of estimates the gradient of the smoothed loss as their mean.
    """
    u, loss = np.random.default_rng(seed).normal(size=(draws, dim)), CASES[case]
    h = SMOOTHING
    if kind == "sphere":
        u *= np.sqrt(dim) / np.linalg.norm(u, axis=1, keepdims=True)
        h /= np.sqrt(dim)
    change = (loss(h * u) - loss(-h * u)) / 2 if case == "two sides" else loss(h * u) - loss(0 * u)
    return (change / h) ** 2 * np.sum(u**2, axis=1)
