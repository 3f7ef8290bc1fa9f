"""Sessions that have no data: what their histories show is asked of those who have."""

import abc
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedrzo.engines.messages.monitoring import Looking, looking
from fedrzo.engines.messages.session import MessageSession
from fedrzo.methods.guards import with_metrics
from fedrzo.problems.questions import BY_SERVER

PyTree = Any


class AskingSession(MessageSession):
    """A run in progress whose losses are looked at elsewhere; test data are the server's."""

    data_at_hand = False
    y: np.ndarray | None = None  # what solves the lower level at x, where there is one for all clients

    @abc.abstractmethod
    def ask(self, look: Looking) -> None:
        """Ask clients the next question of a look."""

    def begin(self) -> Looking:
        """Begin to look at the present state."""
        if self.y is None and self.problem.lower_solved_by == BY_SERVER:
            self.y = np.asarray(self.problem.start_below, float)
        own = None if self.y is None else np.asarray(getattr(self.state, "y", self.y)).reshape(-1, self.y.size).mean(axis=0)
        return Looking(looking(self.problem, np.asarray(self.state.x), self.y, own), self.round)

    def seen(self, look: Looking, state: PyTree) -> dict[str, np.ndarray]:
        """Return what all clients see of a state, by column; what has not been asked yet is asked now."""
        while look.question is not None:
            self.ask(look)
        x, self.y = look.at
        point = [jnp.asarray(part) for part in (x, self.y) if part is not None]
        row = {name: value for name, value in look.row.items() if name not in ("gradient", "hessian")}
        row = with_metrics(row | self.problem.on_test(*point), self.method, state)
        return {name: np.atleast_1d(np.asarray(value)) for name, value in row.items()}

    def evaluate(self) -> dict[str, np.ndarray]:
        """Return what is monitored: clients look at their own data, the server takes the weighted mean."""
        return self.seen(self.begin(), self.state)

    def lower_solutions(self, points: np.ndarray) -> list[PyTree]:
        """Return what solves the lower level over the clients' data, as it was found for the last row of the history."""
        return [None if self.y is None else self.problem.layouts["y0"].unravel(self.y)] * len(points)
