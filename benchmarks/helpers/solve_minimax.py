"""The minimax problems of `benchmarks/solve.py`: the worst y, of which the loss is strongly concave."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from helpers.solve_bilevel import both
from helpers.solve_cases import Case, box, case, mcp, simplex, with_rows
from helpers.solve_nonsmooth import regression


@case("minimax")
def robust_fit() -> Case:
    """A linear fit against a shift of five sensors' targets within bounds, which costs its square."""
    n, groups = 8, 5
    data = []
    rng = np.random.default_rng(41)
    for i, (U, t) in enumerate(
        regression(41, n, (20, 40, 80, 30), np.linspace(-1, 1, n), lambda rng, size: rng.normal(size=size))
    ):
        sensor = rng.integers(0, groups, len(t))
        data.append((U, t + np.where(sensor == i, 2.0, 0.0), sensor))

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            U, t, sensor = batch
            return jnp.mean((t + y[sensor] - U @ x) ** 2) - 1.5 * y @ y + 0.05 * jnp.sum(jnp.abs(x))

        return fz.Minimax(
            loss, fz.ClientData(data), np.zeros(n), np.zeros(groups), fz.sets.Ball(0.0, 2.0), fz.sets.Box(-0.5, 0.5)
        )

    def loss(x: np.ndarray) -> float:
        errors = [t - U @ x for U, t, _ in data]
        share = both([np.eye(groups)[g] for _, _, g in data])
        slope = both([np.eye(groups)[g] * e[:, None] for e, (_, _, g) in zip(errors, data, strict=True)])
        y = np.clip(slope / (1.5 - share), -0.5, 0.5)
        fit = np.mean([np.mean((e + y[g]) ** 2) for e, (_, _, g) in zip(errors, data, strict=True)])
        return float(fit - 1.5 * y @ y + 0.05 * np.abs(x).sum())

    region = box(n, balls=((slice(None), np.zeros(n), 2.0),))
    return Case(state, np.zeros(n), region, loss, starts=10)


@case("minimax")
def kl_portfolio() -> Case:
    """A portfolio of ten shares against the worst weights of 40 scenarios, with their divergence from equal ones as a price."""
    n, k, price = 10, 40, 0.5
    rng = np.random.default_rng(42)
    drift, factors = rng.uniform(0, 1, n), rng.normal(size=(n, 3))
    returns = drift + rng.standard_t(4, (k, 3)) @ factors.T + 0.5 * rng.normal(size=(k, n))
    parts = np.split(np.arange(k), [4, 10, 20])

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            index, r = batch
            weight = jnp.maximum(y[index], 1e-9)
            return k * jnp.mean(-weight * (r @ x) - price * weight * jnp.log(k * weight))

        return fz.Minimax(
            loss, fz.ClientData([(part, returns[part]) for part in parts]), np.full(n, 1 / n), np.full(k, 1 / k),
            fz.sets.Simplex(), fz.sets.Intersection(fz.sets.Simplex(), fz.sets.Box(1e-5, 1.0)), weights="samples",
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        gains = -returns @ x / price
        low, high = gains.min() - 20, gains.max() + 20  # y = max(1e-5, exp(gain - level) / k) sums to one
        for _ in range(100):
            level = (low + high) / 2
            y = np.maximum(1e-5, np.exp(gains - level) / k)
            low, high = (level, high) if y.sum() > 1 else (low, level)
        return float(np.sum(-y * (returns @ x) - price * y * np.log(k * y)))

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, simplex(n), np.full(n, 1 / n)), m.variable(k, start=1 / k)
        m.constrain(ca.sum1(y) - 1)
        gains = ca.DM(returns) @ x
        lower(m, y, gains + price * (ca.log(k * ca.fmax(y, 1e-9)) + 1), 1e-5, E=ca.DM.ones(1, k))
        m.objective = -ca.dot(y, gains) - price * ca.dot(y, ca.log(k * ca.fmax(y, 1e-9)))
        return x

    return Case(state, np.full(n, 1 / n), simplex(n), loss, smooth=True, model=model, starts=6)


@case("minimax")
def price_war() -> Case:
    """Prices of four goods against a rival whose prices must stay near ours and cost us as much as they can."""
    n = 4
    rng = np.random.default_rng(43)
    cross = rng.uniform(0.2, 0.6, (n, n))
    data = [rng.uniform(8, 12, n) + rng.normal(size=(size, n)) for size in (20, 35, 50)]
    base, cost = both(data), np.array([1.0, 1.5, 2.0, 2.5])
    M = 0.8 * np.eye(n)

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            demand = jnp.mean(batch, axis=0) - 2.0 * x + cross @ y
            return -(x - cost) @ demand / 10 - 0.4 * (y - x + 0.5) @ (y - x + 0.5)

        near = lambda x: fz.sets.Intersection(fz.sets.Box(x - 1.0, x + 1.0), fz.sets.Halfspace(-np.ones(n), -10.0))  # noqa: E731
        return fz.Minimax(
            loss, fz.ClientData(data), np.full(n, 5.0), np.full(n, 5.0), fz.sets.Box(3.0, 8.0), near,
            lower_domain=fz.sets.Box(2.0, 9.0),
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        q = cross.T @ (x - cost) / 10 + 0.8 * (0.5 - x)
        y = with_rows(M, q, -np.ones((1, n)), np.array([-10.0]), x - 1, x + 1, start=x)[0]
        return float(-(x - cost) @ (base - 2 * x + cross @ y) / 10 - 0.4 * np.sum((y - x + 0.5) ** 2))

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, box(n, 3.0, 8.0), np.full(n, 5.0)), m.variable(n, start=5.0)
        own = x - ca.DM(cost)
        lower(m, y, ca.DM(cross.T) @ own / 10 + 0.8 * (y - x + 0.5), x - 1, x + 1, -ca.DM.ones(1, n), -10.0)
        m.objective = -ca.dot(own, ca.DM(base) - 2 * x + ca.DM(cross) @ y) / 10 - 0.4 * ca.sumsqr(y - x + 0.5)
        return x

    return Case(state, np.full(n, 5.0), box(n, 3.0, 8.0), loss, model=model)


@case("minimax")
def agnostic() -> Case:
    """Logistic regression for the worst mix of five hospitals, near equal shares: agnostic federated learning."""
    n, m_clients = 15, 5
    rng = np.random.default_rng(44)
    truth, data = rng.normal(size=n), []
    for i, size in enumerate((30, 60, 90, 150, 45)):
        U = rng.normal(size=(size, n))
        data.append((U, np.sign(U @ (truth + 0.8 * i / 4 * rng.normal(size=n)) + rng.normal(size=size) * (0.2 + 0.5 * i))))

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            (U, t), mine = batch
            return (
                m_clients * (mine @ y) * jnp.mean(jnp.logaddexp(0.0, -t * (U @ x)))
                - 0.5 * jnp.sum((y - 1 / m_clients) ** 2)
                + 0.01 * x @ x
            )

        fixed = [np.eye(m_clients)[i] for i in range(m_clients)]
        return fz.Minimax(
            loss,
            fz.ClientData(data, fixed=fixed),
            np.zeros(n),
            np.full(m_clients, 1 / m_clients),
            lower_constraint=fz.sets.Simplex(),
        )

    def loss(x: np.ndarray) -> float:
        each = np.array([np.mean(np.logaddexp(0, -t * (U @ x))) for U, t in data])
        y = with_rows(np.eye(m_clients), -each - 1 / m_clients, np.ones((1, m_clients)), np.array([1.0]), 0.0, np.inf, equal=1)[0]
        return float(y @ each - 0.5 * np.sum((y - 1 / m_clients) ** 2) + 0.01 * x @ x)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, box(n), np.zeros(n)), m.variable(m_clients, start=1 / m_clients)
        m.constrain(ca.sum1(y) - 1)
        parts = [-ca.DM(t) * (ca.DM(U) @ x) for U, t in data]
        each = ca.vertcat(*(ca.sum1(ca.fmax(v, 0) + ca.log1p(ca.exp(-ca.fabs(v)))) / v.shape[0] for v in parts))
        lower(m, y, y - 1 / m_clients - each, 0.0, E=ca.DM.ones(1, m_clients))
        m.objective = ca.dot(y, each) - 0.5 * ca.sumsqr(y - 1 / m_clients) + 0.01 * ca.sumsqr(x)
        return x

    return Case(state, np.zeros(n), box(n), loss, smooth=True, model=model, starts=4)


@case("minimax")
def jammed_channels() -> Case:
    """Power for eight channels against a jammer with a budget of its own; each station limits the power near it."""
    n = 8
    rng = np.random.default_rng(45)
    gains, noise = rng.uniform(0.5, 2.0, n), rng.uniform(0.1, 0.6, n)
    data = [noise * rng.uniform(0.7, 1.3, (size, n)) for size in (6, 12, 24)]
    x0 = np.linspace(1.9, 0.1, n)
    caps = [np.where(np.arange(n) % 3 == i, 2.0, 6.0) for i in range(3)]

    def rate(x: Any, y: Any, floor: Any, xp: Any) -> Any:
        return xp.mean(xp.sum(xp.log1p(gains * x / (floor + y)), axis=1))

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return -rate(jnp.maximum(x, 0.0), jnp.maximum(y, 0.0), batch, jnp) - 0.05 * y @ y

        sets = [fz.sets.Intersection(fz.sets.Simplex(8.0), fz.sets.Box(0.0, cap)) for cap in caps]
        return fz.Minimax(loss, fz.ClientData(data), x0, np.full(n, 0.5), sets, fz.sets.Simplex(4.0))

    def loss(x: np.ndarray) -> float:
        x = np.maximum(x, 0)
        own = [(f, 1 / len(f) / 3) for f in data]

        def gradient(z: np.ndarray) -> np.ndarray:
            y = np.maximum(z[0, :n], 0)
            slope = sum(share * np.sum(1 / (f + y + gains * x) - 1 / (f + y), axis=0) for f, share in own) + 0.1 * y
            return np.append(slope + z[0, n], z[0, :n].sum() - 4.0)[None]

        def jacobian(z: np.ndarray) -> np.ndarray:
            y = np.maximum(z[0, :n], 0)
            bend = sum(share * np.sum(1 / (f + y) ** 2 - 1 / (f + y + gains * x) ** 2, axis=0) for f, share in own) + 0.1
            return np.block([[np.diag(bend), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])[None]

        low, high = np.append(np.zeros(n), -np.inf), np.full(n + 1, np.inf)
        y = mcp(gradient, jacobian, low, high, np.append(np.full(n, 0.5), 0.0)[None])[0, :n]
        return float(-np.mean([rate(x, y, f, np) for f in data]) - 0.05 * y @ y)

    region = simplex(n, 8.0)
    region = type(region)(region.lower, np.min(caps, axis=0), equations=region.equations)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, region, x0), m.variable(n, 0.0, start=0.5)
        m.constrain(ca.sum1(y) - 4)
        slope, m.objective = 0.1 * y, -0.05 * ca.sumsqr(y)
        for floors in data:
            for row in map(ca.DM, floors):
                slope += (1 / (row + y + ca.DM(gains) * x) - 1 / (row + y)) / len(floors) / len(data)
                m.objective -= ca.sum1(ca.log1p(ca.DM(gains) * x / (row + y))) / len(floors) / len(data)
        lower(m, y, slope, 0.0, E=ca.DM.ones(1, n))
        return x

    return Case(state, x0, region, loss, smooth=True, model=model, starts=6)


@case("minimax")
def worst_demand() -> Case:
    """Stock of seven shops against the worst demand in a ball that grows with what is promised; kinks in x."""
    n = 7
    rng = np.random.default_rng(46)
    data = [np.linspace(3, 6, n) + rng.normal(size=(size, n)) for size in (10, 20, 40, 15)]

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            missing = batch + y - x["stock"]
            cost = jnp.maximum(x["stock"] - batch, 0.0) + 0.3 * x["stock"] + 2.0 * missing + 0.18 * missing**2
            return jnp.mean(jnp.sum(cost, axis=1)) - 0.5 * y @ y - 4.0 * x["promise"][0]

        start = {"promise": np.array([1.0]), "stock": np.full(n, 4.0)}
        limits = fz.sets.Product({"promise": fz.sets.Box(0.2, 3.0), "stock": fz.sets.Box(0.0, 9.0)})
        return fz.Minimax(
            loss, fz.ClientData(data), start, np.zeros(n), limits,
            lambda x: fz.sets.Ball(0.0, 0.5 + x["promise"][0]), lower_domain=fz.sets.Box(0.1, 10.0),
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        promise, stock = x[0], x[1:]
        parts = [d - stock for d in data]
        y = (2.0 + 0.36 * both(parts)) / 0.64
        y *= min(1.0, (0.5 + promise) / np.linalg.norm(y))
        costs = [np.maximum(-p, 0.0) + 2.0 * (p + y) + 0.18 * (p + y) ** 2 for p in parts]
        return float(np.sum(both(costs)) + 0.3 * stock.sum() - 0.5 * y @ y - 4.0 * promise)

    region = box(n + 1, np.append(0.2, np.zeros(n)), np.append(3.0, np.full(n, 9.0)))
    return Case(state, np.append(1.0, np.full(n, 4.0)), region, loss, starts=20)


@case("minimax")
def dose_plan() -> Case:
    """Thirty beam weights against an uncertain position of the body: 12 shifts with a bounded sum."""
    n, k = 30, 12
    rng = np.random.default_rng(47)
    data = []
    for size in (2, 4, 6):
        data.append(
            (
                np.abs(rng.normal(size=(size, k, n))) * np.exp(-rng.uniform(0, 2, (k, n))),
                np.where(np.arange(k) < 5, 4.0, 0.5)[None] + 0.2 * rng.normal(size=(size, k)),
            )
        )

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            dose, want = batch
            miss = dose @ x - want
            return jnp.mean(jnp.sum((miss + y) ** 2, axis=1)) / 10 - 0.3 * y @ y + 0.02 * jnp.sum(x)

        ways = fz.sets.Intersection(fz.sets.Box(-0.5, 0.5), fz.sets.Polyhedron(np.stack([np.ones(k), -np.ones(k)]), [1.5, 1.5]))
        return fz.Minimax(loss, fz.ClientData(data), np.full(n, 0.2), np.zeros(k), fz.sets.Box(0.0, 2.0), ways)

    A, b = np.stack([np.ones(k), -np.ones(k)]), np.array([1.5, 1.5])

    def loss(x: np.ndarray) -> float:
        misses = [dose @ x - want for dose, want in data]
        slope = both(misses) / 5
        y = with_rows(0.4 * np.eye(k), -slope, A, b, -0.5, 0.5)[0]
        return float(np.mean([np.mean(np.sum((miss + y) ** 2, axis=1)) for miss in misses]) / 10 - 0.3 * y @ y + 0.02 * x.sum())

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, box(n, 0.0, 2.0), np.full(n, 0.2)), m.variable(k)
        m.objective, slope = 0.02 * ca.sum1(x) - 0.3 * ca.sumsqr(y), 0
        for dose, want in data:
            for D, w in zip(dose, want, strict=True):
                miss = ca.DM(D) @ x - ca.DM(w)
                slope += miss / 5 / len(want) / len(data)
                m.objective += ca.sumsqr(miss + y) / 10 / len(want) / len(data)
        lower(m, y, 0.4 * y - slope, -0.5, 0.5, ca.DM(A), ca.DM(b))
        return x

    return Case(state, np.full(n, 0.2), box(n, 0.0, 2.0), loss, smooth=True, model=model, starts=5)
