"""The program of a solve's rounds, compiled in a thread while the start is checked and scales are measured.

It takes longer to compile than all else before the first round, and XLA releases Python's lock meanwhile. What it will be is
guessed from the problem as it was stated. A wrong guess costs a compilation in vain, for which the end of the process waits.
"""

import contextlib
import threading
from typing import Any

import jax
import numpy as np

from fedrzo.engines.base import Engine
from fedrzo.problems.base import Problem
from fedrzo.solving.setup import guess
from fedrzo.support.compiling import in_thread


class Ahead:
    """A compilation under way."""

    def __init__(self, engine: Engine, problem: Problem) -> None:
        self.thread: threading.Thread | None = None
        self.of: Any = None
        with contextlib.suppress(Exception):  # a mistake in the problem; `solve` meets it again where its line is written
            self._begin(engine, problem)

    def _begin(self, engine: Engine, problem: Problem) -> None:
        """Trace the program here, and have it compiled."""
        if (found := guess(problem)) is None:
            return
        self.of = _shape(*found)
        if (compiling := engine.ahead(*found)) is not None:
            self.thread = in_thread(compiling)

    def wait(self, method: Any, problem: Problem) -> None:
        """Wait for the compilation, if it is that of a run of this method on this problem."""
        if self.thread is not None and _shape(method, problem) == self.of:
            self.thread.join()
            self.thread = None


def _shape(method: Any, problem: Problem) -> Any:
    """Return what a program depends on: the structure, and each array's shape and type."""
    leaves, structure = jax.tree.flatten((method, problem))
    return structure, [(np.shape(leaf), jax.dtypes.result_type(leaf), type(leaf) is float) for leaf in leaves]
