"""Rules that stop a run by looking at x itself, as far as a run needs to know them."""

from __future__ import annotations

import abc
from typing import Any, Protocol

import numpy as np

from fedrzo.engines.base import Engine

Row = dict[str, int | float]


class Watch(Protocol):
    """A rule at work on one run. Its columns stand in the history beside those of the problem and the method."""

    @property
    def done(self) -> bool:
        """Whether the run is to end."""

    def columns(self, round: int, x: np.ndarray) -> Row:
        """Return the rule's columns of the row of a round."""

    def restore(self, row: Row) -> None:
        """Go on from a stored row."""


class StopRule(abc.ABC):
    """What `fz.run(..., stop=...)` takes beside a function of a row, such as `fz.certified(...)`.

    It has columns of its own and is part of what is computed, so that its `repr` tells one run from another.
    """

    @abc.abstractmethod
    def begin(self, case: Any, engine: Engine) -> Watch:
        """Return the rule at work on one run; refuse what cannot work before the run starts."""
