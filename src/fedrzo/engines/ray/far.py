"""A run on a cluster whose driver has no samples: actors load those of their clients, and look at them for the history."""

from fedrzo.engines.messages.asking import AskingSession
from fedrzo.engines.messages.monitoring import Looking, Row, together
from fedrzo.engines.messages.receive import FederationError
from fedrzo.engines.ray.session import RESTARTS, RaySession
from fedrzo.errors import first_line


class FarSession(AskingSession, RaySession):
    """A run in progress of a problem with a `Loader`."""

    def ask(self, look: Looking) -> None:
        """Ask all actors; one that died is asked again, started anew."""
        rows: dict[int, Row] = {}
        deaths = 0
        while missing := [k for k in range(len(self.actors)) if k not in rows]:
            asked = {k: self.actors[k].handle.look.remote(look.question) for k in missing}
            for k, found in asked.items():
                try:
                    rows[k] = self.ray.get(found)
                except self.ray.exceptions.RayTaskError:
                    raise
                except self.ray.exceptions.RayError as error:
                    deaths += 1
                    if self.engine.on_failure == "raise" or deaths > RESTARTS:
                        said = f"round {self.round}: {self.actors[k].name} died while monitoring: {first_line(error)}"
                        raise FederationError(f"{said}; go on with resume=True where a checkpoint was kept") from error
                    self.restart(self.actors[k])
        look.take(together(rows, self.shares))
