"""Ctrl-C in the middle of a run: the first lets the rounds under way end, so that nothing is lost; the second stops at once."""

import _thread
import gc
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

AGAIN = "stopping after these rounds; Ctrl-C again stops at once"


class Interrupt:
    """A context in which Ctrl-C is first noted, in `asked`, then obeyed.

    Compiled rounds cannot be stopped half-way, and what they are given is theirs, so that a run can only be stored between
    them. Where signals are none of our business (another thread, or a handler that somebody else installed) nothing changes.
    `tell` gets one line when the first Ctrl-C arrives. It runs inside a signal handler: it must only set values.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.asked = False
        self._tell = tell
        self._before: Any = None
        self._left = False

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._left = True
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            self._tell(AGAIN)
        elif _is_ignored(frame):
            _thread.start_new_thread(self._press_again, ())  # not from here: it would arrive here, too
        else:
            signal.default_int_handler(number, frame)

    def _press_again(self) -> None:
        time.sleep(0.05)
        if not self._left:
            _thread.interrupt_main()


def _is_ignored(frame: FrameType | None) -> bool:
    """Tell whether Python would ignore an exception raised here: in a callback of its collector (JAX has one) or a finaliser."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
