"""The Flower engine: clients are nodes of a federation, behind TLS; the server runs inside a Flower ServerApp.

Each node has its own data and nobody else's, so what the history shows is asked of the nodes too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Engine, Event
from fedrzo.engines.flower.post import Post
from fedrzo.engines.messages.codec import Message
from fedrzo.engines.messages.receive import FederationError, Intake, Rules
from fedrzo.engines.messages.session import MessageSession
from fedrzo.engines.messages.wire import WireError, pack, unpack
from fedrzo.errors import InputError
from fedrzo.methods.base import Method
from fedrzo.methods.guards import with_metrics
from fedrzo.problems.base import Problem
from fedrzo.problems.minimise import minimise
from fedrzo.problems.monitor import mean_gradient, mean_loss
from fedrzo.problems.questions import BY_SERVER
from fedrzo.support.pytrees import replaced

PyTree = Any
DENSE = 1000  # a lower level of up to so many variables is solved accurately for monitoring, by Newton's method
NEWTON = 20  # at most so many messages to solve a lower level for one row of the history
SETTLED = 1e-9  # a step of Newton's method as small as this, relative to y, ends it


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
        x = np.asarray(self.state.x)
        row = self._monitor(x, None) if self.y is None else self._monitor_lower(x, self.y)
        point = [jnp.asarray(part) for part in (x, self.y) if part is not None]
        row = with_metrics(row | self.problem.on_test(*point), self.method, self.state)  # test data are the server's
        return {name: np.atleast_1d(np.asarray(value)) for name, value in row.items()}

    def lower_solutions(self, points: np.ndarray) -> list[PyTree]:
        """Return what solves the lower level over the nodes' data, as it was found for the last row of the history."""
        return [None if self.y is None else self.problem.layouts["y0"].unravel(self.y)] * len(points)

    def _monitor_lower(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Find y(x) by Newton's method, one message a step, and return what is seen there."""
        for _ in range(NEWTON):
            row = self._monitor(x, y)
            gradient, hessian = row.pop("gradient", None), row.pop("hessian", None)
            if gradient is None or hessian is None:  # no derivatives, or too many: the method's own y must do
                y = np.asarray(getattr(self.state, "y", y)).reshape(-1, y.size).mean(axis=0)
                row = self._monitor(x, y)
                break
            better = newton(self.problem, x, y, gradient, hessian)
            if np.linalg.norm(better - y) <= SETTLED * (1 + np.linalg.norm(y)):
                break
            y = better
        self.y = y
        return row

    def _monitor(self, x: np.ndarray, y: np.ndarray | None) -> dict[str, np.ndarray]:
        rows: dict[int, dict[str, np.ndarray]] = {}
        wanted = describe(jax.eval_shape(monitor, self._untested, x, y))

        def take(client: int, payload: bytes) -> None:
            try:
                header, row = unpack(payload)
            except WireError as error:
                return fail(client, "malformed", str(error))
            if "error" in header:
                return fail(client, "raised", str(header["error"]))
            spent = row.pop("epsilon", None) if isinstance(row, dict) else None  # said by nodes that promise privacy
            if not isinstance(row, dict) or describe(row) != wanted:
                return fail(client, "shape", f"wanted {wanted}")
            if not all(np.isfinite(value).all() for value in row.values()):
                return fail(client, "not finite", "found in what it sees")
            rows[client] = row if spent is None else row | {"epsilon": np.asarray(spent, float)}
            return None

        def fail(client: int, kind: str, detail: str) -> None:
            self.events.append(Event(self.round, client, kind, f"while monitoring: {detail}"))

        here, _ = self.post.present(range(self.problem.clients))
        self.post.exchange("evaluate", pack({}, (x, y)), dict.fromkeys(here, b""), self.rules.timeout, take, fail)
        if len(rows) < self.rules.min_clients:
            raise FederationError(
                f"round {self.round}: {len(rows)} clients answered while monitoring, min_clients is {self.rules.min_clients}; "
                "bring clients back, then go on with resume=True where a checkpoint was kept"
            )
        weights = np.asarray(self.problem.client_weights)[list(rows)]
        found = {}
        for name in next(iter(rows.values())):
            values = np.stack([row[name] for row in rows.values() if name in row])
            worst = name in ("feasibility", "lower_error", "epsilon")
            found[name] = values.max(axis=0) if worst else np.tensordot(weights / weights.sum(), values, 1)
        return found


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
