"""How points are judged: by the loss over all data with accurate lower solutions, or over some scenarios where they are many."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.problems.base import Problem, Standing
from fedrzo.problems.questions import BY_CLIENTS
from fedrzo.support.compiling import on_data
from fedrzo.support.known import known
from fedrzo.support.pytrees import in_parts

LANES = 6  # runs side by side in a stage
FIRST = 0.3  # the first step, in units of the Moreau parameter
JUDGED = 250_000  # unknowns that a point is judged by, from twice as many on


class Point(NamedTuple):
    """A point that was reached, and how."""

    x: np.ndarray  # as a run left it
    feasible: np.ndarray  # its projection
    loss: float  # there, with the penalty for what it breaks
    violation: float = 0.0  # what that is: of coupling constraints
    step: float = FIRST  # in units of the Moreau parameter
    method: Any = None  # of the run, None at the start
    start: Any = None  # where the run began
    rounds: int = 0
    key: int = 0
    penalty: float = 0.0  # of coupling constraints, in the run
    stands: Standing = Standing(None, *np.zeros(4))  # where x stands to the sets; by default, inside


class Look(NamedTuple):
    """What is seen of some points, each an array."""

    merits: Any  # losses with the penalty for what they break
    losses: Any
    broken: Any  # by how much coupling constraints are
    below: Any = None  # lower solutions, if all clients share them


def thinned(problem: Problem) -> Problem:
    """Return a problem with some of each client's scenarios, to judge points by, where all of them are a lot to solve for."""
    data = problem.data
    if problem.lower_solved_by != BY_CLIENTS or not data.stored or data.identical:
        return problem
    every = data.samples * problem.layouts["y0"].size // JUDGED
    return problem if every < 2 else problem.with_data(known(data, ("thinned", every), lambda: data.thinned(every)), data)


def judged_on(problem: Problem) -> int:
    """Return how many samples a loss is judged on."""
    return samples_of(thinned(problem))


def samples_of(problem: Problem) -> int:
    """Return how many samples there are, or are drawn for a look."""
    data = problem.data
    return data.samples if data.stored else data.clients * int(data.full_batch)


def looks(problem: Problem, points: np.ndarray) -> Look:
    """Look at each row, with accurate lower solutions, by the scenarios that points are judged by."""
    return on_all(thinned(problem), points)


def on_all(problem: Problem, points: np.ndarray) -> Look:
    """Look at each row by all scenarios; at a few rows at a time, by one program."""
    parts = [_look(problem, jnp.asarray(rows)) for rows in in_parts(points, LANES)]
    return Look(*jax.tree.map(lambda *rows: np.concatenate(rows)[: len(points)].astype(float), *parts))


@on_data
def _look(problem: Problem, points: jax.Array) -> Look:
    def one(x: jax.Array) -> Look:
        row, y = problem.judge(x)
        return Look(problem.merit(row), row["loss"], row.get("violation", jnp.zeros_like(row["loss"])), y)

    return jax.vmap(one)(points)


def judged(problem: Problem, ends: list[Any], instead: np.ndarray) -> tuple[np.ndarray, np.ndarray, Standing]:
    """Return the loss at the projection of each end, infinite where a run was lost; what it breaks; where the ends stand."""
    there = np.array([end is not None and bool(np.all(np.isfinite(end))) for end in ends])
    points = np.stack([end if good else instead for end, good in zip(ends, there, strict=True)])
    stands = problem.standing(points)
    seen = looks(problem, stands.nearest)
    return np.where(there & np.isfinite(seen.merits), seen.merits, np.inf), seen.broken, stands
