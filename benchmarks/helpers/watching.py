"""The processes of a long run, watched from /proc: their memory and open files, and whether these grow."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

PAGE = os.sysconf("SC_PAGE_SIZE")
NOISE = 3.0  # a growth within so many standard deviations of the readings around their line is noise,
LEAST = 4 << 20  # and so is one of no more bytes than this over the whole run: an allocator takes memory in such pieces
FILES = 4  # open files that a process may have more at the end: connections come and go
BEGUN = 0.5  # of a process's readings belong to its start, when it still compiles and fills its caches
READINGS = 12  # with fewer of them nothing is said about a process


class Reading(NamedTuple):
    """A process at one moment."""

    round: int
    bytes: int
    files: int


class Growth(NamedTuple):
    """How a process grew over the rounds that it was watched."""

    name: str
    rounds: int
    megabytes: float  # at the end
    grown: float  # megabytes over all its rounds, by the line through its readings
    noise: float  # megabytes, the standard deviation of the readings around that line
    files: int  # more than at the beginning

    @property
    def flat(self) -> bool:
        """Whether neither memory nor open files grew beyond noise."""
        return self.grown <= max(NOISE * self.noise, LEAST / 2**20) and self.files <= FILES


def descendants() -> dict[int, str]:
    """Return this process and all below it by their numbers, with their names."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "stat").read_text()
            names[int(entry.name)] = text.partition("(")[2].rpartition(")")[0]
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    found, before = {os.getpid()}, set[int]()
    while found != before:
        before = set(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return {pid: "driver" if pid == os.getpid() else names[pid] for pid in found if pid in names}


class Watch:
    """Readings of all processes of a run."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.readings: dict[int, list[Reading]] = {}

    def look(self, round: int) -> None:
        """Take a reading of each process that is there."""
        for pid, name in descendants().items():
            with contextlib.suppress(OSError):
                resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
                files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                if resident == 0:  # it is dead, and its parent has not noticed
                    continue
                self.names[pid] = name
                # Shared pages are those of Ray's object store, which every process that looked into it counts as its own.
                self.readings.setdefault(pid, []).append(Reading(round, (resident - shared) * PAGE, files))

    def growth(self) -> list[Growth]:
        """Return how each process grew that was watched for long enough."""
        found = [grown(self.names[pid], readings) for pid, readings in sorted(self.readings.items())]
        return [each for each in found if each is not None]


def grown(name: str, readings: list[Reading]) -> Growth | None:
    """Fit a line through a process's readings, without those of its start."""
    kept = readings[int(BEGUN * len(readings)) :]
    if len(kept) < READINGS:
        return None
    rounds, memory = np.array([r.round for r in kept], float), np.array([r.bytes for r in kept]) / 2**20
    slope, start = np.polyfit(rounds, memory, 1)
    noise = float(np.std(memory - slope * rounds - start))
    span = rounds[-1] - rounds[0]
    return Growth(name, int(span), float(memory[-1]), float(slope * span), noise, kept[-1].files - kept[0].files)
