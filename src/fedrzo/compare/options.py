"""What `fedrzo compare`, or a benchmark of a checkout, is asked for."""

import sys
from dataclasses import dataclass
from pathlib import Path

from fedrzo import zoo
from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.running.problem_file import UserFile, is_python, meant_file
from fedrzo.support.files import check_writable
from fedrzo.support.numbers import check_counts


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    problem: str  # a name of the zoo, a user's FILE.py, or what a benchmark of a fixed problem calls it
    seeds: int  # how many runs of each setting
    budget: int | None = None  # loss evaluations over all clients; None for the default
    seed: int = 0  # the first of the seeds
    out: Path | None = None  # a folder for tables, figures and numbers
    quick: bool = False  # do less
    progress: bool = True  # say on standard error what is going on

    def check(self) -> None:
        """Refuse what makes no sense; last, so that nothing is left behind, see that the folder can be written in."""
        self.check_seed()
        if self.budget is not None and self.budget < 1:
            raise InputError(f"--budget: found {self.budget}; pass a whole number of loss evaluations, at least 1")
        check_counts(**{"--seeds": self.seeds})
        self.check_out()

    def make(self) -> Problem:
        """Return the problem: one of the zoo, or what a Python file defines."""
        if self.problem not in zoo.PROBLEMS and (meant := meant_file(self.problem)):
            raise InputError(f"problem: found {self.problem!r}; did you mean {meant}?")
        return UserFile(self.problem).problem if is_python(self.problem) else zoo.make(self.problem)

    def check_seed(self) -> None:
        """Refuse a negative seed."""
        if self.seed < 0:
            raise InputError(f"--seed: found {self.seed}; pass a whole number of at least 0")

    def check_out(self) -> None:
        """Refuse a folder that cannot be written in."""
        if self.out is not None:
            check_writable(self.out, "--out")

    @property
    def all_seeds(self) -> list[int]:
        """The seeds of the runs."""
        return list(range(self.seed, self.seed + self.seeds))

    def say(self, text: str) -> None:
        """Tell what is going on, if that is wanted."""
        if self.progress:
            print(text, file=sys.stderr)
