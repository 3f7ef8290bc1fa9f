"""The federation: everything that may pass between the server and its clients.

A method is a server program. Wherever its listing says "clients do ... and the server averages", it calls one of

* `average(step, *shared)`: one communication. Every client taking part runs `step(client, key, memory, *shared)` and
  returns a `Reply`; the method sees the weighted mean of the replies' values and nothing else.
* `gather(step, *shared)`: the same, but the method receives the replies one by one.
  A shared argument is the same for all; only `fedrzo.federation.catch_up.Missed` differs, by what a client has missed.
* `later(step, *shared)`: an `average` whose mean nobody needs yet, so that it may travel with the next communication. It
  returns a function that gives the mean, to be called before the round ends; the step must leave the clients' memory alone.
* `repeat(n, body, carry, until)`: `n` times `carry = body(federation, carry)`; `n` may be traced and differ between rounds. With
  `until`, a function of the carry, it ends as soon as that holds.
* `lower(x, method)`: the same clients, seen through the lower-level problem at `x`, which is itself a single-level
  federated problem. `x` travels once and stays with the clients. With `lower(x, method, step, *shared)` it does not travel:
  each client rebuilds it by `step(client, key, memory, *shared)`, whose reply's value stays where it is.

What a client keeps between calls (control variates, momentum) is its `memory`: made by the method's `init_memory` on the
client, given to each step, replaced by `Reply.memory`. The server never sees it, so no handle for it is passed around.

A step captures nothing: it is a method of the `Method` at hand, so a message needs its name only. Randomness is a path of
integers, `root -> round -> call [-> iteration -> call ...] -> client id`, so that noise depends neither on the engine nor on
who else takes part.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.support.arguments import call_part, check_arrays, kind, mismatch

PyTree = Any
Key = jax.Array


class Reply(NamedTuple):
    """What a client step returns. Only `value` crosses the wire.

    Attributes:
        value: a pytree of arrays.
        memory: what the client keeps for the next call; None leaves its memory as it is.
        evaluations: sample-loss values computed.
        gradients: sample gradients computed.
        steps: steps taken on a lower level (ignored on problems that have none).
        code: a few numbers from which the server could rebuild x, the value or the first part of it, where the client was asked
            for them (`Client.coded`). They travel instead of x, if at all.

    Counts are of one client in one call and must stay below 2^32; sums over clients and calls may be of any size.
    """

    value: PyTree
    memory: PyTree = None
    evaluations: Any = 0
    gradients: Any = 0
    steps: Any = 0
    code: PyTree = None


class Gathered(NamedTuple):
    """Replies one by one: leading axis = clients that took part.

    Attributes:
        values: the replies.
        ids: whose they are.
        weights: of those who answered, summing to one.
        share: what those who answered weigh among all clients, 1 if none is missing.
        key: of the call; a client's own is this one folded with its id, so that the server can draw what the client drew.
    """

    values: PyTree
    ids: Any
    weights: Any
    share: Any
    key: Any = None

    def mean(self) -> PyTree:
        """Return the weighted mean of the replies."""
        return weighted_mean(self.values, self.weights)


class Cost(NamedTuple):
    """Cumulative costs over all clients, exact Python integers. One gradient is worth about three evaluations."""

    lower_rounds: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0
    evaluations: int = 0
    gradients: int = 0
    lower_steps: int = 0

    def plus(self, **more: int) -> Self:
        """Return these costs with some more added."""
        return self._replace(**{name: getattr(self, name) + int(value) for name, value in more.items()})


class Federation(Protocol):
    """What a method sees of its clients; see the module's first lines."""

    def average(self, step: Callable[..., Reply], *shared: PyTree) -> PyTree:
        """Run one communication and return the weighted mean of the replies."""

    def gather(self, step: Callable[..., Reply], *shared: PyTree) -> Gathered:
        """Run one communication and return the replies one by one."""

    def later(self, step: Callable[..., Reply], *shared: PyTree) -> Callable[[], PyTree]:
        """Run one communication, at the latest when the mean is asked for, which is what the returned function does."""

    def repeat(
        self, n: Any, body: Callable[["Federation", PyTree], PyTree], carry: PyTree, until: Callable[[PyTree], Any] | None = None
    ) -> PyTree:  # fmt: skip
        """Apply `body` n times, or until a function of the carry holds."""

    def lower(self, x: PyTree, method: Any, rebuild: Callable[..., Reply] | None = None, *shared: PyTree) -> "Federation":
        """Return this federation seen through the lower-level problem at x, to be solved by `method`."""

    def key(self) -> Key:
        """Return a fresh key for the server's own draws; every client could derive it too."""


def step_name(step: Callable[..., Reply]) -> str:
    """Return the name of a client step, refusing anything that could smuggle values in with it."""
    owner = getattr(step, "__self__", None)
    name = getattr(step, "__name__", type(step).__name__)
    if not inspect.ismethod(step) or inspect.isclass(owner) or getattr(type(owner), name, None) is not step.__func__:
        raise InputError(
            f"step: found {name!r}, which is not a method of a Method; a client step must capture nothing, "
            "so that its name alone can be sent: make it a method and pass values as arguments"
        )
    return name


def run_step(step: Callable[..., Reply], client: Any, key: Key, memory: PyTree, *shared: PyTree) -> Reply:
    """Have a client run a step; what is wrong with the step, or with what it returns, is said in one line."""
    name = f"step: {type(step.__self__).__name__}.{step.__name__}"  # type: ignore[attr-defined]
    check_arrays(shared, f"{name} is sent")
    takes = f"client, key, memory and {len(shared)} shared"
    reply = call_part(step, name, takes, client, key, memory, *shared)
    if not isinstance(reply, Reply):
        raise InputError(f"{name} returned {kind(reply)}; return fz.Reply(value), with what the server is to average")
    said = f"{name} returned a Reply with"
    check_arrays(reply.value, f"{said} a value that holds")
    check_arrays(reply.memory, f"{said} a memory that holds")
    if reply.memory is not None and (wrong := mismatch(reply.memory, memory)):
        raise InputError(f"{said} a memory of {wrong}; keep it like what init_memory returns")
    for field in ("evaluations", "gradients", "steps"):
        count = getattr(reply, field)
        if np.shape(count) != () or not jnp.issubdtype(jnp.result_type(count), jnp.integer):
            shown = f"type {jnp.result_type(count)} and shape {np.shape(count)}"
            raise InputError(f"{said} {field} of {shown}; count them in one whole number")
    return reply


def weighted_mean(values: PyTree, weights: jax.Array) -> PyTree:
    """Average over the leading axis with weights that sum to one; whole numbers give a float mean."""

    def mean(value: jax.Array) -> jax.Array:
        inexact = jnp.issubdtype(value.dtype, jnp.inexact)
        # The highest precision: accelerators otherwise round float32 products to fewer bits.
        highest = jax.lax.Precision.HIGHEST
        return jnp.tensordot(weights.astype(value.dtype) if inexact else weights, value, 1, precision=highest)

    return jax.tree.map(mean, values)


def path_key(root: Key, path: Any) -> Key:
    """Derive the key at the end of a path of integers."""
    return functools.reduce(jax.random.fold_in, path, root)


class Roots(NamedTuple):
    """The two streams of a run: directions (known to the server) and sampling (private to each client in deployment)."""

    directions: Key
    sampling: Key

    @classmethod
    def of(cls, key: Key) -> Self:
        """Split a run's key into its two streams."""
        return cls(jax.random.fold_in(key, 0), jax.random.fold_in(key, 1))


def private_key(roots: Roots, client_id: Any) -> Key:
    """Return the sampling key of one client. A deployed node replaces it by a seed of its own."""
    return jax.random.fold_in(roots.sampling, client_id)
