"""The zoo's `coupled` problem in NumPy, client by client: what tests of methods with hypergradients compute by hand."""

from typing import NamedTuple

import jax
import numpy as np

import fedrzo as fz
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.zoo import bilevel

PROBLEM = bilevel.coupled()
ANSWER = bilevel.coupled_answer(PROBLEM)
CLIENTS, N, Q, SAMPLES = 4, 4, 3, 6
FLOAT = 8


class Quadratic(NamedTuple):
    """One client: f = (x-a)'P(x-a)/2 + (y-b)'Q(y-b)/2 and g = (y-Bx-c)'H(y-Bx-c)/2, up to constants."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    P: np.ndarray
    Q: np.ndarray
    B: np.ndarray
    H: np.ndarray

    def f_x(self, x, y):
        return self.P @ (x - self.a)

    def f_y(self, x, y):
        return self.Q @ (y - self.b)

    def g_y(self, x, y):
        return self.H @ (y - self.B @ x - self.c)

    def g_x(self, x, y):
        return -self.B.T @ self.g_y(x, y)

    def cross(self, v):
        return -self.B.T @ self.H @ v

    def curved(self, v):
        return self.H @ v

    def directions(self, x, y, v):
        """Where SimFBO and FedBiOAcc lead away from."""
        return np.concatenate([self.f_x(x, y) - self.cross(v), self.g_y(x, y), self.curved(v) - self.f_y(x, y)])


def clients():
    upper, lower = PROBLEM.data, PROBLEM.lower_data
    parts = [np.asarray(leaf).reshape(CLIENTS, SAMPLES, -1).mean(axis=1) for leaf in (*upper.flat, lower.flat)]
    return [Quadratic(*(np.asarray(leaf)[i] for leaf in (*parts, *upper.fixed, *lower.fixed))) for i in range(CLIENTS)]


ALL = clients()


def mean(function):
    return np.mean([function(client) for client in ALL], axis=0)


def lower_solution(x):
    H = mean(lambda i: i.H)
    return np.linalg.solve(H, mean(lambda i: i.H @ (i.B @ x + i.c)))


def hypergradient(x):
    y = lower_solution(x)
    v = np.linalg.solve(mean(lambda i: i.H), mean(lambda i: i.f_y(x, y)))
    return mean(lambda i: i.f_x(x, y) - i.cross(v))


def wrapped(p, wrap=lambda loss: loss, **changes):
    """A bilevel problem of the zoo with both losses wrapped, or something else about it changed."""
    given = {
        "loss": wrap(p.loss_fn), "lower": wrap(p.lower_fn), "data": p.data, "x0": p.x0, "y0": p.y0, "lower_data": p.lower_data,
        "modulus": p.modulus, "smoothness": p.smoothness,
    }  # fmt: skip
    return fz.Bilevel(**{**given, **changes})


def loss_at(problem, x):
    problem = wrapped(problem, x0=x)
    with problem.precision():
        return float(problem.evaluate(problem.x0)["loss"])


OPTIMUM = loss_at(PROBLEM, ANSWER)


def toy(wrap):
    return wrapped(PROBLEM, wrap)


def split(z):
    return np.split(z, [N, N + Q])


def final(method, rounds, problem=PROBLEM, key=0, clients_per_round=None):
    """Return the server's own state after some rounds, and the costs."""
    with problem.precision():
        session = Simulation().start([method.prepare(problem)], problem, [jax.random.key(key)], clients_per_round)
        session.advance(rounds)
        return session.states()[0], session.costs()[0]


def check_costs(method, floats, gradients, first_gradients=0, rounds=4):
    """Check what a single-loop method of three local steps counts: per client and round, and once in the first round."""
    _, cost = final(method, rounds)
    assert cost.upload_bytes == cost.download_bytes == rounds * CLIENTS * floats * FLOAT
    assert cost.gradients == CLIENTS * (rounds * gradients + first_gradients)
    assert cost.lower_steps == rounds * CLIENTS * 3
    assert cost.lower_rounds == cost.evaluations == 0
