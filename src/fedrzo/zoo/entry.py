"""A published problem with its best known value, and what it takes to solve it here."""

from collections.abc import Callable
from dataclasses import dataclass

from fedrzo.methods import Method
from fedrzo.problems.base import Problem


@dataclass(frozen=True)
class Entry:
    """A problem from the literature."""

    name: str  # as in its collection
    make: Callable[[], Problem]  # builds the problem; its x0 is the start
    published: float  # the best known value, in the collection's units. Best known is not proved: smaller is no error
    method: Method  # what solves it, with its step sizes
    rounds: int  # how many rounds that takes
    # The collection's loss over the problem's. Iterates leave X by smoothing times the loss's slope, so losses in the thousands
    # are divided by this to keep that distance small.
    scale: float = 1.0
    start: str = ""  # where the start comes from, if it is not the collection's

    @property
    def smoothing(self) -> float:
        """The method's smoothing, by which infeasibility is judged."""
        return float(self.method.smoothing)  # type: ignore[attr-defined]
