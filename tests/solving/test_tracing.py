"""Which functions JAX may trace, decided without a call."""

import functools
import logging
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedrzo as fz
from fedrzo.solving.tracing import only_computes

MATRIX, OFFSET, COUNT, CALLS, LOG = jnp.ones((2, 2)), np.ones(2), np.zeros(1), [], logging.getLogger(__name__)
TOTAL = 0


class Model:
    def __init__(self):
        self.matrix, self.asked = MATRIX, 0

    def loss(self, x):
        return self.residual(x)

    def residual(self, x):
        return jnp.sum(self.matrix @ x)

    __call__ = loss


class Counting(Model):
    def residual(self, x):
        self.asked += 1
        return x[0]


def of_jax(x):
    return jnp.sum((MATRIX @ x - OFFSET) ** 2) + np.pi


def of_arithmetic(x):
    return sum((value - i) ** 2 for i, value in enumerate(x)) + max(abs(x[0]), 3)


def of_a_package_on_jax(x):
    return jnp.sum(optax.huber_loss(x)) + optax.losses.huber_loss(x[0])


def of_both(x):
    return of_jax(x) + of_arithmetic(x)


def with_lists_of_its_own(x):
    if x.shape != (2,):
        raise ValueError("two numbers")
    squares = []
    for value in x:
        squares.append(value * value)
    return sum(squares)


def with_an_inner_count(x):
    count = 0

    def more(value):
        nonlocal count
        count += value
        return count

    return more(x[0])


def with_an_import(x):
    import jax.numpy as inner

    return inner.sum(x)


def recursive(x, depth=3):
    return x[0] if depth == 0 else recursive(x, depth - 1)


def printing(x):
    print(x)
    return x[0]


@jax.jit
def compiled(x):
    print("tracing", x)
    return x[0]


def around_compiled(x):
    return compiled(x) + 1


def printing_below(x):
    return of_jax(x) + printing(x)


def logging_it(x):
    LOG.info("%s", x)
    return x[0]


def keeping(x):
    CALLS.append(x)
    return x[0]


def keeping_in(x, calls):
    calls.append(x)
    return x[0]


def counting_globally(x):
    global TOTAL
    TOTAL += 1
    return x[0]


def counting_in_an_array(x):
    COUNT[0] += 1
    return x[0]


def counting_on_itself(x):
    counting_on_itself.calls = 1
    return x[0]


def catching(x):
    try:
        return math.sqrt(x[0])
    except Exception:
        return 3.0


def waiting(x):
    time.sleep(0.2)
    return x[0]


def opening(x):
    open("answers.txt", "a")  # noqa: SIM115
    return x[0]


def importing(x):
    import os

    os.getpid()
    return x[0]


def running(x):
    return fz.run(fz.FedRZOnn(x[0], 0.1), None, 3).loss_feasible


class Strange:
    @property
    def __dict__(self):
        raise ZeroDivisionError


def closing_over(calls):
    def cost(x):
        calls.append(1)
        return x[0]

    return cost


COMPUTE = [
    of_jax, of_arithmetic, of_a_package_on_jax, of_both, with_lists_of_its_own, with_an_inner_count, with_an_import, recursive,
    compiled, around_compiled, jax.grad(of_jax), jax.vmap(of_jax), functools.partial(recursive, depth=1), Model().loss, Model(),
    lambda x: x @ x,
]  # fmt: skip
DO_MORE = [
    printing, printing_below, logging_it, keeping, counting_globally, counting_in_an_array, counting_on_itself, catching, waiting,
    opening, importing, running, closing_over([]), closing_over(Strange()), functools.partial(keeping_in, calls=[]),
    Counting().loss, Counting(),
]  # fmt: skip


def named(function):
    return getattr(function, "__name__", type(function).__name__)


@pytest.mark.parametrize("function", COMPUTE, ids=named)
def test_functions_without_side_effects_may_be_traced(function):
    assert only_computes(function)


@pytest.mark.parametrize("function", DO_MORE, ids=named)
def test_functions_that_do_more_than_compute_may_not(function):
    assert not only_computes(function)
