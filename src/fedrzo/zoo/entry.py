"""A published problem with its best known value, what it takes to solve it here, and how it becomes federated.

None of the published problems is federated: their objectives are taken as sums of terms of which each client holds an unequal
share, so that the mean over clients is the published one; where X has several sides, each client knows only some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.clientdata import ClientData
from fedrzo.hierarchical import Bilevel
from fedrzo.methods import Method
from fedrzo.problems import Problem
from fedrzo.run import run

Terms = Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]]


@dataclass(frozen=True)
class Entry:
    """A problem from the literature.

    Attributes:
        name: as in its collection.
        make: builds the problem; its x0 is the start.
        published: the best known value, in the collection's units. Best known is not proved: smaller is no error.
        method: what solves it, with its step sizes.
        rounds: how many rounds that takes.
        scale: the collection's loss over the problem's. Iterates leave X by smoothing times the loss's slope, so losses
            in the thousands are divided by this to keep that distance small.
        start: where the start comes from, if it is not the collection's.
    """

    name: str
    make: Callable[[], Problem]
    published: float
    method: Method
    rounds: int
    scale: float = 1.0
    start: str = ""

    @property
    def smoothing(self) -> float:
        """The method's smoothing, by which infeasibility is judged."""
        return float(self.method.smoothing)  # type: ignore[attr-defined]


def solve(entry: Entry, seed: int = 0) -> dict[str, Any]:
    """Run an entry's method and judge what it found.

    Args:
        entry: what to solve.
        seed: of the run.

    Returns:
        `name`; `published`; `ours`, the loss at the projection of the last x, with an accurate lower-level solution;
        `infeasibility`, the distance from the last x to that projection; `gap`, (ours - published) relative to the
        larger of |published| and what there was to gain from the start.
    """
    problem = entry.make()
    result = run(entry.method, problem, entry.rounds, key=seed, eval_every=entry.rounds, progress=False)
    x, feasible = (np.asarray(problem.layout.ravel(point)) for point in (result.x, result.x_feasible))
    first = entry.scale * float(result.history["loss"][0])
    distance = float(np.linalg.norm(x - feasible))
    # The run's last row is the loss at x already; evaluating anew costs seconds of compilation.
    ours = entry.scale * (loss_at(problem, feasible) if distance > 0 else float(result.history["loss"][-1]))
    return {
        "name": entry.name,
        "published": entry.published,
        "ours": ours,
        "infeasibility": distance,
        "gap": (ours - entry.published) / max(abs(entry.published), first - entry.published),
    }


def loss_at(problem: Problem, x: np.ndarray) -> float:
    """Return the loss at a flat x, with an accurate lower-level solution."""
    with problem.precision():
        return float(jax.jit(lambda problem, x: problem.evaluate(x)["loss"])(problem, jnp.asarray(x)))


class Shared:
    """A loss made of terms; a batch says how much of each term is the client's."""

    def __init__(self, terms: Terms, scale: float = 1.0) -> None:
        self.terms = terms
        self.scale = scale

    def __call__(self, x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
        """Return the client's share of the loss."""
        return jnp.mean(batch @ jnp.stack(self.terms(x, y))) / self.scale


def shares(terms: Terms, x0: Any, y0: Any, clients: int) -> ClientData:
    """Give client i between half and one and a half of each term, so that the mean over clients is one."""
    with jax.enable_x64(True):  # as in a run: constants in the terms keep the precision they are first traced in
        count = len(jax.eval_shape(terms, x0, y0))
    i, k = np.arange(clients)[:, None], np.arange(count)
    return ClientData(list((0.5 + (i + k) % clients / (clients - 1))[:, None]))


def bilevel(
    name: str, upper: Terms, lower: Terms, x0: Any, y0: Any, scale: float = 1.0, clients: int = 2, **more: Any
) -> Bilevel:
    """Return a bilevel problem whose terms are shared out among the clients."""
    x0, y0 = np.asarray(x0, float), np.asarray(y0, float)
    data, lower_data = shares(upper, x0, y0, clients), shares(lower, x0, y0, clients)
    return Bilevel(Shared(upper, scale), Shared(lower), data, x0, y0, lower_data=lower_data, name=name, **more)
