"""What the models for IPOPT of `benchmarks/solve.py` share: upper variables within their sets, and equilibria in pairs."""

from __future__ import annotations

import math
from typing import Any

import casadi as ca
import numpy as np

from helpers.solve_cases import Region


def upper(m: Any, region: Region, x0: np.ndarray) -> Any:
    """Return the upper variables of a model, kept within all sets."""
    x = m.variable(len(x0), region.lower, region.upper, region.project(x0))
    if region.rows is not None:
        m.constrain(ca.DM(region.rows[0]) @ x - ca.DM(region.rows[1]), -math.inf, 0.0)
    if region.equations is not None:
        m.constrain(ca.DM(region.equations[0]) @ x - ca.DM(region.equations[1]))
    for part, centre, radius in region.balls:
        m.constrain(ca.sumsqr(x[part] - ca.DM(np.atleast_1d(centre))) - radius**2, -math.inf, 0.0)
    return x


def lower(m: Any, y: Any, gradient: Any, low: Any = None, high: Any = None, A: Any = None, b: Any = None, E: Any = None) -> None:
    """Have y solve a variational inequality, in complementary pairs; bounds and b may depend on x. State E y = const apart."""
    k = y.shape[0]
    if low is not None:
        side = m.variable(k, 0.0)
        m.complementary(side, m.slack(y - low))
        gradient = gradient - side
    if high is not None:
        side = m.variable(k, 0.0)
        m.complementary(side, m.slack(high - y))
        gradient = gradient + side
    if A is not None:
        side = m.variable(A.shape[0], 0.0)
        m.complementary(side, m.slack(b - A @ y))
        gradient = gradient + A.T @ side
    if E is not None:
        gradient = gradient + E.T @ m.variable(E.shape[0])
    m.constrain(gradient)
