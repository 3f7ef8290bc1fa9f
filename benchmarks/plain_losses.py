"""What one would first write in JAX for a row of benchmarks/user_losses.py: the ruler of `benchmarks/losses.py`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from user_losses import DRAWN, SAMPLES, Row

STEPS = 5  # local steps of a round
SMOOTHING = 0.01


def stepsize(row: Row) -> float:
    """Return a step that is short enough for x to stay near x0: what is measured is time."""
    return 1e-3 / row.dim


class Plain:
    """The plain version of a row: compiled functions of flat vectors."""

    def __init__(self, row: Row) -> None:
        self.row = row
        x0, self.unravel = ravel_pytree(row.x0)
        self.x0 = x0
        self.data = None if row.data is None else jax.device_put(row.data)
        self.advance = jax.jit(self._advance)
        self.evaluate = jax.jit(self._evaluate)
        self.alone = jax.jit(self._alone, static_argnames="rounds")

    def loss(self, x: jax.Array, batch: Any) -> jax.Array:
        return self.row.loss(self.unravel(x), batch)

    def samples(self, data: Any, key: jax.Array, i: Any) -> Any:
        row = self.row
        if row.sampler is not None:
            return jax.vmap(row.sampler, (0, None))(jax.random.split(key, row.batch_size), i)
        picked = jax.random.randint(key, (row.batch_size,), 0, SAMPLES)
        return jax.tree.map(lambda leaf: leaf[i, picked], data)

    def _advance(self, x: jax.Array, keys: jax.Array, data: Any) -> jax.Array:
        """Run a round for each key."""
        row, n, eta, gamma = self.row, x.size, SMOOTHING, stepsize(self.row)

        def client(i: Any, key: jax.Array, x: jax.Array) -> jax.Array:
            def step(x: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
                pick, draw = jax.random.split(key)
                batch = self.samples(data, pick, i)
                v = jax.random.normal(draw, (n,), x.dtype)
                v = eta * v / jnp.linalg.norm(v)
                g = n / (2 * eta**2) * (self.loss(x + v, batch) - self.loss(x - v, batch)) * v
                if row.project is not None:
                    g = g + (x - row.project(x, i)) / eta
                return x - gamma * g, None

            return jax.lax.scan(step, x, jax.random.split(key, STEPS))[0]

        def one(x: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            ends = jax.vmap(client, (0, 0, None))(jnp.arange(row.clients), jax.random.split(key, row.clients), x)
            return jnp.mean(ends, axis=0), None

        return jax.lax.scan(one, x, keys)[0]

    def _evaluate(self, x: jax.Array, data: Any) -> jax.Array:
        """Return the mean loss of all clients over all samples, or over some that are drawn once."""
        row = self.row
        if row.sampler is not None:
            keys = jax.random.split(jax.random.key(1), (row.clients, DRAWN))
            data = jax.vmap(jax.vmap(row.sampler, (0, None)))(keys, jnp.arange(row.clients))
        return jnp.mean(jax.vmap(self.loss, (None, 0))(x, data))

    def _alone(self, points: tuple, batches: Any, nothing: Any, *, rounds: int) -> Any:
        """Take the losses of so many rounds, and nothing else; `nothing` is a zero that the compiler does not know."""

        def step(points: tuple, _: None) -> tuple[tuple, None]:
            def both(points: tuple, batch: Any) -> tuple:
                difference = self.loss(points[0], batch) - self.loss(points[1], batch)
                return tuple(point + (nothing * difference).astype(point.dtype) for point in points)

            return jax.vmap(both)(points, batches), None

        return jax.lax.scan(step, points, None, length=rounds * STEPS)[0]

    def run(self, rounds: int, every: int) -> Any:
        """Run all rounds, with a row of history after every so many of them."""
        x, keys = self.x0, jax.random.split(jax.random.key(0), rounds)
        history = [float(self.evaluate(x, self.data))]
        for begin in range(0, rounds, every):
            x = self.advance(x, keys[begin : begin + every], self.data)
            history.append(float(self.evaluate(x, self.data)))
        return x

    def loss_alone(self, rounds: int, every: int) -> Any:
        """Compute the losses of a run, in the batches that its steps see and in its rows, from samples that are at hand."""
        clients = self.row.clients
        keys = jax.random.split(jax.random.key(0), clients)
        batches = jax.vmap(lambda key, i: self.samples(self.data, key, i))(keys, jnp.arange(clients))
        points = tuple(jnp.tile(self.x0 + shift, (clients, 1)) for shift in (0.01, -0.01))
        for begin in range(0, rounds, every):
            points = self.alone(points, batches, 0.0, rounds=min(every, rounds - begin))
            float(self.evaluate(self.x0, self.data))
        return points
