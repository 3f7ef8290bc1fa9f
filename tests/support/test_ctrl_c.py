"""Ctrl-C while a black box is asked: seen inside compiled code, told in one line, in Python and in the command line."""

import os
import signal
import subprocess
import sys

import pytest

from fedrzo.support.interrupt import PRESSES

SLOW = """
import os, signal, sys, time
import numpy as np
import fedrzo as fz

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
calls = []

def slow(x, batch):
    calls.append(time.monotonic())
    if len(calls) == 20:  # the checks before the first round are over: compiled code asks
        print("ready", file=sys.__stdout__, flush=True)
    time.sleep(0.05)
    return float(np.mean(np.abs(batch - x)))

problem = fz.Nonsmooth(fz.blackbox(slow), fz.ClientData([np.arange(4.0)[:, None]] * 2), np.zeros(1))
"""
TOLD = """
try:
    {call}
except KeyboardInterrupt as stop:
    print(stop)
print(time.monotonic() - calls[-1] < 1.5)
"""
CALLS = {
    "certify": (
        "fz.certify(problem, np.zeros(1), 0.1, batch_size=2)",
        "stopped after 0 directions of a certificate; nothing was kept: call it again",
    ),
    "auto": (
        'fz.run(fz.FedRZOnn("auto", 0.1), problem, 50)',
        "stopped while a stepsize was searched for, before the first round; pass a number to go without a search",
    ),
    "check": (
        "fz.check(problem)",
        "stopped while fz.check looked at the loss around x0; nothing was kept: call it again, or go on without it",
    ),
    "theory": (
        "fz.FedRZOnn.from_theory(problem, 100)",
        "stopped while constants were estimated from samples; give those that you know, such as lipschitz, or fewer points",
    ),
    "solve": ("fz.solve(problem, 600)", None),
}
OTHERS = [pytest.param(name, marks=pytest.mark.slow("one more process")) for name in CALLS if name != "certify"]


def interrupted(code, *arguments):
    """Run code until it says that it is ready, press Ctrl-C, and return how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of a job
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    return process.returncode, out.splitlines(), err


@pytest.mark.parametrize("name", ["certify", *OTHERS])
def test_ctrl_c_ends_a_black_box_at_once_and_says_where(name):
    call, expected = CALLS[name]
    status, out, err = interrupted(SLOW + TOLD.format(call=call))
    assert (status, err) == (0, "")
    assert out == [expected or out[0], "True"]
    assert out[0].startswith("stopped")


def test_a_command_that_is_interrupted_says_one_line(tmp_path):
    (tmp_path / "mine.py").write_text(SLOW)
    code = "import sys; from fedrzo.cli.main import main; sys.exit(main())"
    status, out, err = interrupted(code, "check", str(tmp_path / "mine.py"))
    assert (status, out) == (130, [])
    assert err == (
        "fedrzo: interrupted; stopped while fz.check looked at the loss around x0; nothing was kept: call it again, or go on "
        "without it\n"
    )


@pytest.mark.slow("a pool of processes")
def test_ctrl_c_in_the_processes_of_a_pool_is_no_error_of_the_black_box(tmp_path):
    (tmp_path / "pooled.py").write_text("""
import time
import numpy as np

def one(x, batch):
    time.sleep(0.05)
    return float(np.mean(np.abs(batch - x)))
""")
    code = """
import signal, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import fedrzo as fz
import pooled

signal.signal(signal.SIGINT, signal.default_int_handler)
calls = []

def many(x, batch):
    calls.append(1)
    if len(calls) == 15:
        print("ready", flush=True)
    return np.array(list(pool.map(pooled.one, x, batch)))

with ProcessPoolExecutor(2) as pool:
    data = fz.ClientData([np.arange(4.0)[:, None]] * 2)
    problem = fz.Nonsmooth(fz.blackbox(many, vectorized=True), data, np.zeros(1))
    try:
        fz.run(fz.FedRZOnn(0.01, 0.1, 5), problem, 1000)
    except KeyboardInterrupt as stop:
        print(stop)
"""
    status, out, _ = interrupted(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}")
    assert status == 0
    assert out[-1].startswith("stopped after round")


@PRESSES.counted()
def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_press_is_forgotten_with_the_work_that_it_stopped():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert PRESSES.seen() == 0  # else a later error of a black box, where nobody counts, would be taken for Ctrl-C
    assert not PRESSES.due
