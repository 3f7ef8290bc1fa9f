"""The black boxes of `benchmarks/solve.py`: simulators that give values alone."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedrzo as fz
from helpers.solve_cases import Case, box, case


@case("blackbox")
def queue() -> Case:
    """Speeds of three counters in a row, by simulated waiting times: common random numbers, values alone."""
    rng = np.random.default_rng(81)
    arrivals, work = np.cumsum(rng.exponential(1.0, (20, 60)), axis=1), rng.exponential(1.0, (3, 20, 60))

    def simulate(speeds: np.ndarray) -> float:
        leave = arrivals
        for station in range(3):
            free, done = np.zeros(len(leave)), []
            for i in range(leave.shape[1]):
                free = np.maximum(free, leave[:, i]) + work[station, :, i] / speeds[station]
                done.append(free)
            leave = np.stack(done, axis=1)
        return float(np.mean(leave - arrivals) + speeds @ np.array([1.0, 2.0, 3.0]))

    def state() -> Any:
        log: list[float] = []  # a simulator that keeps its answers: JAX cannot trace it

        def cost(x: np.ndarray) -> float:
            log.append(simulate(np.asarray(x)))
            return log[-1]

        return {"fun": cost, "x0": [4.0, 4.0, 4.0], "bounds": [(0.5, 6.0)] * 3}

    return Case(state, np.full(3, 4.0), box(3, 0.5, 6.0), simulate, minimize=True)


@case("blackbox")
def pid() -> Case:
    """Three gains of a PID controller for a slow plant with a limited valve, by the time-weighted absolute error."""

    def simulate(gains: Any) -> float:
        proportional, integral, derivative = (float(v) for v in gains)
        y = speed = total = cost = 0.0
        last, step = 1.0, 0.05
        for k in range(300):
            error = 1.0 - y
            total = min(max(total + error * step, -5.0), 5.0)
            valve = min(max(proportional * error + integral * total + derivative * (error - last) / step, -2.0), 2.0)
            last = error
            speed += step * (valve - 1.2 * speed - 0.8 * y)
            y += step * speed
            cost += step * (k * step) * abs(error) + 0.002 * abs(valve)
        return cost

    def state() -> Any:
        runs: list[float] = []

        def cost(x: np.ndarray) -> float:
            runs.append(simulate(x))
            return runs[-1]

        return {"fun": cost, "x0": [0.5, 0.1, 0.0], "bounds": [(0.0, 10.0), (0.0, 5.0), (0.0, 5.0)]}

    region = box(3, 0.0, np.array([10.0, 5.0, 5.0]))
    return Case(state, np.array([0.5, 0.1, 0.0]), region, simulate, minimize=True)


@case("blackbox")
def stock_levels() -> Case:
    """Order-up-to levels of a depot and two shops in three countries, each with seeds of its own; a simulator of 40 days."""
    sizes, rates = (4, 6, 10), (3.0, 5.0, 4.0)

    def simulate(x: np.ndarray, seed: int, rate: float) -> float:
        rng = np.random.default_rng(int(seed))
        stock, depot, cost = np.array([x[1], x[2]]), float(x[0]), 0.0
        for demand in rng.gamma(2.0, rate / 2.0 * np.array([1.0, 0.6]), size=(40, 2)):
            short = np.maximum(demand - stock, 0.0)
            stock = np.maximum(stock - demand, 0.0)
            cost += 0.2 * stock.sum() + 0.1 * depot + 3.0 * short.sum()
            wish = np.maximum(x[1:] - stock, 0.0)
            sent = wish * min(1.0, depot / max(wish.sum(), 1e-9))
            stock, depot = stock + sent, depot - sent.sum()
            depot += 0.7 * max(x[0] - depot, 0.0)
        return cost / 40

    seeds = [np.arange(size) + 100 * i for i, size in enumerate(sizes)]

    def state() -> Any:
        def cost(x: np.ndarray, batch: Any) -> float:
            mine, rate = batch
            return float(np.mean([simulate(x, seed, float(rate)) for seed in mine]))

        data = fz.ClientData(seeds, fixed=[np.float64(rate) for rate in rates])
        return fz.Nonsmooth(
            fz.blackbox(cost, mean=True), data, np.array([20.0, 3.0, 3.0]), constraint=fz.sets.Box(0.0, 40.0),
            domain=fz.sets.Box(0.0, 40.0),
        )  # fmt: skip

    def loss(x: np.ndarray) -> float:
        x = np.maximum(x, 0)
        return float(np.mean([np.mean([simulate(x, s, rate) for s in mine]) for mine, rate in zip(seeds, rates, strict=True)]))

    return Case(state, np.array([20.0, 3.0, 3.0]), box(3, 0.0, 40.0), loss)
