"""What a check found: one finding per line, in words and as data."""

import dataclasses
from typing import Any, Self

from fedrzo.errors import InputError

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: str  # `"ok"`, `"note"` (worth knowing; a run works) or `"problem"` (a run fails, or solves something else)
    about: str  # the argument it is about, such as `loss`
    text: str  # what was found and, unless all is well, what to do
    data: dict[str, Any] = dataclasses.field(default_factory=dict)  # the numbers behind it
    # The error that a run would end with, where there is one
    error: Exception | None = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.level:7}  {self.about}: {self.text}"

    @classmethod
    def of_message(cls, level: str, message: str, about: str, error: Exception | None = None) -> Self:
        """Return a finding from a line such as `loss: found nan at x0; ...`, or from one that names no argument."""
        argument, colon, text = " ".join(message.split()).partition(": ")
        if not colon or len(argument.split()) > 4:
            return cls(level, about, " ".join(message.split()), error=error)
        return cls(level, argument, text, error=error)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"level": self.level, "about": self.about, "text": self.text, "data": self.data}


@dataclasses.dataclass(frozen=True)
class Report:
    """All findings of one check, in the order in which they were made.

    Attributes:
        problem: what was looked at.
        method: what it would be solved by.
        rounds: of the run that costs are predicted for.
        findings: one for each thing that was looked at.
    """

    problem: str
    method: str
    rounds: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found; notes do not count."""
        return not self.problems

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What must be mended."""
        return tuple(finding for finding in self.findings if finding.level == PROBLEM)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is worth knowing."""
        return tuple(finding for finding in self.findings if finding.level == NOTE)

    def __getitem__(self, about: str) -> Finding:
        """Return the first finding about something."""
        for finding in self.findings:
            if finding.about == about:
                return finding
        raise KeyError(about)

    def __repr__(self) -> str:
        counts = ((len(self.problems), PROBLEM), (len(self.notes), NOTE))
        shown = ", ".join(f"{count or 'no'} {name}{'s' * (count != 1)}" for count, name in counts)
        return "\n".join([f"{self.problem} by {self.method}: {shown}", *map(str, self.findings)])

    def raise_problem(self) -> None:
        """Raise the first problem, if there is one: the error itself, or its words."""
        for finding in self.problems:
            raise finding.error or InputError(f"{finding.about}: {finding.text}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"ok": self.ok, **vars(self), "findings": [finding.to_dict() for finding in self.findings]}
