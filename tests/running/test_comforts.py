"""What a user sees beside numbers: Ctrl-C, progress, what objects say of themselves, completion, hints, quick imports."""

import contextlib
import dataclasses
import gc
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.running.checkpoint import NAME
from fedrzo.support import hardware, progress
from fedrzo.support.interrupt import AGAIN, Interrupt
from fedrzo.zoo import toys

METHOD = fz.FedRZOnn(0.02, 0.1, 3)


def go(rounds, **options):
    return fz.run(METHOD, toys.quadratic(3, 4), rounds, **options)


@pytest.fixture
def start():
    """Start Python with some code; what still runs at the end of a test is ended."""
    with contextlib.ExitStack() as stack:

        def run(code, *args):
            # A background job would ignore Ctrl-C.
            code = f"import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"
            command = [sys.executable, "-c", code, *map(str, args)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


STORED = """
import time, fedrzo as fz
from fedrzo.zoo import toys
slow = lambda row: time.sleep(0.02)
fz.run(fz.FedRZOnn(0.02, 0.1, 3), toys.quadratic(3, 4), 100_000, checkpoint=sys.argv[1], log=[slow])
"""


def test_ctrl_c_stores_the_run_says_how_to_go_on_and_loses_nothing(start, tmp_path):
    process = start(STORED, tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / NAME).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (-signal.SIGINT, "")
    last = err.strip().splitlines()[-1]
    found = re.fullmatch(
        r"KeyboardInterrupt: stopped after round (\d+) of 100000; go on with the same call and resume=True, "
        rf"checkpoint='{tmp_path}'", last)  # fmt: skip
    assert found, err
    done = int(found[1])
    resumed = go(done + 5, checkpoint=tmp_path, resume=True)
    straight = go(done + 5, eval_every=int(resumed.history["round"][1]))
    assert resumed.x.tobytes() == straight.x.tobytes()
    assert list(resumed.history["loss"]) == list(straight.history["loss"])


KEPT = """
import fedrzo as fz
from fedrzo.zoo import toys
ready = lambda row: row["round"] == 4000 and print("ready", flush=True)
try:
    fz.run(fz.FedRZOnn(0.02, 0.1, 3), toys.quadratic(3, 4), 10_000_000, eval_every=2000, log=[ready])
except KeyboardInterrupt as stop:
    stop.result.save(sys.argv[1])
    print(stop)
"""


@pytest.mark.slow("a process that is stopped while it computes")
def test_ctrl_c_inside_compiled_rounds_keeps_the_result_without_a_checkpoint(start, tmp_path):
    process = start(KEPT, tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    kept = fz.Result.load(tmp_path)
    done = int(kept.history["round"][-1])
    assert done % 2000 == 0
    assert f"stopped after round {done} of 10000000; the exception's `result` holds what was reached" in out
    straight = go(done, eval_every=2000)
    assert kept.x.tobytes() == straight.x.tobytes()
    assert list(kept.history["loss"]) == list(straight.history["loss"])


# The first round compiles, while nobody interrupts: a process that ends in the middle of it ends with JAX's segmentation fault.
# The rounds after it never end: only so are they certain to be under way when Ctrl-C is pressed, on any machine.
TWICE = """
import fedrzo as fz
from fedrzo.zoo import toys
method, problem = fz.FedRZOnn(0.02, 0.1, 3), toys.quadratic(3, 4)
fz.run(method, problem, 2, engine="loop")
once = fz.FedRZOnn.round
fz.FedRZOnn.round = lambda method, federation, state, r: federation.repeat(
    10**9, lambda federation, state: once(method, federation, state, r), state)
ready = lambda row: print("ready", flush=True)
try:
    fz.run(method, problem, 5, engine="loop", log=[ready], progress=True)
except KeyboardInterrupt as stop:
    assert stop.result is None
    print(stop)
"""


@pytest.mark.slow("computes in a process of its own until it is stopped")
def test_a_second_ctrl_c_does_not_wait(start):
    process = start(TWICE)
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert out.startswith("stopped after round 0 of 5; nothing was kept; pass checkpoint=FOLDER")


def interrupt_me(*_):
    os.kill(os.getpid(), signal.SIGINT)


class Finalised:
    def __del__(self):
        interrupt_me()


def collected():
    gc.callbacks.append(interrupt_me)
    gc.collect()


def twice(told, ignoring):
    with Interrupt(told.append):
        interrupt_me()
        ignoring()
        for _ in range(1000):
            time.sleep(0.01)


@pytest.mark.parametrize("ignoring", [collected, Finalised], ids=["collector", "finaliser"])
def test_a_second_ctrl_c_is_not_lost_where_python_ignores_exceptions(ignoring):
    callbacks, before = list(gc.callbacks), signal.signal(signal.SIGINT, signal.default_int_handler)
    told = []
    try:
        with pytest.raises(KeyboardInterrupt):
            twice(told, ignoring)
        assert told == [AGAIN]
    finally:
        gc.callbacks[:] = callbacks
        signal.signal(signal.SIGINT, before)


def test_an_interrupted_sweep_has_a_sweep_so_far():
    calls = []

    def loss(x, batch):
        calls.append(1)
        if len(calls) == 100:  # after the checks before the first round, and long before the end
            os.kill(os.getpid(), signal.SIGINT)
        return np.abs(x - batch).mean()

    problem = fz.Nonsmooth(fz.blackbox(loss), fz.ClientData([np.arange(3.0)]), np.zeros(()))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"stopped after round \d+ of 100") as stopped:
            fz.sweep(METHOD, problem, 100, seeds=2, stepsize=[0.1, 0.2])
    finally:
        after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler
    found = stopped.value.result
    assert [len(results) for results in found.results] == [2, 2]
    first = found.results[0][0]
    assert 0 < first.history["round"][-1] < 100
    assert first.stopped == f"interrupted by Ctrl-C after round {first.history['round'][-1]} of 100"


def in_terminal(code):
    """Run code whose standard error is a terminal, and return what is written there."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=env)
    os.close(theirs)
    text = b""
    while chunk := _read(ours):
        text += chunk
    os.close(ours)
    assert process.wait(60) == 0, text.decode()
    return text.decode()


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # how Linux says that nobody writes there any more
        return b""


def test_a_terminal_shows_a_bar_with_the_time_left_and_the_loss():
    shown = in_terminal(
        "import fedrzo as fz; from fedrzo.zoo import toys; fz.run(fz.FedRZOnn(0.02, 0.1, 3), toys.quadratic(3, 4), 3)"
    )
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"round 3/3 .* left 0:00:00 loss \d\.\d+", shown), shown


def test_elsewhere_progress_is_silent_unless_asked_for(capfd):
    go(3)
    assert capfd.readouterr() == ("", "")
    go(3, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"round 3/3, loss \d\.\d+, 0:\d\d:\d\d\n", err), err


def test_lines_come_now_and_then_with_the_time_left(capfd, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    go(2, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"round 1/2, loss \d\.\d+, 0:\d\d:\d\d, 0:\d\d:\d\d left", lines[1])


@pytest.fixture(scope="module")
def result():
    return go(30)


@pytest.fixture(scope="module")
def sweep():
    return fz.sweep(METHOD, toys.quadratic(3, 4), 20, seeds=[4, 6], stepsize=[0.01, 0.02])


def test_a_result_says_what_was_reached_and_what_it_cost(result):
    lines = repr(result).splitlines()
    assert lines[0] == "Result of FedRZOnn(stepsize=0.02, smoothing=0.1, local_steps=3)"
    assert lines[1].split(maxsplit=1)[0] == "problem"
    assert re.fullmatch(r"  loss +\S+ after 30 rounds, \S+ at the start", lines[2])
    assert re.fullmatch(r"  cost +2.88 kB up, 2.88 kB down, 540 evaluations", lines[4])
    # Nothing is left to compile where another test had the same program: what it took is given here.
    compiled, cached = (repr(dataclasses.replace(result, compile_seconds=s)).splitlines()[5] for s in (2.5, 0.0))
    assert re.fullmatch(r"  seconds +\S+, 2\.5 of them compiling", compiled)
    assert re.fullmatch(r"  seconds +[\d.e-]+", cached)
    assert str(float(f"{result.history['loss'][-1]:.6g}")) in lines[2]


def test_notebooks_get_tables(result, sweep):
    html = result._repr_html_()
    assert "<td>loss</td>" in html
    table = result.history._repr_html_()
    assert table.count("<tr>") == 1 + 5 + 1 + 5
    assert "<th>upload_bytes</th>" in table
    assert "stepsize = 0.02" in sweep._repr_html_()
    sneaky = fz.Result(1, 1, 1, 0, result.history, {"method": "<script>"})
    assert "<script>" not in sneaky._repr_html_()


def test_a_sweep_names_its_settings_and_its_seeds(sweep):
    lines = repr(sweep).splitlines()
    assert lines[0] == "Sweep of 2 settings with 2 seeds each; loss at the end:"
    assert [line.split("  ")[1] for line in lines[1:]] == ["stepsize = 0.01", "stepsize = 0.02"]
    assert lines[1 + sweep.best()].endswith("(best)")
    assert sorted(set(sweep.to_frame()["seed"])) == [4, 6]


def test_methods_and_problems_say_what_they_are():
    assert repr(fz.FedRZOnn(0.1, 0.01)) == "FedRZOnn(stepsize=0.1, smoothing=0.01)"
    lower = fz.LocalSGD(0.5, local_steps=2)
    assert repr(fz.FedRZObl(0.1, 0.01, 3, lower=lower)) == (
        "FedRZObl(stepsize=0.1, smoothing=0.01, local_steps=3, lower=LocalSGD(stepsize=0.5, local_steps=2))"
    )
    data = fz.ClientData([np.zeros((3, 2)), np.zeros((4, 2))])
    own = fz.Nonsmooth(lambda x, b: 0.0, data, np.zeros(2), fz.sets.Box(-1, 1))
    assert repr(own) == "Nonsmooth(n = 2, ClientData(2 clients, 3 to 4 samples each), sets: Box, float64)"


@pytest.mark.parametrize(
    ("present", "backend", "chosen", "said"),
    [
        (True, "cpu", None, True),
        (True, "cpu", "cpu", False),
        (True, "gpu", None, False),
        (False, "cpu", None, False),
    ],
)
def test_a_gpu_that_is_not_used_is_told_of(present, backend, chosen, said):
    line = hardware.idle_gpu(present, backend, chosen)
    assert (line is not None) == said
    assert not said or "pip install 'jax[cuda13]'" in line


def test_the_hint_comes_once_and_not_where_the_cpu_was_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "DEVICES", (str(tmp_path),))
    hardware.warn_of_idle_gpu.cache_clear()
    hardware.warn_of_idle_gpu()  # these tests set JAX_PLATFORMS=cpu; warnings are errors here
    chosen = jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", None)
    try:
        hardware.warn_of_idle_gpu.cache_clear()
        with pytest.warns(UserWarning, match="GPU: found an NVIDIA device"):
            hardware.warn_of_idle_gpu()
        hardware.warn_of_idle_gpu()
    finally:
        jax.config.update("jax_platforms", chosen)


def test_equal_calls_give_equal_bits(result):
    assert go(30).x.tobytes() == result.x.tobytes()
    assert go(30, key=1).x.tobytes() != result.x.tobytes()


COMPLETE = """
source <(_FEDRZO_COMPLETE=source_bash fedrzo)
complete_words() { COMP_WORDS=(fedrzo "$@"); COMP_CWORD=$#; COMPREPLY=(); _fedrzo_completion fedrzo; echo "${COMPREPLY[@]}"; }
complete -p fedrzo
complete_words rep
complete_words run qu
complete_words reproduce ta
complete_words run quadratic --se
"""


@pytest.mark.slow("starts many processes")
def test_bash_completes_commands_names_and_options():
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", COMPLETE], capture_output=True, text=True, env=env, timeout=600)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -F _fedrzo_completion fedrzo",
        "reproduce report",
        "quadratic",
        "table4",
        "--set --seeds --seed",
    ]


def test_compilation_is_shown_apart():
    """The first look compiles the program that rounds are run by; a second run of the problem compiles nothing."""
    problem = fz.Nonsmooth(lambda x, a: abs(x - a).mean() / 7, fz.ClientData([np.ones((2, 3))]), np.zeros(3))
    first, second = (fz.run(fz.FedRZOnn(0.1, 0.1), problem, 3, progress=False) for _ in range(2))
    assert second.compile_seconds < 0.5 * first.compile_seconds < 0.5 * first.history["seconds"][-1]
