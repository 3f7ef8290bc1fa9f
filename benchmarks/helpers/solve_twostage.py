"""The two-stage problems of `benchmarks/solve.py`: an equilibrium in each scenario, each client with scenarios of its own."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from helpers.solve_bilevel import LINKS
from helpers.solve_cases import Case, box, case, mcp, with_rows


def stacked(data: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return all scenarios, and the weight of each in the mean over clients of their means."""
    return np.concatenate(data), np.concatenate([np.full(len(part), 1 / len(part) / len(data)) for part in data])


def matrices(M: np.ndarray) -> Any:
    """Return the Jacobian of a map with the same matrix in each scenario, or one matrix for each."""
    return lambda z: np.broadcast_to(M, (len(z), z.shape[1], z.shape[1]))


@case("twostage")
def cournot_plants() -> Case:
    """A leader with two plants before five firms that compete by quantities; demand is a vector (intercept, slope)."""
    k = 5
    rng = np.random.default_rng(61)
    first, rise, caps = rng.uniform(1, 4, k), rng.uniform(0.3, 1.5, k), rng.uniform(1, 3, k)
    data = [np.stack([rng.uniform(8, 14, size), rng.uniform(0.4, 0.8, size)], axis=1) for size in (6, 10, 20, 14)]
    xi, share = stacked(data)
    a, b = xi.T

    def state() -> Any:
        def loss(x: Any, y: Any, demand: Any) -> Any:
            price = demand[0] - demand[1] * (jnp.sum(x) + jnp.sum(y))
            return 1.0 * x[0] + 0.4 * x[0] ** 2 + 2.0 * x[1] + 0.05 * x[1] ** 2 - price * jnp.sum(x)

        def marginal(x: Any, y: Any, demand: Any) -> Any:
            return first + (rise + demand[1]) * y - demand[0] + demand[1] * (jnp.sum(x) + jnp.sum(y))

        sets = [fz.sets.Intersection(fz.sets.Box(0.0, 10.0), fz.sets.Halfspace(np.ones(2), limit)) for limit in (9.0, 12, 10, 11)]
        return fz.TwoStage(
            loss, marginal, fz.ClientData(data), np.full(2, 1.0), np.zeros(k), sets, lower_constraint=fz.sets.Box(0.0, caps)
        )

    region = box(2, 0.0, 10.0, rows=(np.ones((1, 2)), np.array([9.0])))

    def loss(x: np.ndarray) -> float:
        M = np.array([np.diag(rise + slope) + slope for slope in b])
        q = first - a[:, None] + b[:, None] * x.sum()
        y = mcp(lambda z: np.einsum("sij,sj->si", M, z) + q, matrices(M), 0.0, caps, np.zeros((len(a), k)))
        price = a - b * (x.sum() + y.sum(axis=1))
        return float(1.0 * x[0] + 0.4 * x[0] ** 2 + 2.0 * x[1] + 0.05 * x[1] ** 2 - (share @ price) * x.sum())

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x = upper(m, region, np.full(2, 1.0))
        m.objective = 1.0 * x[0] + 0.4 * x[0] ** 2 + 2.0 * x[1] + 0.05 * x[1] ** 2
        for (intercept, slope), weight in zip(xi, share, strict=True):
            y = m.variable(k)
            total = ca.sum1(x) + ca.sum1(y)
            lower(m, y, ca.DM(first) + ca.DM(rise + slope) * y - intercept + slope * total, 0.0, ca.DM(caps))
            m.objective -= weight * (intercept - slope * total) * ca.sum1(x)
        return x

    return Case(state, np.full(2, 1.0), region, loss, model=model)


@case("twostage")
def two_goods() -> Case:
    """Subsidies of two goods that four firms make, with a cross effect that differs by good; scenarios are dicts with vectors."""
    firms = 4
    rng = np.random.default_rng(62)
    sizes, rise = (8, 12, 24), rng.uniform(0.5, 1.5, (firms, 2))
    S = np.array([[1.0, 0.5], [0.2, 0.8]])  # prices fall by S times total outputs
    data = [
        {"demand": rng.uniform(6, 10, (size, 2)) * rng.uniform(0.8, 1.2), "cost": rng.uniform(1, 5, (size, firms))}
        for size in sizes
    ]
    demand, share = stacked([part["demand"] for part in data])
    cost, _ = stacked([part["cost"] for part in data])
    want = np.array([6.0, 3.0])

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            total = jnp.sum(y, axis=0)
            return jnp.sum((total - want) ** 2) + 0.3 * x @ total + 0.1 * jnp.max(total)

        def marginal(x: Any, y: Any, xi: Any) -> Any:
            total = jnp.sum(y, axis=0)
            return xi["cost"][:, None] + rise * y - x - (xi["demand"] - S @ total) + jnp.diag(S) * y

        return fz.TwoStage(
            loss, marginal, fz.ClientData(data), np.zeros(2), np.zeros((firms, 2)), fz.sets.Box(-4.0, 8.0),
            lower_constraint=fz.sets.Box(0.0, 2.5),
        )  # fmt: skip

    k = 2 * firms
    M = np.kron(np.ones((firms, firms)), S) + np.diag(rise.ravel() + np.tile(np.diag(S), firms))

    def loss(x: np.ndarray) -> float:
        q = (cost[:, :, None] - x - demand[:, None, :]).reshape(-1, k)
        y = mcp(lambda z: z @ M.T + q, matrices(M), 0.0, 2.5, np.zeros_like(q))
        total = y.reshape(-1, firms, 2).sum(axis=1)
        return float(share @ (np.sum((total - want) ** 2, axis=1) + 0.3 * total @ x + 0.1 * total.max(axis=1)))

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, sums = upper(m, box(2, -4.0, 8.0), np.zeros(2)), ca.DM(np.kron(np.ones((1, firms)), np.eye(2)))
        m.objective = 0
        for d, c, weight in zip(demand, cost, share, strict=True):
            y, most = m.variable(k), m.variable(1)
            total = sums @ y
            lower(m, y, ca.DM(M) @ y + ca.DM(np.repeat(c, 2) - np.tile(d, firms)) - sums.T @ x, 0.0, 2.5)
            m.constrain(total - most, -np.inf, 0.0)
            m.objective += weight * (ca.sumsqr(total - ca.DM(want)) + 0.3 * ca.dot(x, total) + 0.1 * most)
        return x

    return Case(state, np.zeros(2), box(2, -4.0, 8.0), loss, model=model)


@case("twostage")
def capacity_market() -> Case:
    """Capacities of five plants, then a market in which each plant makes at most its capacity: Y(x) moves with x."""
    k = 5
    rng = np.random.default_rng(63)
    build, fuel = np.array([2.0, 1.6, 1.2, 0.9, 0.5]), np.array([0.5, 1.0, 1.8, 2.6, 4.0])
    data = [
        np.concatenate([rng.uniform(6, 16, (size, 1)), fuel * rng.uniform(0.7, 1.3, (size, k))], axis=1)
        for size in (10, 20, 30, 15)
    ]
    xi, share = stacked(data)
    limits = np.array([3.0, 4.0, 5.0, 4.5])
    rows = np.array([[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 0, 1.0]]), limits

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            total = jnp.sum(y)
            return build @ x + xi[1:] @ y + 0.1 * y @ y - xi[0] * total + 0.4 * total**2

        def marginal(x: Any, y: Any, xi: Any) -> Any:
            return xi[1:] + 0.4 * y - xi[0] + 0.8 * jnp.sum(y)

        sets = [
            fz.sets.Intersection(fz.sets.Box(0.0, 6.0), fz.sets.Halfspace(row, limit)) for row, limit in zip(*rows, strict=True)
        ]
        return fz.TwoStage(
            loss, marginal, fz.ClientData(data), np.full(k, 1.0), np.zeros(k), sets,
            lower_constraint=lambda x, xi: fz.sets.Box(0.0, x), lower_domain=fz.sets.Box(0.0, 6.0),
        )  # fmt: skip

    region = box(k, 0.0, 6.0, rows=rows)
    M = 0.4 * np.eye(k) + 0.8

    def loss(x: np.ndarray) -> float:
        x, q = np.maximum(x, 0.0), xi[:, 1:] - xi[:, :1]
        y = mcp(lambda z: z @ M + q, matrices(M), 0.0, x, np.zeros_like(q))
        total = y.sum(axis=1)
        each = np.sum(xi[:, 1:] * y, axis=1) + 0.1 * np.sum(y**2, axis=1) - xi[:, 0] * total + 0.4 * total**2
        return float(build @ x + share @ each)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x = upper(m, region, np.full(k, 1.0))
        m.objective = ca.dot(ca.DM(build), x)
        for row, weight in zip(xi, share, strict=True):
            y, c = m.variable(k), ca.DM(row[1:])
            total = ca.sum1(y)
            lower(m, y, c + 0.4 * y - row[0] + 0.8 * total, 0.0, x)
            m.objective += weight * (ca.dot(c, y) + 0.1 * ca.sumsqr(y) - row[0] * total + 0.4 * total**2)
        return x

    return Case(state, np.full(k, 1.0), region, loss, model=model)


@case("twostage")
def traffic() -> Case:
    """Tolls on six links before the day's trips and delays are known; drivers choose among four routes."""
    rng = np.random.default_rng(64)
    slope = rng.uniform(0.2, 0.8, 6)
    data = [
        {"trips": rng.uniform(4, 14, size), "time": rng.uniform(0.5, 3, 6) + rng.uniform(0, 1.5, (size, 6))}
        for size in (8, 16, 24)
    ]
    trips, share = stacked([part["trips"] for part in data])
    time, _ = stacked([part["time"] for part in data])

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            f = LINKS @ y
            return ((xi["time"] + slope * f) @ f + 0.1 * x @ f) / 10

        def delay(x: Any, y: Any, xi: Any) -> Any:
            return LINKS.T @ (xi["time"] + x + slope * (LINKS @ y)) + 0.05 * y

        return fz.TwoStage(
            loss, delay, fz.ClientData(data), np.zeros(6), np.full(4, 2.0), fz.sets.Box(0.0, 5.0),
            lower_constraint=lambda x, xi: fz.sets.Simplex(xi["trips"]),
        )  # fmt: skip

    M = LINKS.T @ np.diag(slope) @ LINKS + 0.05 * np.eye(4)

    def loss(x: np.ndarray) -> float:
        start = np.repeat(trips[:, None] / 4, 4, axis=1)
        y = with_rows(M, (time + x) @ LINKS, np.ones((1, 4)), trips[:, None], 0.0, np.inf, equal=1, start=start)
        f = y @ LINKS.T
        return float(share @ (np.sum((time + slope * f + 0.1 * x) * f, axis=1) / 10))

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x = upper(m, box(6, 0.0, 5.0), np.zeros(6))
        m.objective = 0
        for total, t, weight in zip(trips, time, share, strict=True):
            y = m.variable(4, start=total / 4)
            m.constrain(ca.sum1(y) - total)
            f = ca.DM(LINKS) @ y
            lower(m, y, ca.DM(LINKS.T) @ (ca.DM(t) + x + ca.DM(slope) * f) + 0.05 * y, 0.0, E=ca.DM.ones(1, 4))
            m.objective += weight * ca.dot(ca.DM(t) + ca.DM(slope) * f + 0.1 * x, f) / 10
        return x

    return Case(state, np.zeros(6), box(6, 0.0, 5.0), loss, model=model)


@case("twostage")
def spatial_prices() -> Case:
    """Freight charges between two sources and three markets; traders ship until prices differ by the freight alone."""
    rng = np.random.default_rng(65)
    out, into = np.kron(np.eye(2), np.ones((1, 3))), np.kron(np.ones((1, 2)), np.eye(3))  # sums over markets, over sources
    supply, demand = np.array([0.6, 0.9]), np.array([0.7, 0.5, 0.8])
    way = rng.uniform(0.5, 2.0, 6)
    data = [
        {"supply": rng.uniform(1, 3, (size, 2)), "demand": rng.uniform(7, 14, (size, 3)) * rng.uniform(0.8, 1.2, 3)}
        for size in (5, 10, 20, 40)
    ]
    low, share = stacked([part["supply"] for part in data])
    high, _ = stacked([part["demand"] for part in data])
    M = out.T @ np.diag(supply) @ out + into.T @ np.diag(demand) @ into + 0.1 * np.eye(6)

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            return -(x - way) @ y / 5 + 0.05 * jnp.sum(jnp.abs(x - 2.0))

        def spread(x: Any, y: Any, xi: Any) -> Any:
            return out.T @ (xi["supply"] + supply * (out @ y)) + x - into.T @ (xi["demand"] - demand * (into @ y)) + 0.1 * y

        sets = [fz.sets.Box(0.0, top) for top in (8.0, 6.0, 7.0, 9.0)]
        return fz.TwoStage(
            loss, spread, fz.ClientData(data), np.full(6, 2.0), np.ones(6), sets, lower_constraint=fz.sets.Box(0.0, 4.0)
        )

    def loss(x: np.ndarray) -> float:
        q = low @ out + x - high @ into
        y = mcp(lambda z: z @ M + q, matrices(M), 0.0, 4.0, np.ones_like(q))
        return float(-(share @ (y @ (x - way))) / 5 + 0.05 * np.abs(x - 2.0).sum())

    return Case(state, np.full(6, 2.0), box(6, 0.0, 6.0), loss)


@case("twostage")
def grid_lines() -> Case:
    """Capacities of three lines between three towns; in each hour four generators meet the towns' needs at least cost."""
    rng = np.random.default_rng(66)
    # y: four generators, flows on lines 0-1, 1-2, 0-2, unserved need in three towns
    E = np.zeros((3, 10))
    E[0, [0, 1]], E[1, 2], E[2, 3] = 1, 1, 1
    E[:, 4], E[:, 5], E[:, 6] = [-1, 1, 0], [0, -1, 1], [-1, 0, 1]
    E[:, 7:] = np.eye(3)
    price, curve = np.array([1.0, 1.5, 4.0, 6.0, 0, 0, 0, 20, 20, 20]), np.array([0.3, 0.4, 0.5, 0.4, 0.05, 0.05, 0.05, 1, 1, 1])
    build, top = np.array([1.2, 0.9, 1.6]), np.array([8.0, 6, 6, 6])
    data = [np.array([1.0, 3, 5]) * rng.uniform(0.4, 1.5, (size, 3)) for size in (6, 12, 18)]
    need, share = stacked(data)

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            return (build @ x + price @ y + curve @ y**2 / 2) / 10

        def costs(x: Any, y: Any, xi: Any) -> Any:
            return price + curve * y

        def feasible(x: Any, xi: Any) -> Any:
            lower = jnp.concatenate([jnp.zeros(4), -x, jnp.zeros(3)])
            upper = jnp.concatenate([jnp.asarray(top), x, jnp.full(3, 20.0)])
            return fz.sets.Intersection(fz.sets.Box(lower, upper), fz.sets.Affine(E, xi))

        return fz.TwoStage(
            loss, costs, fz.ClientData(data), np.full(3, 0.5), np.ones(10), fz.sets.Box(0.0, 6.0), lower_constraint=feasible,
            lower_domain=fz.sets.Box(0.0, 6.0),
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        x = np.maximum(x, 0.0)
        low, high = np.concatenate([np.zeros(4), -x, np.zeros(3)]), np.concatenate([top, x, np.full(3, 20.0)])
        y = with_rows(np.diag(curve), np.tile(price, (len(need), 1)), E, need, low, high, equal=3)
        return float((build @ x + share @ (y @ price + y**2 @ curve / 2)) / 10)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x = upper(m, box(3, 0.0, 6.0), np.full(3, 0.5))
        m.objective = ca.dot(ca.DM(build), x) / 10
        for row, weight in zip(need, share, strict=True):
            y = m.variable(10, start=1.0)
            m.constrain(ca.DM(E) @ y - ca.DM(row))
            low, high = ca.vertcat(ca.DM.zeros(4), -x, ca.DM.zeros(3)), ca.vertcat(ca.DM(top), x, 20 * ca.DM.ones(3))
            lower(m, y, ca.DM(price) + ca.DM(curve) * y, low, high, E=ca.DM(E))
            m.objective += weight * (ca.dot(ca.DM(price), y) + ca.dot(ca.DM(curve), y**2) / 2) / 10
        return x

    return Case(state, np.full(3, 0.5), box(3, 0.0, 6.0), loss, model=model)


@case("twostage")
def advertising() -> Case:
    """An effort and a discount before three rivals choose their efforts in a contest: a map that is not symmetric."""
    k = 3
    rng = np.random.default_rng(67)
    data = [np.concatenate([rng.uniform(8, 20, (size, 1)), rng.uniform(0.3, 1.5, (size, k))], axis=1) for size in (10, 20, 40)]
    xi, share = stacked(data)
    prize, cost = xi[:, 0], xi[:, 1:]

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            pull = x[0] * (1 + x[1])
            return -xi[0] * (1 - 0.35 * x[1]) * pull / (pull + jnp.sum(y)) + x[0] + 0.05 * x[0] ** 2

        def marginal(x: Any, y: Any, xi: Any) -> Any:
            total = x[0] * (1 + x[1]) + jnp.sum(y)
            return -xi[0] * (total - y) / total**2 + xi[1:] + 0.5 * y

        ways = fz.sets.Box(np.array([0.2, 0.0]), np.array([8.0, 2.0]))
        return fz.TwoStage(
            loss, marginal, fz.ClientData(data), np.array([1.0, 0.0]), np.ones(k), ways, lower_constraint=fz.sets.Box(0.1, 6.0),
            lower_domain=ways,
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        pull = x[0] * (1 + x[1])

        def slope(y: np.ndarray) -> np.ndarray:
            total = (pull + np.maximum(y, 0.05).sum(axis=1))[:, None]
            return -prize[:, None] * (total - y) / total**2 + cost + 0.5 * y

        def bend(y: np.ndarray) -> np.ndarray:
            total = (pull + np.maximum(y, 0.05).sum(axis=1))[:, None, None]
            others = prize[:, None, None] * (total - 2 * y[:, :, None]) / total**3
            return others * np.ones((1, 1, k)) + (prize[:, None, None] / total**2 + 0.5) * np.eye(k)

        y = mcp(slope, bend, 0.1, 6.0, np.ones((len(xi), k)))
        return float(-(share @ (prize * (1 - 0.35 * x[1]) * pull / (pull + y.sum(axis=1)))) + x[0] + 0.05 * x[0] ** 2)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x = upper(m, region, np.array([1.0, 0.0]))
        pull = x[0] * (1 + x[1])
        m.objective = x[0] + 0.05 * x[0] ** 2
        for row, weight in zip(xi, share, strict=True):
            y = m.variable(k, start=1.0)
            total = pull + ca.sum1(y)
            lower(m, y, -row[0] * (total - y) / total**2 + ca.DM(row[1:]) + 0.5 * y, 0.1, 6.0)
            m.objective -= weight * row[0] * (1 - 0.35 * x[1]) * pull / total
        return x

    region = box(2, np.array([0.2, 0.0]), np.array([8.0, 2.0]))
    return Case(state, np.array([1.0, 0.0]), region, loss, model=model)


@case("twostage")
def membrane() -> Case:
    """Forty forces on a membrane above an obstacle whose height and whose wind load are known only later."""
    k = 40
    rng = np.random.default_rng(68)
    K = 2.1 * np.eye(k) - np.eye(k, k=1) - np.eye(k, k=-1)
    at = np.linspace(0, np.pi, k)
    data = [
        {
            "floor": -0.5 + 0.3 * rng.normal(size=(size, 1)) * np.sin(3 * at),
            "wind": 0.1 * rng.normal(size=(size, 1)) * np.ones(k) - 0.05,
        }
        for size in (2, 4, 6)
    ]
    floor, share = stacked([part["floor"] for part in data])
    wind, _ = stacked([part["wind"] for part in data])
    target = np.sin(2 * at)

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            return jnp.sum((y - target) ** 2) + 0.5 * x @ x

        def force(x: Any, y: Any, xi: Any) -> Any:
            return K @ y - xi["wind"] - x

        return fz.TwoStage(
            loss, force, fz.ClientData(data), np.zeros(k), np.zeros(k), fz.sets.Box(-0.2, 0.2),
            lower_constraint=lambda x, xi: fz.sets.Box(xi["floor"], jnp.inf),
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        q = -wind - x
        y = mcp(lambda z: z @ K + q, matrices(K), floor, np.inf, np.maximum(floor, 0.0))
        return float(share @ np.sum((y - target) ** 2, axis=1) + 0.5 * x @ x)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x = upper(m, box(k, -0.2, 0.2), np.zeros(k))
        m.objective = 0.5 * ca.sumsqr(x)
        stiff = ca.sparsify(ca.DM(K))
        for low, load, weight in zip(floor, wind, share, strict=True):
            y = m.variable(k)
            lower(m, y, stiff @ y - ca.DM(load) - x, ca.DM(low))
            m.objective += weight * ca.sumsqr(y - ca.DM(target))
        return x

    return Case(state, np.zeros(k), box(k, -0.2, 0.2), loss, model=model, starts=5)


@case("twostage")
def battery() -> Case:
    """Size and power of a battery; each day it is charged and emptied by the day's prices in six steps: Y(x) has 24 rows."""
    k = 6
    rng = np.random.default_rng(69)
    shape = np.array([2.0, 1.5, 4.0, 5.0, 6.5, 4.0])
    data = [shape * rng.uniform(0.6, 1.4, (size, k)) for size in (7, 14, 28)]
    prices, share = stacked(data)
    sums = np.tril(np.ones((k, k)))
    A = np.concatenate([sums, -sums])

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            return xi @ y + 0.1 * y @ y + 0.35 * x["size"] ** 1.2 + 1.5 * x["power"]

        def marginal(x: Any, y: Any, xi: Any) -> Any:
            return xi + 0.4 * y

        def plan(x: Any, xi: Any) -> Any:
            b = jnp.concatenate([jnp.full(k, x["size"]), jnp.zeros(k)])
            return fz.sets.Intersection(fz.sets.Box(-x["power"], x["power"]), fz.sets.Polyhedron(A, b))

        ways = fz.sets.Box(0.1, 8.0)
        return fz.TwoStage(
            loss, marginal, fz.ClientData(data), {"power": np.float64(1.0), "size": np.float64(1.0)}, np.zeros(k), ways,
            lower_constraint=plan, lower_domain=ways,
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        power, size = np.maximum(x, 0.1)
        y = with_rows(0.4 * np.eye(k), prices, A, np.append(np.full(k, size), np.zeros(k)), -power, power)
        return float(share @ (np.sum(prices * y, axis=1) + 0.1 * np.sum(y**2, axis=1)) + 0.35 * size**1.2 + 1.5 * power)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x = upper(m, box(2, 0.1, 8.0), np.full(2, 1.0))
        m.objective = 0.35 * x[1] ** 1.2 + 1.5 * x[0]
        for row, weight in zip(prices, share, strict=True):
            y = m.variable(k)
            b = ca.vertcat(x[1] * ca.DM.ones(k), ca.DM.zeros(k))
            lower(m, y, ca.DM(row) + 0.4 * y, -x[0], x[0], ca.DM(A), b)
            m.objective += weight * (ca.dot(ca.DM(row), y) + 0.1 * ca.sumsqr(y))
        return x

    return Case(state, np.full(2, 1.0), box(2, 0.1, 8.0), loss, model=model)


@case("twostage")
def price_cap() -> Case:
    """Subsidies of four firms so that the price stays below a cap in every scenario: constraints that involve y and xi."""
    k, cap = 4, 5.2
    rng = np.random.default_rng(70)
    rise, caps = rng.uniform(0.4, 1.2, k), rng.uniform(3, 5, k)
    data = [
        {"demand": rng.uniform(8, 12, size), "cost": rng.uniform(1, 4, k) * rng.uniform(0.8, 1.2, (size, k))}
        for size in (4, 8, 12)
    ]
    demand, share = stacked([part["demand"] for part in data])
    cost, _ = stacked([part["cost"] for part in data])

    def state() -> Any:
        def loss(x: Any, y: Any, xi: Any) -> Any:
            return x @ y + 0.1 * x @ x

        def marginal(x: Any, y: Any, xi: Any) -> Any:
            return xi["cost"] - x + (rise + 0.5) * y - xi["demand"] + 0.5 * jnp.sum(y)

        return fz.TwoStage(
            loss, marginal, fz.ClientData(data), np.full(k, 0.5), np.ones(k), fz.sets.Box(0.0, 6.0),
            lower_constraint=fz.sets.Box(0.0, caps),
            coupling=lambda x, y, xi: jnp.array([xi["demand"] - 0.5 * jnp.sum(y) - cap]),
        )  # fmt: skip

    M = np.diag(rise + 0.5) + 0.5

    def below(x: np.ndarray) -> np.ndarray:
        q = cost - x - demand[:, None]
        return mcp(lambda z: z @ M + q, matrices(M), 0.0, caps, np.ones_like(q))

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x = upper(m, box(k, 0.0, 6.0), np.full(k, 0.5))
        m.objective = 0.1 * ca.sumsqr(x)
        for high, c, weight in zip(demand, cost, share, strict=True):
            y = m.variable(k, start=1.0)
            lower(m, y, ca.DM(c) - x + ca.DM(rise + 0.5) * y - high + 0.5 * ca.sum1(y), 0.0, ca.DM(caps))
            m.constrain(high - 0.5 * ca.sum1(y) - cap, -np.inf, 0.0)
            m.objective += weight * ca.dot(x, y)
        return x

    return Case(
        state, np.full(k, 0.5), box(k, 0.0, 6.0), lambda x: float(share @ (below(x) @ x) + 0.1 * x @ x),
        coupling=lambda x: demand - 0.5 * below(x).sum(axis=1) - cap, model=model,
    )  # fmt: skip
