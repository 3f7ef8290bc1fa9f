"""Ctrl-C in the middle of a run: the first lets the rounds under way end, so that nothing is lost; the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

AGAIN = "stopping after these rounds; Ctrl-C again stops at once"


class Interrupt:
    """A context in which Ctrl-C is first noted, then obeyed.

    Compiled rounds cannot be stopped half-way, and what they are given is theirs, so that a run can only be stored between
    them. Where signals are none of our business (another thread, or a handler that somebody else installed) nothing changes.

    Args:
        tell: called with one line when the first Ctrl-C arrives. It runs inside a signal handler: it must only set values.

    Attributes:
        asked: whether Ctrl-C was pressed.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.asked = False
        self._tell = tell
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            signal.default_int_handler(number, frame)
        self.asked = True
        self._tell(AGAIN)
