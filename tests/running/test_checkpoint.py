"""Checkpoints: they survive kill -9 and full disks, and neither go on with another run nor are lost to one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.running.checkpoint import NAME
from fedrzo.zoo import toys

METHOD = fz.FedRZOnn(0.02, 0.1, 3)


def go(rounds=5, method=METHOD, problem=None, **options):
    return fz.run(method, problem or toys.quadratic(3, 4), rounds, **{"progress": False, **options})


def scaled(scale=None):
    """The same problem with another loss, by its code alone or by a value that it uses; neither shows in x or the data."""
    plain = toys.quadratic(3, 4)
    if scale is None:
        return fz.Nonsmooth(lambda x, b: 2 * toys.squared_distance(x, b), plain.data, np.zeros(4), name="quadratic")
    return fz.Nonsmooth(lambda x, b: toys.squared_distance(scale * x, b), plain.data, np.zeros(4), name="quadratic")


SCRIPT = """
import sys, time, fedrzo as fz
from fedrzo.zoo import toys
slow = lambda row: time.sleep(0.05)
fz.run(fz.FedRZOnn(0.02, 0.1, 3), toys.quadratic(3, 4), 400, checkpoint=sys.argv[1], resume=True, progress=False, log=[slow])
"""


def test_a_run_killed_with_kill_9_resumes_bit_identically(tmp_path):
    straight = go(400)
    checkpoint = tmp_path / NAME
    for _ in range(2):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)])
        deadline = time.monotonic() + 60
        # Wait for two new checkpoints, so that the kill falls into work done after a resume.
        for _ in range(2):
            while (checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0) == before:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.02)
            before = checkpoint.stat().st_mtime_ns
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    resumed = go(400, checkpoint=tmp_path, resume=True)
    assert resumed.history["seconds"][-1] > 0
    assert straight.x.tobytes() == resumed.x.tobytes()
    assert straight.x_random.tobytes() == resumed.x_random.tobytes()
    for name in straight.history:
        if name != "seconds":
            assert list(straight.history[name]) == list(resumed.history[name]), name


def test_an_interrupt_from_a_callback_stores_and_says_how_to_resume(tmp_path):
    """Ctrl-C from the keyboard is in test_comforts.py."""

    def interrupt(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"stopped after round 3 of 10; go on with .* resume=True") as stopped:
        go(10, checkpoint=tmp_path, log=[interrupt])
    straight = go(10)
    assert list(stopped.value.result.history["loss"]) == list(straight.history["loss"][:4])
    assert go(10, checkpoint=tmp_path, resume=True).x.tobytes() == straight.x.tobytes()


def test_a_damaged_checkpoint_is_refused(tmp_path):
    go(3, checkpoint=tmp_path)
    file = tmp_path / NAME
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"nonsense", b"", whole[:200] + bytes(40) + whole[240:]):
        file.write_bytes(damaged)
        with pytest.raises(fz.CheckpointError, match=r"checkpoint: .* is damaged \(\w+\); delete it to start anew"):
            go(5, checkpoint=tmp_path, resume=True)
        assert file.read_bytes() == damaged


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": 1}, "holds a run with key"),
        ({"method": fz.FedRZOnn(0.03, 0.1, 3)}, "holds a run with method"),
        ({"method": fz.FedRZOnn(0.020000001, 0.1, 3)}, "holds a run with method"),
        ({"problem": toys.quadratic(4, 4)}, "holds a run with problem"),
        ({"problem": toys.quadratic(3, 4, seed=1)}, "holds a run with data, x0 and sets"),
        ({"problem": scaled()}, "holds a run that starts at loss = "),
        ({"problem": scaled(2.0)}, "holds a run with values that its functions use"),
        ({"clients_per_round": 2}, "holds a run with clients_per_round"),
    ],
)
def test_another_runs_checkpoint_is_refused(tmp_path, changes, message):
    go(3, checkpoint=tmp_path)
    with pytest.raises(fz.CheckpointError, match=message):
        go(5, checkpoint=tmp_path, resume=True, **changes)


def test_other_schedules_are_told_apart(tmp_path):
    go(3, method=fz.FedRZOnn(lambda r: 0.02 / (r + 1), 0.1), checkpoint=tmp_path)
    with pytest.raises(fz.CheckpointError, match="holds a run with schedules"):
        go(5, method=fz.FedRZOnn(lambda r: 0.02 / (r + 2), 0.1), checkpoint=tmp_path, resume=True)


def test_resume_with_more_rounds_keeps_the_rows_of_a_straight_run(tmp_path):
    go(3, eval_every=2, checkpoint=tmp_path)
    resumed = go(6, eval_every=2, checkpoint=tmp_path, resume=True)
    assert list(resumed.history["round"]) == list(go(6, eval_every=2).history["round"]) == [0, 2, 4, 6]
    with pytest.raises(fz.InputError, match="rounds: found 4, the checkpoint is at 6"):
        go(4, eval_every=2, checkpoint=tmp_path, resume=True)


def test_a_stored_run_is_not_written_over(tmp_path):
    go(3, checkpoint=tmp_path)
    before = (tmp_path / NAME).read_bytes()
    line = f"checkpoint: {str(tmp_path)!r} holds a run at round 3; pass resume=True, another folder, or delete it"
    for again in (
        lambda: go(3, checkpoint=tmp_path),
        lambda: fz.sweep(METHOD, toys.quadratic(3, 4), 2, checkpoint=tmp_path),
    ):
        with pytest.raises(fz.InputError) as error:
            again()
        assert str(error.value) == line
    assert (tmp_path / NAME).read_bytes() == before
    (tmp_path / NAME).unlink()
    assert len(go(2, checkpoint=tmp_path).history) == 3


def test_another_number_of_seeds_is_told_in_a_line_that_can_be_read(tmp_path):
    options = {"checkpoint": tmp_path, "progress": False}
    fz.sweep(METHOD, toys.quadratic(3, 4), 2, seeds=3, **options)
    with pytest.raises(fz.CheckpointError) as error:
        go(3, resume=True, **options)
    assert str(error.value) == (
        f"checkpoint: {tmp_path} holds 3 runs side by side, this call has 1; pass the seeds (--seeds on the command line) and "
        "the settings that it began with, or use another folder"
    )
    with pytest.raises(fz.CheckpointError) as error:
        fz.sweep(METHOD, toys.quadratic(3, 4), 3, seeds=[0, 1, 5], resume=True, **options)
    assert "holds a run with key = [0, 2], this one has [0, 5]; use another folder, or delete it" in str(error.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    """Writes go to a real device that refuses every byte; the checkpoint from before stays whole."""
    import tempfile

    go(3, checkpoint=tmp_path)
    before = (tmp_path / NAME).read_bytes()
    real = tempfile.mkstemp

    def full(*args, **kwargs):
        handle, name = real(*args, **kwargs)
        os.close(handle)
        return os.open("/dev/full", os.O_WRONLY), name

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(fz.InputError, match=r"cannot write .*No space left on device.*nothing was changed"):
        go(6, checkpoint=tmp_path, resume=True)
    assert (tmp_path / NAME).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [NAME]


def test_another_loss_is_noticed_though_it_is_the_same_at_x0(tmp_path):
    data = fz.ClientData([np.ones((3, 2)), 2 * np.ones((2, 2))])
    absolute, squared = (
        fz.Nonsmooth(loss, data, np.zeros(2), name="a regression")
        for loss in (lambda x, b: jnp.mean(jnp.abs(b @ x - 1)), lambda x, b: jnp.mean((b @ x - 1) ** 2))
    )
    go(4, problem=absolute, checkpoint=tmp_path)
    with pytest.raises(fz.CheckpointError, match=r"whose loss is .* after 4 rounds; this one's is .* there: they differ"):
        go(8, problem=squared, checkpoint=tmp_path, resume=True)
    assert go(8, problem=absolute, checkpoint=tmp_path, resume=True).x.tobytes() == go(8, problem=absolute).x.tobytes()
