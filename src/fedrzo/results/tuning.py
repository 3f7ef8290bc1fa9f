"""What a search for a stepsize found."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedrzo.federation.protocol import Cost


@dataclasses.dataclass(frozen=True)
class Trial:
    """A stepsize that was tried."""

    stepsize: float  # the candidate
    rounds: int  # how long it ran
    loss: float  # the clients' mean with the Moreau terms after that; the mean over keys, infinite where x was lost


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What a search found and what it cost."""

    stepsize: float  # the answer
    theory: float  # where the search started: the theory's stepsize, with a Lipschitz constant from slopes at x0
    loss: float  # at x0, as trials are judged
    trials: tuple[Trial, ...]  # in the order in which they were made
    cost: Cost  # of the whole search; the run's history has it in all rows but the first

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        trials = [list(dataclasses.astuple(trial)) for trial in self.trials]
        return {**dataclasses.asdict(self), "trials": trials, "cost": self.cost._asdict()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Tuning:
        """Read what `to_dict` returned."""
        trials = tuple(Trial(*entry) for entry in plain["trials"])
        return cls(**{**plain, "trials": trials, "cost": Cost(**plain["cost"])})
