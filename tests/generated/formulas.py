"""The losses of random problems, written once for NumPy and JAX: `xp` is the module.

x and y are flat vectors, s a matrix with one row per sample, p the client's fixed numbers. Lower solutions are projections or
linear solves.
"""

import dataclasses
from typing import Any

import numpy as np

from . import trees
from .case import Case


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """Random numbers of one problem."""

    M: np.ndarray  # targets of x from samples
    P: np.ndarray  # and from fixed numbers
    w: np.ndarray  # weights of x's entries
    B: np.ndarray  # lower targets from x
    N: np.ndarray  # and from lower samples
    t: np.ndarray  # y's upper target
    d: np.ndarray  # lower curvatures
    S: np.ndarray  # skew part of a map

    @classmethod
    def of(cls, case: Case) -> "Coefficients":
        rng = np.random.default_rng([case.seed, 1])
        n, q = trees.length(case.x), trees.length(case.y)
        p = trees.length(case.samples)
        fixed = 0 if case.fixed is None else trees.length(case.fixed)
        own = p if case.lower_samples is None else trees.length(case.lower_samples)
        skew = rng.normal(size=(q, q)) / q
        bounded = bool(case.lower_set) and not simple(case.lower_set)
        return cls(
            M=rng.normal(size=(n, p)) / p,
            P=rng.normal(size=(n, fixed)) / max(1, fixed),
            w=rng.uniform(0.5, 1.5, n),
            B=rng.normal(size=(q, n)) / n,
            N=rng.normal(size=(q, own)) / own,
            t=rng.normal(size=q),
            d=np.full(q, rng.uniform(0.5, 2.0)) if bounded else rng.uniform(0.5, 2.0, q),
            S=skew - skew.T if case.skew else np.zeros((q, q)),
        )


def simple(name: str) -> bool:
    """Return whether a set is a box, on which y's entries do not interact."""
    return name in ("reals", "box", "halfbox", "numbers")


def separable(loss: str, e: Any, xp: Any) -> Any:
    """Return each entry's loss of the error e."""
    if loss == "absolute":
        return xp.abs(e)
    if loss == "quantile":
        return xp.maximum(0.7 * e, -0.3 * e)
    if loss == "waves":
        return xp.abs(xp.sin(e))
    return 0.5 * e**2


def single(case: Case, k: Coefficients, xp: Any, x: Any, s: Any, p: Any) -> Any:
    """Return f(x) as a mean over the samples."""
    target = s @ k.M.T + (0.0 if p is None else p @ k.P.T)
    return xp.mean(separable(case.loss, x - target, xp) @ k.w) / len(k.w) + 0.02 * xp.sum(x**2)


def upper(case: Case, k: Coefficients, xp: Any, x: Any, y: Any, s: Any, p: Any) -> Any:
    """Return the upper loss of a bilevel or two-stage problem."""
    return single(case, k, xp, x, s, p) + 0.5 * xp.mean(separable(case.loss, y - k.t, xp)) + 0.1 * xp.mean(x) * xp.mean(y)


def saddle(case: Case, k: Coefficients, xp: Any, x: Any, y: Any, s: Any, p: Any) -> Any:
    """Return a minimax problem's loss, concave in y."""
    return single(case, k, xp, x, s, p) + xp.mean((x @ k.B.T + s @ k.N.T) @ y) - 0.5 * xp.sum(k.d * y**2)


def lower(k: Coefficients, xp: Any, x: Any, y: Any, s: Any) -> Any:
    """Return a bilevel problem's lower loss: y's distance to targets made of x and the samples."""
    target = x @ k.B.T + s @ k.N.T
    return 0.5 * xp.mean((y - target) ** 2 @ k.d)


def field(k: Coefficients, xp: Any, x: Any, y: Any, s: Any) -> Any:
    """Return a two-stage problem's map for one scenario s, a vector."""
    return k.d * y - k.B @ x - k.N @ s + k.S @ y


def couple(xp: Any, x: Any, y: Any) -> Any:
    """Return upper constraints that involve y, to be at most zero."""
    return xp.stack([xp.sum(x) + xp.sum(y) - 1.0, -xp.sum(y) - 3.0])


def moved(x: Any, s: Any, moves: str, xp: Any) -> Any:
    """Return the room by which x, or a scenario, widens the lower set."""
    if moves == "x":
        return 0.2 * xp.mean(x) ** 2
    if moves == "scenario":
        return 0.2 * xp.mean(s) ** 2
    return 0.0
