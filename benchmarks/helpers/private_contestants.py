"""Who takes part in `benchmarks/privacy.py`, with which settings, and how one run of each is made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import fedrzo as fz
from fedrzo.privacy.accounting import Release, epsilon, noise_for
from helpers.private_digits import Digits
from helpers.private_sgd import Setting, train

DELTA = 1e-5
PLAIN, CLIPPED = "plain", "clipped"  # no promise at all, and clipping without noise: both are without epsilon
SILENT, NOISY = "without noise", "at epsilon = 2"  # where step sizes and clips were chosen
NO_NOISE = 1e-6  # in units of the clip: it changes nothing, where the library is to clip alone
NN, DECOMFL, SGD = "FedRZOnn", "DeComFL", "DP-SGD"
COSTS = ("upload_bytes", "download_bytes", "evaluations", "gradients")
KEPT = ("accuracy", "train_accuracy", "loss", *COSTS)

Level = str | float  # PLAIN, CLIPPED, or an epsilon


class Size(NamedTuple):
    """How long a run is, in local steps of each silo, and what a step is made of."""

    steps: int = 1_000
    batch_size: int = 256
    directions: int = 20


class Tuning(NamedTuple):
    """What `--search` chose for a level."""

    stepsize: float
    clip: float | str | None = None


class Case(NamedTuple):
    """One line of the table: a level, and where its settings were chosen."""

    level: Level
    tuned: str


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A method with its settings: those that are best without privacy, with clipping alone, and at epsilon = 2."""

    kind: str
    plain: Tuning
    silent: Tuning | None
    noisy: Tuning
    local_steps: int = 1

    def cases(self, epsilons: list[float], few: bool = False) -> list[Case]:
        """Return all that is run; few of them, without those whose settings were chosen with clipping alone."""
        found = [Case(PLAIN, SILENT)]
        if self.silent is not None and not few:
            found += [Case(level, SILENT) for level in (CLIPPED, *epsilons)]
        return found + [Case(level, NOISY) for level in epsilons]

    def run(self, digits: Digits, problem: fz.Nonsmooth, size: Size, case: Case, key: int) -> dict[str, Any]:
        """Train once; return accuracies and costs, with the noise and the epsilon that it came to."""
        tuning: Any = self.plain if case.level == PLAIN else self.silent if case.tuned == SILENT else self.noisy
        local_steps, chosen = min(self.local_steps, size.steps), tuning._asdict()
        rounds = size.steps // local_steps
        if self.kind == SGD:
            setting, spent = sgd_setting(digits, size, tuning, case.level)
            found = train(digits, setting, rounds, local_steps, size.batch_size, key)
            return found | {"noise": setting.noise, "spent": spent} | chosen
        method = library_method(self.kind, size, local_steps, tuning.stepsize, promise(tuning.clip, case.level))
        result = fz.run(method, problem, rounds, key=key, eval_every=rounds, progress=False)
        stated = result.spec.get("privacy", {"noises": [0.0], "epsilon": math.inf})
        last = {name: float(result.history.last[name]) for name in KEPT}
        noise = 0.0 if case.level == CLIPPED else stated["noises"][0]
        return last | {"noise": noise, "spent": finite(stated["epsilon"])} | chosen


def promise(clip: float | str | None, level: Level) -> fz.Privacy | None:
    """Return what a run of the library promises."""
    if clip is None:
        return None
    if isinstance(level, str):
        return fz.Privacy(noise=NO_NOISE, delta=DELTA, clip=clip, simulation=True)
    return fz.Privacy(epsilon=level, delta=DELTA, clip=clip, simulation=True)


def library_method(
    kind: str, size: Size, local_steps: int, stepsize: float, privacy: fz.Privacy | None, way: str = "scalars"
) -> Any:
    """Return a method of the library."""
    if kind == NN:
        return fz.FedRZOnn(stepsize, 1e-2, local_steps, size.batch_size, size.directions, way, privacy=privacy)
    return fz.DeComFL(stepsize, 1e-3, local_steps, size.directions, size.batch_size, momentum=0.9, privacy=privacy)


def sgd_setting(digits: Digits, size: Size, tuning: Tuning, level: Level) -> tuple[Setting, float | None]:
    """Return the setting of DP-SGD, with the library's accounting, and the epsilon that it comes to."""
    if isinstance(level, str):
        return Setting(tuning.stepsize, math.inf if tuning.clip is None else tuning.clip), None
    rate = size.batch_size / digits.records
    noise = noise_for(level, DELTA, rate, size.steps)
    return Setting(tuning.stepsize, tuning.clip, noise), epsilon({Release(rate, noise): size.steps}, DELTA)


def finite(value: float) -> float | None:
    """Return a number, None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
