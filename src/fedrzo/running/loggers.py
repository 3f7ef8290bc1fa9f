"""Loggers for TensorBoard, MLflow and Weights & Biases: `fz.run(..., log=[fz.loggers.TensorBoard("runs/a")])`.

Each writes the method's and the run's settings once, then every row of the history, with the round as the step. The libraries
are extras, imported when a logger is made.
"""

import abc
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedrzo.support.extras import require

Row = dict[str, int | float]
Settings = dict[str, int | float | str]
LIMIT = 500  # letters of a value that MLflow shows; a problem's repr may be longer


class Logger(abc.ABC):
    """What `run(log=...)` takes beside plain functions: it is told of the start and of the end as well."""

    @abc.abstractmethod
    def begin(self, settings: Settings, done: int) -> None:
        """Start to log a run.

        Args:
            settings: of the method (`method.stepsize`) and of the run, in plain values.
            done: the round that the run goes on from; 0 for a new one.
        """

    @abc.abstractmethod
    def __call__(self, row: Row) -> None:
        """Log a row of the history."""

    @abc.abstractmethod
    def end(self, status: str) -> None:
        """End; the status is `"finished"`, `"interrupted"` or `"failed"`."""


Sink = Callable[[Row], None] | Logger


class TensorBoard(Logger):
    """Writes event files for TensorBoard, in single precision; needs `fedrzo[tensorboard]`.

    A run that goes on from a checkpoint may use the same folder: what was logged after the checkpoint is not shown twice.

    Args:
        folder: of this run; `tensorboard --logdir` takes the folder above, and compares all below it.
    """

    def __init__(self, folder: str | Path) -> None:
        self._library = require("tensorboardX", "tensorboard")
        self.folder = Path(folder)

    def begin(self, settings: Settings, done: int) -> None:
        """Open a new event file."""
        # The suffix: files are named by the second, and a run that goes on within it must not write over the first one.
        self._writer = self._library.SummaryWriter(
            str(self.folder), purge_step=done + 1 if done else None, filename_suffix=f".{done}"
        )
        if not done:
            lines = [f"| {name} | {value} |" for name, value in settings.items()]
            self._writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *lines]))

    def __call__(self, row: Row) -> None:
        """Write one point of each curve."""
        for name, value in row.items():
            if name != "round":
                self._writer.add_scalar(name, value, int(row["round"]))

    def end(self, status: str) -> None:
        """Close the file."""
        self._writer.close()


class MLflow(Logger):
    """Logs to MLflow; needs `fedrzo[mlflow]`.

    Args:
        experiment: its name; it is made if there is none.
        uri: the tracking server or database, such as `"sqlite:///mlflow.db"`; MLflow's own choice unless given.
        name: of the run.
        run_id: a run to go on with, for those that resume.
    """

    def __init__(
        self, experiment: str = "fedrzo", uri: str | None = None, name: str | None = None, run_id: str | None = None
    ) -> None:
        self._library = require("mlflow", "mlflow")
        self.client = self._library.MlflowClient(tracking_uri=uri)
        self.experiment, self.name, self.run_id = experiment, name, run_id

    def begin(self, settings: Settings, done: int) -> None:
        """Make a run, or go on with the one that was named."""
        if self.run_id is not None:
            self.client.update_run(self.run_id, status="RUNNING")
            return
        found = self.client.get_experiment_by_name(self.experiment)
        home = self.client.create_experiment(self.experiment) if found is None else found.experiment_id
        self.run_id = self.client.create_run(home, run_name=self.name).info.run_id
        params = [self._library.entities.Param(name, str(value)[:LIMIT]) for name, value in settings.items()]
        self.client.log_batch(self.run_id, params=params)

    def __call__(self, row: Row) -> None:
        """Send a row in one request."""
        now, step = int(1000 * time.time()), int(row["round"])
        metric = self._library.entities.Metric
        metrics = [metric(name, float(value), now, step) for name, value in row.items() if name != "round"]
        self.client.log_batch(self.run_id, metrics=metrics)

    def end(self, status: str) -> None:
        """Tell MLflow how it ended."""
        words = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.run_id, words[status])


class WandB(Logger):
    """Logs to Weights & Biases; needs `fedrzo[wandb]`.

    Args:
        project: its name.
        options: for `wandb.init`: `name="a"`, `mode="offline"`, or `id="..."` with `resume="allow"` for a run that resumes.
    """

    def __init__(self, project: str = "fedrzo", **options: Any) -> None:
        self._library = require("wandb", "wandb")
        self.options = {"project": project, **options}

    def begin(self, settings: Settings, done: int) -> None:
        """Start a run of Weights & Biases."""
        self.run = self._library.init(config=settings, **self.options)
        self.run.define_metric("*", step_metric="round")  # not W&B's own step, which cannot go back to a checkpoint

    def __call__(self, row: Row) -> None:
        """Log a row."""
        self.run.log(row)

    def end(self, status: str) -> None:
        """End the run; W&B shows any exit code but 0 as failed."""
        self.run.finish(exit_code=0 if status == "finished" else 1)


@contextlib.contextmanager
def logging(sinks: tuple[Sink, ...], method: Any, spec: dict[str, Any], done: int) -> Iterator[None]:
    """Tell loggers of the start of a run, and of its end, however it ends."""
    begun: list[Logger] = []
    status = "failed"
    try:
        for sink in sinks:
            if isinstance(sink, Logger):
                sink.begin(_settings(method, spec), done)
                begun.append(sink)
        yield
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        for logger in begun:
            logger.end(status)


def _settings(method: Any, spec: dict[str, Any]) -> Settings:
    """Return the settings of a run, one plain value for each name, so that runs can be compared by them."""
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    found = {**spec, "method": type(method).__name__} | {f"method.{name}": value for name, value in fields.items()}
    return {name: _plain(value) for name, value in found.items() if value is not None and not isinstance(value, dict)}


def _plain(value: Any) -> int | float | str:
    if isinstance(value, int | float | str):
        return value
    return getattr(value, "__name__", None) or repr(value)
