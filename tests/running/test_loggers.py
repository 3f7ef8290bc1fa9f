"""Loggers, each with its real library and without a network: what was logged is read back by the library itself."""

import sys

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.errors import MissingExtraError
from fedrzo.zoo import toys

METHOD = fz.FedRZOnn(0.02, 0.1, 3)
PROBLEM = toys.quadratic(3, 4)


def go(rounds, *loggers, **options):
    return fz.run(METHOD, PROBLEM, rounds, log=loggers, **options)


def interrupt(row):
    if row["round"] == 2:
        raise KeyboardInterrupt


class Notes(fz.loggers.Logger):
    """A user's own logger."""

    def __init__(self):
        self.seen = []

    def begin(self, settings, done):
        self.settings = settings
        self.seen.append(("begin", done))

    def __call__(self, row):
        self.seen.append(row["round"])

    def end(self, status):
        self.seen.append(status)


def test_a_logger_is_told_of_the_start_of_each_row_and_of_the_end(tmp_path):
    notes = Notes()
    go(2, notes, checkpoint=tmp_path)
    go(3, notes, checkpoint=tmp_path, resume=True)
    assert notes.seen == [("begin", 0), 0, 1, 2, "finished", ("begin", 2), 3, "finished"]
    assert notes.settings["method"] == "FedRZOnn"
    assert notes.settings["method.stepsize"] == 0.02
    assert notes.settings["rounds"] == 3
    assert all(isinstance(value, int | float | str) for value in notes.settings.values())


def test_a_logger_is_told_how_a_run_ended():
    notes = Notes()
    with pytest.raises(KeyboardInterrupt):
        go(5, notes, interrupt)
    with pytest.raises(ZeroDivisionError):
        go(5, notes, lambda row: 1 / 0)
    assert [note for note in notes.seen if isinstance(note, str)] == ["interrupted", "failed"]


@pytest.mark.parametrize("name", ["TensorBoard", "MLflow", "WandB"])
def test_a_missing_library_is_named_with_its_extra(monkeypatch, name):
    for module in ("tensorboardX", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"is not installed; run: pip install 'fedrzo\[{name.lower()}\]'"):
        getattr(fz.loggers, name)("runs")


def read_events(folder):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(folder))
    found.Reload()
    return found


def test_tensorboard_reads_the_curves_and_the_settings(tmp_path):
    result = go(4, fz.loggers.TensorBoard(tmp_path / "a"))
    found = read_events(tmp_path / "a")
    points = found.Scalars("loss")
    assert [point.step for point in points] == [0, 1, 2, 3, 4]
    assert [point.value for point in points] == list(result.history["loss"].astype(np.float32))
    assert [point.value for point in found.Scalars("upload_bytes")] == list(result.history["upload_bytes"])
    [text] = found.Tensors("settings/text_summary")
    assert b"| method.stepsize | 0.02 |" in text.tensor_proto.string_val[0]


def test_tensorboard_shows_no_round_twice_after_a_crash(tmp_path):
    """The run was stored after round 3 and killed after round 6."""
    go(3, checkpoint=tmp_path / "stored")
    go(6, fz.loggers.TensorBoard(tmp_path / "a"))
    result = go(8, fz.loggers.TensorBoard(tmp_path / "a"), checkpoint=tmp_path / "stored", resume=True)
    points = read_events(tmp_path / "a").Scalars("loss")
    assert [point.step for point in points] == list(range(9))
    assert [point.value for point in points] == list(result.history["loss"].astype(np.float32))


@pytest.mark.filterwarnings("default")  # of MLflow's own dependencies
def test_mlflow_keeps_the_rows_the_settings_and_how_it_ended(tmp_path):
    pytest.importorskip("mlflow", reason="MLflow is too large for CI; pip install 'fedrzo[mlflow]' to run this")
    logger = fz.loggers.MLflow("toys", uri=f"sqlite:///{tmp_path}/mlflow.db", name="a")
    go(2, checkpoint=tmp_path / "stored")
    with pytest.raises(KeyboardInterrupt):
        go(4, logger, interrupt)
    run = logger.client.get_run(logger.run_id)
    assert (run.info.status, run.info.run_name) == ("KILLED", "a")
    assert run.data.params["method.stepsize"] == "0.02"
    result = go(4, logger, checkpoint=tmp_path / "stored", resume=True)
    points = logger.client.get_metric_history(logger.run_id, "loss")
    assert [point.step for point in points] == [0, 1, 2, 3, 4]
    assert [point.value for point in points] == list(result.history["loss"])
    assert logger.client.get_run(logger.run_id).info.status == "FINISHED"


@pytest.mark.filterwarnings("default")  # of W&B's own dependencies
def test_wandb_keeps_rows_offline(tmp_path):
    pytest.importorskip("wandb", reason="W&B is not among the test dependencies; pip install 'fedrzo[wandb]' to run this")
    logger = fz.loggers.WandB("toys", mode="offline", dir=str(tmp_path))
    seen = []  # what the run itself holds after each row; it cannot be asked once it has ended
    result = go(3, logger, lambda row: seen.append((logger.run.summary["round"], logger.run.summary["loss"])))
    assert seen == list(zip(range(4), result.history["loss"], strict=True))
    assert logger.run.config["method.stepsize"] == 0.02
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    assert [file.stat().st_size > 0 for file in folder.glob("*.wandb")] == [True]
