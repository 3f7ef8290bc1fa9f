"""Single-level problems: the class `Nonsmooth`, the paper's (FL_nn)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import Whole
from fedrzo.errors import InputError
from fedrzo.problems.base import Problem, columns
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.inputs import Data, Loss, PyTree, check_loss, one_sample
from fedrzo.problems.monitor import mean
from fedrzo.support.arguments import check_function, checked_signature
from fedrzo.support.compiling import trial


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
        domain: a set outside of which the loss is not defined, such as where a logarithm is; it is evaluated at the
            projection of x onto it, and x has to keep to it.
        scale: units of x, one positive number for each entry; directions and steps are longer in those with larger ones.
        name: how the problem is called in tables.
    """

    @checked_signature()
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
        domain: Any = None,
        scale: PyTree = None,
        name: str | None = None,
    ) -> None:
        super().__init__(loss, data, x0, constraint, weights, test, metrics, name, domain, scale)
        self.pair_fn = None if pair is None else check_function(pair, "pair")
        self.monitored = columns(monitored, "monitored", self.metrics)

    def pair(self, x: jax.Array, v: jax.Array, batch: PyTree) -> jax.Array:
        """Return value(x+v) - value(x-v), by the user's own `pair` where there is one."""
        if self.pair_fn is None or self.domain is not None or (isinstance(batch, Whole) and not is_blackbox(self.pair_fn)):
            return super().pair(x, v, batch)
        return self.pair_fn(self.layout.unravel(x), self.layout.unravel(v), batch)

    def try_losses(self) -> float:
        """Try the loss, the other monitored ones and `pair` at x0, before the first round."""
        value, sample = super().try_losses(), one_sample(self.data)
        for name, function in self.monitored:
            check_loss(function, f"monitored: {name}", f"{name}(x, batch)", *self.trees(self.start), sample)
        if self.pair_fn is not None and self.domain is None:
            self._check_pair(self.pair_fn, sample)
        return value

    def _check_pair(self, pair: Callable, batch: PyTree) -> None:
        """Compare a user's `pair` with what it stands for, at x0 along one direction."""
        x = np.asarray(self.x0)
        v = np.random.default_rng(0).standard_normal(x.size).astype(x.dtype) * 0.1 / np.sqrt(x.size)
        value = trial(self.value)
        sides = [float(value(jnp.asarray(point), batch)) for point in (x + v, x - v)]
        trees = self.layout.unravel(jnp.asarray(x)), self.layout.unravel(jnp.asarray(v))
        found = check_loss(pair, "pair", "pair(x, v, batch)", *trees, batch)
        rounding = 100 * np.finfo(x.dtype).eps * (1 + max(map(abs, sides)))
        if not abs(found - (sides[0] - sides[1])) <= 1e-3 * abs(found) + rounding:
            raise InputError(f"pair: found {found:.6g} where loss(x+v) - loss(x-v) is {sides[0] - sides[1]:.6g}; they must agree")

    def evaluate(self, x: jax.Array) -> dict[str, jax.Array]:
        """Return what is monitored at a flat x."""
        row, [point] = super().evaluate(x), self.trees(x)
        for name, loss in () if self.hidden else self.monitored:
            row[name] = mean(self, functools.partial(loss, point), is_blackbox(loss))
        return row
