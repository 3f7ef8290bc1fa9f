"""Randomised smoothing: estimators of a gradient, from loss values or nearby gradients, and how far digits can be trusted."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.federation import directions
from fedrzo.federation.client import Client
from fedrzo.support.compiling import once


def slope(dim: int, smoothing: Any, difference: jax.Array) -> jax.Array:
    """Return the scalar that multiplies v in the two-point estimator, n/(2 eta^2) (f(x+v) - f(x-v))."""
    return dim / (2 * smoothing**2) * difference


def estimate_two_sided(client: Client, keys: jax.Array, x: jax.Array, batch: Any, smoothing: Any) -> tuple[jax.Array, jax.Array]:
    """Estimate the gradient of the smoothed loss: n/(2 eta^2) (f(x+v) - f(x-v)) v, averaged over the keys' directions.

    Args:
        client: whose loss.
        keys: of the directions, known to the server too, so that it can rebuild them; each costs two evaluations of the batch.
        x: the point, a flat vector.
        batch: the sample; both points see the same one.
        smoothing: eta, the radius of the sphere that v is drawn from.

    Returns:
        The estimate, and the slopes along its directions, from which whoever has the keys can rebuild it.
    """
    return _along(lambda j, v: slope(x.size, smoothing, client.difference(x, v, batch)), keys, x, smoothing)


def estimate_in_ball(client: Client, keys: jax.Array, x: jax.Array, batch: Any, smoothing: Any) -> tuple[jax.Array, jax.Array]:
    """Estimate the gradient of the smoothed loss by the gradient at x + v, with v uniform in the ball of radius eta.

    Its mean is the same as that of `estimate_two_sided`, its variance does not grow with n. Arguments and returns are the same.
    """
    return by_slopes(client, keys, x, client.gradient(x + in_ball(keys, x, smoothing), batch), smoothing)


def in_ball(keys: jax.Array, x: jax.Array, smoothing: Any) -> jax.Array:
    """Draw the v of a step; not by a key of its directions, so that it does not depend on them."""
    return directions.ball(jax.random.fold_in(keys[0], keys.shape[0]), x.size, smoothing, x.dtype)


def by_slopes(client: Client, keys: jax.Array, x: jax.Array, g: jax.Array, smoothing: Any) -> tuple[jax.Array, jax.Array]:
    """Return a gradient and no slopes; or, where the client is asked for slopes, what those along the keys' directions tell.

    With v on the sphere of radius eta the mean of n/eta^2 <g, v> v is g; along P directions its variance is of order n/P.
    """
    if client.coded is None:
        return g, jnp.zeros(keys.shape[0], x.dtype)
    return _along(lambda j, v: x.size / smoothing**2 * jnp.vdot(g, v), keys, x, smoothing)


def from_slopes(slopes: jax.Array, keys: jax.Array, x: jax.Array, smoothing: Any) -> jax.Array:
    """Return the estimate that a client at x found, from its slopes and the keys of its directions."""
    return _along(lambda j, v: slopes[j], keys, x, smoothing)[0]


def _along(
    found: Callable[[Any, jax.Array], jax.Array], keys: jax.Array, x: jax.Array, smoothing: Any
) -> tuple[jax.Array, jax.Array]:
    """Return the mean of slope times direction and the slopes; `found(j, v)` is the slope along the j-th direction."""
    count = keys.shape[0]

    def one(j: Any) -> tuple[jax.Array, jax.Array]:
        v = directions.sphere(keys[j], x.size, smoothing, x.dtype)
        slope = found(j, v).astype(x.dtype)  # a loss may be of a wider type than x
        return slope * v, slope

    def add(j: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        g, slope = one(j)
        return carry[0] + g, carry[1].at[j].set(slope)

    g, first = one(0)
    if count == 1:
        return g, first[None]
    g, slopes = jax.lax.fori_loop(1, count, add, (g, jnp.zeros(count, x.dtype).at[0].set(first)))
    return g / count, slopes


def estimate_one_sided(client: Client, key: jax.Array, x: jax.Array, batch: Any, smoothing: Any, count: int) -> jax.Array:
    """Estimate the gradient from one side: n/(mu b) sum_j (f(x + mu v_j) - f(x)) v_j, v_j uniform on the unit sphere.

    The smoothing is mu, the count is b: directions drawn from the key, which together cost b + 1 evaluations of the batch.
    """
    base = client.loss(x, batch)

    def add(j: Any, total: jax.Array) -> jax.Array:
        v = directions.sphere(jax.random.fold_in(key, j), x.size, 1.0, x.dtype)
        return total + (client.loss(x + smoothing * v, batch) - base).astype(x.dtype) * v

    total = jax.lax.fori_loop(0, count, add, jnp.zeros_like(x))
    return x.size / (smoothing * count) * total


class Noise(NamedTuple):
    """Root mean squares of the two-point estimate at a point: what sampling and what rounding contribute."""

    statistical: float
    rounding: float


def measure_noise(problem: Any, batch: Any, x: np.ndarray, smoothing: float, draws: int = 4) -> Noise:
    """Measure how much of a two-point estimate on a batch in `x.dtype` is rounding, by the same differences in float64.

    The exact values come from the loss itself, run in float64 at the points that the estimator meant (x +- v before
    rounding to x's precision) on the same samples. A black box may not follow into float64: there the rounding is taken to
    be that of storing each of the two values in x's precision.
    """
    scale = x.size / (2 * smoothing)
    v = np.random.default_rng(0).standard_normal((draws, x.size))
    v *= smoothing / np.linalg.norm(v, axis=1, keepdims=True)
    first = problem.part([0])  # others' data need not travel to a device
    rough = np.subtract(*_both_sides(first, x, v, batch, x.dtype))
    exact = np.subtract(*(sides := _both_sides(first, x, v, batch, np.dtype(np.float64))))
    statistical = scale * float(np.sqrt(np.mean(np.square(exact))))
    if problem.whole:
        spacing = np.spacing(np.abs(sides[0].astype(x.dtype)))
        return Noise(statistical, scale * float(np.mean(spacing)) / np.sqrt(6))  # two roundings, each uniform
    return Noise(statistical, scale * float(np.sqrt(np.mean(np.square(rough - exact)))))


def _both_sides(problem: Any, x: np.ndarray, v: np.ndarray, batch: Any, dtype: np.dtype) -> np.ndarray:
    """Compute f(x+v) and f(x-v) for each v on one batch, wholly in the given precision; returned are float64 numbers."""

    def cast(array: np.ndarray) -> np.ndarray:
        return array.astype(dtype) if np.issubdtype(array.dtype, np.floating) else array

    with jax.enable_x64(dtype == np.float64):
        batch = jax.tree.map(cast, batch)
        x, v = x.astype(dtype), v.astype(dtype)
        values = _values(problem, np.concatenate([x + v, x - v]), batch)
    return np.asarray(values, np.float64).reshape(2, -1)


@once  # of the problem too: a new run of the same one compiles nothing
def _values(problem: Any, points: jax.Array, batch: Any) -> jax.Array:
    return jax.lax.map(lambda x: problem.value(x, batch), points)
