"""A stand-in for Flower alone: messages go to the nodes' side and back by function calls. All that is ours is the real thing."""

import dataclasses
import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from flwr.supercore.task_identity import TaskIdentity

from fedrzo.deploy.node import NodeServer
from fedrzo.deploy.server import Config, serve
from fedrzo.running.problem_file import UserFile

PROBLEMS = Path(__file__).with_name("problems")


@dataclasses.dataclass
class Silo:
    """A node: its settings, and the process that answers; a fresh one for every message where `cold`."""

    settings: dict[str, Any]
    problem: Path
    cold: bool = False
    alive: bool = True
    online_until: float = 0.0
    server: NodeServer = dataclasses.field(default_factory=NodeServer)

    def answer(self, asked: Any) -> bytes:
        if self.cold:
            self.server = NodeServer()
        request = {"run": json.loads(asked["run"]), "settings": self.settings, "problem": str(self.problem)}
        return self.server.answer(json.dumps(request).encode(), asked["common"], asked["own"])


class InProcessGrid:
    """The calls of Flower's grid that the engine makes."""

    def __init__(self, silos: list[Silo]) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # what Flower sets in a ServerApp's process
        self.silos = {10 + i: silo for i, silo in enumerate(silos)}
        self.replies: dict[str, Any] = {}
        self.numbers = itertools.count()
        self.before = lambda kind, number: None  # called with each part of a message before it is brought

    def get_node_ids(self) -> list[int]:
        return [node for node, silo in self.silos.items() if silo.alive]

    def get_nodes(self) -> list[Any]:
        for silo in self.silos.values():
            silo.online_until = time.monotonic() if silo.alive else silo.online_until
        return [SimpleNamespace(node_id=node, online_until=silo.online_until) for node, silo in self.silos.items()]

    def push_messages(self, messages: list[Any]) -> list[str]:
        ids = []
        for message in messages:
            number = next(self.numbers)
            asked = message.content["fedrzo"]
            for kind in json.loads(asked["run"])["kind"].split():
                self.before(kind, number)
            silo = self.silos[message.metadata.dst_node_id]
            ids.append(str(number))
            if silo.alive:
                self.replies[str(number)] = silo.answer(asked)
        return ids

    def pull_messages(self, ids: list[str]) -> list[Any]:
        return [
            SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=i), has_error=lambda: False,
                content={"fedrzo": {"reply": self.replies.pop(i)}},
            )
            for i in ids if i in self.replies
        ]  # fmt: skip


def config(out: Path, **changes: Any) -> dict[str, Any]:
    """Return a run configuration as Flower hands it over."""
    given = {
        "experiment": "test", "clients": 3, "rounds": 3, "seed": 0, "eval_every": 1, "clients_per_round": 0, "timeout": 5.0,
        "start_timeout": 30.0, "min_clients": 1, "max_reply_ratio": 0.0, "out": str(out), "resume": False,
    }  # fmt: skip
    assert set(given) == {field.name for field in dataclasses.fields(Config)}
    return {name.replace("_", "-"): value for name, value in (given | changes).items()}


def silos(name: str, folder: Path, clients: int = 3, **more: Any) -> list[Silo]:
    """Return nodes with folders of their own, whose sampling is the simulation's."""
    problem = PROBLEMS / f"{name}.py"
    settings = [{"client-id": i, "state": str(folder / f"node-{i}"), "shared-sampling": True} for i in range(clients)]
    return [Silo(one, problem, **more) for one in settings]


def run(name: str, folder: Path, grid: InProcessGrid | None = None, **changes: Any) -> Any:
    """Solve one of the problems over nodes in this process."""
    grid = grid or InProcessGrid(silos(name, folder))
    return serve(grid, config(folder / "out", **changes), PROBLEMS / f"{name}.py")


def load(name: str) -> Any:
    """Return what a problem's file defines."""
    return UserFile(str(PROBLEMS / f"{name}.py")).module


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that ended and that nobody asked about does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
