"""A run in progress on a Ray cluster: how messages reach the actors, what comes back, and what is done when one dies."""

import functools
import sys
import time
from collections import Counter
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Event
from fedrzo.engines.messages.codec import Message, encode, encode_own
from fedrzo.engines.messages.node import Node
from fedrzo.engines.messages.receive import FederationError, Intake, Rules
from fedrzo.engines.messages.session import MessageSession
from fedrzo.engines.messages.wire import pack
from fedrzo.engines.ray.actor import SETTINGS, Worker, WorkerInit
from fedrzo.engines.ray.cluster import ActorHandle, connect, told_by
from fedrzo.engines.ray.placement import arranged
from fedrzo.engines.ray.share import Asked
from fedrzo.engines.ray.sums import Sum, SummedFederation, take_sum
from fedrzo.errors import InputError, first_line
from fedrzo.federation.catch_up import Missed, kinds
from fedrzo.federation.protocol import PyTree, private_key
from fedrzo.methods.base import Method, parts
from fedrzo.problems.base import Problem
from fedrzo.problems.loading import sketched
from fedrzo.support.extras import require
from fedrzo.support.pytrees import on_host

INLINE = 100_000  # bytes from which on a message goes through the object store, once for all actors
START_SECONDS = 300.0  # how long actors may take to start
RESTARTS = 3  # an actor that dies so often over one message will not get through it


class Wishes(Protocol):
    """What a user asks of the engine; see `fedrzo.engines.ray.engine.Ray`."""

    address: str | None
    on_failure: str
    rules: Rules
    actors: int | None
    options: dict[str, Any]
    platforms: str | None
    spare: list[Any] | None


class RaySession(MessageSession):
    """A run in progress on a cluster."""

    federation = SummedFederation

    def __init__(self, engine: Wishes, method: Method, problem: Problem, key: jax.Array, size: int | None) -> None:
        self.engine = engine
        self.connected = connect(engine.address)  # whether this run made the connection, and so ends it
        self.ray = require("ray", "ray")
        self.actors: list[ActorHandle] = []
        self.sums: list[Sum] = []  # what answered the last message, beside single replies
        try:
            super().__init__(method, jax.device_put(sketched(problem)), key, size, engine.rules)
            self.blank = on_host(method.init_memory(self.problem))
            self.tells = remembers(method, self.problem)
            self._start_actors(problem)
        except BaseException:
            self.close()
            raise

    def _start_actors(self, problem: Problem) -> None:
        """Start actors, each with the part of the problem that is its own, and wait until they are up."""
        count, options = arranged(self.ray, problem, self.engine.actors, self.engine.options, self.engine.platforms)
        worker = self.ray.remote(Worker).options(**options)
        settings = {name: getattr(jax.config, name) for name in SETTINGS}
        if self.engine.platforms is not None:
            settings["jax_platforms"] = self.engine.platforms
        make = functools.partial(worker.remote, settings, sys.path)
        for first in range(count):
            clients = tuple(range(first, problem.clients, count))
            init = self.ray.put(self._worker_init(problem, clients))
            self.actors.append(ActorHandle(self.ray, make, self.engine.spare, clients, init, self.tells))
        weights = (np.asarray(problem.weights_in(view)) for view in ("", "lower"))
        self.shares = [np.array([each[list(actor.clients)].sum() for actor in self.actors]) for each in weights]
        self._until_up()

    def _worker_init(self, problem: Problem, clients: tuple[int, ...]) -> bytes:
        root = self.roots.directions
        private = jax.vmap(lambda i: private_key(self.roots, i))(jnp.array(clients, jnp.int32))
        own = WorkerInit(
            self.method, problem.part(clients), clients, np.asarray(jax.random.key_data(root)),
            np.asarray(jax.random.key_data(private)),
            self.types, str(jax.random.key_impl(root)), jnp.result_type(float) == np.float64,
        )  # fmt: skip
        try:
            return self.ray.cloudpickle.dumps(own)
        except Exception as error:
            raise InputError(
                f"problem: it cannot be sent to an actor ({type(error).__name__}: {first_line(error)}); its functions may "
                "hold nothing that belongs to this process, such as open files or locks"
            ) from None

    def _until_up(self) -> None:
        ready = [actor.up for actor in self.actors]
        up, waiting = self.ray.wait(ready, num_returns=len(ready), timeout=START_SECONDS)
        if waiting:
            raise FederationError(
                f"actors: {len(waiting)} of {len(ready)} did not start within {START_SECONDS:g} s; ask for no more of them, "
                "and for no more processors each, than the cluster has"
            )
        try:
            self.ray.get(up)
        except self.ray.exceptions.RayError as error:
            raise FederationError(f"actors: one failed to start: {told_by(error)}") from error

    def exchange(self, message: Message, ids: list[int], intake: Intake) -> None:
        """Send a message to the actors of some clients, and take what they answer until all have, or time is up."""
        self.sums = []
        apart = not message.together or bool(kinds(intake.expected))
        wanted, everyone = set(ids), len(ids) == self.problem.clients
        asked = {actor: actor.clients if everyone else tuple(i for i in actor.clients if i in wanted) for actor in self.actors}
        asked = {actor: clients for actor, clients in asked.items() if clients}
        unsent, packed = set(asked), dict[bool, tuple[Any, int]]()
        deaths: Counter[ActorHandle] = Counter()
        until = self._deadline()
        while intake.waiting:
            for actor in [actor for actor in unsent if actor.call is None]:  # others are busy with an older message
                unsent.remove(actor)
                actor.send(*self._letter(message, actor, asked[actor], apart, packed))
            done = self._answered(list(asked), 1 if unsent else None, until)
            if not done:
                intake.give_up("timeout", f"no answer within {self.rules.timeout:g} s")
            for actor in done:
                try:
                    self._take(actor, intake)
                except self.ray.exceptions.RayTaskError:
                    raise  # a mistake in the engine itself: errors of clients arrive as replies
                except self.ray.exceptions.RayError as error:
                    deaths[actor] += 1
                    over_this = () if actor in unsent else asked[actor]  # else it died over an older message
                    if self._lost(actor, error, deaths[actor], intake, over_this):
                        unsent.add(actor)
                        until = self._deadline()
        # Bring what clients remember to this machine, in case an actor's is lost; where it is here already, nothing moves.
        if kept := list({ref for actor in self.actors for ref in actor.kept.values()}):
            self.ray.wait(kept, num_returns=len(kept), timeout=self.rules.timeout)

    def _letter(
        self, message: Message, actor: ActorHandle, clients: tuple[int, ...], apart: bool, packed: dict[bool, tuple[Any, int]]
    ) -> tuple[Any, Asked]:  # fmt: skip
        """Return what all actors are sent alike, packed once with points to keep and once without, and what this one is asked."""
        message = self.addressed(message._replace(keep=None), list(clients))
        keeps = message.keep is not None
        if keeps not in packed:
            common = encode(message)
            packed[keeps] = self.ray.put(common) if len(common) > INLINE else common, len(common)
        shared, size = packed[keeps]
        taken, above = self.accepted[message.view], self.accepted[""]
        versions = [(taken.get(i), above.get(i)) for i in clients] if self.tells else None
        own = None
        if any(isinstance(value, Missed) for value in (*message.arrays, *(message.keep.travels if message.keep else ()))):
            own = {i: encode_own(message, i, taken.get(i), above.get(i)) for i in clients}
        self.wire["wire_download_bytes"] += size + sum(map(len, (own or {}).values()))
        return shared, Asked(None if clients == actor.clients else clients, apart, versions, own)

    def _take(self, actor: ActorHandle, intake: Intake) -> None:
        """Take what an actor answered, to this message or to an older one."""
        total, summed, replies = actor.collect()
        for client, reply in replies.items():
            intake.receive(client, reply)
        if total is not None and (found := take_sum(intake, summed, total)) is not None:
            self.sums.append(found)

    def _deadline(self) -> float | None:
        return None if self.rules.timeout is None else time.monotonic() + self.rules.timeout

    def _answered(self, actors: list[ActorHandle], count: int | None, until: float | None) -> list[ActorHandle]:
        """Return so many actors that have answered (all by default), this message or an older one; fewer once time is up."""
        busy = {actor.call.answers: actor for actor in actors if actor.call is not None}
        left = None if until is None else max(0.0, until - time.monotonic())
        done, _ = self.ray.wait(list(busy), num_returns=count or len(busy), timeout=left)
        return [busy[ref] for ref in done]

    def _lost(self, actor: ActorHandle, error: Exception, deaths: int, intake: Intake, asked: tuple[int, ...]) -> bool:
        """Do what is to be done when an actor died; return whether its clients are to be asked again."""
        r, cause = intake.message.path[0], first_line(error)
        if self.engine.on_failure == "raise" or deaths > RESTARTS:
            often = "" if self.engine.on_failure == "raise" else f" {deaths} times over one message"
            raise FederationError(
                f"round {r}: {actor.name} died{often}: {cause}; go on with resume=True where a checkpoint was kept"
            ) from error
        self.restart(actor)
        if self.engine.on_failure == "drop":
            for client in intake.waiting.intersection(asked):
                intake.fail(client, "killed", f"its actor died: {cause}")
            return False
        self.events += [Event(r, client, "killed", f"its actor died and was restarted: {cause}") for client in asked]
        return True

    def restart(self, actor: ActorHandle) -> None:
        """Start an actor anew, on any node that has room for it, and wait until it is up, or dead again."""
        actor.start()
        self._has.difference_update(actor.clients)  # points that they kept are gone, and sent again
        if not self.ray.wait([actor.up], timeout=START_SECONDS)[0]:
            raise FederationError(
                f"round {self.round}: {actor.name} found no place within {START_SECONDS:g} s; add a node, then go on with "
                "resume=True where a checkpoint was kept"
            )
        try:
            self.ray.get(actor.up)
        except self.ray.exceptions.RayTaskError as error:
            raise FederationError(f"round {self.round}: {actor.name} failed to start anew: {told_by(error)}") from error
        except self.ray.exceptions.RayError:
            return  # it died again, which the next message to it will say

    def memories(self) -> list[PyTree] | None:
        """Return what each client remembers of the replies that were taken."""
        found = dict.fromkeys(range(self.problem.clients), self.blank)
        for actor in self.actors if jax.tree.leaves(self.blank) else ():
            for i, stored in actor.remembered().items():
                node = Node(self.method, self.problem, i, i, self.roots.directions, self.roots.sampling)
                node.load(stored)
                found[i] = node.memory[""].at(self.accepted[""].get(i), self.round)
        return list(found.values())

    def set_memories(self, memories: list[PyTree]) -> None:
        """Have clients remember what they did when a checkpoint was stored."""
        for actor in self.actors if self.tells else ():
            actor.remember({i: pack({}, memories[i]) for i in actor.clients})

    def close(self) -> None:
        """End the actors, and Ray too if this run brought it up."""
        for actor in self.actors:
            actor.stop()
        if self.connected:
            self.ray.shutdown()


def remembers(method: Method, problem: Problem) -> bool:
    """Tell whether clients remember anything, at either level: what dies with an actor unless it is handed over."""
    upper, *lower = parts(method)
    below = problem.hierarchical and any(type(part).init_memory is not Method.init_memory for part in lower)
    return below or bool(jax.tree.leaves(upper.init_memory(problem)))
