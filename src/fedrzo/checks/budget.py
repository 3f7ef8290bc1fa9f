"""The calls of a user's black boxes that a check may make.

A check asks a copy of the problem whose black boxes count every call before they pass it on. In a rehearsal they pass on nothing
and return zeros: that shows how often a run calls, and compiles what the check needs, without a call of the user's function.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from fedrzo.checks.report import OK, Finding
from fedrzo.errors import BlackboxError
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import Blackbox
from fedrzo.problems.lower_level import Negative
from fedrzo.support.pytrees import replaced


class OutOfCallsError(BlackboxError):
    """A check has made all calls of black boxes that it may."""


class Metered(Blackbox):
    """A black box whose calls are charged to a budget."""

    def __init__(self, box: Blackbox, budget: "Budget") -> None:
        super().__init__(box.fn, box.vectorized, box.mean)
        self.box, self.budget = box, budget

    def ask(self, *arguments: Any) -> Any:
        """Call the black box, unless the budget is spent; in a rehearsal, return zeros."""
        if self.budget.charge():
            return self.box.ask(*arguments)
        return np.zeros(len(jax.tree.leaves(arguments)[0])) if self.vectorized else 0.0


class Budget:
    """How many calls of a problem's black boxes are allowed, and how many were made.

    Attributes:
        problem: the problem with black boxes that charge this budget, all of them together.
        metered: whether there are any.
        wanted: the user's limit, if any.
        made: calls so far.
        usual: calls that a run of ten rounds takes.
    """

    def __init__(self, problem: Problem) -> None:
        self.wanted: int | None = None
        self.usual: int | None = None
        self.made = self.rehearsed = 0
        self._exhausted = self._rehearsing = False
        self._left_out: list[str] = []
        self._lock = threading.Lock()  # callbacks come in several threads
        self._boxes: dict[int, Metered] = {}
        found = {name: self._meter(value) for name, value in vars(problem).items()}
        self.metered = bool(self._boxes)
        self.problem = replaced(problem, **found) if self.metered else problem

    @property
    def allowed(self) -> int:
        """The number of calls: as many as wanted, or as usual; none before that is known."""
        return self.wanted or self.usual or 0

    @property
    def left(self) -> int:
        """The number of calls that may still be made."""
        return self.allowed - self.made

    def charge(self) -> bool:
        """Count one call; return whether to make it. Refuse it if the budget is spent."""
        with self._lock:
            if self._rehearsing:
                self.rehearsed += 1
                return False
            if self.made >= self.allowed:
                self._exhausted = True
                raise OutOfCallsError(f"calls: found {self.allowed}, which are spent; pass a larger number")
            self.made += 1
            return True

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[Problem]:
        """Have black boxes return zeros, without a call of the user's function; yield the problem to rehearse with.

        It is a copy, because what is found out about a problem is cached, and these findings come from zeros.
        """
        self._rehearsing = True
        try:
            yield replaced(self.problem) if self.metered else self.problem
        finally:
            self._rehearsing = False

    def count(self, part: Callable[[], Any]) -> int:
        """Return the number of calls that a part of a rehearsal would make."""
        before = self.rehearsed
        jax.block_until_ready(part())
        return self.rehearsed - before

    def refused(self) -> bool:
        """Return whether a call was refused since this was last asked."""
        found, self._exhausted = self._exhausted, False
        return found

    def leave_out(self, part: str, price: int | None = None) -> None:
        """Note what is not looked at, and the number of calls that it would take."""
        self._left_out.append(part if price is None else f"{part} ({price:,} calls)")

    def findings(self) -> list[Finding]:
        """Return the number of calls that were allowed and made, and what they did not suffice for."""
        if self.usual is None:
            return []
        text = f"{self.made:,} of the black box, {self.allowed:,} allowed; a run of ten rounds takes {self.usual:,}"
        if self._left_out:
            text += f"; left out: {', '.join(self._left_out)}: pass calls= to allow more"
        facts = {"allowed": self.allowed, "made": self.made, "usual": self.usual, "left_out": list(self._left_out)}
        return [Finding(OK, "calls", text, facts)]

    def _meter(self, value: Any) -> Any:
        """Return a function of the problem, or a tuple of such, with its black boxes metered."""
        if isinstance(value, Blackbox):
            return self._boxes.setdefault(id(value), Metered(value, self))
        if isinstance(value, Negative):
            return Negative(self._meter(value.loss))
        if type(value) is tuple and any(isinstance(entry, tuple | Blackbox) for entry in value):
            return tuple(map(self._meter, value))
        return value
