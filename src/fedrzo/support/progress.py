"""How far something long is, on standard error: a bar with the time left where somebody watches, else a line now and then."""

import datetime
import importlib.util
import sys
import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_SECONDS = 30.0  # between two lines where a bar cannot be drawn
PATIENCE = 0.2  # seconds for which rounds are run at a time: so long the bar stands still, and Ctrl-C waits


def is_wanted(progress: bool | None) -> bool:
    """Tell whether to show anything: as asked, or, where nothing was said, if somebody watches."""
    return _is_live(Console(stderr=True)) if progress is None else bool(progress)


def _is_live(console: Console) -> bool:
    """Tell whether a bar can move: in a terminal, and in a notebook that has what rich draws with there."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal and not console.is_dumb_terminal


def at_once(done: int, seconds: float) -> int:
    """Return how many rounds to run at a time, where so many have just taken so long: as many as nobody minds waiting for."""
    return max(1, min(4 * done, int(PATIENCE * done / seconds)))


class Bar:
    """A context that shows how far something is, if that is wanted: by a bar, or by lines where a bar cannot move.

    A bar counts rounds, or another `unit`, from `done` to `total`.
    """

    def __init__(self, total: int, done: int, wanted: bool, unit: str = "round") -> None:
        self.total, self.first, self.unit = total, done, unit
        console = Console(stderr=True)
        self.lines = wanted and not _is_live(console)
        self.bar: Progress | None = None
        self.line = ""
        self.began = self.said = time.perf_counter()
        if wanted and not self.lines:
            # A row may take minutes: over the usual half minute there would be no two of them to estimate the time left by.
            self.bar = Progress(
                TextColumn(unit), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
                console=console, refresh_per_second=4, speed_estimate_period=3600,
            )  # fmt: skip
            self.task = self.bar.add_task("run", total=total, completed=done, rate="", note="")
            self.fields = self.bar.tasks[0].fields

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        self._say()

    def show(self, done: int, row: dict[str, Any]) -> None:
        """Update to the newest row."""
        self.note(done, f"loss {row['loss']:.5g}" if "loss" in row else "")

    def note(self, done: int, word: str = "") -> None:
        """Update how much is done, with a word on it."""
        if self.bar is not None:
            speed = self.bar.tasks[self.task].speed
            self.bar.update(self.task, completed=done, rate=f"{speed:.1f} {self.unit}s/s" if speed else "", note=word)
        if self.lines:
            now = time.perf_counter()
            self.line = self._line(done, word, now - self.began)
            if now - self.said >= LINE_SECONDS:
                self.said = now
                self._say()

    def _line(self, done: int, word: str, spent: float) -> str:
        left = spent / (done - self.first) * (self.total - done) if done > self.first else 0.0
        parts = [f"{self.unit} {done}/{self.total}", word, _clock(spent), f"{_clock(left)} left" if left else ""]
        return ", ".join(filter(None, parts))

    def _say(self) -> None:
        if self.line:
            print(self.line, file=sys.stderr, flush=True)
            self.line = ""

    def say(self, text: str) -> None:
        """Print a line of its own, above the bar if there is one."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        elif self.lines:
            print(text, file=sys.stderr, flush=True)

    def tell(self, text: str) -> None:
        """Put a word where the loss stands; only sets a value, so that a signal handler may call it."""
        if self.bar is not None:
            self.fields["note"] = text


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
