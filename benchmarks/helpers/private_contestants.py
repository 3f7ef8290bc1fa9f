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
SILENT = 1e-6  # a noise that changes nothing, where the library is to clip alone
NN, DECOMFL, SGD = "FedRZOnn", "DeComFL", "DP-SGD"
COSTS = ("upload_bytes", "download_bytes", "evaluations", "gradients")
KEPT = ("accuracy", "train_accuracy", "loss", *COSTS)

Level = str | float  # PLAIN, CLIPPED, or an epsilon


class Size(NamedTuple):
    """How long a run is, in local steps of each silo, and what a step is made of."""

    steps: int = 1_000
    batch_size: int = 256
    directions: int = 20


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A method with its settings, as `--search` chose them."""

    kind: str
    plain: float | None  # the step size without privacy; None: not run
    stepsize: float  # with clipping, with and without noise
    clip: float | str
    local_steps: int = 1

    @property
    def levels(self) -> tuple[str, ...]:
        """Those without an epsilon."""
        return (PLAIN, CLIPPED) if self.plain is not None else (CLIPPED,)

    def run(self, digits: Digits, problem: fz.Nonsmooth, size: Size, level: Level, seed: int) -> dict[str, Any]:
        """Train once; return accuracies and costs, with the noise and the epsilon that it came to."""
        rounds = size.steps // self.local_steps
        stepsize: Any = self.plain if level == PLAIN else self.stepsize
        clip = None if level == PLAIN else self.clip
        if self.kind == SGD:
            setting, spent = sgd_setting(digits, size, stepsize, clip, level)
            found = train(digits, setting, rounds, self.local_steps, size.batch_size, seed)
            return found | {"noise": setting.noise, "spent": spent, "stepsize": stepsize, "clip": clip}
        method = library_method(self.kind, size, self.local_steps, stepsize, promise(clip, level))
        result = fz.run(method, problem, rounds, key=seed, eval_every=rounds, progress=False)
        stated = result.spec.get("privacy", {"noises": [0.0], "epsilon": math.inf})
        last = {name: float(result.history.last[name]) for name in KEPT}
        noise = 0.0 if level == CLIPPED else stated["noises"][0]
        return last | {"noise": noise, "spent": finite(stated["epsilon"]), "stepsize": stepsize, "clip": clip}


def promise(clip: float | str | None, level: Level) -> fz.Privacy | None:
    """Return what a run of the library promises."""
    if clip is None:
        return None
    if isinstance(level, str):
        return fz.Privacy(noise=SILENT, delta=DELTA, clip=clip, simulation=True)
    return fz.Privacy(epsilon=level, delta=DELTA, clip=clip, simulation=True)


def library_method(
    kind: str, size: Size, local_steps: int, stepsize: float, privacy: fz.Privacy | None, way: str = "scalars"
) -> Any:
    """Return a method of the library."""
    if kind == NN:
        return fz.FedRZOnn(stepsize, 1e-2, local_steps, size.batch_size, size.directions, way, privacy=privacy)
    return fz.DeComFL(stepsize, 1e-3, local_steps, size.directions, size.batch_size, momentum=0.9, privacy=privacy)


def sgd_setting(digits: Digits, size: Size, stepsize: float, clip: Any, level: Level) -> tuple[Setting, float | None]:
    """Return the setting of DP-SGD, with the library's accounting, and the epsilon that it comes to."""
    if isinstance(level, str):
        return Setting(stepsize, math.inf if clip is None else clip), None
    rate = size.batch_size / digits.records
    noise = noise_for(level, DELTA, rate, size.steps)
    return Setting(stepsize, clip, noise), epsilon({Release(rate, noise): size.steps}, DELTA)


def finite(value: float) -> float | None:
    """Return a number, None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
