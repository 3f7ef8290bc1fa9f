"""The Flower engine: clients are nodes of a federation, behind TLS; the server runs inside a Flower ServerApp.

Each node has its own data and nobody else's, so what the history shows is asked of the nodes too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Engine
from fedrzo.engines.flower.post import Post
from fedrzo.engines.messages.codec import Message
from fedrzo.engines.messages.monitoring import Answers, Question, Row, looking
from fedrzo.engines.messages.receive import Intake, Rules
from fedrzo.engines.messages.session import MessageSession
from fedrzo.engines.messages.wire import pack
from fedrzo.errors import InputError
from fedrzo.methods.base import Method
from fedrzo.methods.guards import with_metrics
from fedrzo.problems.base import Problem
from fedrzo.problems.questions import BY_SERVER
from fedrzo.support.pytrees import replaced

PyTree = Any


class FlowerSession(MessageSession):
    """A run in progress; what clients remember stays on their nodes."""

    data_at_hand = False
    tells_epsilon = True  # by the nodes' own ledgers
    # Nodes can go back to the beginning of their present round, not further: a server must not fall behind more than that.
    stores_every_round = True

    def __init__(
        self, method: Method, problem: Problem, key: jax.Array, size: int | None, rules: Rules | None, post: Post
    ) -> None:
        super().__init__(method, problem, key, size, rules)
        self.post = post
        # What solves the lower level at x, where there is one for all clients.
        self.y = np.asarray(problem.start_below, float) if problem.lower_solved_by == BY_SERVER else None
        self._untested = replaced(problem, test=None, metrics=())  # what a client sees: the test data are the server's

    def exchange(self, message: Message, ids: list[int], intake: Intake) -> None:
        """Bring a message to some clients and what they answer to `intake`."""
        here, absent = self.post.present(ids)
        for client in absent:
            intake.fail(client, "absent", "its node has not been heard of since it did not answer, or never was")
        common, own = self.payloads(message, here)
        self.post.exchange("step", common, own, self.rules.timeout, intake.receive, intake.fail)

    def evaluate(self) -> dict[str, np.ndarray]:
        """Return what is monitored: every node looks at its own data, the server takes the weighted mean."""
        x, y, row = self._look()
        point = [jnp.asarray(part) for part in (x, y) if part is not None]
        row = {name: value for name, value in row.items() if name not in ("gradient", "hessian")}
        row = with_metrics(row | self.problem.on_test(*point), self.method, self.state)  # test data are the server's
        return {name: np.atleast_1d(np.asarray(value)) for name, value in row.items()}

    def lower_solutions(self, points: np.ndarray) -> list[PyTree]:
        """Return what solves the lower level over the nodes' data, as it was found for the last row of the history."""
        return [None if self.y is None else self.problem.layouts["y0"].unravel(self.y)] * len(points)

    def _look(self) -> tuple[np.ndarray, np.ndarray | None, Row]:
        """Return where the history looks, and what all nodes see there."""
        own = None if self.y is None else np.asarray(getattr(self.state, "y", self.y)).reshape(-1, self.y.size).mean(axis=0)
        questions, row = looking(self.problem, np.asarray(self.state.x), self.y, own), None
        try:
            while True:
                row = self._ask(questions.send(row))
        except StopIteration as end:
            x, self.y = end.value
        return x, self.y, row

    def _ask(self, question: Question) -> Row:
        answers = Answers(self._untested, question, self.round)
        here, _ = self.post.present(range(self.problem.clients))
        own = dict.fromkeys(here, b"")
        self.post.exchange("evaluate", pack({}, question), own, self.rules.timeout, answers.receive, answers.fail)
        self.events += answers.events
        return answers.mean(self.rules)


class Flower(Engine):
    """A federation of Flower nodes, as seen from inside a ServerApp.

    Args:
        post: brings messages to the nodes.
        rules: what is refused, how long is waited, how many may be missing.
        said: what each client said of itself: `samples`, and `noise` and `delta` where it promises privacy; nothing where it
            did not come.
    """

    name = "flower"
    data_at_hand = False

    def __init__(
        self, post: Post | None = None, rules: Rules | None = None, said: Sequence[Mapping[str, Any]] = ()
    ) -> None:  # fmt: skip
        if post is None:
            raise InputError(
                "engine: 'flower' runs inside a Flower ServerApp, where nodes hold the data; write an app for your problem "
                "with `fedrzo deploy init DIR`, try it with `fedrzo deploy local DIR`"
            )
        self.post = post
        self.rules = rules
        self.said = said

    def start(
        self, methods: list[Method], problem: Problem, keys: list[jax.Array], clients_per_round: int | None
    ) -> FlowerSession:
        """Prepare a run."""
        problem = jax.device_put(problem)
        return FlowerSession(self.only(methods), problem, keys[0], clients_per_round, self.rules, self.post)
