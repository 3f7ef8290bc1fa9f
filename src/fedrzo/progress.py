"""The progress bar: rounds, rounds per second, time left and the current loss, on standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    """A context that shows how far a run is; silent if not wanted."""

    def __init__(self, rounds: int, done: int, wanted: bool) -> None:
        self.progress: Progress | None = None
        if not wanted:
            return
        self.progress = Progress(
            TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[loss]}"),
            console=Console(stderr=True), refresh_per_second=4,
        )  # fmt: skip
        self.task = self.progress.add_task("run", total=rounds, completed=done, rate="", loss="")

    def __enter__(self) -> Bar:
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.progress is not None:
            self.progress.stop()

    def show(self, done: int, row: dict[str, Any]) -> None:
        """Update to the newest row."""
        if self.progress is None:
            return
        speed = self.progress.tasks[self.task].speed
        loss = f"loss {row['loss']:.5g}" if "loss" in row else ""
        rate = f"{speed:.1f} rounds/s" if speed else ""
        self.progress.update(self.task, completed=done, rate=rate, loss=loss)
