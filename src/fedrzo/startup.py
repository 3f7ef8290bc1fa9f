"""What is checked before the first round, on concrete values."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.client import Client
from fedrzo.errors import InputError
from fedrzo.monitor import worst_distance
from fedrzo.smoothing import measure_noise

# Distances below this count as inside: iterative projections are exact to 1e-6.
INSIDE = 1e-5


def feasible_start(problem: Any) -> Any:
    """Return the problem with x0 inside all clients' sets, warning if it had to be moved."""
    x0 = jnp.asarray(problem.x0)
    distance = float(worst_distance(problem, x0))
    if distance <= INSIDE * (1 + float(jnp.linalg.norm(x0))):
        return problem
    warnings.warn(f"x0: found a point {distance:.3g} outside a client's set; it is projected first", stacklevel=4)
    moved = copy.copy(problem)
    moved.x0 = np.asarray(problem.project(x0))
    return moved


def check_start(problem: Any, method: Any) -> None:
    """Try the loss at x0 on a sample of the first client, and see whether the method's estimates can be trusted."""
    if problem.hierarchical:
        problem.check_lower()
        return
    x0 = jnp.asarray(problem.x0)
    client = Client.of(problem, 0)
    value = _try_loss(client, x0)
    if not np.isfinite(value):
        raise InputError(f"loss: found {value} at x0; it must be finite there: check x0, the loss, or the data")
    smoothing = getattr(method, "smoothing", None)
    if smoothing is not None and problem.layout.dtype == np.float32:
        _warn_of_rounding(problem, float(smoothing), value)


def _try_loss(client: Client, x: jax.Array) -> float:
    try:
        value = client.loss(x, client.sample(jax.random.key(0), 1))
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        raise InputError(
            f"loss: it uses NumPy or Python control flow on traced values ({type(error).__name__}); write it with jax.numpy, "
            "or wrap it: fz.blackbox(loss)"
        ) from None
    except TypeError as error:
        line = str(error).splitlines()[0]
        raise InputError(f"loss: calling loss(x, batch) failed: {line}") from error
    if jnp.shape(value) != ():
        raise InputError(f"loss: found shape {jnp.shape(value)}; it must return one number, the mean over its batch")
    return float(value)


def _warn_of_rounding(problem: Any, smoothing: float, value: float) -> None:
    """Tell the user when f(x+v) - f(x-v) is mostly rounding in this precision."""
    noise = measure_noise(problem, np.asarray(problem.x0), smoothing)
    if noise.rounding >= noise.statistical:
        warnings.warn(
            f"smoothing: at {smoothing:g} the rounding noise of a gradient estimate ({noise.rounding:.3g}) exceeds its "
            f"statistical noise ({noise.statistical:.3g}) in float32, with losses near {value:.3g}; use a larger smoothing, "
            "or pass x0 in float64",
            stacklevel=5,
        )
