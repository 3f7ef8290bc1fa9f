"""What a run's privacy comes to: how much noise each client adds, what every round costs, and when the budget is spent."""

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from fedrzo.engines.simulation.rounds import cohort
from fedrzo.errors import InputError, warn
from fedrzo.federation.client import FULL
from fedrzo.methods.base import at
from fedrzo.privacy.accounting import Release, epsilon, noise_for
from fedrzo.privacy.privacy import Calibrated, Privacy, thresholds
from fedrzo.problems.base import Problem

CLASSES = 8  # sampling rates that are told apart; more are rounded up, an eighth of an octave at most
PER_OCTAVE = 8  # numbers of releases, from one to twice that, whose epsilon is worked out; others are rounded up.
AT_MOST = 24  # For several classes of clients together, so that a history does not take longer than its run


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """The releases of a run. Clients with the same sampling rate make a class, and add the same noise."""

    privacy: Privacy
    sizes: np.ndarray  # of each client
    rates: np.ndarray  # of each client
    expected: np.ndarray  # records in a sample, of each client
    classes: np.ndarray  # of each client, its place among
    releases: list[Release]  # those of the classes, and
    spent: np.ndarray  # how many releases a client of each class has made after each round, at most: rounds by classes

    @classmethod
    def of(
        cls, method: Any, problem: Problem, rounds: int, key: jax.Array, size: int | None, sizes: Sequence[int] | None = None,
        noises: Sequence[float] | None = None, only: int | None = None,
    ) -> Self:  # fmt: skip
        """Find the noise for a run of so many rounds, with so many clients in each.

        `sizes` are those of the clients where they differ from what this process has, as in a deployment, where rates are told
        apart however many there are; `noises` are theirs where they are known; `only` one client is planned for where a node
        does it by itself.
        """
        data: Any = problem.data
        privacy, records = method.privacy, np.asarray(data.sizes if sizes is None else sizes)
        expected = records if method.batch_size == FULL else np.minimum(records, int(method.batch_size))
        rates = expected / records
        few = len(set(rates)) <= CLASSES or sizes is not None
        levels = rates if few else np.minimum(1.0, 2.0 ** (np.ceil(8 * np.log2(rates)) / 8))
        known = [privacy.noise or 0.0] * len(rates) if noises is None else noises  # zero where it is to be found
        found, classes = np.unique(np.stack([levels, known], axis=1), axis=0, return_inverse=True)
        classes = classes.reshape(-1) if only is None else np.where(np.arange(len(rates)) == only, 0, -1)
        counts = _counts(method, problem, rounds, key, size, classes, len(found))
        releases = []
        for (rate, noise), count in zip(found.tolist(), counts[-1].tolist(), strict=True):
            wanted = noise or noise_for(privacy.epsilon, privacy.delta, rate, max(1, count))
            releases.append(Release(rate, wanted))
        return cls(privacy, records, rates, expected, classes, releases, counts)

    @property
    def rounds(self) -> int:
        """How many rounds the budget allows, up to those that are wanted."""
        wanted = len(self.spent) - 1
        if self.privacy.epsilon is None or self.epsilon(wanted, exact=True) <= self.privacy.epsilon:
            return wanted
        low, high = 0, wanted
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle, exact=True) <= self.privacy.epsilon else (low, middle)
        return low

    def epsilon(self, round: int, exact: bool = False) -> float:
        """Return the epsilon of the worst client after a round; if not exact, rounded up, so that few have to be worked out."""
        counts, last = self.spent[round], self.spent[-1]
        if not exact:
            counts = np.minimum(
                [_rounded_up(int(count), max(1, min(PER_OCTAVE, AT_MOST // len(counts)))) for count in counts], last
            )
        return max(
            epsilon({release: int(count)}, self.privacy.delta) for release, count in zip(self.releases, counts, strict=True)
        )

    @property
    def noises(self) -> np.ndarray:
        """The noise multiplier of each client."""
        return np.array([release.noise for release in self.releases])[self.classes]

    def until(self, rounds: int) -> Self:
        """Return the plan of a run that is cut short, with the same noise: no row is charged for what comes after."""
        return dataclasses.replace(self, spent=self.spent[: rounds + 1])

    def calibrated(self) -> Calibrated:
        """Return what clients need for their releases; outside of a simulation, with a fresh secret of the operating system's."""
        secret = None if self.privacy.simulation else fresh_secret()
        return Calibrated(self.noises, thresholds(self.rates), self.expected.astype(float), secret)

    def warn_of_noise(self) -> None:
        """Say that the noise drowns whatever a sample can say."""
        worst = int(np.argmax(self.noises / self.expected))
        noise, records = self.noises[worst], self.expected[worst]
        if noise > records:
            warn(
                f"privacy: the noise of client {worst}, {noise:.3g} clips, exceeds what a whole sample of about {records:.3g} "
                "records can say; use larger batches, fewer rounds or steps, or a larger epsilon"
            )

    def to_dict(self, round: int) -> dict[str, Any]:
        """Return plain values, after a round: what a result keeps, and `statement` puts into words."""
        return {
            "epsilon": self.epsilon(round, exact=True), "delta": self.privacy.delta, "clip": self.privacy.clip,
            "rounds": round, "releases": int(self.spent[round].max()), "noises": [release.noise for release in self.releases],
            "rates": [float(self.rates.min()), float(self.rates.max())],
            "records": [int(self.sizes.min()), int(self.sizes.max())],
            "simulation": self.privacy.simulation, "public_lower_data": self.privacy.public_lower_data,
        }  # fmt: skip


def _counts(
    method: Any, problem: Problem, rounds: int, key: jax.Array, size: int | None, classes: np.ndarray, kinds: int
) -> np.ndarray:
    """Return how many releases a client of each class has made after each round, at most: those who took part in most rounds."""
    lengths = [int(at(method.local_steps, np.int32(r))) for r in range(rounds)] if callable(method.local_steps) else None
    steps = np.asarray(lengths if lengths is not None else [int(method.local_steps)] * rounds, np.int64)
    if (steps < 1).any():
        r = int(np.argmax(steps < 1))
        raise InputError(f"local_steps: its value in round {r} is {steps[r]}; it must return a whole number of at least 1")
    if size is None or size == len(classes):
        return np.repeat(np.concatenate([[0], np.cumsum(steps)])[:, None], kinds, axis=1)
    taking_part = _cohorts(problem, key, rounds, size)
    own, found = np.zeros(len(classes), np.int64), np.zeros((rounds + 1, kinds), np.int64)
    for r in range(rounds):
        own[taking_part[r]] += steps[r]
        planned = taking_part[r][classes[taking_part[r]] >= 0]
        found[r + 1] = found[r]
        np.maximum.at(found[r + 1], classes[planned], own[planned])
    return found


def _cohorts(problem: Problem, key: jax.Array, rounds: int, size: int) -> np.ndarray:
    """Return who takes part in each round; the server knows it, so that it makes nobody's releases more private."""
    draw = jax.jit(lambda rs: jax.lax.map(lambda r: cohort(problem, key, r, size)[0], rs))
    return np.asarray(draw(np.arange(rounds, dtype=np.int32)))


def fresh_secret() -> np.ndarray:
    """Return the words of a key that nobody knows, from the operating system."""
    return np.array([secrets.randbits(32), secrets.randbits(32)], np.uint32)


def plan_privacy(
    methods: Sequence[Any], problem: Problem, rounds: int, keys: Sequence[jax.Array], size: int | None, engine: Any,
    noises: Sequence[Sequence[float] | None] | None,
) -> list[PrivacyPlan | None]:  # fmt: skip
    """Return the plan of each run, None where it promises nothing; refuse several runs on the same records.

    `noises` are those of an earlier sitting, by run; an engine whose clients are elsewhere says what they said of themselves.
    """
    if len(methods) > 1 and hides(methods):
        raise InputError(
            "privacy: a sweep runs on the same records many times, and each run is charged for; use fz.run, or say that it is "
            "a simulation: fz.Privacy(..., simulation=True)"
        )
    found: list[PrivacyPlan | None] = []
    whole = noises is not None and len(noises) == len(methods) and all(n is None or len(n) == problem.clients for n in noises)
    before = noises if noises is not None and whole else [None] * len(methods)  # of another case, which is refused later
    for method, key, kept in zip(methods, keys, before, strict=True):
        if _promise(method) is None:
            found.append(None)
            continue
        sizes, own, deltas = (_said(engine, name) for name in ("samples", "noise", "delta"))
        plan = PrivacyPlan.of(method, problem, rounds, key, size, sizes, kept if own is None else own)
        if deltas is not None:
            plan = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, delta=max(deltas)))
        plan.warn_of_noise()
        found.append(plan)
    return found


def _said(engine: Any, name: str) -> list[Any] | None:
    """Return what clients elsewhere said of themselves, with another's in place of those who did not come; None if nobody did."""
    found = [said.get(name) for said in getattr(engine, "said", ())]
    known = [value for value in found if value is not None]
    return [known[0] if value is None else value for value in found] if known else None


def _promise(method: Any) -> Privacy | None:
    return getattr(method, "privacy", None)


def hides(methods: Sequence[Any]) -> bool:
    """Tell whether nobody may look at the records, as no run is said to be a simulation."""
    return any((promise := _promise(method)) is not None and not promise.simulation for method in methods)


def without_losses(stop: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a user's function of a row that says so where it asks for a column which private runs do not have."""

    def asked(row: Any) -> bool:
        try:
            return stop(row)
        except KeyError as missing:
            raise InputError(f"stop: it asks for the column {missing}, which a private run does not have") from None

    return asked


def _rounded_up(count: int, per_octave: int) -> int:
    if count <= per_octave:
        return count
    unit = max(1, 2 ** (count.bit_length() - 1) // per_octave)
    return -(-count // unit) * unit
