"""Sixty rounds on a real federation while each of its processes is killed once: nothing is lost, and nothing grows."""

import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import inprocess
import numpy as np
import psutil
import pytest
from test_real import app, flat

import fedrzo as fz
from fedrzo.deploy.local import LocalFederation
from fedrzo.deploy.processes import Processes
from fedrzo.errors import FedrzoError
from fedrzo.running.checkpoint import NAME, Checkpoint

NODES, ROUNDS = 2, 60
VICTIMS = ("fedrzo", "flwr-clientapp", "flower-supernode", "flwr-serverapp", "flower-superlink")  # fedrzo: a node's worker
FIRST, LAST = 4, 30  # the rounds between which processes are killed; the rest shows whether anything grows
EVERY = 2.0  # seconds between two samples
SMALL = 0.02  # a process that grows by less than this share of itself is taken to be flat
TWICE = 3.0  # seconds after which a supervisor starts a process anew


class Sample(NamedTuple):
    process: tuple[str, int]  # its command and its number
    round: int  # of the checkpoint
    resident: float  # megabytes
    files: int  # that it holds open, sockets among them


class Supervised(Processes):
    """Processes that are looked at and killed by a plan, and started anew as a supervisor does; all between two looks."""

    def __init__(self, federation: "Soaked", plan: dict[str, int], dice: random.Random) -> None:
        super().__init__(federation.work / "logs")
        self.federation, self.plan, self.dice = federation, plan, dice
        self.samples: list[Sample] = []
        self.sizes: list[tuple[int, int]] = []  # of the checkpoint: round and bytes
        self.looked, self.started = 0.0, dict.fromkeys(range(NODES), 0.0)

    def check(self, but: str | None = None) -> None:
        for process in self.running.values():
            self._look(process)
        ended = [name for name, process in self.running.items() if process.poll() is not None and name != but]
        if "superlink" in ended:
            raise FedrzoError("the SuperLink is gone")
        for kind, i in ((kind, int(i)) for kind, _, i in (name.partition("-") for name in ended) if i):
            if time.monotonic() > self.started[i] + TWICE:
                self.started[i] = time.monotonic()
                self.federation.start_worker(i) if kind == "worker" else self.federation.start_node(i)
        if time.monotonic() > self.looked + EVERY:
            self.looked = time.monotonic()
            self.sample()

    def sample(self) -> None:
        """Note what every process takes, and end the next one of the plan if it is its turn."""
        path = self.federation.out / "checkpoint" / NAME
        stored = Checkpoint.read(path.parent)
        at = 0 if stored is None else stored.round
        if stored is not None:
            self.sizes.append((at, path.stat().st_size))
        for member in psutil.Process().children(recursive=True):
            try:
                name = Path(member.cmdline()[1]).name
                self.samples.append(Sample((name, member.pid), at, member.memory_info().rss / 1e6, member.num_fds()))
            except (psutil.Error, IndexError):  # it has just ended, or begun
                continue
            if name in self.plan and at >= self.plan[name] and self.dice.random() < 0.5:  # now, or at one of the next looks
                member.kill()
                del self.plan[name]
                print(f"killed {name} after round {at}", flush=True)


class Soaked(LocalFederation):
    """A federation whose processes are supervised."""

    def __init__(self, work: Path, out: Path, plan: dict[str, int], dice: random.Random) -> None:
        super().__init__(NODES, work, [{"shared-sampling": True}] * NODES)
        self.out = out
        self.processes: Supervised = Supervised(self, plan, dice)


def soak(folder: Path, rounds: int, plan: dict[str, int]) -> tuple[fz.Result, list[str], list[Supervised]]:
    """Run to the end, however often; also returns why it was begun anew, and what was noted on the way."""
    config: dict[str, Any] = {
        "out": str(folder / "out"), "rounds": rounds, "eval-every": rounds, "timeout": 30.0, "min-clients": NODES,
        "start-timeout": 240.0,
    }  # fmt: skip
    scaffold, dice = app("nn", folder), random.Random(1)
    stops: list[str] = []
    notes: list[Supervised] = []
    while True:
        with Soaked(folder / "work", folder / "out", plan, dice) as federation:
            notes.append(federation.processes)
            while True:
                try:
                    return federation.run(scaffold, config, print), stops, notes
                except FedrzoError as error:
                    print(f"stopped: {error}", flush=True)
                    stops.append(str(error))
                    assert len(stops) < 10, stops
                    config["resume"] = True
                if federation.processes.running["superlink"].poll() is not None:
                    break


def growth(values: list[float]) -> tuple[float, float]:
    """Return how much a line through values rises from end to end, and twice the standard error of that rise."""
    x, y = np.linspace(-0.5, 0.5, len(values)), np.array(values)
    slope = x @ y / (x @ x)
    rest = y - y.mean() - slope * x
    return slope, 2 * float(np.sqrt(rest @ rest / (len(values) - 2) / (x @ x)))


def grown(samples: list[Sample], field: str, rounds: int) -> list[tuple[str, float, float, float]]:
    """Return, of each process that lived for half of the rounds, its name, its size, how much that grew, and the noise of it.

    The median of each round is taken, since samples within a round are alike; the first third of a life is for warming up.
    """
    found = []
    for process in dict.fromkeys(sample.process for sample in samples):
        by_round: dict[int, list[float]] = {}
        for sample in samples:
            if sample.process == process:
                by_round.setdefault(sample.round, []).append(getattr(sample, field))
        medians = [float(np.median(values)) for _, values in sorted(by_round.items())]
        if len(medians) >= rounds / 3:
            late = medians[len(medians) // 3 :]
            found.append((process[0], float(np.mean(late)), *growth(late)))
    return found


def is_flat(size: float, rise: float, noise: float) -> bool:
    """Tell whether a rise is within its own noise, or too small to matter in a run a hundred times as long."""
    return rise <= max(noise, SMALL * size)


@pytest.mark.soak
def test_sixty_rounds_while_every_process_is_killed_once(tmp_path, capsys):
    began = time.monotonic()
    plan = dict(zip(VICTIMS, random.Random(0).sample(range(FIRST, LAST), len(VICTIMS)), strict=True))
    killed = ", ".join(f"{name} in round {at}" for name, at in plan.items())
    found, stops, notes = soak(tmp_path, ROUNDS, plan)
    seconds = time.monotonic() - began
    assert plan == {}, "not all were killed"
    module = inprocess.load("nn")
    wanted = fz.run(module.method, module.whole(NODES), ROUNDS, progress=False)
    np.testing.assert_allclose(flat(found), flat(wanted), rtol=1e-9, atol=1e-12)
    sizes = dict(size for note in notes for size in note.sizes if FIRST < size[0] < ROUNDS)
    samples = [sample for note in notes for sample in note.samples]
    lines = [f"| rounds on Flower, {NODES} nodes | {ROUNDS} | nothing: x differs from the simulation's by "
             f"{np.abs(flat(found) - flat(wanted)).max():.0e} | {seconds:.0f} s |",
             f"| killed (SIGKILL): {killed} | 1 each | nothing: gone on with {len(stops)} times from the checkpoint | in there |",
             f"| checkpoints, one a round | | {min(sizes.values())} to {max(sizes.values())} bytes | in there |", "",
             "| process | | size | grown | noise | flat |", "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    growing = []
    for field in ("resident", "files"):
        for name, size, rise, noise in grown(samples, field, ROUNDS):
            lines.append(f"| {name} | {field} | {size:.1f} | {rise:+.2f} | {noise:.2f} | {is_flat(size, rise, noise)} |")
            growing += [] if is_flat(size, rise, noise) else [lines[-1]]
    with capsys.disabled():
        print("\n| what was done | how often | what was lost | how long it took |\n| --- | --- | --- | --- |")
        print("\n".join(lines))
    assert max(sizes.values()) - min(sizes.values()) < 200  # digits of numbers in the header
    assert growing == []
