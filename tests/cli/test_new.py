"""`fedrzo new` writes files that run as they are and reach the answer that they state."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.cli.main import main
from fedrzo.cli.solve import KINDS
from fedrzo.running.problem_file import UserFile

# The answers that the files state, x and the loss, and how near to them they say that they end.
ANSWERS = {
    "nonsmooth": ([1.0, 0.5], 13.9 / 9, 0.01, 0.001),
    "bilevel": ([2.0], 0.4, 0.01, 0.002),
    "minimax": ([1.5], 0.875, 1e-5, 1e-5),
    "twostage": ([4.5], -10.125, 0.001, 1e-5),
}


def write(kind, folder, capsys):
    file = folder / f"{kind}_problem.py"
    assert main(["new", kind, str(file)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == f"{file}\ntry it: fedrzo check {file} or fedrzo solve {file}\n"
    return file


def point(out):
    """Return the x that `solve` shows."""
    shown = re.search(r"^x(?:_feasible)? = (.*)$", out, re.M)[1]
    return np.array(json.loads(shown.replace(". ", ".0 ").replace(".]", ".0]")))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow("solves a lower level from a cold start")] * (kind in ("bilevel", "minimax")))
        for kind in KINDS
    ],
)
def test_a_new_file_runs_and_reaches_its_answer(kind, tmp_path, capsys):
    file = write(kind, tmp_path, capsys)
    assert str(file) in file.read_text()
    assert main(["solve", str(file), "--no-check", "--quiet", "--out", str(tmp_path / "out")]) == 0
    x, loss, near, as_good = ANSWERS[kind]
    np.testing.assert_allclose(point(capsys.readouterr().out), x, atol=near)
    [kept] = (tmp_path / "out").glob("*/spec.toml")
    assert fz.Result.load(kept.parent).loss_feasible == pytest.approx(loss, abs=as_good)


@pytest.mark.slow("solves twice, without a method")
@pytest.mark.parametrize("kind", ["nonsmooth", "bilevel"])  # those with a kink at their answer
def test_solve_alone_reaches_the_answer_of_a_new_file(kind, tmp_path, capsys):
    found = fz.solve(UserFile(str(write(kind, tmp_path, capsys))).problem, seconds=240, progress=False)
    x, loss, *_ = ANSWERS[kind]
    np.testing.assert_allclose(found.x_feasible, x, atol=0.001)
    assert found.loss_feasible == pytest.approx(loss, abs=0.001)


def test_the_stated_answers_are_best():
    """A fine grid around each answer has no better point; the two-stage one is looked at over its scenarios."""
    grids = np.linspace(-0.5, 0.5, 41)
    points = np.concatenate([np.arange(-1, 2)[:, None] * 0.2 + centre for centre in (0.0, 1.0, 2.0)])[:, 0]
    second = np.concatenate([np.array([0.1, 0.0, -0.1]) + centre for centre in (0.0, 1.0, 2.0)])

    def nonsmooth(a, b):
        return np.mean(np.abs(a - points)) + np.mean(np.abs(b - second))

    allowed = [nonsmooth(1 + a, 0.5 + b) for a in grids for b in grids if 0.5 + b <= 0.5]
    assert min(allowed) == pytest.approx(nonsmooth(1.0, 0.5)) == pytest.approx(ANSWERS["nonsmooth"][1])
    fee = [abs(max(3 - x, 0) - 1) + 0.1 * x**2 for x in 2 + grids]
    assert min(fee) == pytest.approx(0.4)
    worst = [max((x - 2) * y - 0.5 * y**2 for y in np.linspace(-1, 1, 2001)) + 0.5 * abs(x) for x in 1.5 + grids]
    assert min(worst) == pytest.approx(0.875, abs=1e-6)
    demand = np.array([[9.0, 10.0, 11.0], [8.0, 12.0, 10.0]])  # both clients have mean 10
    market = [np.mean(-x * (demand - x - np.maximum((demand - x) / 2, 0))) + 0.5 * abs(x) for x in 4.5 + grids]
    assert min(market) == pytest.approx(-10.125)


def test_a_new_file_passes_its_check_without_a_note_and_solve_shows_x(tmp_path, capsys):
    file = write("nonsmooth", tmp_path, capsys)
    assert main(["solve", str(file), "--rounds", "200"]) == 0
    out, err = capsys.readouterr()
    assert "200 rounds take 19.2 kB up and down, 18,000 loss evaluations; here about" in err
    assert "note " not in err
    np.testing.assert_allclose(point(out), [1.0, 0.5], atol=0.2)


@pytest.mark.slow("solves a lower level from a cold start")
@pytest.mark.parametrize("kind", KINDS)
def test_check_explains_every_new_file(kind, tmp_path, capsys):
    file = write(kind, tmp_path, capsys)
    assert main(["check", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert ": no problems, no notes\n" in out
    assert "ok       costs: " in out
    if kind == "nonsmooth":  # the page shows this very output; seconds differ
        page = (Path(__file__).parents[2] / "docs" / "own-problem.md").read_text()
        assert out.split("; here about")[0] in page
    assert main(["check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("minmax", "my.py", "kind: found 'minmax'; did you mean 'minimax'?"),
        ("bilevel", "my.txt", "file: {} does not end in .py; pass a name such as my_problem.py"),
        ("bilevel", "there.py", "file: {} is there already and is left as it is; pass another name"),
        (
            "bilevel",
            "no/my.py",
            "file: cannot write {} (No such file or directory); pass a name in a folder that is there",
        ),
    ],
)
def test_bad_input_is_one_line(kind, name, message, tmp_path, capsys):
    (tmp_path / "there.py").write_text("mine")
    file = tmp_path / name
    assert main(["new", kind, str(file)]) == 2
    assert capsys.readouterr().err == f"fedrzo: {message.format(file)}\n"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there.py", "mine")]


def test_new_can_answer_in_json(tmp_path, capsys):
    file = tmp_path / "my.py"
    assert main(["new", "twostage", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(file),
        "next": [f"fedrzo check {file}", f"fedrzo solve {file}"],
    }
