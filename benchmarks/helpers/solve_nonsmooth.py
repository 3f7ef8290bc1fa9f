"""The nonsmooth problems of `benchmarks/solve.py`: losses with kinks, several of them not convex."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from helpers.solve_cases import Case, Region, box, case, simplex


def mean(parts: list[Any]) -> Any:
    """Return the mean over clients."""
    return sum(parts) / len(parts)


def regression(seed: int, n: int, sizes: tuple[int, ...], truth: np.ndarray, noise: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw a linear model's data; every client has a mean of its own in its features."""
    rng = np.random.default_rng(seed)
    found = []
    for size in sizes:
        U = rng.normal(size=(size, n)) + 0.5 * rng.normal(size=n)
        found.append((U, U @ truth + noise(rng, size)))
    return found


@case("nonsmooth")
def quantile() -> Case:
    """Quantile regression of delivery times at 80 %, each depot with a private box for the coefficients."""
    n = 10
    data = regression(1, n, (60, 90, 150, 200, 320), np.linspace(-2, 2, n), lambda rng, size: rng.standard_t(2, size))
    limits = [1.4, 1.6, 1.7, 1.9, 2.5]

    def state() -> Any:
        def loss(x: Any, batch: Any) -> Any:
            error = batch[1] - batch[0] @ x
            return jnp.mean(jnp.maximum(0.8 * error, -0.2 * error))

        return fz.Nonsmooth(loss, fz.ClientData(data), np.zeros(n), constraint=[fz.sets.Box(-c, c) for c in limits])

    def loss(x: np.ndarray) -> float:
        errors = [t - U @ x for U, t in data]
        return float(np.mean([np.mean(np.maximum(0.8 * e, -0.2 * e)) for e in errors]))

    def convex(cp: Any, x: Any) -> Any:
        return mean([cp.sum(cp.maximum(0.8 * (t - U @ x), -0.2 * (t - U @ x))) / len(t) for U, t in data])

    return Case(state, np.zeros(n), box(n, -min(limits), min(limits)), loss, convex=convex)


@case("nonsmooth")
def huber_l1() -> Case:
    """Sparse linear regression with outliers: Huber's loss and an l1 term, no constraints."""
    n, weight = 50, 0.05
    truth = np.where(np.arange(n) % 10 == 0, 2.0, 0.0)
    data = regression(2, n, (30, 50, 80, 40), truth, lambda rng, size: rng.normal(size=size) + 10 * (rng.random(size) < 0.1))

    def state() -> Any:
        def loss(x: Any, batch: Any) -> Any:
            error = jnp.abs(batch[1] - batch[0] @ x)
            return jnp.mean(jnp.where(error < 1, error**2 / 2, error - 0.5)) + weight * jnp.sum(jnp.abs(x))

        return fz.Nonsmooth(loss, fz.ClientData(data), np.zeros(n))

    def loss(x: np.ndarray) -> float:
        errors = [np.abs(t - U @ x) for U, t in data]
        return float(np.mean([np.mean(np.where(e < 1, e**2 / 2, e - 0.5)) for e in errors]) + weight * np.abs(x).sum())

    def convex(cp: Any, x: Any) -> Any:
        return mean([cp.sum(cp.huber(t - U @ x, 1)) / 2 / len(t) for U, t in data]) + weight * cp.norm1(x)

    return Case(state, np.zeros(n), box(n), loss, convex=convex)


@case("nonsmooth")
def svm_budget() -> Case:
    """A linear SVM with weights in a box, and a private budget of each client for what features cost."""
    n = 30
    rng = np.random.default_rng(3)
    truth = rng.normal(size=n)
    data = []
    for size in (40, 60, 100, 160):
        U = rng.normal(size=(size, n)) * rng.uniform(0.5, 2, n)
        data.append((U, np.sign(U @ truth + 2 * rng.normal(size=size))))
    costs = rng.uniform(0.2, 1.0, (4, n))

    def state() -> Any:
        def loss(x: Any, batch: Any) -> Any:
            return jnp.mean(jnp.maximum(0.0, 1 - batch[1] * (batch[0] @ x))) + 0.005 * x @ x

        sets = [fz.sets.Intersection(fz.sets.Box(-0.5, 0.5), fz.sets.Halfspace(c, 0.5)) for c in costs]
        return fz.Nonsmooth(loss, fz.ClientData(data), np.zeros(n), constraint=sets)

    def loss(x: np.ndarray) -> float:
        return float(np.mean([np.mean(np.maximum(0.0, 1 - t * (U @ x))) for U, t in data]) + 0.005 * x @ x)

    def convex(cp: Any, x: Any) -> Any:
        return mean([cp.sum(cp.pos(1 - cp.multiply(t, U @ x))) / len(t) for U, t in data]) + 0.005 * cp.sum_squares(x)

    return Case(state, np.zeros(n), box(n, -0.5, 0.5, rows=(costs, np.full(4, 0.5))), loss, convex=convex)


@case("nonsmooth")
def capped_l1() -> Case:
    """Regression with a capped l1 term, which is not convex."""
    n, weight, cap = 10, 0.4, 0.5
    truth = np.array([1.5, 0, 0, -1.0, 0, 0.2, 0, 0, 0.8, 0])
    data = regression(4, n, (25, 40, 60), truth, lambda rng, size: 0.5 * rng.normal(size=size))

    def state() -> Any:
        def loss(x: Any, batch: Any) -> Any:
            return jnp.mean((batch[1] - batch[0] @ x) ** 2) / 2 + weight * jnp.sum(jnp.minimum(jnp.abs(x), cap))

        return fz.Nonsmooth(loss, fz.ClientData(data), np.zeros(n), constraint=fz.sets.Ball(0.0, 3.0))

    def loss(x: np.ndarray) -> float:
        fit = np.mean([np.mean((t - U @ x) ** 2) / 2 for U, t in data])
        return float(fit + weight * np.minimum(np.abs(x), cap).sum())

    return Case(state, np.zeros(n), box(n, balls=((slice(None), np.zeros(n), 3.0),)), loss, starts=60)


@case("nonsmooth")
def cvar_portfolio() -> Case:
    """A portfolio of least conditional value at risk at 90 %, with a least mean return that each client asks for."""
    n = 15
    rng = np.random.default_rng(5)
    drift, factors = rng.uniform(0.0, 1.0, n), rng.normal(size=(n, 3))
    data = [drift + rng.standard_t(4, (size, 3)) @ factors.T + rng.normal(size=(size, n)) for size in (80, 120, 200, 300)]
    means = np.array([returns.mean(axis=0) for returns in data])

    def state() -> Any:
        def loss(x: Any, batch: Any) -> Any:
            return x["level"] + jnp.mean(jnp.maximum(0.0, -batch @ x["weights"] - x["level"])) / 0.1

        sets = [
            fz.sets.Intersection(
                fz.sets.Product({"level": fz.sets.Reals(), "weights": fz.sets.Simplex()}),
                fz.sets.Halfspace(np.append(0.0, -mean), -0.5),
            )
            for mean in means
        ]
        return fz.Nonsmooth(loss, fz.ClientData(data), {"level": np.float64(0.0), "weights": np.full(n, 1 / n)}, constraint=sets)

    def loss(x: np.ndarray) -> float:
        return float(np.mean([x[0] + np.mean(np.maximum(0.0, -r @ x[1:] - x[0])) / 0.1 for r in data]))

    def convex(cp: Any, x: Any) -> Any:
        return mean([x[0] + cp.sum(cp.pos(-r @ x[1:] - x[0])) / len(r) / 0.1 for r in data])

    rows = np.concatenate([np.zeros((4, 1)), -means], axis=1), np.full(4, -0.5)
    region = Region(np.append(-np.inf, np.zeros(n)), np.full(n + 1, np.inf), rows, (np.append(0.0, np.ones(n))[None], np.ones(1)))
    return Case(state, np.append(0.0, np.full(n, 1 / n)), region, loss, convex=convex)


@case("nonsmooth")
def regret_simplex() -> Case:
    """A mix of 12 bids of least mean regret against the best of six known strategies, with a cost of moving."""
    n = 12
    rng = np.random.default_rng(6)
    others, old = rng.dirichlet(np.ones(n) / 2, 6), np.full(n, 1 / n)
    data = [rng.normal(size=(size, n)) + rng.normal(size=n) for size in (30, 60, 120, 90)]

    def state() -> Any:
        def loss(x: Any, batch: Any) -> Any:
            regret = jnp.max(batch @ others.T, axis=1) - batch @ x
            return jnp.mean(jnp.maximum(regret, 0.0)) + 0.3 * jnp.sum(jnp.abs(x - old))

        return fz.Nonsmooth(loss, fz.ClientData(data), old, constraint=fz.sets.Simplex())

    def loss(x: np.ndarray) -> float:
        regrets = [np.max(r @ others.T, axis=1) - r @ x for r in data]
        return float(np.mean([np.mean(np.maximum(regret, 0.0)) for regret in regrets]) + 0.3 * np.abs(x - old).sum())

    def convex(cp: Any, x: Any) -> Any:
        parts = [cp.sum(cp.pos(np.max(r @ others.T, axis=1) - r @ x)) / len(r) for r in data]
        return mean(parts) + 0.3 * cp.norm1(x - old)

    return Case(state, old, simplex(n), loss, convex=convex)


@case("nonsmooth")
def newsvendor() -> Case:
    """Stock of 12 shops and of one reserve that helps all of them; a budget, and a private least stock for each region."""
    n = 12
    rng = np.random.default_rng(7)
    level = rng.uniform(20, 80, n)
    data = [rng.gamma(4.0, level / 4 * rng.uniform(0.8, 1.2, n), (size, n)) for size in (50, 100, 150)]
    least = [np.where(np.arange(n) // 4 == i, 15.0, 0.0) for i in range(3)]

    def cost(x: Any, demand: Any, xp: Any) -> Any:
        short = xp.sum(xp.maximum(demand - x[:n], 0.0), axis=1)
        held = xp.sum(xp.maximum(x[:n] - demand, 0.0), axis=1)
        return xp.mean(held + 2.0 * short + 7.0 * xp.maximum(short - x[n], 0.0)) / 100 + (1.0 * xp.sum(x[:n]) + 1.5 * x[n]) / 100

    def state() -> Any:
        sets = [
            fz.sets.Intersection(fz.sets.Box(np.append(low, 0.0), 400.0), fz.sets.Halfspace(np.ones(n + 1), 550.0))
            for low in least
        ]
        return fz.Nonsmooth(lambda x, batch: cost(x, batch, jnp), fz.ClientData(data), np.full(n + 1, 20.0), constraint=sets)

    def convex(cp: Any, x: Any) -> Any:
        parts = []
        for d in data:
            s = len(d)
            each = cp.reshape(x[:n], (1, n), order="C")
            short = cp.sum(cp.pos(d - np.ones((s, 1)) @ each), axis=1)
            held = cp.sum(cp.pos(np.ones((s, 1)) @ each - d))
            parts.append((held + 2 * cp.sum(short) + 7 * cp.sum(cp.pos(short - x[n]))) / s)
        return mean(parts) / 100 + (cp.sum(x[:n]) + 1.5 * x[n]) / 100

    region = box(n + 1, np.append(np.sum(least, axis=0), 0.0), 400.0, rows=(np.ones((1, n + 1)), np.array([550.0])))
    return Case(state, np.full(n + 1, 20.0), region, lambda x: float(np.mean([cost(x, d, np) for d in data])), convex=convex)


@case("nonsmooth")
def weber_hubs() -> Case:
    """Two hubs and what nearest-hub deliveries cost; each city wants the first hub within a private circle."""
    rng = np.random.default_rng(8)
    towns = np.array([[1.0, 1.5], [8.0, 2.0], [7.0, 8.0], [2.0, 7.0]])
    data = [town + rng.normal(size=(size, 2)) for town, size in zip(towns, (30, 120, 60, 90), strict=True)]
    reach = [5.5, 6.0, 6.5, 7.0]

    def cost(x: Any, points: Any, xp: Any) -> Any:
        one = xp.sqrt(xp.sum((points - x[:2]) ** 2, axis=1))
        other = xp.sqrt(xp.sum((points - x[2:]) ** 2, axis=1))
        return xp.mean(xp.minimum(one, other))

    def state() -> Any:
        sets = [fz.sets.Product((fz.sets.Ball(town, r), fz.sets.Box(0.0, 10.0))) for town, r in zip(towns, reach, strict=True)]
        x0 = (np.array([5.0, 5.0]), np.array([6.0, 4.0]))
        return fz.Nonsmooth(lambda x, b: cost(jnp.concatenate(x), b, jnp), fz.ClientData(data), x0, constraint=sets)

    circles = tuple((slice(0, 2), town, r) for town, r in zip(towns, reach, strict=True))
    region = Region(np.array([-np.inf, -np.inf, 0, 0]), np.array([np.inf, np.inf, 10, 10]), balls=circles)
    return Case(state, np.array([5.0, 5, 6, 4]), region, lambda x: float(np.mean([cost(x, d, np) for d in data])), starts=60)


@case("nonsmooth")
def sparse_logistic() -> Case:
    """Logistic regression of 100 features with an l1 term; each hospital sees another share of the two classes."""
    n = 100
    rng = np.random.default_rng(9)
    truth = np.where(np.arange(n) % 12 == 0, rng.normal(size=n) * 1.5, 0.0)
    data = []
    for size, shift in ((80, -2.0), (120, -0.5), (200, 0.5), (150, 2.0)):
        U = rng.normal(size=(size, n))
        data.append((U, np.where(rng.random(size) < 1 / (1 + np.exp(-U @ truth - shift)), 1.0, -1.0)))

    def state() -> Any:
        def loss(x: Any, batch: Any) -> Any:
            return jnp.mean(jnp.logaddexp(0.0, -batch[1] * (batch[0] @ x))) + 0.02 * jnp.sum(jnp.abs(x))

        return fz.Nonsmooth(loss, fz.ClientData(data), np.zeros(n))

    def loss(x: np.ndarray) -> float:
        return float(np.mean([np.mean(np.logaddexp(0, -t * (U @ x))) for U, t in data]) + 0.02 * np.abs(x).sum())

    def convex(cp: Any, x: Any) -> Any:
        return mean([cp.sum(cp.logistic(-cp.multiply(t, U @ x))) / len(t) for U, t in data]) + 0.02 * cp.norm1(x)

    return Case(state, np.zeros(n), box(n), loss, convex=convex)


@case("nonsmooth")
def c_optimal() -> Case:
    """A design of 20 experiments, each laboratory with its own contrast, by the mean standard error and the worst."""
    n, k = 20, 4
    rng = np.random.default_rng(10)
    points = rng.normal(size=(n, k))
    data = [rng.normal(size=(size, k)) * rng.uniform(0.3, 2, k) for size in (2, 3, 5, 4)]

    def cost(x: Any, contrasts: Any, xp: Any) -> Any:
        information = (points.T * x) @ points + 0.01 * np.eye(k)
        return xp.mean(xp.sqrt(xp.sum(contrasts * xp.linalg.solve(information, contrasts.T).T, axis=1)))

    def state() -> Any:
        caps = [fz.sets.Intersection(fz.sets.Simplex(), fz.sets.Box(0.0, cap)) for cap in (0.25, 0.3, 0.35, 0.4)]
        return fz.Nonsmooth(
            lambda x, b: cost(x, b, jnp), fz.ClientData(data), np.full(n, 1 / n), constraint=caps, domain=fz.sets.Box(0.0, 1.0)
        )

    region = simplex(n)
    region = Region(region.lower, np.full(n, 0.25), equations=region.equations)
    return Case(state, np.full(n, 1 / n), region, lambda x: float(np.mean([cost(x, d, np) for d in data])), smooth=True, starts=6)


@case("nonsmooth")
def k_medians() -> Case:
    """Three centres in three dimensions for the l1 distance, which is not convex; clients see different clusters."""
    rng = np.random.default_rng(11)
    centres = np.array([[0.0, 0, 0], [4, 4, 0], [0, 5, 5]])
    data = [
        np.concatenate([c + rng.laplace(size=(max(2, int(size * share)), 3)) for c, share in zip(centres, shares, strict=True)])
        for size, shares in ((40, (0.8, 0.1, 0.1)), (80, (0.1, 0.7, 0.2)), (120, (0.2, 0.2, 0.6)))
    ]
    x0 = np.array([[1.0, 1, 1], [2, 3, 1], [1, 3, 3]])

    def cost(x: Any, points: Any, xp: Any) -> Any:
        return xp.mean(xp.min(xp.sum(xp.abs(points[:, None] - x.reshape(3, 3)), axis=2), axis=1))

    def state() -> Any:
        return fz.Nonsmooth(lambda x, b: cost(x, b, jnp), fz.ClientData(data), x0)

    return Case(state, x0.ravel(), box(9), lambda x: float(np.mean([cost(x, d, np) for d in data])), starts=100)


@case("nonsmooth")
def robust_pca() -> Case:
    """The direction of a point cloud with outliers, by distances and not their squares, in the unit ball."""
    n = 6
    rng = np.random.default_rng(12)
    direction = rng.normal(size=n)
    direction /= np.linalg.norm(direction)
    data = []
    for size in (30, 50, 70, 120, 40):
        points = 3 * rng.normal(size=(size, 1)) * direction + 0.3 * rng.normal(size=(size, n))
        points[: size // 6] = 6 * rng.normal(size=(size // 6, n)) * rng.uniform(0, 1, n)
        data.append(points)

    def cost(x: Any, points: Any, xp: Any) -> Any:
        left = points - (points @ x)[:, None] * x
        return xp.mean(xp.sqrt(xp.sum(left**2, axis=1)))

    x0 = np.full(n, 0.3)

    def state() -> Any:
        return fz.Nonsmooth(lambda x, b: cost(x, b, jnp), fz.ClientData(data), x0, constraint=fz.sets.Ball(0.0, 1.0))

    region = box(n, balls=((slice(None), np.zeros(n), 1.0),))
    return Case(state, x0, region, lambda x: float(np.mean([cost(x, d, np) for d in data])), starts=60)


@case("nonsmooth")
def tracking() -> Case:
    """An index of 200 shares tracked in the mean absolute error, no share above 3 %, sector limits private to three funds."""
    n = 200
    rng = np.random.default_rng(13)
    factors, index = rng.normal(size=(n, 5)), rng.dirichlet(np.ones(n))
    data = []
    for size in (30, 60, 90):
        returns = rng.normal(size=(size, 5)) @ factors.T + rng.normal(size=(size, n))
        data.append((returns, returns @ index + 0.5 * (returns[:, :40].mean(axis=1))))
    sectors = np.array([(np.arange(n) % 5 == i).astype(float) for i in range(3)])

    def state() -> Any:
        def loss(x: Any, batch: Any) -> Any:
            return jnp.mean(jnp.abs(batch[1] - batch[0] @ x))

        sets = [
            fz.sets.Intersection(fz.sets.Simplex(), fz.sets.Box(0.0, 0.03), fz.sets.Halfspace(sector, 0.22)) for sector in sectors
        ]
        return fz.Nonsmooth(loss, fz.ClientData(data), np.full(n, 1 / n), constraint=sets)

    def convex(cp: Any, x: Any) -> Any:
        return mean([cp.norm1(t - U @ x) / len(t) for U, t in data])

    region = box(n, 0.0, 0.03, rows=(sectors, np.full(3, 0.22)), equations=(np.ones((1, n)), np.ones(1)))
    loss = lambda x: float(np.mean([np.mean(np.abs(t - U @ x)) for U, t in data]))  # noqa: E731
    return Case(state, np.full(n, 1 / n), region, loss, convex=convex)
