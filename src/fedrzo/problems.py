"""The four classes of problems that a federation of clients can be asked to solve.

`Nonsmooth` is the paper's (FL_nn), `Bilevel` (FL_bl), `Minimax` (FL_mm) and `TwoStage` (FL_2s). A problem holds one loss, the
clients' data and their private sets; x (and y) may be any pytree, of which methods see one flat vector.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.clientdata import ClientData, Sampler
from fedrzo.errors import InputError
from fedrzo.monitor import mean, mean_loss, worst_distance
from fedrzo.pytrees import Layout, as_float, traced

PyTree = Any
Loss = Callable[..., jax.Array]
Data = ClientData | Sampler
INSIDE = 1e-5  # distances below this count as inside a set: iterative projections are exact to 1e-6


class Problem:
    """What the four classes share: x, the clients' data and sets, their weights, and what is monitored."""

    copies = 1
    nested = False
    hierarchical = False

    def __init__(
        self,
        loss: Loss,
        data: Data,
        x0: PyTree,
        constraint: Any,
        weights: str,
        test: PyTree,
        metrics: Mapping[str, Callable] | None,
        name: str | None,
    ) -> None:
        self.loss_fn = check_function(loss, "loss")
        self.data = check_data(data, "data")
        self.layout = Layout.of(x0, "x0")
        self.x0 = self.layout.ravel(jax.tree.map(lambda leaf: as_float(leaf, "x0"), x0))
        self.sets = set_family(constraint, x0, self.layout.size, data.clients)
        self.weights = weights
        self.client_weights = _weights(weights, data)
        self.test = test if test is None else jax.tree.map(np.asarray, test)
        self.metrics = tuple((metrics or {}).items())
        self.name = name or type(self).__name__

    def __repr__(self) -> str:
        own = "" if self.sets.free else f", {self.sets.kinds} kind{'s' * (self.sets.kinds > 1)} of sets"
        return f"{type(self).__name__}({self.name}: n = {self.dim}, {self.data!r}{own}, {self.layout.dtype})"

    @property
    def dim(self) -> int:
        """The paper's n: the length of x as one flat vector."""
        return self.layout.size

    @property
    def clients(self) -> int:
        """The paper's m: how many clients there are."""
        return self.data.clients

    def precision(self) -> AbstractContextManager:
        """Return the context in which this problem computes: float64 if x0 is, or if there is a lower level."""
        wide = self.hierarchical or self.layout.dtype == np.float64
        return jax.enable_x64(bool(wide or jax.config.read("jax_enable_x64")))

    def value(self, x: jax.Array, batch: PyTree) -> jax.Array:
        """Return the loss of one batch at a flat x."""
        return self.loss_fn(self.layout.unravel(x), batch)

    def pair(self, x: jax.Array, v: jax.Array, batch: PyTree) -> jax.Array:
        """Return value(x+v) - value(x-v); both points go in one call, which a vectorised black box can exploit."""
        plus, minus = jax.vmap(self.value, in_axes=(0, None))(jnp.stack([x + v, x - v]), batch)
        return plus - minus

    def part(self, clients: Sequence[int]) -> Any:
        """Return this problem with the data and the sets of some clients alone, for those who run their steps elsewhere."""
        part = copy.copy(self)
        part.data, part.sets = self.data.part(clients), self.sets.part(clients)
        part.client_weights = np.asarray(self.client_weights)[list(clients)]
        part.test, part.metrics = None, ()
        return part

    def lower_solution(self, x: jax.Array) -> PyTree:
        """Return an accurate lower-level solution at a flat x, where the problem has one lower level for all scenarios."""
        del x
        return None

    def project(self, x: jax.Array) -> jax.Array:
        """Project a flat x onto the intersection of all clients' sets."""
        return x if self.sets.free else _intersection(self.sets, x)

    def project_all(self, points: np.ndarray) -> np.ndarray:
        """Project each row onto the intersection of all clients' sets."""
        return points if self.sets.free else np.asarray(jax.vmap(self.project)(jnp.asarray(points)))

    def lower_solutions(self, points: np.ndarray) -> list[PyTree]:
        """Return an accurate lower-level solution for each row, where there is one."""
        return [self.lower_solution(jnp.asarray(point)) for point in points]

    def evaluate(self, x: jax.Array) -> dict[str, jax.Array]:
        """Return what is monitored at a flat x: the loss over all data, infeasibility, and the problem's own metrics."""
        row = {"loss": mean_loss(self, x), "feasibility": worst_distance(self, x)}
        if self.test is not None:
            row["test_loss"] = self.value(x, self.test)
            row |= {name: jnp.asarray(metric(self.layout.unravel(x), self.test)) for name, metric in self.metrics}
        return row


@traced("data", "x0", "sets", "client_weights", "test")
class Nonsmooth(Problem):
    """Minimise the weighted mean of the clients' losses over the intersection of their private sets.

    Args:
        loss: `loss(x, batch) -> scalar`, the mean over the batch; JAX-traceable, or wrapped by `fz.blackbox`. No gradient
            is asked of it unless a first-order method is chosen.
        data: `fz.ClientData` or `fz.Sampler`.
        x0: the starting point, any pytree of float arrays. Its precision is the precision of the run.
        constraint: a set for all clients, or one set per client, private to each.
        weights: `"uniform"` (the paper's objective) or `"samples"`.
        pair: optional, a faster `pair(x, v, batch)` for `loss(x+v, batch) - loss(x-v, batch)`.
        test: optional batch; `test_loss` is then monitored.
        metrics: optional, `{name: metric(x, test)}`, monitored too.
        monitored: optional, `{name: loss(x, batch)}`: other losses to monitor over all data, such as the nonsmooth one where
            a smooth surrogate is minimised.
        name: how the problem is called in tables.
    """

    def __init__(
        self,
        loss: Loss,
        data: Data,
        x0: PyTree,
        constraint: Any = None,
        *,
        weights: str = "uniform",
        pair: Callable | None = None,
        test: PyTree = None,
        metrics: Mapping[str, Callable] | None = None,
        monitored: Mapping[str, Loss] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(loss, data, x0, constraint, weights, test, metrics, name)
        self.pair_fn = pair
        self.monitored = tuple((key, check_function(other, "monitored")) for key, other in (monitored or {}).items())

    def pair(self, x: jax.Array, v: jax.Array, batch: PyTree) -> jax.Array:
        """Return value(x+v) - value(x-v), by the user's own `pair` where there is one."""
        if self.pair_fn is None:
            return super().pair(x, v, batch)
        return self.pair_fn(self.layout.unravel(x), self.layout.unravel(v), batch)

    def evaluate(self, x: jax.Array) -> dict[str, jax.Array]:
        """Return what is monitored at a flat x."""
        point = self.layout.unravel(x)

        def over_all_data(loss: Loss) -> jax.Array:
            return mean(self, lambda batch: loss(point, batch))

        return super().evaluate(x) | {name: over_all_data(loss) for name, loss in self.monitored}


@jax.jit
def _intersection(family: sets.SetFamily, x: jax.Array) -> jax.Array:
    return family.intersection(x)


def check_loss(loss: Callable[[PyTree], Any], data: Data, argument: str, call: str) -> float:
    """Try a loss on one sample of client 0, and say what is wrong with what it does."""
    try:
        value = jax.jit(loss)(data.sample(jax.random.key(0), 0, 0, 1))  # traced, as it will be in the run
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        raise InputError(
            f"{argument}: it uses NumPy or Python control flow on traced values ({type(error).__name__}); write it with "
            "jax.numpy, or wrap it: fz.blackbox(loss)"
        ) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{argument}: calling {call} failed: {str(error).splitlines()[0]}") from error
    if jnp.shape(value) != ():
        raise InputError(
            f"{argument}: found shape {jnp.shape(value)}; it must return one number, the mean over its batch"
        )
    if not np.isfinite(float(value)):
        raise InputError(
            f"{argument}: found {float(value)} at x0; it must be finite there: check x0, the loss, or the data"
        )
    return float(value)


def check_function(value: Any, argument: str) -> Callable:
    """Return a function, or say what was found in its place."""
    if not callable(value):
        raise InputError(f"{argument}: found {type(value).__name__}, which cannot be called; pass a function")
    return value


def check_data(data: Any, argument: str) -> Data:
    """Return clients' data, or say what was found in its place."""
    if not isinstance(data, ClientData | Sampler):
        raise InputError(
            f"{argument}: found {type(data).__name__}; wrap it: fz.ClientData([samples of client 0, ...]), or fz.Sampler"
        )
    return data


def set_family(constraint: Any, example: PyTree, dim: int, clients: int) -> sets.SetFamily:
    """Read `constraint`: nothing, one set for all, or one per client."""
    if constraint is None:
        constraint = sets.Reals()
    shared = isinstance(constraint, sets.Set | sets.Public)
    if not shared and not isinstance(constraint, Sequence):
        raise InputError(
            f"constraint: found {type(constraint).__name__}; pass a set such as fz.sets.Box, or one per client"
        )
    members = [constraint] if shared else list(constraint)
    if not shared and len(members) != clients:
        raise InputError(
            f"constraint: found {len(members)} sets for {clients} clients; pass one set, or one per client"
        )
    public = [isinstance(member, sets.Public) for member in members]
    flat = []
    for i, member in enumerate(members):
        argument = "constraint" if shared else f"constraint of client {i}"
        member = member.set if isinstance(member, sets.Public) else member
        if not isinstance(member, sets.Set):
            raise InputError(f"{argument}: found {type(member).__name__}; pass a set such as fz.sets.Box(-1, 1)")
        flat.append(sets.flatten_set(member, example, argument))
        flat[-1].check(dim, argument)
    family = sets.stack_sets(flat)
    return dataclasses.replace(family, public=np.broadcast_to(public, clients)) if any(public) else family


def _weights(weights: str, data: Data) -> np.ndarray:
    if weights == "uniform":
        return np.full(data.clients, 1.0 / data.clients)
    if weights == "samples" and isinstance(data, ClientData):
        return np.asarray(data.sizes) / np.sum(data.sizes)
    if weights == "samples":
        raise InputError('weights: found "samples", but a Sampler has no sample counts; use "uniform"')
    raise InputError(f'weights: found {weights!r}; pass "uniform" or "samples"')
