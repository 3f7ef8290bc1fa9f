import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.checkpoint import Checkpoint
from fedrzo.cli import main

TINY = ["--set", "problem.dim=2", "--set", "method.local_steps=2"]
USER_FILE = """\
import jax.numpy as jnp
import numpy as np
import fedrzo as fz

print("this must not end up in the JSON")

def loss(x, batch):
    return jnp.mean(jnp.abs(x - batch))

problem = fz.Nonsmooth(loss, fz.ClientData([np.arange(3.0), np.arange(5.0)]), np.zeros(()))
"""


@pytest.fixture
def call(capsys):
    def run(*args):
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def fails(call):
    """Call with bad input: status 2, nothing on standard output, one line on standard error, which is returned."""

    def run(*args):
        status, out, err = call(*args)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("fedrzo: ")
        return err.removeprefix("fedrzo: ").rstrip("\n")

    return run


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(USER_FILE)
    return path


def test_help_needs_no_command_and_names_all(call):
    status, out, err = call()
    assert (status, err) == (0, "")
    assert all(word in out for word in ("list", "run", "solve", "--install-completion"))
    assert call("--version")[:2] == (0, f"{fz.__version__}\n")


def test_list(call):
    status, out, _ = call("list")
    assert status == 0
    assert all(f"\n  {name} " in out for name in ("quadratic", "FedRZOnn", "demo"))
    _, out, _ = call("list", "--json")
    known = json.loads(out)
    assert {"quadratic", "relu-digits"} <= set(known["problems"])
    assert "FedRZOnn" in known["methods"]
    assert {"demo", "digits", "mnist", "boxes", "median", "quadratic"} <= set(known["specs"])
    assert all(line for lines in known.values() for line in lines.values())


def test_run_prints_a_table(call):
    status, out, err = call("run", "quadratic", "--rounds", 2, *TINY)
    assert status == 0
    assert all(word in out for word in ("FedRZOnn", "loss", "rounds", "320 B", "evaluations", "seconds"))
    assert "2/2" in err
    assert call("run", "quadratic", "--rounds", 2, "--quiet", *TINY)[2] == ""


def test_run_prints_one_json_object(call):
    _, out, _ = call("run", "quadratic", "--rounds", 3, "--json", *TINY)
    history = json.loads(out)["history"]
    assert list(history)[:4] == ["round", "lower_rounds", "upload_bytes", "download_bytes"]
    assert history["round"] == [0, 1, 2, 3]
    direct = fz.run(fz.FedRZOnn(0.005, 0.01, 2, "full"), fz.zoo.make("quadratic", dim=2), 3, progress=False)
    np.testing.assert_allclose(history["loss"], direct.history["loss"], rtol=1e-12)


def test_seeds_give_a_list_and_an_interval(call):
    args = ["run", "quadratic", "--rounds", 2, "--seeds", 3, "--seed", 5, "--quiet", *TINY]
    _, out, _ = call(*args, "--json")
    histories = json.loads(out)["history"]
    assert len(histories) == 3
    _, out, _ = call("run", "quadratic", "--rounds", 2, "--seed", 6, "--json", "--quiet", *TINY)
    np.testing.assert_allclose(histories[1]["loss"], json.loads(out)["history"]["loss"], rtol=1e-9)
    assert " ± " in call(*args)[1]


def test_variants_are_named_in_json_and_drawn(call, tmp_path):
    out_dir = tmp_path / "new" / "out"
    status, out, err = call("run", "boxes", "--rounds", 2, "--seeds", 2, "--seed", 3, "--out", out_dir, "--json")
    assert status == 0
    assert "eta = 0.1 (1 of 2)" in err
    variants = json.loads(out)["variants"]
    assert [variant["label"] for variant in variants] == ["eta = 0.1", "eta = 0.01"]
    assert [len(variant["history"]) for variant in variants] == [2, 2]
    stored = fz.Result.load(out_dir / "eta-0.01" / "seed-4")
    assert stored.history["loss"].tolist() == variants[1]["history"][1]["loss"]
    assert all((out_dir / name).stat().st_size > 100 for name in ("figure.png", "figure.svg", "spec.toml"))


def test_a_stored_spec_runs_again(call, tmp_path):
    _, first, _ = call("run", "quadratic", "--rounds", 2, "--seed", 9, "--out", tmp_path, "--json", *TINY)
    _, again, _ = call("run", tmp_path / "spec.toml", "--json")
    assert json.loads(first)["history"]["loss"] == json.loads(again)["history"]["loss"]
    assert fz.Result.load(tmp_path / "fedrzonn").history["round"].tolist() == [0, 1, 2]


def test_resume_goes_on_where_a_run_ended(call, tmp_path):
    def history(*args):
        columns = json.loads(call("run", "quadratic", *TINY, "--json", "--quiet", *args)[1])["history"]
        return {name: values for name, values in columns.items() if name != "seconds"}

    history("--rounds", 3, "--out", tmp_path / "parts")
    resumed = history("--rounds", 6, "--out", tmp_path / "parts", "--resume")
    assert resumed == history("--rounds", 6, "--out", tmp_path / "whole")
    assert (tmp_path / "parts" / "spec.toml").read_text() == (tmp_path / "whole" / "spec.toml").read_text()


def test_resuming_another_run_is_refused_and_leaves_the_folder_alone(call, fails, tmp_path):
    call("run", "quadratic", "--rounds", 1, "--out", tmp_path, "--quiet", *TINY)
    before = (tmp_path / "spec.toml").read_text()
    again = ["run", "quadratic", "--rounds", 1, "--out", tmp_path, "--quiet", "--resume", *TINY]
    assert "holds a run with key = " in fails(*again, "--seed", 8)
    assert (tmp_path / "spec.toml").read_text() == before


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("run quadratc", "spec: found 'quadratc'; did you mean 'quadratic'?"),
        ("run nowhere.toml", "spec: cannot read nowhere.toml (No such file or directory); check the path"),
        ("run quadratic --set method.stepsiz=1", "method.stepsiz: FedRZOnn has no such field; did you mean 'stepsize'?"),
        ("run quadratic --set methd.stepsize=1", "methd: no such table; did you mean 'method'?"),
        ("run quadratic --set method.stepsize", "--set: found 'method.stepsize'; write KEY=VALUE, such as method.stepsize=0.01"),
        ("run quadratic --set method.stepsize=-1", "method.stepsize: found -1; pass a positive number"),
        ("run quadratic --set problem.dmi=1", "problem: quadratic has no option 'dmi'; did you mean 'dim'?"),
        ("run demo --set method.local_steps=3",
         "method.local_steps: variant 'H = 20' sets it too; change it in a copy of the spec"),
        ("run quadratic --seeds 0", "--seeds: found 0; pass a whole number of at least 1"),
        ("run quadratic --seed -1", "run.seed: found -1; pass a whole number of at least 0"),
        ("run quadratic --rounds -1", "rounds: found -1; pass a whole number of at least 0"),
        ("run quadratic --seeds 2 --set run.engine=loop",
         "--seeds: needs engine \"simulation\", 'FedRZOnn' has 'loop'; leave one of them out"),
        ("run quadratic --resume", "--resume: found no --out; pass the folder that the run was stored in"),
        ("run quadratic --round 3", "--round: fedrzo run has no such option; did you mean '--rounds'?"),
        ("run", "Missing argument 'NAME|SPEC.toml' (see fedrzo run --help)"),
        ("solve nowhere.py", "file: there is no file nowhere.py; pass FILE.py, or FILE.py:NAME"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(fails, args, expected):
    assert fails(*args.split()) == expected


def test_bad_usage_is_one_line(fails):
    assert "Did you mean 'run'?" in fails("rn", "quadratic")
    assert "'--seeds'" in fails("run", "quadratic", "--seeds", "many")


@pytest.mark.parametrize("command", ["run", "solve"])
def test_a_folder_that_cannot_be_written_is_refused_before_work(fails, user_file, command):
    user_file.write_text(USER_FILE.replace("print", "str"))
    out = user_file / "out"  # below a regular file, since a test that runs as root may write anywhere else
    line = fails(command, "quadratic" if command == "run" else user_file, "--out", out, "--quiet")
    assert line == f"--out: cannot write in {out} (Not a directory); choose another folder"


def test_solve_uses_stated_defaults(call, user_file):
    status, out, err = call("solve", user_file, "--rounds", 3, "--json")
    assert status == 0
    assert json.loads(out)["history"]["round"] == [0, 1, 2, 3]
    assert "FedRZOnn(stepsize=0.001, smoothing=0.01, local_steps=10)" in err
    assert "this must not" in err


def test_solve_takes_the_files_method_rounds_and_other_problems(call, fails, user_file, tmp_path):
    with user_file.open("a") as file:
        file.write("other = problem\nmethod = fz.FedRZOnn(0.01, 0.1)\nrounds = 2\n")
    args = ["solve", f"{user_file}:other", "--set", "method.local_steps=3", "--out", tmp_path / "out"]
    status, out, err = call(*args)
    assert status == 0
    assert "FedRZOnn(stepsize=0.01, smoothing=0.1, local_steps=3)" in err
    assert "toy.py" in out
    assert fz.Result.load(tmp_path / "out" / "fedrzonn").history["round"].tolist() == [0, 1, 2]
    assert (tmp_path / "out" / "figure.png").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\nimport nothing_of_the_kind\n", "line 2: ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        ("x = 1\ndef f(:\n", "line 2: SyntaxError: invalid syntax"),
        ("import sys\nsys.exit('no')\n", "line 2: SystemExit: no"),
        (USER_FILE.replace("jnp.abs", "undefined"), "line 8: loss: calling loss(x, batch) failed: NameError: name 'undefined'"),
        (USER_FILE.replace("jnp.abs(x - batch)", "jnp.ones(2) @ jnp.ones(3)"), "line 8: loss: calling loss(x, batch) failed:"),
        (USER_FILE.replace("Nonsmooth(loss", "Nonsmooth(3"), "line 10: loss: found int, which cannot be called"),
        (USER_FILE.replace("problem =", "problme ="), "does not define problem; did you mean 'problme'?"),
        ("problem = 3\n", "problem is a int; set it to fz.Nonsmooth(...) or another problem"),
        (USER_FILE + "method = 3\n", "method: found int; set it to fz.FedRZOnn(...) or another method"),
    ],
)  # fmt: skip
def test_mistakes_in_a_users_file_are_located(call, user_file, text, expected):
    user_file.write_text(text.replace('print("this must not end up in the JSON")', ""))
    status, out, err = call("solve", user_file, "--quiet")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_a_black_box_that_fails_in_the_middle_is_located(call, user_file):
    user_file.write_text(
        "import numpy as np, fedrzo as fz\ncalls = []\n\ndef loss(x, batch):\n    calls.append(1)\n"
        "    if len(calls) > 9:\n        raise OSError('the simulator is gone')\n    return np.abs(x - batch).mean()\n\n"
        "problem = fz.Nonsmooth(fz.blackbox(loss), fz.ClientData([np.arange(3.0)]), np.zeros(()))\n"
    )
    assert call("solve", user_file, "--quiet")[2] == "fedrzo: toy.py, line 7: OSError: the simulator is gone\n"


def test_solve_names_a_misspelt_field(fails, user_file):
    user_file.write_text(USER_FILE.replace("print", "str"))
    line = fails("solve", user_file, "--set", "method.stepsiz=1")
    assert line == "--set method.stepsiz: FedRZOnn has no such field; did you mean 'method.stepsize'?"


def test_divergence_is_one_line_for_one_run_and_null_for_seeds(call, user_file):
    user_file.write_text(USER_FILE.replace("print", "str").replace("np.zeros(())", "np.zeros(()), fz.sets.Box(-1, 1)"))
    args = ["solve", user_file, "--quiet", "--json", "--rounds", 20, "--set", "method.stepsize=1e40"]
    status, out, err = call(*args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "x is no longer finite" in err
    status, out, _ = call(*args, "--seeds", 2)
    assert status == 0
    assert json.loads(out)["history"][0]["loss"][-1] is None


def test_an_interrupted_run_can_be_resumed(tmp_path):
    code = (
        "import signal, sys; from fedrzo.cli import main; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main())"  # a background job ignores it
    )
    command = [sys.executable, "-c", code, "run", "quadratic", "--quiet", "--rounds", "1000000", "--out", str(tmp_path)]
    long = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stored = tmp_path / "fedrzonn" / "checkpoint" / "checkpoint.npz"
    deadline = time.monotonic() + 60
    while not stored.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    long.send_signal(signal.SIGINT)
    out, err = long.communicate(timeout=60)
    assert "Traceback" not in err, err
    assert (long.returncode, out) == (130, "")
    assert err.endswith(f"fedrzo: interrupted; go on with --resume --out {tmp_path}\n")
    done = Checkpoint.read(stored.parent).round
    assert done > 0
    again = ["run", "quadratic", "--quiet", "--rounds", str(done + 1), "--out", str(tmp_path), "--resume"]
    assert main(again) == 0
    assert len(fz.Result.load(tmp_path / "fedrzonn").history) == done + 2
