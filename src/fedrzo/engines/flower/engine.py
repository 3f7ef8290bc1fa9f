"""The Flower engine: clients are nodes of a federation, behind TLS; the server runs inside a Flower ServerApp.

Each node has its own data and nobody else's, so what the history shows is asked of the nodes too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from fedrzo.engines.base import Engine, Look
from fedrzo.engines.flower.post import Letter, Post
from fedrzo.engines.messages.asking import AskingSession
from fedrzo.engines.messages.codec import Keep, Message
from fedrzo.engines.messages.monitoring import Answers, Looking
from fedrzo.engines.messages.receive import Intake, Rules
from fedrzo.engines.messages.wire import pack
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Reply
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.support.pytrees import replaced

PyTree = Any
REPEATED = 2  # times that a question of the history is asked again when fewer than `min_clients` answered
RETURNING = 60.0  # seconds to wait for nodes to come back before that, if messages have no timeout


class FlowerSession(AskingSession):
    """A run in progress; what clients remember stays on their nodes."""

    tells_epsilon = True  # by the nodes' own ledgers
    # Nodes can go back to the beginning of their present round, not further: a server must not fall behind more than that.
    stores_every_round = True

    def __init__(
        self, method: Method, problem: Problem, key: jax.Array, size: int | None, rules: Rules | None, post: Post
    ) -> None:
        super().__init__(method, problem, key, size, rules)
        self.post = post
        self._untested = replaced(problem, test=None, metrics=())  # what a client sees: the test data are the server's
        self.looking: Looking | None = None  # what the history wants to know: its questions travel with the next messages

    def exchange(self, message: Message, ids: list[int], intake: Intake) -> None:
        """Bring a message to some clients and what they answer to `intake`."""
        self.bring([intake])

    def bring(self, intakes: list[Intake]) -> None:
        """Bring several messages, and what the history asks, as one to each client: it takes as long as a single one."""
        letters = [self._letter(intake) for intake in intakes]
        looking, answers = self.looking, None
        if looking is not None and looking.question is not None:
            answers = Answers(self._untested, looking.question, looking.round)
            own = dict.fromkeys(self.post.present(range(self.problem.clients))[0], b"")
            letters.append(Letter("evaluate", pack({}, looking.question), own, answers.receive, answers.fail))
        timeout = self.rules.timeout  # for each: who takes long to look at the loss does not lose the step that came with it
        self.post.exchange(letters, None if timeout is None else timeout * len(letters))
        if looking is not None and answers is not None:
            self.events += answers.events
            looking.failures += len(answers.events)
            if len(answers.rows) < self.rules.min_clients and looking.repeated < REPEATED:
                looking.repeated += 1  # nothing depends on when a question is answered: the next message asks it again
            else:
                looking.take(answers.mean(self.rules))

    def later(self, message: Message, ids: Iterable[int]) -> Callable[[], list[tuple[int, Reply]]]:
        """Have a message travel with the next one, or alone once it is asked for."""
        intake = self.queue(message, ids, passing=True)

        def answered() -> list[tuple[int, Reply]]:
            if intake in self.waiting:
                self.flush()
            return intake.answered

        return answered

    def keep(self, points: Keep) -> None:
        """Have points sent with the next message; what waits is about the points before."""
        if self.waiting:
            self.flush()
        super().keep(points)

    def _letter(self, intake: Intake) -> Letter:
        here, absent = self.post.present(intake.asked)
        for client in absent:
            intake.fail(client, "absent", "its node has not been heard of since it did not answer, or never was")
        common, own = self.payloads(intake.message, here)
        return Letter("step", common, own, intake.receive, intake.fail)

    def look_later(self) -> Callable[[], Look]:
        """Look now; what is to be asked travels with the next messages, and the rest alone once the look is needed."""
        now, state, look = self.showing({}), self.state, self.begin()
        self.looking = look

        def complete() -> Look:
            metrics = self.seen(look, state)
            failures = now.columns["failures"] + look.failures  # not those of steps since
            return now._replace(metrics=metrics, columns=now.columns | {"failures": failures})

        return complete

    def ask(self, look: Looking) -> None:
        """Ask clients the next question of a look, and bring what else waits."""
        self.looking = look
        if look.repeated:
            self.post.wait(range(self.problem.clients), self.rules.min_clients, self.rules.timeout or RETURNING)
        self.flush()


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
