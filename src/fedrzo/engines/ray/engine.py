"""The engine for research that outgrows one machine: clients live in the actors of a Ray cluster.

An actor holds the data, sets, compiled functions and memories of its clients, and nothing of the others'. What all clients are
sent alike goes through the object store once. With every reply an actor hands over what its clients remember, so that another
can go on where it died. Functions travel by pickle, which is Ray's habit on a cluster whose machines trust each other; between
silos that do not, use the flower engine.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.engines.base import Engine, Event
from fedrzo.engines.messages.codec import Message
from fedrzo.engines.messages.node import Node
from fedrzo.engines.messages.receive import FederationError, Intake, Rules
from fedrzo.engines.messages.session import MessageSession
from fedrzo.engines.messages.wire import pack
from fedrzo.engines.ray.actor import SETTINGS, Worker, WorkerInit
from fedrzo.engines.ray.cluster import ActorHandle, connect
from fedrzo.errors import InputError, first_line
from fedrzo.federation.protocol import PyTree, private_key
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.support.extras import require

ON_FAILURE = ("drop", "restart", "raise")
INLINE = 100_000  # bytes from which on a message goes through the object store, once for all actors
START_SECONDS = 300.0  # how long actors may take to start
RESTARTS = 3  # an actor that dies so often over one message will not get through it


class Ray(Engine):
    """Clients in the actors of a Ray cluster.

    Args:
        address: of a running cluster, such as `"10.0.0.1:6379"` or `"auto"`. If None, the cluster that this process is
            connected to; if there is none, one on this machine, on its loopback address, that ends with the run.
        on_failure: when an actor dies: `"drop"` goes on without its clients' replies to that message, `"restart"` has another
            actor answer it just as the lost one would have, `"raise"` stops the run. In all but the last the clients come
            back with all that they remember.
        timeout: seconds to wait for the replies to one message; None waits for as long as actors live. The first message
            takes longer, since clients compile.
        min_clients: a call that fewer answer stops the run.
        max_reply_ratio: refuse a reply whose norm is more than so many times the median of all; None refuses none.
        actors: how many; clients are dealt out to them in turn. By default one per client, but not more than the cluster has
            processors.
        options: of Ray, for each actor, such as `{"num_gpus": 1}`.
        platforms: JAX's platform in the actors, such as `"cpu"`; the driver's if not given.
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        *,
        on_failure: str = "drop",
        timeout: float | None = None,
        min_clients: int = 1,
        max_reply_ratio: float | None = None,
        actors: int | None = None,
        options: dict[str, Any] | None = None,
        platforms: str | None = None,
    ) -> None:
        if on_failure not in ON_FAILURE:
            raise InputError(f"on_failure: found {on_failure!r}; pass one of {', '.join(map(repr, ON_FAILURE))}")
        if actors is not None and (isinstance(actors, bool) or not isinstance(actors, int) or actors < 1):
            raise InputError(f"actors: found {actors!r}; pass a whole number of at least 1, or None")
        self.address = address
        self.on_failure = on_failure
        self.rules = Rules(timeout, min_clients, max_reply_ratio)
        self.actors = actors
        self.options = {"num_cpus": 0, "scheduling_strategy": "SPREAD", **(options or {})}
        self.platforms = platforms
        self.spare: list[Any] | None = None
        self._connected = False

    def __enter__(self) -> Ray:
        """Keep the cluster and the actors for several runs: starting them takes seconds."""
        self._connected, self.spare = connect(self.address), []
        return self

    def __exit__(self, *error: object) -> None:
        ray = require("ray", "ray")
        for handle in self.spare or ():
            ray.kill(handle)
        self.spare = None
        if self._connected:
            ray.shutdown()

    def start(self, methods: list[Method], problem: Problem, keys: list[jax.Array], clients_per_round: int | None) -> RaySession:
        """Prepare a run: connect, and deal out the clients."""
        return RaySession(self, self.only(methods), problem, keys[0], clients_per_round)


class RaySession(MessageSession):
    """A run in progress on a cluster."""

    def __init__(self, engine: Ray, method: Method, problem: Problem, key: jax.Array, size: int | None) -> None:
        self.engine = engine
        self.connected = connect(engine.address)  # whether this run made the connection, and so ends it
        self.ray = require("ray", "ray")
        self.actors: list[ActorHandle] = []
        try:
            super().__init__(method, jax.device_put(problem), key, size, engine.rules)
            self._start_actors(problem)
        except BaseException:
            self.close()
            raise

    def _start_actors(self, problem: Problem) -> None:
        """Start actors, each with the part of the problem that is its own, and wait until they are up."""
        worker = self.ray.remote(Worker).options(**self.engine.options)
        processors = int(self.ray.cluster_resources().get("CPU", 1))
        count = min(problem.clients, self.engine.actors or max(1, processors))
        settings = {name: getattr(jax.config, name) for name in SETTINGS}
        if self.engine.platforms is not None:
            settings["jax_platforms"] = self.engine.platforms
        make = functools.partial(worker.remote, settings, sys.path)
        tells = problem.hierarchical or bool(jax.tree.leaves(self.method.init_memory(problem)))
        for first in range(count):
            clients = tuple(range(first, problem.clients, count))
            init = self.ray.put(self._worker_init(problem, clients))
            self.actors.append(ActorHandle(self.ray, make, self.engine.spare, clients, init, tells))
        self._until_up()

    def _worker_init(self, problem: Problem, clients: tuple[int, ...]) -> bytes:
        root = self.roots.directions
        private = np.stack([jax.random.key_data(private_key(self.roots, i)) for i in clients])
        own = WorkerInit(
            self.method, problem.part(clients), clients, np.asarray(jax.random.key_data(root)), private,
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
            raise FederationError(f"actors: one failed to start: {str(error).strip().splitlines()[-1]}") from error

    def exchange(self, message: Message, ids: list[int], intake: Intake) -> None:
        """Send a message to the actors of some clients, and take what they answer until all have, or time is up."""
        common, own = self.payloads(message, ids)
        shared = self.ray.put(common) if len(common) > INLINE else common
        asked = {actor: {i: own[i] for i in actor.clients if i in own} for actor in self.actors}
        asked = {actor: payloads for actor, payloads in asked.items() if payloads}
        unsent = dict(asked)
        deaths: Counter[ActorHandle] = Counter()
        until = self._deadline()
        while intake.waiting:
            free = [actor for actor in unsent if actor.call is None]  # others are still busy with an older message
            for actor in free:
                actor.send(shared, unsent.pop(actor))
            done = self._answered(list(asked), 1 if unsent else None, until)
            if not done:
                intake.give_up("timeout", f"no answer within {self.rules.timeout:g} s")
            for actor in done:
                try:
                    for client, reply in actor.collect().items():
                        intake.receive(client, reply)
                except self.ray.exceptions.RayTaskError:
                    raise  # a mistake in the engine itself: errors of clients arrive as replies
                except self.ray.exceptions.RayError as error:
                    deaths[actor] += 1
                    if self._lost(actor, error, deaths[actor], intake, asked[actor]):
                        unsent[actor] = asked[actor]
                        until = self._deadline()
        # Bring what clients remember to this machine, in case an actor's is lost; where it is here already, nothing moves.
        if kept := list({ref for actor in self.actors for ref in actor.kept.values()}):
            self.ray.wait(kept, num_returns=len(kept), timeout=self.rules.timeout)

    def _deadline(self) -> float | None:
        return None if self.rules.timeout is None else time.monotonic() + self.rules.timeout

    def _answered(self, actors: list[ActorHandle], count: int | None, until: float | None) -> list[ActorHandle]:
        """Return so many actors that have answered (all by default), this message or an older one; fewer once time is up."""
        busy = {actor.call.replies: actor for actor in actors if actor.call is not None}
        left = None if until is None else max(0.0, until - time.monotonic())
        done, _ = self.ray.wait(list(busy), num_returns=count or len(busy), timeout=left)
        return [busy[ref] for ref in done]

    def _lost(self, actor: ActorHandle, error: Exception, deaths: int, intake: Intake, asked: dict[int, bytes]) -> bool:
        """Do what is to be done when an actor died; return whether its clients are to be asked again."""
        r, cause = intake.message.path[0], first_line(error)
        who = f"the actor of client{'s' * (len(actor.clients) > 1)} {', '.join(map(str, actor.clients))}"
        if self.engine.on_failure == "raise" or deaths > RESTARTS:
            often = "" if self.engine.on_failure == "raise" else f" {deaths} times over one message"
            raise FederationError(
                f"round {r}: {who} died{often}: {cause}; go on with resume=True where a checkpoint was kept"
            ) from error
        actor.start()
        if self.engine.on_failure == "drop":
            for client in intake.waiting.intersection(asked):
                intake.fail(client, "killed", f"its actor died: {cause}")
            return False
        self.events += [Event(r, client, "killed", f"its actor died and was restarted: {cause}") for client in asked]
        return True

    def memories(self) -> list[PyTree] | None:
        """Return what each client remembers of the replies that were taken."""
        found = {}
        for actor in self.actors:
            kept = actor.remembered()
            for i in actor.clients:
                node = Node(self.method, self.problem, i, i, self.roots.directions, self.roots.sampling)
                if i in kept:
                    node.load(kept[i])
                found[i] = node.memory[""].at(self.accepted[""].get(i), self.round)
        return [found[i] for i in range(self.problem.clients)]

    def set_memories(self, memories: list[PyTree]) -> None:
        """Have clients remember what they did when a checkpoint was stored."""
        for actor in self.actors:
            actor.remember({i: pack({}, memories[i]) for i in actor.clients})

    def close(self) -> None:
        """End the actors, and Ray too if this run brought it up."""
        for actor in self.actors:
            actor.stop()
        if self.connected:
            self.ray.shutdown()
