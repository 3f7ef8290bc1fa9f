"""Ctrl-C: noted first and obeyed then in a run, obeyed at once elsewhere, and seen by callbacks of compiled code.

Python runs signal handlers in its main thread, between two of its instructions. While that thread waits for compiled code, no
handler runs, however often the code calls back into Python from threads of its own. Only the handler in C runs at once. It writes
a byte to a pipe that is registered here, and any thread can read it.
"""

import _thread
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

AGAIN = "stopping after these rounds; Ctrl-C again stops at once"
SOON = 1.0  # seconds in which a process is expected to have ended by itself


class Presses:
    """How often Ctrl-C was pressed, for all threads."""

    def __init__(self) -> None:
        self._count = 0
        self._obeyed = 0  # how many of them have been dealt with, or are to be let pass
        self._pipe: int | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count presses inside; not where signals are none of our business: see `is_ours`."""
        if self._pipe is not None or not self.is_ours():
            yield
            return
        ends = os.pipe()
        for end in ends:
            os.set_blocking(end, False)
        before = signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
        self._count, self._obeyed, self._pipe = 0, 0, ends[0]
        handler = signal.signal(signal.SIGINT, self.obey)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
            signal.set_wakeup_fd(before)
            with self._lock:
                self._pipe, self._count, self._obeyed = None, 0, 0
            for end in ends:
                os.close(end)

    def forget(self) -> None:
        """Stop counting, in a process that was forked from the one which counts: each would write to the other's pipe."""
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            self._pipe, self._lock = None, threading.Lock()

    def is_ours(self) -> bool:
        """Tell whether Ctrl-C does here what Python lets it do: in the main thread, with no handler of somebody else's."""
        in_main = threading.current_thread() is threading.main_thread()
        return in_main and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, self.obey)

    def seen(self) -> int:
        """Return how often it was pressed so far."""
        with self._lock:
            if self._pipe is not None:
                with contextlib.suppress(BlockingIOError):
                    self._count += os.read(self._pipe, 512).count(signal.SIGINT)
            return self._count

    @property
    def due(self) -> bool:
        """Whether one of them is yet to be obeyed."""
        return self.seen() > self._obeyed

    def settle(self, more: int = 0) -> None:
        """Take those so far for dealt with, and let some more pass."""
        self._obeyed = self.seen() + more

    def obey(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal as Python does: by a KeyboardInterrupt."""
        self.settle()
        signal.default_int_handler(number, frame)


PRESSES = Presses()
os.register_at_fork(after_in_child=PRESSES.forget)


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
        if PRESSES.is_ours():
            self._before = signal.signal(signal.SIGINT, self._note)
            PRESSES.settle(more=1)
        return self

    def __exit__(self, *error: object) -> None:
        self._left = True
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            PRESSES.settle()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            self._tell(AGAIN)
        elif _is_ignored(frame):
            _thread.start_new_thread(self._press_again, ())  # not from here: it would arrive here, too
        else:
            PRESSES.obey(number, frame)

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


@contextlib.contextmanager
def saying(where: str | Callable[[], str]) -> Iterator[None]:
    """Let a Ctrl-C that says nothing yet say where it stopped, and what to do."""
    try:
        with PRESSES.counted():
            yield
    except KeyboardInterrupt as stopped:
        if stopped.args:
            raise
        raise KeyboardInterrupt(where if isinstance(where, str) else where()) from None


@contextlib.contextmanager
def insisting(program: str) -> Iterator[None]:
    """In a process of our own: say after the first Ctrl-C what it waits for, and end at the second, even in compiled code."""
    with PRESSES.counted():
        threading.Thread(target=_insist, args=(program,), daemon=True).start()
        yield


def _insist(program: str) -> None:
    _wait_for(1)
    if PRESSES.seen() == 1:
        print(f"{program}: stopping after what is under way; Ctrl-C again ends it at once", file=sys.stderr, flush=True)
    _wait_for(2)
    print(f"{program}: ended", file=sys.stderr, flush=True)
    os._exit(130)  # not an exception: the main thread would not see it before compiled code returns


def _wait_for(presses: int) -> None:
    """Wait until Ctrl-C was pressed so often, and then for as long as a process may take to end by itself."""
    while PRESSES.seen() < presses:
        time.sleep(0.1)
    time.sleep(SOON)
