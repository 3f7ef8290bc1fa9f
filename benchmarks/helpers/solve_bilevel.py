"""The bilevel problems of `benchmarks/solve.py`: one lower level that all clients share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from helpers.solve_cases import Case, Region, box, case, mcp, with_rows
from helpers.solve_nonsmooth import regression


def both(parts: list[np.ndarray]) -> np.ndarray:
    """Return the mean over clients of the means over their samples."""
    return np.mean([np.mean(part, axis=0) for part in parts], axis=0)


@case("bilevel")
def svm_weights() -> Case:
    """Weights of 20 sources of samples for an SVM, some of them with wrong labels, by the loss on clean samples."""
    n, k = 20, 8
    rng = np.random.default_rng(21)
    truth, wrong = rng.normal(size=k), rng.random(n) < 0.35
    train, clean = [], []
    for size in (60, 100, 140):
        U, source = rng.normal(size=(size, k)), rng.integers(0, n, size)
        label = np.sign(U @ truth + 0.3 * rng.normal(size=size))
        train.append((U, np.where(wrong[source], -label, label), source))
        U = rng.normal(size=(size // 2, k))
        clean.append((U, np.sign(U @ truth + 0.3 * rng.normal(size=size // 2))))

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return jnp.mean(jnp.logaddexp(0.0, -batch[1] * (batch[0] @ y)))

        def lower(x: Any, y: Any, batch: Any) -> Any:
            U, label, source = batch
            return jnp.mean(x[source] * jnp.maximum(0.0, 1 - label * (U @ y)) ** 2) + 0.05 * y @ y

        return fz.Bilevel(
            loss, lower, fz.ClientData(clean), np.full(n, 0.5), np.zeros(k), fz.sets.Box(0.0, 1.0),
            lower_data=fz.ClientData(train), lower_domain=fz.sets.Box(0.0, 1.0),
        )  # fmt: skip

    U, label, source = (np.concatenate([part[i] for part in train]) for i in range(3))
    share = np.concatenate([np.full(len(part[1]), 1 / len(part[1]) / 3) for part in train])

    def loss(x: np.ndarray) -> float:
        weight = 2 * share * np.clip(x, 0, 1)[source]

        def gradient(y: np.ndarray) -> np.ndarray:
            return ((weight * -label * np.maximum(0, 1 - label * (U @ y[0]))) @ U + 0.1 * y[0])[None]

        def hessian(y: np.ndarray) -> np.ndarray:
            active = weight * (label * (U @ y[0]) < 1)
            return ((U.T * active) @ U + 0.1 * np.eye(k))[None]

        y = mcp(gradient, hessian, -np.inf, np.inf, np.zeros((1, k)))[0]
        return float(np.mean([np.mean(np.logaddexp(0, -t * (V @ y))) for V, t in clean]))

    return Case(state, np.full(n, 0.5), box(n, 0.0, 1.0), loss, smooth=True)


def splits(seed: int, k: int, sizes: tuple[int, ...], truth: np.ndarray, noise: float) -> tuple[list, list]:
    """Return the training and the validation samples of all clients."""
    train = regression(seed, k, sizes, truth, lambda rng, size: noise * rng.normal(size=size))
    valid = regression(seed + 1000, k, tuple(size // 2 for size in sizes), truth, lambda rng, size: noise * rng.normal(size=size))
    return train, valid


def moments(data: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of u u' and of u t."""
    return np.mean([U.T @ U / len(t) for U, t in data], axis=0), np.mean([U.T @ t / len(t) for U, t in data], axis=0)


@case("bilevel")
def elastic_box() -> Case:
    """The two penalties, as logarithms, of an elastic net whose coefficients lie in [0, 1], by the error on held-back samples."""
    k = 15
    truth = np.where(np.arange(k) % 4 == 0, 0.7, 0.0)
    train, valid = splits(22, k, (15, 20, 12), truth, 1.0)

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return jnp.mean((batch[1] - batch[0] @ y) ** 2)

        def lower(x: Any, y: Any, batch: Any) -> Any:
            fit = jnp.mean((batch[1] - batch[0] @ y) ** 2) / 2
            return fit + jnp.exp(x["l1"]) * jnp.sum(y) + jnp.exp(x["l2"]) / 2 * y @ y

        return fz.Bilevel(
            loss, lower, fz.ClientData(valid), {"l1": np.float64(0.0), "l2": np.float64(0.0)}, np.full(k, 0.5),
            fz.sets.Box(-6.0, 2.0), lower_data=fz.ClientData(train), lower_constraint=fz.sets.Box(0.0, 1.0),
        )  # fmt: skip

    M, r = moments(train)

    def loss(x: np.ndarray) -> float:
        A, q = M + np.exp(x[1]) * np.eye(k), -r + np.exp(x[0])
        y = mcp(lambda z: z @ A + q, lambda z: A[None], 0.0, 1.0, np.full((1, k), 0.5))[0]
        return float(np.mean([np.mean((t - U @ y) ** 2) for U, t in valid]))

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, box(2, -6.0, 2.0), np.zeros(2)), m.variable(k, start=0.5)
        lower(m, y, ca.DM(M) @ y - ca.DM(r) + ca.exp(x[0]) + ca.exp(x[1]) * y, 0.0, 1.0)
        m.objective = sum(ca.sumsqr(ca.DM(t) - ca.DM(U) @ y) / len(t) for U, t in valid) / len(valid)
        return x

    return Case(state, np.zeros(2), box(2, -6.0, 2.0), loss, smooth=False, model=model)


@case("bilevel")
def ridge_features() -> Case:
    """A ridge penalty for each of 12 features, as logarithms, by the error on held-back samples."""
    k = 12
    truth = np.where(np.arange(k) < 5, 1.0, 0.0) * np.linspace(1, 2, k)
    train, valid = splits(23, k, (12, 16, 24, 10), truth, 2.0)

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return jnp.mean((batch[1] - batch[0] @ y) ** 2)

        def lower(x: Any, y: Any, batch: Any) -> Any:
            return jnp.mean((batch[1] - batch[0] @ y) ** 2) / 2 + jnp.sum(jnp.exp(x) * y**2) / 2

        return fz.Bilevel(
            loss, lower, fz.ClientData(valid), np.zeros(k), np.zeros(k), fz.sets.Box(-5.0, 4.0), lower_data=fz.ClientData(train)
        )

    M, r = moments(train)

    def loss(x: np.ndarray) -> float:
        y = np.linalg.solve(M + np.diag(np.exp(x)), r)
        return float(np.mean([np.mean((t - U @ y) ** 2) for U, t in valid]))

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import upper

        x, y = upper(m, box(k, -5.0, 4.0), np.zeros(k)), m.variable(k)
        m.constrain(ca.DM(M) @ y - ca.DM(r) + ca.exp(x) * y)
        m.objective = sum(ca.sumsqr(ca.DM(t) - ca.DM(U) @ y) / len(t) for U, t in valid) / len(valid)
        return x

    return Case(state, np.zeros(k), box(k, -5.0, 4.0), loss, smooth=True, model=model)


@case("bilevel")
def supply_contract() -> Case:
    """A wholesale price and a buy-back price; six stores order with one warehouse, for uniform demands that clients know."""
    k, price, room = 6, 10.0, 180.0
    rng = np.random.default_rng(24)
    level = rng.uniform(30, 90, k)
    data = [level * rng.uniform(0.6, 1.4, (size, k)) for size in (20, 30, 50)]
    inverse = both([1 / d for d in data])

    def state() -> Any:
        def loss(x: Any, y: Any, demand: Any) -> Any:
            unsold = jnp.mean(jnp.sum(y**2 / (2 * demand), axis=1))
            return -((x[0] - 2.0) * jnp.sum(y) - (x[1] - 0.5) * unsold) / 100

        def lower(x: Any, y: Any, demand: Any) -> Any:
            sold = jnp.mean(jnp.sum(y - y**2 / (2 * demand), axis=1))
            return -((price - x[1]) * sold - (x[0] - x[1]) * jnp.sum(y)) / 100

        limits = fz.sets.Intersection(
            fz.sets.Box(np.array([2.0, 0.0]), np.array([9.5, 8.0])), fz.sets.Halfspace([-1.0, 1.0], -0.5)
        )
        room_set = fz.sets.Intersection(fz.sets.Box(0.0, 200.0), fz.sets.Halfspace(np.ones(k), room))
        return fz.Bilevel(
            loss, lower, fz.ClientData(data), np.array([9.0, 1.0]), np.full(k, 10.0), limits, lower_constraint=room_set
        )

    region = Region(np.array([2.0, 0.0]), np.array([9.5, 8.0]), (np.array([[-1.0, 1.0]]), np.array([-0.5])))

    def loss(x: np.ndarray) -> float:
        M, q = np.diag((price - x[1]) * inverse), np.full(k, x[0] - price)
        y = with_rows(M, q, np.ones((1, k)), np.array([room]), 0.0, 200.0)[0]
        return float(-((x[0] - 2.0) * y.sum() - (x[1] - 0.5) * (y**2 @ inverse) / 2) / 100)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, region, np.array([9.0, 1.0])), m.variable(k, start=10.0)
        lower(m, y, (price - x[1]) * ca.DM(inverse) * y + x[0] - price, 0.0, 200.0, ca.DM.ones(1, k), room)
        m.objective = -((x[0] - 2.0) * ca.sum1(y) - (x[1] - 0.5) * ca.sum1(y**2 * ca.DM(inverse)) / 2) / 100
        return x

    return Case(state, np.array([9.0, 1.0]), region, loss, model=model)


LINKS = np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 1, 1.0]])  # links by routes


def flows(M: np.ndarray, q: np.ndarray, total: Any) -> np.ndarray:
    """Return the route flows of given sums, at least zero, side by side in rows of q."""
    q = np.atleast_2d(q)
    return with_rows(M, q, np.ones((1, q.shape[1])), np.reshape(total, (-1, 1)), 0.0, np.inf, equal=1)


@case("bilevel")
def tolls() -> Case:
    """Tolls on six links that make drivers' choice of four routes cost less time; each county limits what its links may cost."""
    rng = np.random.default_rng(25)
    data = []
    for size in (10, 20, 40):
        data.append(
            (rng.uniform(0.5, 3, 6) + rng.uniform(0, 1, (size, 6)), rng.uniform(0.1, 0.6, 6) * rng.uniform(0.8, 1.2, (size, 6)))
        )
    a, c = both([part[0] for part in data]), both([part[1] for part in data])
    total = 10.0
    rows = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1.0]]), np.array([3.0, 4.0, 5.0])

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            f = LINKS @ y
            return jnp.mean((batch[0] + batch[1] * f) @ f) + 0.05 * x @ f

        def lower(x: Any, y: Any, batch: Any) -> Any:
            f = LINKS @ y
            return jnp.mean((batch[0] + x + batch[1] * f / 2) @ f) + 0.02 * y @ y

        sets = [fz.sets.Intersection(fz.sets.Box(0.0, 4.0), fz.sets.Halfspace(row, b)) for row, b in zip(*rows, strict=True)]
        return fz.Bilevel(
            loss, lower, fz.ClientData(data), np.zeros(6), np.full(4, 2.5), sets, lower_constraint=fz.sets.Simplex(total)
        )

    region = box(6, 0.0, 4.0, rows=rows)
    M = LINKS.T @ np.diag(c) @ LINKS + 0.04 * np.eye(4)

    def loss(x: np.ndarray) -> float:
        f = LINKS @ flows(M, LINKS.T @ (a + x), total)[0]
        return float((a + c * f) @ f + 0.05 * x @ f)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, region, np.zeros(6)), m.variable(4, start=2.5)
        m.constrain(ca.sum1(y) - total)
        lower(m, y, ca.DM(M) @ y + ca.DM(LINKS.T) @ (ca.DM(a) + x), 0.0, E=ca.DM.ones(1, 4))
        f = ca.DM(LINKS) @ y
        m.objective = ca.dot(ca.DM(a) + ca.DM(c) * f, f) + 0.05 * ca.dot(x, f)
        return x

    return Case(state, np.zeros(6), region, loss, model=model)


@case("bilevel")
def day_tariff() -> Case:
    """Prices of six blocks of a day, between which households move their load; a block takes less at a high price: Y(x) moves."""
    k, total = 6, 24.0
    rng = np.random.default_rng(26)
    data = [np.array([2, 3, 4, 4, 6, 5.0]) + rng.normal(size=k) + rng.normal(size=(size, k)) for size in (15, 30, 60, 45)]
    want, cap, slope = both(data), np.array([9, 8, 7, 7, 7.5, 8.0]), 0.35
    cost = np.array([1.0, 1.5, 2.5, 2.5, 4.0, 3.0])
    rows = np.full((1, k), 1 / k), np.array([5.0])

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return -((x - cost) @ y - 0.2 * y @ y) / 10 + jnp.mean(jnp.sum((y - batch) ** 2, axis=1)) / 50

        def lower(x: Any, y: Any, batch: Any) -> Any:
            return x @ y + 0.6 * jnp.mean(jnp.sum((y - batch) ** 2, axis=1))

        limits = fz.sets.Intersection(fz.sets.Box(1.0, 9.0), fz.sets.Halfspace(rows[0][0], rows[1][0]))
        return fz.Bilevel(
            loss, lower, fz.ClientData(data), np.full(k, 3.0), np.full(k, 4.0), limits,
            lower_constraint=lambda x: fz.sets.Intersection(fz.sets.Simplex(total), fz.sets.Box(0.0, cap - slope * x)),
            lower_domain=limits,
        )  # fmt: skip

    spread = float(np.mean([np.mean(np.sum((d - want) ** 2, axis=1)) for d in data]))
    region = box(k, 1.0, 9.0, rows=rows)

    def loss(x: np.ndarray) -> float:
        y = with_rows(1.2 * np.eye(k), x - 1.2 * want, np.ones((1, k)), np.array([total]), 0.0, cap - slope * x, equal=1)[0]
        return float(-((x - cost) @ y - 0.2 * y @ y) / 10 + (np.sum((y - want) ** 2) + spread) / 50)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, region, np.full(k, 3.0)), m.variable(k, start=4.0)
        m.constrain(ca.sum1(y) - total)
        lower(m, y, x + 1.2 * (y - ca.DM(want)), 0.0, ca.DM(cap) - slope * x, E=ca.DM.ones(1, k))
        m.objective = -(ca.dot(x - ca.DM(cost), y) - 0.2 * ca.sumsqr(y)) / 10 + (ca.sumsqr(y - ca.DM(want)) + spread) / 50
        return x

    return Case(state, np.full(k, 3.0), region, loss, model=model)


@case("bilevel")
def inverse_choice() -> Case:
    """Five tastes that explain observed shares of eight goods, each share zero or more: an inverse problem with kinks."""
    n, k = 5, 8
    rng = np.random.default_rng(27)
    goods, taste = rng.normal(size=(k, n)), rng.normal(size=n)
    from_taste = goods @ taste * 0.6
    shares = with_rows(np.eye(k), -from_taste, np.ones((1, k)), np.array([1.0]), 0.0, np.inf, equal=1)[0]
    data = []
    for size in (20, 30, 60):
        features = goods + 0.2 * rng.normal(size=(size, k, n))
        data.append((features, shares + 0.03 * rng.normal(size=k) + 0.1 * rng.normal(size=(size, k))))

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return 10 * jnp.mean(jnp.sum(jnp.abs(batch[1] - y), axis=1)) + 0.01 * x @ x

        def lower(x: Any, y: Any, batch: Any) -> Any:
            return -jnp.mean(batch[0], axis=0) @ x @ y + y @ y / 2

        return fz.Bilevel(
            loss, lower, fz.ClientData(data), np.zeros(n), np.full(k, 1 / k), fz.sets.Ball(0.0, 3.0),
            lower_constraint=fz.sets.Simplex(),
        )  # fmt: skip

    Z = both([part[0] for part in data])

    def loss(x: np.ndarray) -> float:
        y = with_rows(np.eye(k), -Z @ x, np.ones((1, k)), np.array([1.0]), 0.0, np.inf, equal=1)[0]
        return float(10 * np.mean([np.mean(np.abs(s - y).sum(axis=1)) for _, s in data]) + 0.01 * x @ x)

    return Case(state, np.zeros(n), box(n, balls=((slice(None), np.zeros(n), 3.0),)), loss, starts=40)


@case("bilevel")
def road_widths() -> Case:
    """How much to widen six links, if drivers then choose among four routes; each unit of width costs money."""
    rng = np.random.default_rng(28)
    data = []
    for size in (8, 16, 32):
        data.append(
            (rng.uniform(0.5, 3, 6) + rng.uniform(0, 1, (size, 6)), rng.uniform(0.4, 1.6, 6) * rng.uniform(0.8, 1.2, (size, 6)))
        )
    a, c = both([part[0] for part in data]), both([part[1] for part in data])
    prices, total = rng.uniform(1.0, 4.0, 6), 10.0

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            f = LINKS @ y
            return (jnp.mean((batch[0] + batch[1] * f / (1 + x)) @ f) + prices @ x) / 10

        def lower(x: Any, y: Any, batch: Any) -> Any:
            f = LINKS @ y
            return jnp.mean((batch[0] + batch[1] * f / (1 + x) / 2) @ f) + 0.02 * y @ y

        return fz.Bilevel(
            loss, lower, fz.ClientData(data), np.full(6, 1.0), np.full(4, 2.5), fz.sets.Box(0.0, 5.0),
            lower_constraint=fz.sets.Simplex(total), lower_domain=fz.sets.Box(0.0, 5.0),
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        wide = c / (1 + np.clip(x, 0, 5))
        f = LINKS @ flows(LINKS.T @ np.diag(wide) @ LINKS + 0.04 * np.eye(4), LINKS.T @ a, total)[0]
        return float(((a + wide * f) @ f + prices @ x) / 10)

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, box(6, 0.0, 5.0), np.full(6, 1.0)), m.variable(4, start=2.5)
        m.constrain(ca.sum1(y) - total)
        f = ca.DM(LINKS) @ y
        lower(m, y, ca.DM(LINKS.T) @ (ca.DM(a) + ca.DM(c) * f / (1 + x)) + 0.04 * y, 0.0, E=ca.DM.ones(1, 4))
        m.objective = (ca.dot(ca.DM(a) + ca.DM(c) * f / (1 + x), f) + ca.dot(ca.DM(prices), x)) / 10
        return x

    return Case(state, np.full(6, 1.0), box(6, 0.0, 5.0), loss, model=model)


@case("bilevel")
def patrols() -> Case:
    """Patrols of eight sites against one who mixes attacks; each district asks for a least presence on its own sites."""
    n = 8
    rng = np.random.default_rng(29)
    gain, harm = rng.uniform(2, 8, n), rng.uniform(2, 10, n)
    data = [(gain + rng.normal(size=(size, n)), harm + rng.normal(size=(size, n))) for size in (20, 40, 30, 70)]
    r, d, fine = both([part[0] for part in data]), both([part[1] for part in data]), 3.0
    groups = -np.array([np.where(np.arange(n) // 2 == i, 1.0, 0.0) for i in range(4)])
    rows = np.concatenate([groups, np.ones((1, n))]), np.array([-0.3, -0.2, -0.4, -0.1, 2.5])

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return jnp.mean(batch[1] @ (y * (1 - x))) + 0.02 * jnp.sum(x)

        def lower(x: Any, y: Any, batch: Any) -> Any:
            return -jnp.mean(batch[0], axis=0) * (1 - x) @ y + fine * x @ y + y @ y

        sets = [
            fz.sets.Intersection(fz.sets.Box(0.0, 1.0), fz.sets.Polyhedron(np.stack([rows[0][i], np.ones(n)]), [rows[1][i], 2.5]))
            for i in range(4)
        ]
        return fz.Bilevel(
            loss, lower, fz.ClientData(data), np.full(n, 0.3), np.full(n, 1 / n), sets, lower_constraint=fz.sets.Simplex()
        )

    region = box(n, 0.0, 1.0, rows=rows)

    def loss(x: np.ndarray) -> float:
        y = with_rows(2 * np.eye(n), fine * x - r * (1 - x), np.ones((1, n)), np.array([1.0]), 0.0, np.inf, equal=1)[0]
        return float(d * (1 - x) @ y + 0.02 * x.sum())

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, region, np.full(n, 0.3)), m.variable(n, start=1 / n)
        m.constrain(ca.sum1(y) - 1)
        lower(m, y, fine * x - ca.DM(r) * (1 - x) + 2 * y, 0.0, E=ca.DM.ones(1, n))
        m.objective = ca.dot(ca.DM(d) * (1 - x), y) + 0.02 * ca.sum1(x)
        return x

    return Case(state, np.full(n, 0.3), region, loss, model=model)


@case("bilevel")
def emission_tax() -> Case:
    """Taxes of three regions on nine firms that compete by quantities, with a limit on what all firms emit: upper rows in y."""
    k, high, steep, limit = 9, 20.0, 0.8, 10.0
    rng = np.random.default_rng(30)
    emit, rise = rng.uniform(0.5, 2.5, k), rng.uniform(0.5, 1.5, k)
    region_of = np.arange(k) // 3
    data = [rng.uniform(2, 6, k) * rng.uniform(0.9, 1.1, (size, k)) for size in (12, 24, 48)]
    c = both(data)

    def welfare(y: Any, first: Any, xp: Any) -> Any:
        total = xp.sum(y)
        return (high * total - steep * total**2 / 2 - first @ y - rise @ y**2 / 2) / 10

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return -welfare(y, jnp.mean(batch, axis=0), jnp)

        def lower(x: Any, y: Any, batch: Any) -> Any:
            total = jnp.sum(y)
            own = (jnp.mean(batch, axis=0) + x[region_of] * emit) @ y + rise @ y**2 / 2
            return own - high * total + steep / 2 * (total**2 + y @ y)

        return fz.Bilevel(
            loss, lower, fz.ClientData(data), np.full(3, 1.0), np.full(k, 1.0), fz.sets.Box(0.0, 10.0),
            lower_constraint=fz.sets.Box(0.0, 6.0), coupling=lambda x, y: jnp.array([emit @ y - limit]),
        )  # fmt: skip

    M = np.diag(rise + steep) + steep

    def below(x: np.ndarray) -> np.ndarray:
        q = c + x[region_of] * emit - high
        return mcp(lambda z: z @ M + q, lambda z: M[None], 0.0, 6.0, np.ones((1, k)))[0]

    def model(m: Any) -> Any:
        import casadi as ca

        from helpers.solve_models import lower, upper

        x, y = upper(m, box(3, 0.0, 10.0), np.full(3, 1.0)), m.variable(k, start=1.0)
        taxes = ca.vertcat(*(x[int(i)] for i in region_of))
        lower(m, y, ca.DM(M) @ y + ca.DM(c) + taxes * ca.DM(emit) - high, 0.0, 6.0)
        m.constrain(ca.dot(ca.DM(emit), y) - limit, -np.inf, 0.0)
        total = ca.sum1(y)
        m.objective = -(high * total - steep * total**2 / 2 - ca.dot(ca.DM(c), y) - ca.dot(ca.DM(rise), y**2) / 2) / 10
        return x

    return Case(
        state, np.full(3, 1.0), box(3, 0.0, 10.0), lambda x: float(-welfare(below(x), c, np)),
        coupling=lambda x: np.array([emit @ below(x) - limit]), model=model,
    )  # fmt: skip


@case("bilevel")
def prior_mean() -> Case:
    """A prior mean of 30 coefficients: the lower level fits few samples within a ball, the upper one held-back samples."""
    k, radius = 30, 2.0
    truth = np.cos(np.arange(k))
    train, valid = splits(31, k, (6, 9, 12, 7), truth, 0.5)

    def state() -> Any:
        def loss(x: Any, y: Any, batch: Any) -> Any:
            return jnp.mean((batch[1] - batch[0] @ y) ** 2) + 0.05 * jnp.mean(x**2)

        def lower(x: Any, y: Any, batch: Any) -> Any:
            return jnp.mean((batch[1] - batch[0] @ y) ** 2) / 2 + 0.5 * jnp.sum((y - x) ** 2)

        return fz.Bilevel(
            loss, lower, fz.ClientData(valid), np.zeros(k), np.zeros(k), fz.sets.Box(-3.0, 3.0),
            lower_data=fz.ClientData(train), lower_constraint=fz.sets.Ball(0.0, radius),
        )  # fmt: skip

    M, r = moments(train)
    values, vectors = np.linalg.eigh(M + np.eye(k))

    def loss(x: np.ndarray) -> float:
        from scipy.optimize import brentq

        q = vectors.T @ (r + x)
        size = lambda more: np.linalg.norm(q / (values + more)) - radius  # noqa: E731
        more = brentq(size, 0.0, 1e4, xtol=1e-13) if size(0.0) > 0 else 0.0
        y = vectors @ (q / (values + more))
        return float(np.mean([np.mean((t - U @ y) ** 2) for U, t in valid]) + 0.05 * np.mean(x**2))

    return Case(state, np.zeros(k), box(k, -3.0, 3.0), loss, starts=6)
