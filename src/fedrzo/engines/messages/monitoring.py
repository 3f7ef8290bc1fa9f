"""What the history shows where nobody has all data: clients look at their own, the server takes the weighted mean.

Nothing here says how questions travel. `looking` says which ones are to be asked, one after the other; an engine asks them, at
once or together with other messages, and an `Answers` takes what comes back.
"""

from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Event
from fedrzo.engines.messages.receive import FederationError, Rules
from fedrzo.engines.messages.wire import WireError, unpack
from fedrzo.problems.base import Problem
from fedrzo.problems.minimise import minimise
from fedrzo.problems.monitor import mean_gradient, mean_loss

Row = dict[str, np.ndarray]
Question = tuple[np.ndarray, np.ndarray | None]  # x, and y where there is one lower level for all clients
DENSE = 1000  # a lower level of up to so many variables is solved accurately for monitoring, by Newton's method
NEWTON = 20  # at most so many questions to solve a lower level for one row of the history
SETTLED = 1e-9  # a step of Newton's method as small as this, relative to y, ends it
BELOW = ("gradient", "hessian")  # means over the clients of the lower level
WORST = ("feasibility", "lower_error", "epsilon")  # the largest of all clients' is shown


def looking(problem: Problem, x: np.ndarray, y: np.ndarray | None, own: np.ndarray | None) -> Generator[Question, Row, Question]:
    """Yield what clients are to be asked, for answers that are sent in; the last answer is what is seen at what is returned.

    Y(x) is found by Newton's method from y, one question a step; where there are no derivatives, the method's `own` y must do.
    """
    row = yield x, y
    if y is None:
        return x, y
    for _ in range(NEWTON - 1):
        if "hessian" not in row:
            y = own if own is not None else y
            yield x, y
            break
        better = newton(problem, x, y, row["gradient"], row["hessian"])
        if np.linalg.norm(better - y) <= SETTLED * (1 + np.linalg.norm(y)):
            break
        y = better
        row = yield x, y
    return x, y


class Looking:
    """A look under way after a round: what clients are to be asked next, and what was seen last."""

    def __init__(self, questions: Generator[Question, Row, Question], round: int) -> None:
        self.questions = questions
        self.round = round
        self.question: Question | None = next(questions)  # None once all is known
        self.at: Question = self.question  # where the row was seen
        self.row: Row = {}
        self.failures = 0  # answers that were missing or refused
        self.repeated = 0  # times that the question was asked again

    def take(self, row: Row) -> None:
        """Go on with what clients answered to the question."""
        self.row, self.repeated = row, 0
        try:
            self.question = self.at = self.questions.send(self.row)
        except StopIteration as end:
            self.question, self.at = None, end.value


class Answers:
    """Takes what clients answer to one question."""

    def __init__(self, problem: Problem, question: Question, round: int) -> None:
        self.problem = problem  # as a client sees it
        self.round = round
        self.wanted = describe(jax.eval_shape(monitor, problem, *question))
        self.rows: dict[int, Row] = {}
        self.events: list[Event] = []

    def receive(self, client: int, payload: bytes) -> None:
        """Look at what came from a client, and take it or refuse it."""
        try:
            header, row = unpack(payload)
        except WireError as error:
            return self.fail(client, "malformed", str(error))
        if "error" in header:
            return self.fail(client, "raised", str(header["error"]))
        spent = row.pop("epsilon", None) if isinstance(row, dict) else None  # said by nodes that promise privacy
        if not isinstance(row, dict) or describe(row) != self.wanted:
            return self.fail(client, "shape", f"wanted {self.wanted}")
        if not all(np.isfinite(value).all() for value in row.values()):
            return self.fail(client, "not finite", "found in what it sees")
        self.rows[client] = row if spent is None else row | {"epsilon": np.asarray(spent, float)}
        return None

    def fail(self, client: int, kind: str, detail: str) -> None:
        """Do without a client's answer."""
        self.events.append(Event(self.round, client, kind, f"while monitoring: {detail}"))

    def mean(self, rules: Rules) -> Row:
        """Return the weighted mean of what clients see, or the largest; refuse to go on with too few."""
        if len(self.rows) < rules.min_clients:
            raise FederationError(
                f"round {self.round}: {len(self.rows)} clients answered while monitoring, min_clients is {rules.min_clients}; "
                "bring clients back, then go on with resume=True where a checkpoint was kept"
            )
        return together(self.rows, *(np.asarray(self.problem.weights_in(view)) for view in ("", "lower")))


def together(rows: dict[int, Row], weights: np.ndarray, below: np.ndarray) -> Row:
    """Return the rows of some clients, by their numbers, as one: the mean by their weights in its level, or the largest."""
    upper, lower = (each[list(rows)] / each[list(rows)].sum() for each in (weights, below))
    row = {}
    for name in next(iter(rows.values())):
        values = np.stack([each[name] for each in rows.values() if name in each])
        share = lower if name in BELOW else upper
        row[name] = values.max(axis=0) if name in WORST else np.tensordot(share, values, 1)
    return row


@jax.jit
def monitor(problem: Problem, x: jax.Array, y: jax.Array | None) -> dict[str, jax.Array]:
    """Return what one client monitors over its own data at x; at x and y for a bilevel problem, with what can improve y."""
    if y is None:
        return problem.evaluate(x)
    row = {} if problem.hidden else {"loss": mean_loss(problem.bare, x, y)}
    row |= {"feasibility": problem.worst_distance(x)} | problem.violation(x, y)
    if problem.lower_blackbox or y.size > DENSE:
        return row
    level = problem.lower_level(x)

    def gradient(y: jax.Array) -> jax.Array:
        return mean_gradient(level, y)

    return row | {"gradient": gradient(y), "hessian": jax.jacfwd(gradient)(y)}


def describe(row: dict[str, Any]) -> dict[str, tuple]:
    """Return the shape and type of each entry."""
    return {name: (tuple(value.shape), str(value.dtype)) for name, value in row.items()}


def newton(problem: Problem, x: np.ndarray, y: np.ndarray, gradient: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Return the minimiser over Y(x) of the lower loss's quadratic model at y."""
    level = problem.lower_level(jnp.asarray(x))
    if level.sets.free:
        return y - np.linalg.solve(hessian, gradient)
    project = lambda z, near: level.sets.project(0, z, near)  # noqa: E731
    found = minimise(lambda z: gradient + hessian @ (z - y), project, jnp.asarray(y), SETTLED / 1000)
    return np.asarray(found)
