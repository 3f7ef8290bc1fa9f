"""FedRZO_2s for a Stackelberg leader and Cournot followers, as one would first write it in JAX from the paper's listings.

The ruler of `benchmarks/twostage.py`: vmap over clients, scan over steps and rounds, `jax.random.normal` for directions, and
projected steps from y = 0 for the lower level, at x+v and then at x-v.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Setting(NamedTuple):
    clients: int = 5
    stepsize: float = 0.1
    smoothing: float = 0.1
    local_steps: int = 10
    lower_stepsize: float = 1e-3
    lower_steps: int = 500
    b: float = 0.5
    leader_cost: float = 0.1
    leader_cap: float = 10.0
    demand: tuple[float, float] = (7.5, 12.5)


class Followers(NamedTuple):
    costs: jax.Array
    caps: jax.Array


def project_steps(x, a, followers, setting):
    """Algorithm 5 with a fixed number of steps."""

    def step(y, _):
        G = (followers.costs + setting.b) * y - a + setting.b * (x + jnp.sum(y))
        return jnp.clip(y - setting.lower_stepsize * G, 0.0, followers.caps), None

    return jax.lax.scan(step, jnp.zeros_like(followers.costs), length=setting.lower_steps)[0]


def loss(x, y, a, setting):
    return 0.5 * setting.leader_cost * x[0] ** 2 - x[0] * (a - setting.b * (x[0] + jnp.sum(y)))


def client_steps(x, key, followers, setting):
    """Algorithm 4, lines 4 to 8."""
    eta, n = setting.smoothing, x.size

    def step(x, key):
        draw, sample = jax.random.split(key)
        a = jax.random.uniform(sample, (), minval=setting.demand[0], maxval=setting.demand[1])
        v = jax.random.normal(draw, (n,))
        v = eta * v / jnp.linalg.norm(v)
        y_plus = project_steps(x + v, a, followers, setting)
        y_minus = project_steps(x - v, a, followers, setting)
        difference = loss(x + v, y_plus, a, setting) - loss(x - v, y_minus, a, setting)
        g = n / (2 * eta**2) * difference * v
        return x - setting.stepsize * (g + (x - jnp.clip(x, 0.0, setting.leader_cap)) / eta), None

    return jax.lax.scan(step, x, jax.random.split(key, setting.local_steps))[0]


@partial(jax.jit, static_argnames=("setting", "rounds"))
def run(x, key, followers, setting, rounds):
    """Return x after some rounds."""

    def one_round(x, key):
        keys = jax.random.split(key, setting.clients)
        return jnp.mean(jax.vmap(client_steps, (None, 0, None, None))(x, keys, followers, setting), axis=0), None

    return jax.lax.scan(one_round, x, jax.random.split(key, rounds))[0]
