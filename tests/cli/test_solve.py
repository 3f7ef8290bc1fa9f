"""`fedrzo solve`: a user's file, what it is asked for, and where it goes wrong; `fedrzo compare` takes such files too."""

import json

import pytest

import fedrzo as fz
from fedrzo.running.spec import changed

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
def user_file(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(USER_FILE)
    return path


@pytest.mark.parametrize("command", ["run", "solve"])
def test_a_folder_that_cannot_be_written_is_refused_before_work(fails, user_file, command):
    user_file.write_text(USER_FILE.replace("print", "str"))
    out = user_file / "out"  # below a regular file, since a test that runs as root may write anywhere else
    line = fails(command, "quadratic" if command == "run" else user_file, "--out", out, "--quiet")
    assert line == f"--out: cannot write in {out} (Not a directory); choose another folder"


def test_a_file_named_without_its_ending_is_found(fails, user_file):
    stem = user_file.with_suffix("")
    assert fails("solve", stem) == f"file: there is no file {stem}; did you mean {user_file}?"
    assert fails("check", f"{stem}:other") == f"file: there is no file {stem}; did you mean {user_file}:other?"
    assert fails("compare", stem) == f"problem: found {str(stem)!r}; did you mean {user_file}?"
    assert fails("run", stem) == f"spec: {user_file} is a Python file; use `fedrzo solve {user_file}`"


@pytest.mark.slow("another solve")
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


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("method.stepsiz=1", "method.stepsiz: FedRZOnn has no such field; did you mean 'stepsize'?"),
        ("method.stepsize=-1", "method.stepsize: found -1; pass a positive number"),
        ("method.name=FedAvgg", "method.name: found 'FedAvgg'; did you mean 'FedAvg'?"),
        ("method=FedAvg", "--set method: found 'FedAvg'; write method.name=FedAvg, or method.FIELD=VALUE"),
        ("stepsize=1", "--set stepsize: a file's method is all that can be changed; write method.stepsize=VALUE"),
        ("run.rounds=1", "--set run: a file's method is all that can be changed; write method.FIELD=VALUE"),
    ],
)
def test_settings_that_do_not_fit_are_named(fails, user_file, setting, expected):
    user_file.write_text(USER_FILE.replace("print", "str"))
    assert fails("solve", user_file, "--set", setting) == expected


def test_a_method_for_another_class_of_problems_is_refused_before_its_fields_are_asked_for(fails, user_file):
    user_file.write_text(USER_FILE.replace("print", "str"))
    line = fails("solve", user_file, "--set", "method.name=FedRZObl")
    assert line.startswith("method.name: FedRZObl does not solve a Nonsmooth problem; use FedRZOnn, DeComFL, ")


def test_solve_takes_another_method_by_its_name(call, user_file):
    args = [
        "solve",
        user_file,
        "--rounds",
        2,
        "--no-check",
        "--set",
        "method.name=FedAvg",
        "--set",
        "method.stepsize=0.1",
    ]
    status, out, err = call(*args)
    assert status == 0
    assert "FedAvg(stepsize=0.1) on Nonsmooth(" in err
    assert "gradients" in out


def test_fields_of_a_method_inside_a_method_can_be_set(user_file):
    method = fz.FedRZObl(0.1, 0.1, lower=fz.LocalSGD(0.5, local_steps=2))
    assert changed(method, {"lower": {"rounds": 3}}).lower == fz.LocalSGD(0.5, local_steps=2, rounds=3)
    assert changed(method, {"lower": {"name": "LFD", "stepsize": 0.2}}).lower == fz.LFD(0.2)
    with pytest.raises(fz.InputError, match=r"^method\.lower\.ronds: LocalSGD has no such field; did you mean 'rounds'\?$"):
        changed(method, {"lower": {"ronds": 3}})


MINIMAX = """\
import numpy as np
import fedrzo as fz

def loss(x, y, batch):  # y answers with clip(x, -1, 1)
    return (x * y - 0.5 * y**2).sum() + 0.0 * batch.sum()

data = fz.ClientData([np.zeros(1)])
box = fz.sets.Box(-1, 1)
problem = fz.Minimax(loss, data, np.ones(1), np.zeros(1), constraint=fz.sets.Box(0.5, 2), lower_constraint=box)
rounds = 60
"""


@pytest.mark.slow("a run of FedRZO_bl from a cold start")
def test_the_projected_x_is_shown_with_the_y_that_answers_it(call, user_file):
    user_file.write_text(MINIMAX)
    values = [word for value in ("stepsize=0.05", "smoothing=0.1") for word in ("--set", f"method.{value}")]
    status, out, err = call("solve", user_file, "--no-check", "--quiet", *values)
    assert (status, err) == (0, "")
    assert out.splitlines()[-2:] == ["x_feasible = [0.5]", "y = [0.5], which answers x_feasible"]
    assert "lower-level" in out


FLAT = """\
import numpy as np, fedrzo as fz
problem = fz.Nonsmooth(fz.blackbox(lambda x, batch: np.abs(x - batch).mean()), fz.ClientData([np.arange(3.0)]), np.zeros(()),
                       constraint=fz.sets.Box(-1, 1))
"""


@pytest.mark.slow("runs every method that can take a black box")
def test_compare_takes_a_users_file(call, user_file):
    """A black box with a set leaves one method, which saves time."""
    user_file.write_text(FLAT + "other = problem\n")
    status, out, _ = call("compare", f"{user_file}:other", "--budget", 600, "--seeds", 1, "--json", "--quiet")
    assert status == 0
    found = json.loads(out)
    assert found["problem"] == f"{user_file}:other"
    assert [entry["name"] for entry in found["methods"]] == ["FedRZOnn"]
    assert found["methods"][0]["at_equal_evaluations"]["loss"] < found["start"]


@pytest.mark.slow("several programs from a cold start")
@pytest.mark.filterwarnings("ignore:stepsize")
def test_divergence_is_one_line_for_one_run_and_null_for_seeds(call, user_file):
    user_file.write_text(USER_FILE.replace("print", "str").replace("np.zeros(())", "np.zeros(()), fz.sets.Box(-1, 1)"))
    args = ["solve", user_file, "--quiet", "--json", "--rounds", 20, "--set", "method.stepsize=1e40"]
    status, out, err = call(*args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "x is no longer finite" in err
    status, out, _ = call(*args, "--seeds", 2)
    assert status == 0
    assert json.loads(out)["history"][0]["loss"][-1] is None
