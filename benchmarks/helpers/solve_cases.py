"""What a problem of `benchmarks/solve.py` is, the plain form of its sets, and a plain solver of equilibria. NumPy alone."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("nonsmooth", "bilevel", "minimax", "twostage", "blackbox")
MODULES = ("solve_nonsmooth", "solve_bilevel", "solve_minimax", "solve_twostage", "solve_blackboxes")
REFERENCES = Path(__file__).parent / "solve_references.json"
HELD_OUT_SEED = 20_26  # of the draw that decides which problems are held out
FEASIBLE, NEAR, GAIN = 1e-3, 0.01, 0.99  # what counts as solved
GIVES = (1e-2, 1e-4, 1e-9)  # by how much rows give way in one solve after the other, in units of their multipliers
TIGHT, NEWTON, LONGEST = 1e-9, 100, 1e4  # of equilibria: the residual, the most Newton steps, the longest of them


@dataclass(frozen=True)
class Region:
    """The intersection of all sets of x: a box, rows A x <= b, rows E x = d, balls (entries, centre, radius)."""

    lower: np.ndarray
    upper: np.ndarray
    rows: tuple[np.ndarray, np.ndarray] | None = None
    equations: tuple[np.ndarray, np.ndarray] | None = None
    balls: tuple[tuple[Any, np.ndarray, float], ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it is a box."""
        return self.rows is None and self.equations is None and not self.balls

    def broken(self, x: np.ndarray) -> np.ndarray:
        """Return numbers that are at most zero inside, the absolute residuals of equations among them."""
        parts = [self.lower - x, x - self.upper]
        if self.rows is not None:
            parts.append((self.rows[0] @ x - self.rows[1]) / np.linalg.norm(self.rows[0], axis=1))
        if self.equations is not None:
            parts.append(np.abs(self.equations[0] @ x - self.equations[1]) / np.linalg.norm(self.equations[0], axis=1))
        parts += [np.atleast_1d(np.linalg.norm(x[part] - centre) - radius) for part, centre, radius in self.balls]
        return np.concatenate(parts)

    def project(self, x: np.ndarray) -> np.ndarray:
        """Return the nearest point inside."""
        if self.plain:
            return np.clip(x, self.lower, self.upper)
        import cvxpy as cp

        z = cp.Variable(len(x))
        cp.Problem(cp.Minimize(cp.sum_squares(z - x)), self.constraints(z)).solve(solver="CLARABEL")
        return np.array(z.value)

    def constraints(self, z: Any) -> list[Any]:
        """Return the constraints on a variable of cvxpy."""
        import cvxpy as cp

        low, high = np.isfinite(self.lower), np.isfinite(self.upper)
        found = [z[low] >= self.lower[low]] if low.any() else []
        found += [z[high] <= self.upper[high]] if high.any() else []
        found += [self.rows[0] @ z <= self.rows[1]] if self.rows is not None else []
        found += [self.equations[0] @ z == self.equations[1]] if self.equations is not None else []
        return found + [cp.norm(z[part] - centre) <= radius for part, centre, radius in self.balls]

    def draw(self, rng: np.random.Generator, around: np.ndarray) -> np.ndarray:
        """Draw a point inside: uniform in a finite box, normal around a point elsewhere, then projected."""
        finite = np.isfinite(self.lower) & np.isfinite(self.upper)
        box = rng.uniform(np.where(finite, self.lower, 0.0), np.where(finite, self.upper, 1.0))
        return self.project(np.where(finite, box, around + rng.normal(size=len(around)) * (1 + np.abs(around))))


def box(n: int, lower: Any = -np.inf, upper: Any = np.inf, **more: Any) -> Region:
    """Return a box in n dimensions, with more constraints if given."""
    return Region(np.broadcast_to(np.float64(lower), n).copy(), np.broadcast_to(np.float64(upper), n).copy(), **more)


def simplex(n: int, total: float = 1.0, **more: Any) -> Region:
    """Return a simplex."""
    return box(n, 0.0, equations=(np.ones((1, n)), np.array([total])), **more)


@dataclass(frozen=True)
class Case:
    """A problem: as a user states it, and plainly.

    Args:
        state: returns the problem of fedrzo; for `fz.minimize`, a dict of its arguments.
        x0: the start, flat.
        region: all sets of x.
        loss: the loss of a flat x in plain NumPy, with accurate lower solutions.
        coupling: constraints that involve the lower level, as numbers that must be at most zero.
        convex: the loss as an expression of cvxpy, if it is convex.
        smooth: whether the loss has a continuous gradient.
        model: the problem for IPOPT, `model(m)` as in mpec_models; None where that is not natural.
        minimize: whether it is for `fz.minimize`.
    """

    state: Callable[[], Any]
    x0: np.ndarray
    region: Region
    loss: Callable[[np.ndarray], float]
    coupling: Callable[[np.ndarray], np.ndarray] | None = None
    convex: Callable[[Any, Any], Any] | None = None
    smooth: bool = False
    model: Callable[[Any], Any] | None = None
    minimize: bool = False
    starts: int = 20  # of the search for a reference, where the loss is not convex
    name: str = ""
    kind: str = ""
    about: str = ""
    held_out: bool = False
    reference: dict[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """The number of variables."""
        return len(self.x0)

    def truth(self, x: np.ndarray) -> tuple[float, float]:
        """Return the loss at x, and by how much x breaks its constraints."""
        x = np.asarray(x, float)
        return float(self.loss(x)), max(0.0, float(np.max(self.broken(x))))

    def broken(self, x: np.ndarray) -> np.ndarray:
        """Return numbers that are at most zero if x is feasible."""
        inside = self.region.broken(x)
        return inside if self.coupling is None else np.append(inside, self.coupling(x))

    @functools.cached_property
    def start(self) -> float:
        """The loss at the start, moved into the sets; a unit above the optimum if coupling constraints are broken there."""
        loss, violation = self.truth(self.region.project(self.x0))
        return loss if violation <= FEASIBLE or not self.reference else self.best + max(1.0, abs(self.best))

    @property
    def best(self) -> float:
        """The best known loss."""
        return float(self.reference["best"])

    @property
    def scale(self) -> float:
        """The loss at which, or below, a point counts as solved: within 1 % of the optimum and with 99 % of the gain."""
        return self.best + min(NEAR * max(1.0, abs(self.best)), (1 - GAIN) * max(self.start - self.best, 1e-9))

    def gain(self, loss: float) -> float:
        """Return the share of the possible gain."""
        return (self.start - loss) / max(self.start - self.best, 1e-12)

    def solved(self, loss: float, violation: float) -> bool:
        """Return whether a point counts as solved."""
        return bool(violation <= FEASIBLE and loss <= self.scale)


MAKERS: dict[str, tuple[str, Callable[[], Case]]] = {}


def case(kind: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a function that returns a problem; its name is the problem's, its docstring says what it is about."""

    def register(maker: Callable[[], Case]) -> Callable[[], Case]:
        MAKERS[maker.__name__] = (kind, maker)
        return maker

    return register


@functools.cache
def loaded() -> dict[str, tuple[str, Callable[[], Case]]]:
    """Return all makers by name."""
    for module in MODULES:
        importlib.import_module(f"helpers.{module}")
    return MAKERS


def names(kind: str | None = None) -> list[str]:
    """Return the names of all problems, or of those of a kind."""
    return [name for name, (of, _) in loaded().items() if kind in (None, of)]


@functools.cache
def held_out() -> frozenset[str]:
    """Return the problems that are not for tuning: a random half of each kind, drawn with a stored seed."""
    rng, out = np.random.default_rng(HELD_OUT_SEED), []
    for kind in KINDS:
        members = sorted(names(kind))
        out += [members[i] for i in rng.permutation(len(members))[: len(members) // 2]]
    return frozenset(out)


def make(name: str) -> Case:
    """Return a problem."""
    kind, maker = loaded()[name]
    stored = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    about = (maker.__doc__ or "").partition("\n")[0]
    facts = {"name": name, "kind": kind, "about": about, "held_out": name in held_out(), "reference": stored.get(name, {})}
    return Case(**{key: value for key, value in vars(maker()).items() if key not in facts and key != "start"}, **facts)


def mcp(
    F: Callable[[np.ndarray], np.ndarray],
    J: Callable[[np.ndarray], np.ndarray],
    lower: Any,
    upper: Any,
    z: np.ndarray,
) -> np.ndarray:
    """Solve mixed complementarity problems side by side: z in [lower, upper] with F(z) >= 0 at lower, <= 0 at upper, else 0.

    Newton's method; where it fails, as it may where multipliers are not unique, proximal steps that it solves.

    Args:
        F: the map of arrays (S, k), a row for each problem.
        J: its Jacobian, (S, k, k).
        lower: lower bounds, broadcast to (S, k).
        upper: upper bounds, likewise.
        z: the start, (S, k).
    """
    z = np.array(z, float)
    lower, upper = np.broadcast_to(lower, z.shape), np.broadcast_to(upper, z.shape)
    start = np.clip(z, lower, upper)
    z, error = newton(F, J, lower, upper, start)
    if np.max(error) <= TIGHT:
        return z
    z, eye = np.where((error > TIGHT)[:, None], start, z), 0.05 * np.eye(z.shape[1])
    for _ in range(200):
        centre = z
        z, _ = newton(lambda v, c=centre: F(v) + 0.05 * (v - c), lambda v: J(v) + eye, lower, upper, centre)
        error = np.linalg.norm(z - np.clip(z - F(z), lower, upper), axis=1)
        if np.max(error) <= 1e-8:
            return z
    raise ArithmeticError(f"the equilibrium was not found: a residual of {np.max(error):.1e} is left")


def newton(
    F: Any, J: Any, lower: np.ndarray, upper: np.ndarray, z: np.ndarray, steps: int = NEWTON
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best points of Newton's method on z - clip(z - F(z)), with damped steps, and the norms of their residuals."""

    def residual(z: np.ndarray) -> np.ndarray:
        return z - np.clip(z - F(z), lower, upper)

    r = residual(z)
    for _ in range(steps):
        size = np.linalg.norm(r, axis=1)
        todo = size > TIGHT
        if not todo.any():
            break
        moved = z - F(z)
        inside = (moved > lower) & (moved < upper)
        system = np.where(inside[:, :, None], J(z), np.eye(z.shape[1]))
        step = np.linalg.solve(system + 1e-12 * np.eye(z.shape[1]), -r[:, :, None])[:, :, 0]
        step *= np.minimum(1.0, LONGEST / np.maximum(np.linalg.norm(step, axis=1), 1e-300))[:, None]
        length, best, chosen = 1.0, np.full(len(z), np.inf), z.copy()
        for _ in range(12):
            tried = z + length * step
            reached = np.linalg.norm(residual(tried), axis=1)
            better = reached < best
            best, chosen = np.where(better, reached, best), np.where(better[:, None], tried, chosen)
            if np.all((best < 0.999 * size) | ~todo):
                break
            length /= 2
        if np.all((best >= size) | ~todo):
            break
        z = np.where((todo & (best < size))[:, None], chosen, z)
        r = residual(z)
    return z, np.linalg.norm(r, axis=1)


def with_rows(
    M: np.ndarray, q: np.ndarray, A: np.ndarray, b: np.ndarray, lower: Any, upper: Any, equal: int = 0, start: Any = 0.0
) -> np.ndarray:
    """Solve VI(M y + q, {A y <= b, the first `equal` rows as equations, lower <= y <= upper}), side by side in rows of q and b.

    M is symmetric: Newton's method, first with rows that give way, and Clarabel where that fails.
    """
    q = np.atleast_2d(q)
    S, k, rows = len(q), q.shape[1], len(A)
    b, lower, upper = (np.broadcast_to(part, (S, size)) for part, size in ((b, rows), (lower, k), (upper, k)))
    whole = np.block([[M, A.T], [-A, np.zeros((rows, rows))]])
    right = np.concatenate([q, b], axis=1)
    least = np.append(np.full(equal, -np.inf), np.zeros(rows - equal))
    low, high = (
        np.concatenate([side, np.tile(more, (S, 1))], 1) for side, more in ((lower, least), (upper, np.full(rows, np.inf)))
    )
    z = np.concatenate([np.clip(np.broadcast_to(start, (S, k)), lower, upper), np.zeros((S, rows))], 1)
    for give in GIVES:
        whole[k:, k:] = give * np.eye(rows)
        Js = np.broadcast_to(whole, (S, k + rows, k + rows))
        z, error = newton(lambda z: z @ whole.T + right, lambda z, Js=Js: Js, low, high, z, steps=15)
    y, left = z[:, :k].copy(), np.flatnonzero(~(error <= TIGHT))
    if len(left):
        y[left] = quadratic(M, q[left], A, b[left], lower[left], upper[left], equal)
    return y


def quadratic(
    M: np.ndarray, q: np.ndarray, A: np.ndarray, b: np.ndarray, lower: np.ndarray, upper: np.ndarray, equal: int
) -> np.ndarray:
    """Return the answers of quadratic programs by Clarabel, all of them as one."""
    import clarabel
    from scipy import sparse

    (S, k), E = q.shape, sparse.eye(q.size, format="csr")
    many = lambda part: sparse.kron(sparse.eye(S), part)  # noqa: E731
    low, high = np.isfinite(lower).ravel(), np.isfinite(upper).ravel()
    rows = sparse.vstack([many(A[:equal]), many(A[equal:]), E[high], -E[low]], format="csc")
    sides = np.concatenate([b[:, :equal].ravel(), b[:, equal:].ravel(), upper.ravel()[high], -lower.ravel()[low]])
    cones = [clarabel.ZeroConeT(S * equal)] * (equal > 0) + [clarabel.NonnegativeConeT(len(sides) - S * equal)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    P = sparse.csc_matrix(many(np.triu(M)))
    return np.array(clarabel.DefaultSolver(P, q.ravel(), rows, sides, cones, settings).solve().x).reshape(S, k)
