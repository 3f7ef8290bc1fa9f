"""Convex sets twice: as `fz.sets`, and as rows and quadratics in plain NumPy, with distances and optimality conditions."""

import dataclasses
from typing import Any

import numpy as np
from scipy.optimize import nnls

import fedrzo as fz

from . import trees

NEAR = 1e-5  # a constraint is active within this distance, in units of max(1, |x|)


@dataclasses.dataclass
class Region:
    """The points with A x <= b, E x = f, and sum(q (x - c)^2) <= r^2 for each quadratic (q, c, r)."""

    A: np.ndarray
    b: np.ndarray
    E: np.ndarray
    f: np.ndarray
    quadratics: list[tuple[np.ndarray, np.ndarray, float]]

    def violation(self, x: np.ndarray) -> float:
        """Return the largest distance to a constraint's boundary, to first order."""
        found = [0.0]
        found += list((self.A @ x - self.b) / norms(self.A))
        found += list(abs(self.E @ x - self.f) / norms(self.E))
        for q, c, r in self.quadratics:
            size = np.sqrt(np.sum(q * (x - c) ** 2))
            found.append((size - r) / np.sqrt(q.max()))
        return float(max(found))

    def stationary(self, x: np.ndarray, pull: np.ndarray, near: float = NEAR) -> float:
        """Return the distance of `pull` from the normal cone at x, whose generators are the normals of near constraints."""
        near *= max(1.0, float(abs(x).max()))
        normals = [a for a, gap in zip(self.A, (self.b - self.A @ x) / norms(self.A), strict=True) if gap < near]
        normals += [sign * e for e in self.E for sign in (1.0, -1.0)]
        for q, c, r in self.quadratics:
            if r - np.sqrt(np.sum(q * (x - c) ** 2)) < near * np.sqrt(q.max()):
                normals.append(q * (x - c))
        normals = [normal / np.linalg.norm(normal) for normal in normals if np.linalg.norm(normal) > 0]
        if not normals:
            return float(np.linalg.norm(pull))
        return float(nnls(np.array(normals).T, pull, maxiter=1000)[1])

    def project(self, x: np.ndarray) -> np.ndarray:
        """Return the nearest point: with one quadratic a multiplier is found by bisection, with more by Dykstra's method."""
        if len(self.quadratics) > 1:
            return self.alternate([dataclasses.replace(self, quadratics=[each]) for each in self.quadratics], x)
        z = self.nearest(x, np.ones_like(x))
        broken = [(q, c, r) for q, c, r in self.quadratics if np.sum(q * (z - c) ** 2) > r**2]
        if not broken:
            return z
        q, c, r = broken[0]
        low, high = 0.0, 1.0

        def at(multiplier: float) -> np.ndarray:
            return self.nearest((x + multiplier * q * c) / (1 + multiplier * q), 1 + multiplier * q)

        while np.sum(q * (at(high) - c) ** 2) > r**2 and high < 1e12:
            low, high = high, 4 * high
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if np.sum(q * (at(middle) - c) ** 2) > r**2 else (low, middle)
        return at(high)

    def alternate(self, parts: list["Region"], x: np.ndarray) -> np.ndarray:
        """Return the nearest point of several regions at once by Dykstra's method, to the last digits or in 5000 sweeps."""
        corrections, y = [np.zeros_like(x) for _ in parts], x
        for _ in range(5000):
            before = y
            for i, part in enumerate(parts):
                moved = y + corrections[i]
                y = part.project(moved)
                corrections[i] = moved - y
            if np.linalg.norm(y - before) <= 1e-14 * (1 + np.linalg.norm(y)):
                break
        return y

    @property
    def thin(self) -> bool:
        """Whether the equations leave a single point."""
        return len(self.E) > 0 and np.linalg.matrix_rank(self.E) == self.E.shape[1]

    def nearest(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the point of the polyhedron with the least sum(weight (z - x)^2), by a least-distance program."""
        root = np.sqrt(weight)
        G = np.concatenate([-self.A, -self.E, self.E]) / root
        h = np.concatenate([-self.b, -self.f, self.f]) - G @ (root * x)
        finite = np.isfinite(h)
        G, h = G[finite], h[finite]
        if not len(h) or h.max() <= 0:
            return x
        size = norms(G)
        G, h = G / size[:, None], h / size
        K = np.concatenate([G.T, h[None]])
        target = np.zeros(len(K))
        target[-1] = 1.0
        multipliers, _ = nnls(K, target, maxiter=10_000)
        residual = K @ multipliers - target
        return x - residual[:-1] / residual[-1] / root


def norms(A: np.ndarray) -> np.ndarray:
    return np.maximum(np.sqrt(np.sum(A**2, axis=1)), 1e-300)


def free(n: int) -> Region:
    return Region(np.zeros((0, n)), np.zeros(0), np.zeros((0, n)), np.zeros(0), [])


def meet(regions: list[Region]) -> Region:
    """Return the intersection."""
    return Region(
        *(np.concatenate([getattr(each, name) for each in regions]) for name in ("A", "b", "E", "f")),
        [quadratic for each in regions for quadratic in each.quadratics],
    )


def embed(region: Region, n: int, start: int) -> Region:
    """Return a set of some entries as a set of all n."""
    size = region.A.shape[1]

    def wide(matrix: np.ndarray) -> np.ndarray:
        found = np.zeros((len(matrix), n))
        found[:, start : start + size] = matrix
        return found

    quadratics = [(wide(q[None])[0], wide(c[None])[0], r) for q, c, r in region.quadratics]
    return Region(wide(region.A), region.b, wide(region.E), region.f, quadratics)


def ellipsoid(x: Any, q: Any, c: Any, r: Any) -> Any:
    return (q * (x - c) ** 2).sum() - r**2


def ellipsoid_and_plane(x: Any, q: Any, c: Any, r: Any, a: Any, b: Any) -> Any:
    import jax.numpy as jnp

    return jnp.stack([(q * (x - c) ** 2).sum() - r**2, a @ x - b])


def make(name: str, tree: Any, center: np.ndarray, seed: int, room: Any = 0.0) -> tuple[Any, Region]:
    """Return the set `name` twice, with `center` inside. `room` widens it; traced, it makes the second one meaningless.

    A name is a kind, or "product" or "intersection" with kinds in brackets: "intersection(box, halfspace)".
    """
    rng = np.random.default_rng(seed)
    if name.startswith("product"):
        return product(name, tree, center, seed, room)
    if name.startswith("intersection"):
        pairs = [make(part, tree, center, seed + 1 + i, room) for i, part in enumerate(inner(name))]
        return fz.sets.Intersection(*(each for each, _ in pairs)), meet([region for _, region in pairs])
    return KINDS[name](center, rng, room)


def inner(name: str) -> list[str]:
    return [part.strip() for part in name[name.index("(") + 1 : -1].split(",")]


def product(name: str, tree: Any, center: np.ndarray, seed: int, room: Any) -> tuple[Any, Region]:
    names, start, sets, found = inner(name), 0, [], []
    for i, leaf in enumerate(trees.leaves(tree)):
        size = trees.length(leaf)
        each, region = make(names[i % len(names)], leaf, center[start : start + size], seed + 1 + i, room)
        sets.append(each)
        found.append(embed(region, len(center), start))
        start += size
    return fz.sets.Product(trees.fill(tree, sets)), meet(found)


def reals(center, rng, room):
    return fz.sets.Reals(), free(len(center))


def box(center, rng, room):
    n = len(center)
    lo, hi = center - rng.uniform(0.0, 0.5, n), center + rng.uniform(0.1, 0.5, n)
    eye = np.eye(n)
    return fz.sets.Box(lo, hi + room), dataclasses.replace(free(n), A=np.vstack([eye, -eye]), b=np.r_[hi + plain(room), -lo])


def halfbox(center, rng, room):
    """Bounds of which some are infinite."""
    n = len(center)
    lo = np.where(rng.random(n) < 0.5, -np.inf, center - rng.uniform(0.0, 0.3, n))
    hi = np.where(rng.random(n) < 0.5, np.inf, center + rng.uniform(0.1, 0.3, n))
    eye = np.eye(n)
    A, b = np.vstack([eye, -eye]), np.r_[hi + plain(room), -lo]
    return fz.sets.Box(lo, hi + room), dataclasses.replace(free(n), A=A[np.isfinite(b)], b=b[np.isfinite(b)])


def numbers(center, rng, room):
    """A box of two numbers that hold for all entries."""
    lo, hi, eye = float(center.min()) - 0.2, float(center.max()) + 0.1, np.eye(len(center))
    b = np.r_[np.full(len(center), hi + plain(room)), np.full(len(center), -lo)]
    return fz.sets.Box(lo, hi + room), dataclasses.replace(free(len(center)), A=np.vstack([eye, -eye]), b=b)


def ball(center, rng, room):
    n = len(center)
    c, r = center + 0.2 * rng.normal(size=n) / np.sqrt(n), 0.7
    r = max(r, float(np.linalg.norm(center - c)))
    return fz.sets.Ball(c, r + room), dataclasses.replace(free(n), quadratics=[(np.ones(n), c, r + plain(room))])


def simplex(center, rng, room):
    n, total = len(center), float(center.sum())
    region = dataclasses.replace(free(n), A=-np.eye(n), b=np.zeros(n), E=np.ones((1, n)), f=np.array([total + plain(room)]))
    return fz.sets.Simplex(total + room), region


def halfspace(center, rng, room):
    a = rng.normal(size=len(center))
    b = float(a @ center) + 0.2
    return fz.sets.Halfspace(a, b + room), dataclasses.replace(free(len(center)), A=a[None], b=np.array([b + plain(room)]))


def affine(center, rng, room):
    A = rng.normal(size=(max(1, len(center) // 3), len(center)))
    return fz.sets.Affine(A, A @ center + room), dataclasses.replace(free(len(center)), E=A, f=A @ center + plain(room))


def polyhedron(center, rng, room):
    A = rng.normal(size=(rng.integers(1, 9), len(center)))
    b = A @ center + rng.uniform(0.05, 0.5, len(A))
    return fz.sets.Polyhedron(A, b + room), dataclasses.replace(free(len(center)), A=A, b=b + plain(room))


def sublevel(center, rng, room):
    n = len(center)
    q, c = rng.uniform(0.5, 2.0, n), center + 0.1
    r = 0.5 + np.sqrt(float(np.sum(q * (center - c) ** 2)))
    region = dataclasses.replace(free(n), quadratics=[(q, c, r + plain(room))])
    return fz.sets.Sublevel(ellipsoid, q, c, r + room), region


def sublevels(center, rng, room):
    n = len(center)
    _, region = sublevel(center, rng, room)
    q, c, r = region.quadratics[0]
    a = rng.normal(size=n)
    b = float(a @ center) + 0.1
    constraint = fz.sets.Sublevel(ellipsoid_and_plane, q, c, r - plain(room) + room, a, b)
    return constraint, dataclasses.replace(region, A=a[None], b=np.array([b]))


def plain(room: Any) -> float:
    """Return the number, or 0 for a traced one: the NumPy set is then not used."""
    return float(room) if isinstance(room, int | float | np.floating | np.ndarray) else 0.0


KINDS = {
    "reals": reals,
    "box": box,
    "halfbox": halfbox,
    "numbers": numbers,
    "ball": ball,
    "simplex": simplex,
    "halfspace": halfspace,
    "affine": affine,
    "polyhedron": polyhedron,
    "sublevel": sublevel,
    "sublevels": sublevels,
}
