"""A node's ledger: what its records have been charged for, on disk before anything leaves the node, and when it stops.

It belongs to the node's records, so that all experiments are charged to it, under whatever names a server runs them. Deleting it
is up to whoever answers for the records.
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedrzo.errors import FedrzoError, InputError
from fedrzo.privacy.accounting import Release, affordable, epsilon
from fedrzo.support.files import write_file

KEPT = 16  # replies that are stored, so that the same question gets the same answer; older ones are charged for anew
REPLY, STATE = "reply", "state"  # files of a stored reply: what was sent, and what the node remembered after it


class BudgetSpentError(FedrzoError):
    """A node's privacy budget does not allow what it is asked for."""


class Ledger:
    """The charges of one client's records.

    Args:
        folder: where the node keeps what it remembers.
        client: whose records.
        budget: the epsilon that all charges together stay within.
        delta: at which epsilon is worked out.
    """

    def __init__(self, folder: Path, client: int, budget: float, delta: float) -> None:
        self.path = folder / f"client-{client}.ledger.json"
        self.replies = folder / f"client-{client}.replies"
        self.lock = folder / f"client-{client}.ledger.lock"
        self.budget, self.delta = budget, delta
        self.charges: dict[str, dict[Release, int]] = {}  # by experiment
        self.left: tuple[dict[Release, int], Release, int] | None = None  # how many more of a release fit, after others

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the ledger: two processes of one node must not both find that there is something left."""
        with self.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.charges = self._read()
            yield

    @property
    def total(self) -> dict[Release, int]:
        """All releases so far."""
        found: dict[Release, int] = {}
        for charges in self.charges.values():
            for release, count in charges.items():
                found[release] = found.get(release, 0) + count
        return found

    @property
    def spent(self) -> float:
        """The epsilon of all releases so far."""
        return epsilon(self.total, self.delta)

    def charge(self, experiment: str, release: Release, count: int) -> None:
        """Charge for releases, or refuse them; written to the disk before this returns."""
        if type(count) is not int or count < 1:
            raise InputError(f"local_steps: found {count!r} releases; a round has at least one")
        if count > self._left(release, count):
            names = ", ".join(self.charges) or "nothing yet"
            raise BudgetSpentError(
                f"the privacy budget of this node, epsilon = {self.budget:g} at delta = {self.delta:g}, does not allow {count} "
                f"more releases; {self.spent:.4g} is spent ({names}): raise its setting privacy-epsilon, or leave the run"
            )
        own = self.charges.setdefault(experiment, {})
        own[release] = own.get(release, 0) + count
        entries = [
            {"experiment": name, "rate": release.rate, "noise": release.noise, "releases": count}
            for name, charges in self.charges.items()
            for release, count in charges.items()
        ]
        write_file(self.path, json.dumps({"charges": entries}, indent=1).encode())

    def _left(self, release: Release, count: int) -> int:
        """Return how many more of a release fit; worked out once, then counted down while nothing else is charged."""
        others = self.total
        made = others.pop(release, 0)
        known = self.left
        if known is None or known[:2] != (others, release) or known[2] < made + count:
            most = max(1, 2 * (made + count))
            self.left = others, release, affordable(self.budget, self.delta, release, most, others)
        assert self.left is not None
        return self.left[2] - made

    def stored(self, question: str) -> tuple[bytes, bytes] | None:
        """Return the reply to a question that was asked before, and what the node remembered after it."""
        folder = self.replies / question
        if not (folder / REPLY).exists():
            return None
        return (folder / REPLY).read_bytes(), (folder / STATE).read_bytes()

    def store(self, question: str, reply: bytes, state: bytes) -> None:
        """Store a reply before it leaves; forget the oldest."""
        folder = self.replies / question
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / STATE, state)
        write_file(folder / REPLY, reply)  # last: a reply is there whole or not at all
        kept = sorted(self.replies.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)
        for old in kept[:-KEPT]:
            shutil.rmtree(old)

    def _read(self) -> dict[str, dict[Release, int]]:
        if not self.path.exists():
            return {}
        try:
            found: dict[str, dict[Release, int]] = {}
            for entry in json.loads(self.path.read_bytes())["charges"]:
                own = found.setdefault(entry["experiment"], {})
                own[Release(float(entry["rate"]), float(entry["noise"]))] = int(entry["releases"])
            return found
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.path}: the ledger cannot be read ({type(error).__name__}); restore a copy: without it nothing is answered"
            ) from None


def question(run: Mapping[str, Any], common: bytes, own: bytes) -> str:
    """Return what tells a message from any other: the run's settings, and every byte."""
    same = {name: value for name, value in run.items() if name != "rounds"}  # a longer run asks the same questions first
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode())
    for part in (common, own):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
