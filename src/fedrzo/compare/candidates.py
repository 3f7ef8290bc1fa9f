"""How `fedrzo compare` sets up each method: by its fields, unless a line in a table says otherwise.

Settings are equal where methods can be compared: local steps, batch size, smoothing. What is tuned is the stepsize alone; the
others are plain choices, not the authors', and are shown with the results.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

from fedrzo import methods as m
from fedrzo.errors import InputError
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.problems.curvature import lower_level
from fedrzo.support.settings import fields

LOCAL_STEPS = 10
BATCH = 8  # at most; clients with fewer samples set it
SMOOTHING = 0.01
HIERARCHICAL_SMOOTHING = 0.1  # errors of a lower solution are multiplied by n / smoothing
DIRECTIONS = 20  # of FedZO, as its authors have it
RATIO = 10**0.5  # between neighbours in a grid
POINTS = 5  # in a grid

# These take the steps of another one where the stepsize is given.
SAME = {"LocalSGD": "FedAvg", "LFD": "FedAvg"}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A method with its settings."""

    name: str  # its label
    method: Method  # with the middle of the grid as its stepsize

    @property
    def grid(self) -> list[float]:
        """The stepsizes that are tried first."""
        middle = self.method.stepsize  # type: ignore[attr-defined]
        return [float(f"{middle * RATIO ** (i - POINTS // 2):.3g}") for i in range(POINTS)]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a problem says about sensible settings."""

    problem: Any  # what to solve
    batch_size: int  # samples per loss value

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Read them off a problem."""
        sizes = [int(min(level.data.sizes)) for level in problem.stated if level.data.stored]
        return cls(problem, min([BATCH, *sizes]))

    @property
    def steps(self) -> dict[str, Any]:
        """Local steps and batch size, the same for all."""
        return {"local_steps": LOCAL_STEPS, "batch_size": self.batch_size}

    @property
    def blind(self) -> float:
        """Where the stepsizes of zeroth-order methods begin: an estimate is about n times as long as its mean."""
        return float(f"{1 / (self.problem.dim + 4):.2g}")

    @property
    def lower_stepsize(self) -> float:
        """Half of 1/L of the lower level, since a client's own loss may be more curved than the mean."""
        smoothness = self.problem.smoothness
        if smoothness is None:
            with self.problem.precision():
                smoothness = float(lower_level(self.problem).smoothness)
        return float(f"{0.5 / smoothness:.3g}")


def _usual(cls: type[Method], s: Setting) -> Method:
    """Set up a method by the fields that it has."""
    known = fields(cls)
    values = s.steps | {"stepsize": 0.1, "lower_local_steps": LOCAL_STEPS}
    if "smoothing" in known:
        values |= {"stepsize": s.blind, "smoothing": HIERARCHICAL_SMOOTHING if s.problem.hierarchical else SMOOTHING}
    if "lower_stepsize" in known:
        values["lower_stepsize"] = s.lower_stepsize
    return cls(**{name: value for name, value in values.items() if name in known})


# Methods with fields of their own that need a choice, and variants.
SPECIAL: dict[str, Callable[[Setting], Method]] = {
    "FedZO": lambda s: m.FedZO(
        float(f"{DIRECTIONS / (s.problem.dim + DIRECTIONS):.2g}"), SMOOTHING, directions=DIRECTIONS, **s.steps
    ),
    "DeComFL": lambda s: m.DeComFL(s.blind, SMOOTHING / s.problem.dim**0.5, **s.steps),
    "FedProx": lambda s: m.FedProx(0.1, 0.1, **s.steps),
    "FedMSPP": lambda s: m.FedMSPP(1.0, 0.1, **s.steps),
    "QuasiNewton": lambda s: m.QuasiNewton(0.1),
    "Scaffnew": lambda s: m.Scaffnew(0.1, 1 / LOCAL_STEPS, s.batch_size),
    "FedRZOnn, gradients": lambda s: m.FedRZOnn(0.1, SMOOTHING, oracle="gradients", **s.steps),
    "FedRZObl, gradients": lambda s: m.FedRZObl(0.1, HIERARCHICAL_SMOOTHING, oracle="gradients", **s.steps),
    "FedRZO2s, gradients": lambda s: m.FedRZO2s(0.1, HIERARCHICAL_SMOOTHING, oracle="gradients", **s.steps),
    "LocalSGDA": lambda s: m.LocalSGDA(0.1, s.lower_stepsize, **s.steps),
    "LocalSGDA, momentum": lambda s: m.LocalSGDA(0.3, s.lower_stepsize / 0.2, momentum=3.0, damping=0.2, **s.steps),
}
CANDIDATES: dict[str, Callable[[Setting], Method]] = {
    name: functools.partial(_usual, cls) for name, cls in m.METHODS.items() if name not in SAME
} | SPECIAL


def applicable(problem: Problem) -> tuple[list[Candidate], dict[str, str]]:
    """Return the methods that solve a problem, and why the others of its class do not."""
    setting, found, refused = Setting.of(problem), [], {}
    for name, make in CANDIDATES.items():
        cls = m.METHODS[name.partition(",")[0]]
        if not isinstance(problem, cls.solves):
            continue  # of another class of problems: nothing to say
        try:
            method = make(setting)
            method.check(problem)
            found.append(Candidate(name, method))
        except InputError as error:
            refused[name] = str(error)
    return found, refused
