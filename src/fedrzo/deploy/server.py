"""What runs in the middle, inside a Flower ServerApp: it waits for the nodes, walks the method, and keeps the result."""

import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedrzo.deploy import parts
from fedrzo.deploy.node import find_method
from fedrzo.engines.flower.engine import Flower
from fedrzo.engines.flower.post import Post
from fedrzo.engines.messages.receive import FederationError, Rules
from fedrzo.errors import FedrzoError, InputError
from fedrzo.problems.base import INSIDE, Problem
from fedrzo.results.result import Result
from fedrzo.running.checkpoint import NAME
from fedrzo.running.loggers import Row
from fedrzo.running.problem_file import UserFile
from fedrzo.running.run import run
from fedrzo.support.files import check_writable, write_file
from fedrzo.support.numbers import check_counts

OUTCOME = "outcome.json"  # how a run ended, for those who started it


@dataclasses.dataclass(frozen=True)
class Config:
    """A run's settings: `[tool.flwr.app.config]` of the app's pyproject.toml, or `flwr run --run-config`; zeros mean none."""

    experiment: str
    clients: int
    rounds: int
    seed: int
    eval_every: int
    clients_per_round: int
    timeout: float
    start_timeout: float
    min_clients: int
    max_reply_ratio: float
    out: str
    resume: bool

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Read Flower's run configuration."""
        names = {field.name: field.name.replace("_", "-") for field in dataclasses.fields(cls)}
        missing = [flower for flower in names.values() if flower not in given]
        if missing:
            raise InputError(f"run config: {', '.join(missing)} missing; see [tool.flwr.app.config] in pyproject.toml")
        config = cls(**{name: given[flower] for name, flower in names.items()})
        check_counts(clients=config.clients)
        return config

    @property
    def folder(self) -> Path:
        """Where the result and the checkpoint go."""
        return Path(self.out).expanduser() if self.out else Path("results") / self.experiment


def serve(grid: Any, run_config: Mapping[str, Any], problem: Path) -> Result:
    """Solve the problem of a file over the nodes of a grid; the result and the way there are in the run's folder."""
    config = Config.read(run_config)
    check_writable(config.folder, "out")
    try:
        result = _solve(grid, config, UserFile(str(problem)))
    except FedrzoError as error:
        print(f"fedrzo: {error}", flush=True)
        _conclude(config, str(error))
        raise
    result.save(config.folder)
    _conclude(config, None)
    return result


def _solve(grid: Any, config: Config, file: UserFile) -> Result:
    problem = parts.outline(file, config.clients)
    with problem.precision():
        method = parts.prepared(find_method(file), problem, file)
    shared = {"experiment": config.experiment, "seed": config.seed, "clients": config.clients, "rounds": config.rounds}
    post = Post(grid, {**shared, "participants": config.clients_per_round or config.clients})
    heard = _meet(post, config, problem)
    problem = parts.weighed(problem, method, heard)
    rules = Rules(config.timeout or None, config.min_clients, config.max_reply_ratio or None)
    engine = Flower(post, rules, heard)
    if not config.resume:  # it begins anew, as its nodes do
        (config.folder / "checkpoint" / NAME).unlink(missing_ok=True)
    return run(
        method, problem, config.rounds, config.seed, engine, config.clients_per_round or None, config.eval_every,
        progress=False, checkpoint=config.folder / "checkpoint", resume=config.resume, log=(_show,),
    )  # fmt: skip


def _meet(post: Post, config: Config, problem: Problem) -> list[dict[str, Any]]:
    """Wait for the nodes; return what each client said of itself, nothing where it did not come."""
    print(f"fedrzo: waiting for {config.clients} nodes", flush=True)
    heard = post.greet(config.start_timeout)
    by_client: list[dict[str, Any]] = [{}] * config.clients
    for said in heard:
        by_client[said["client"]] = said
        for line in said["warnings"]:
            warnings.warn(f"client {said['client']}: {line}", stacklevel=2)
        if said["distance"] > INSIDE * (1 + float(np.linalg.norm(problem.layout.plain(problem.x0)))):
            warnings.warn(
                f"x0: found a point {said['distance']:.3g} outside the set of client {said['client']}, which only that node "
                "knows; start at a point that lies in all sets",
                stacklevel=2,
            )
    if len(post.nodes) < config.clients:
        missing = sorted(set(range(config.clients)) - set(post.nodes))
        line = f"clients {missing} did not come within {config.start_timeout:g} seconds"
        if len(post.nodes) < max(1, config.min_clients):
            raise FederationError(f"{line}; {len(post.nodes)} did, min_clients is {config.min_clients}: start their nodes")
        warnings.warn(f"{line}; the run starts without them", stacklevel=2)
    return by_client


def _show(row: Row) -> None:
    shown = {name: row[name] for name in ("round", "loss", "feasibility", "epsilon", "seconds", "failures") if name in row}
    line = ", ".join(f"{name} {value:.6g}" for name, value in shown.items())
    print(f"fedrzo: {line}", flush=True)


def _conclude(config: Config, error: str | None) -> None:
    write_file(config.folder / OUTCOME, json.dumps({"error": error}).encode())
