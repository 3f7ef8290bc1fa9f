"""The engine for research that outgrows one machine: clients live in the actors of a Ray cluster.

An actor holds the data, sets, compiled functions and memories of its clients, and nothing of the others'. What all clients are
sent alike goes through the object store once. With every reply an actor hands over what its clients remember, so that another
can go on where it died. Functions travel by pickle, which is Ray's habit on a cluster whose machines trust each other; between
silos that do not, use the flower engine.
"""

from __future__ import annotations

from typing import Any

import jax

from fedrzo.engines.base import Engine
from fedrzo.engines.messages.receive import Rules
from fedrzo.engines.ray.cluster import connect
from fedrzo.engines.ray.far import FarSession
from fedrzo.engines.ray.session import RaySession
from fedrzo.errors import InputError
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.loading import loads
from fedrzo.support.extras import require

ON_FAILURE = ("drop", "restart", "raise")


class Ray(Engine):
    """Clients in the actors of a Ray cluster.

    Args:
        address: of a running cluster, such as `"10.0.0.1:6379"`, `"ray://10.0.0.1:10001"` or `"auto"`. If None, the cluster
            that this process is connected to; if there is none, one on this machine, on its loopback address, that ends with
            the run.
        on_failure: when an actor dies: `"drop"` goes on without its clients' replies to that message, `"restart"` has another
            actor answer it just as the lost one would have, `"raise"` stops the run. In all but the last the clients come
            back with all that they remember.
        timeout: seconds to wait for the replies to one message; None waits for as long as actors live. The first message
            takes longer, since clients compile.
        min_clients: a call that fewer answer stops the run.
        max_reply_ratio: refuse a reply whose norm is more than so many times the median of all; None refuses none.
        actors: how many; clients are dealt out to them in turn. By default one per client, but not more than the cluster has
            processors, or GPUs where it uses them.
        options: of Ray, for each actor, such as `{"num_gpus": 0.5}`. Where not given, `memory` is an estimate of what its
            clients' data take, and `num_gpus`, if JAX uses GPUs and the cluster has some, is 1, or a share where actors are more.
        platforms: JAX's platform in the actors, such as `"cpu"`; the driver's if not given.
    """

    name = "ray"
    loads_in_place = True

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
        # Without task events: Ray would keep a note of every message, some kilobytes each, for a dashboard.
        self.options = {"num_cpus": 0, "scheduling_strategy": "SPREAD", "enable_task_events": False, **(options or {})}
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
        session = FarSession if loads(problem) else RaySession
        return session(self, self.only(methods), problem, keys[0], clients_per_round)
