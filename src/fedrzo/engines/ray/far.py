"""A run on a cluster whose driver has no samples: actors load those of their clients, and look at them for the history."""

from collections import Counter

from fedrzo.engines.base import Event
from fedrzo.engines.messages.asking import AskingSession
from fedrzo.engines.messages.monitoring import Looking, Row, together
from fedrzo.engines.messages.receive import FederationError
from fedrzo.engines.ray.cluster import ActorHandle, told_by
from fedrzo.engines.ray.session import RESTARTS, RaySession
from fedrzo.errors import first_line


class FarSession(AskingSession, RaySession):
    """A run in progress of a problem with a `Loader`."""

    def ask(self, look: Looking) -> None:
        """Ask all actors; one that died is asked again, started anew; the row does without one that fails."""
        rows: dict[int, Row] = {}
        deaths: Counter[ActorHandle] = Counter()
        asked = dict(enumerate(self.actors))
        while asked:
            answers = {k: actor.handle.look.remote(look.question) for k, actor in asked.items()}
            done, _ = self.ray.wait(list(answers.values()), num_returns=len(answers), timeout=self.rules.timeout)
            again = {}
            for k, actor in asked.items():
                if answers[k] not in done:
                    self._do_without(actor, look, "timeout", f"no answer within {self.rules.timeout:g} s")
                    continue
                try:
                    rows[k] = self.ray.get(answers[k])
                except self.ray.exceptions.RayTaskError as error:
                    self._do_without(actor, look, "raised", told_by(error))
                except self.ray.exceptions.RayError as error:
                    deaths[actor] += 1
                    if self.engine.on_failure == "raise" or deaths[actor] > RESTARTS:
                        said = f"round {look.round}: {actor.name} died while monitoring: {first_line(error)}"
                        raise FederationError(f"{said}; go on with resume=True where a checkpoint was kept") from error
                    self.restart(actor)
                    again[k] = actor
            asked = again
        if not rows:
            raise FederationError(f"round {look.round}: no actor answered while monitoring: {self.events[-1].detail}")
        look.take(together(rows, *self.shares))

    def _do_without(self, actor: ActorHandle, look: Looking, kind: str, detail: str) -> None:
        """Note that clients are missing in what the history shows."""
        self.events += [Event(look.round, client, kind, f"while monitoring: {detail}") for client in actor.clients]
        look.failures += len(actor.clients)
