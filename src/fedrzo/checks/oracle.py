"""What gradients would gain over loss values, measured at the start."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedrzo.checks.report import OK, Finding
from fedrzo.errors import InputError
from fedrzo.federation.client import Client
from fedrzo.federation.estimators import estimate_in_ball, estimate_two_sided
from fedrzo.methods.base import Method
from fedrzo.methods.fedrzo import check_gradients
from fedrzo.methods.fedrzo_nn import FedRZOnn
from fedrzo.problems.base import Problem

DRAWS = 64
WORTH = 2.0  # a gain below this is not worth saying
GRADIENT = 3.0  # loss evaluations that a gradient counts as


def oracle(problem: Problem, method: Method, key: int) -> list[Finding]:
    """Compare the second moments of both estimates on one batch of the first client; they say how long steps may be."""
    if not isinstance(method, FedRZOnn) or method.by_gradients or method.communication == "scalars":
        return []
    try:
        check_gradients(problem, float(method.smoothing))
    except InputError:  # values are all there is
        return []
    found = _moments(problem, method.smoothing, jax.random.key(key), batch_size=method.batch_size, directions=method.directions)
    values, gradients = map(float, found)
    gain = 2 * method.directions * values / (GRADIENT * gradients) if gradients > 0 else 0.0
    if gain < WORTH:
        return []
    facts = {"values": values, "gradients": gradients, "gain": gain}
    text = (
        f"gradients could take about 1/{gain:.0f} of the evaluations (an estimate's mean square at the start: {values:.3g} from "
        f'values, {gradients:.3g} from gradients): oracle="gradients"'
    )
    return [Finding(OK, "oracle", text, facts)]


@functools.partial(jax.jit, static_argnames=("batch_size", "directions"))
def _moments(problem: Problem, smoothing: Any, key: jax.Array, batch_size: Any, directions: int) -> tuple[jax.Array, ...]:
    client, x = Client.of(problem, 0), problem.start
    batch = client.sample(key, batch_size)

    def moment(estimate: Any) -> jax.Array:
        def one(key: jax.Array) -> jax.Array:
            keys = jax.random.split(key, directions)
            return jnp.sum(estimate(client, keys, x, batch, smoothing)[0] ** 2)

        return jnp.mean(jax.lax.map(one, jax.random.split(key, DRAWS)))

    return moment(estimate_two_sided), moment(estimate_in_ball)
