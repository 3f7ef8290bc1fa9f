"""Local steps by private slopes: what the methods that take `privacy=` have in common.

What a step is made of are slopes along directions that everybody may know. A client finds them record by record, and what it goes
on with, and sends, is their noisy mean (`fedrzo.privacy.mechanism`); all else is computed from that.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from fedrzo.federation import directions
from fedrzo.federation.client import Client, take_coded_steps
from fedrzo.methods.base import Method
from fedrzo.privacy.mechanism import Slopes, release
from fedrzo.privacy.privacy import Calibrated, Privacy
from fedrzo.privacy.refusals import check_privacy
from fedrzo.problems.base import Problem


class WithPrivacy(Method):
    """A method whose clients may send private slopes."""

    privacy: Privacy | None = None  # a field of those methods that have it

    def check(self, problem: Problem) -> None:
        """Refuse what the promise would not hold for, before anything starts."""
        super().check(problem)
        if self.privacy is not None:
            check_privacy(self.privacy, problem, self)

    def with_calibrated(self, calibrated: Calibrated) -> Self:
        """Return this method with what its clients' releases need."""
        return dataclasses.replace(self, privacy=self.privacy.with_calibrated(calibrated))  # type: ignore[type-var, union-attr]

    def init_memory(self, problem: Any) -> Any:
        """Return the first clip, where clients find their own."""
        return first_clip(self.privacy, problem)


def first_clip(privacy: Privacy | None, problem: Any) -> jax.Array | None:
    """Return the clip that clients begin with, where they find their own; else None."""
    return privacy.first_clip.astype(problem.dtype) if privacy is not None and privacy.adaptive else None


def private_steps(
    method: Any,
    client: Client,
    key: jax.Array,
    clip: jax.Array | None,
    count: Any,
    x: jax.Array,
    slopes: Callable[[Any, jax.Array, jax.Array], Slopes],
    move: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Take a client's local steps of a `FedRZO` method; return where they led, their code, and the client's clip after them.

    `slopes(k, keys, x)` returns the function that gives records' slopes; `move(x, found, keys)` takes a step by the estimate's
    slopes, n/eta times the noisy means.
    """
    privacy: Privacy = method.privacy
    start = jnp.asarray(privacy.first_clip if clip is None else clip, client.level.dtype)

    def local_step(k: Any, _: None, drawn: tuple, carry: tuple[jax.Array, jax.Array]) -> tuple[tuple, jax.Array]:
        (keys, step_key), (x, clip) = drawn, carry
        wanted = slopes(k, keys, x)
        mean, clip = release(client, privacy, step_key, method.batch_size, wanted, method.slopes_per_step, clip)
        found = x.size / method.smoothing * mean
        return (move(x, found, keys), clip), found

    (x, after), code = take_coded_steps(
        client, key, count, None, local_step, (x, start),
        also=lambda step_key: (method.draw(step_key), step_key), slopes=method.slopes_per_step,
    )  # fmt: skip
    return x, code, None if clip is None else after


def record_by_record(client: Client, difference: Callable[[Any], jax.Array], rows: jax.Array) -> jax.Array:
    """Return `difference(batch)` for batches of one record each."""
    data = client.level.data
    return jax.vmap(difference)(data.singles(rows, jnp.broadcast_to(client.index, rows.shape)))


def on_sphere(client: Client, keys: jax.Array, x: jax.Array, smoothing: Any) -> Slopes:
    """Return what gives records' slopes at x along directions on the sphere, one direction at a time."""

    def along(rows: jax.Array, key: jax.Array) -> jax.Array:
        v = directions.sphere(key, x.size, smoothing, x.dtype)
        found = record_by_record(client, lambda batch: client.level.pair(x, v, batch), rows)
        return found.astype(x.dtype) / (2 * smoothing)

    return lambda rows: jax.lax.map(lambda key: along(rows, key), keys).T
