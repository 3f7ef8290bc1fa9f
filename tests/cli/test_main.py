import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

import fedrzo as fz
from fedrzo.cli import known, output
from fedrzo.cli.main import app, main
from fedrzo.results.text import mean_and_half
from fedrzo.running.built_in import built_in
from fedrzo.running.checkpoint import Checkpoint
from fedrzo.running.spec import Spec

TINY = ["--set", "problem.dim=2", "--set", "method.local_steps=2"]


def test_help_needs_no_command_and_names_all(call):
    status, out, err = call()
    assert (status, err) == (0, "")
    assert all(word in out for word in ("list", "run", "solve", "--install-completion"))
    assert call("--version")[:2] == (0, f"{fz.__version__}\n")


def commands(command, path=()):
    """Yield the words of each command."""
    for name, found in getattr(command, "commands", {}).items():
        yield from commands(found, (*path, name))
    if path and not hasattr(command, "commands"):
        yield path


def test_the_help_of_every_command_is_plain_text(call):
    found = list(commands(get_command(app)))
    assert len(found) > 9
    for words in found:
        status, out, err = call(*words, "--help")
        assert (status, err) == (0, "")
        assert out.startswith(f"Usage: fedrzo {' '.join(words)}")
        assert "\\" not in out


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


def test_the_list_begins_with_what_to_try_and_names_all_that_there_is(call):
    stored = known.known()
    assert {name: stored[name] for name in ("problems", "methods")} == known.collected(), "run python -m fedrzo.cli.known"
    assert stored["specs"] == {name: Spec.read(name).title for name in built_in()}
    _, out, _ = call("list")
    lines = out.splitlines()
    assert lines[2:4] == ["to begin with", f"  {'fedrzo run demo':29}  runs a spec"]
    headings = [line.partition(":")[0] for line in lines if line and line[0] != " "]
    assert headings[2:5] == ["specs", "methods for Nonsmooth problems", "methods for Bilevel and Minimax problems"]
    assert headings[-2:] == ["problems", "problems from collections, with their best known values"]


def test_the_list_does_not_wait_for_jax():
    code = "import sys; from fedrzo.cli.main import main; main(['list']); sys.exit(bool({'jax', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_run_prints_a_table(call):
    status, out, err = call("run", "quadratic", "--rounds", 2, *TINY)
    assert status == 0
    assert all(word in out for word in ("FedRZOnn", "loss", "rounds", "320 B", "evaluations", "seconds"))
    assert "2/2" in err
    assert call("run", "quadratic", "--rounds", 2, "--quiet", *TINY)[2] == ""


def test_the_table_hides_no_cost(call):
    args = ["run", "quadratic", "--rounds", 2, "--quiet", "--set", "problem.dim=2", "--set", "method.name=FedAvg"]
    heading, _, row = [line.split() for line in call(*args, "--set", "method.stepsize=0.1")[1].splitlines()[2:5]]
    assert heading == ["loss", "rounds", "up", "+", "down", "evaluations", "gradients", "seconds"]
    assert row[2:-1] == ["2", "320", "B", "0", "10"]  # five clients, one step a round, one sample each


@pytest.mark.slow("a run once more")
def test_the_table_shows_how_far_outside_the_sets_the_loss_is(call):
    """On `boxes` the best feasible loss is -2, and the smoothed problem's solution lies outside the sets."""
    _, out, _ = call("run", "boxes", "--quiet", "--set", "run.eval_every=100")
    above, heading, _, row = (line.split() for line in out.splitlines()[2:6])
    assert above == ["loss", "at"]
    assert heading[:3] == ["loss", "feasibility", "x_feasible"]
    loss, distance, projected = map(float, row[3:6])
    assert loss < -2.3
    assert distance > 0.1
    assert projected == pytest.approx(-2, abs=1e-3)


def test_a_table_is_never_cut(capsys):
    marks = "stepsize at the edge of its grid, one round exceeds the budget in evaluations and bytes"
    costs = ["0.0123 ± 0.001", "0.01", "12,345"] * 2
    heads = ["loss at x_feasible\nafter 3,000 evaluations", "feasibility", "rounds"] * 2
    names = ["FedRZOnn, gradients", "QuasiNewton, with directions"]
    output.print_rows("compare: toy", [["", *heads, ""], *([name, *costs, marks] for name in names)])
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(word in shown for word in (*names, *costs, *marks.split()))
    assert max(map(len, shown.splitlines())) <= 140


def test_a_spread_that_is_rounding_of_the_mean_is_not_shown():
    assert mean_and_half(np.array([0.318, 0.318, 0.318 + 5.6e-17])) == "0.318"
    assert mean_and_half(np.zeros(3)) == "0"
    assert mean_and_half(np.array([0.318, 0.318, 0.319])) == "0.318333 ± 0.0014"
    assert mean_and_half(np.array([-1e-9, 1e-9])) == "0 ± 1.3e-08"


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


@pytest.mark.slow("a sweep from a cold start")
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


@pytest.mark.slow("several processes")
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


@pytest.mark.slow("several processes")
def test_out_says_what_was_written_and_a_stored_run_is_not_written_over(call, fails, tmp_path):
    args = ["run", "quadratic", "--out", tmp_path, "--rounds", 2, *TINY]
    names = ["figure.png", "figure.svg", "spec.toml", "fedrzonn/"]
    assert f"wrote {', '.join(f'{tmp_path}/{name}' for name in names)}\n" in call(*args, "--seeds", 2)[2]
    stored = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    folder = tmp_path / "fedrzonn" / "checkpoint"
    assert all((tmp_path / name).exists() for name in names)
    assert fails(*args) == f"--out: {str(folder)!r} holds a run at round 2; pass --resume, another folder, or delete it"
    assert fails(*args, "--resume").startswith(f"checkpoint: {folder} holds 2 runs side by side, this call has 1; pass the seeds")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == stored


def test_another_commands_files_are_not_written_over(fails, tmp_path):
    def refused(*args):
        line = fails(*args, "--out", tmp_path, "--quiet")
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == stored
        return line.removeprefix(f"--out: {tmp_path} holds ").removesuffix(" already; choose another folder, or delete them")

    run = ["run", "quadratic", "--rounds", 1, *TINY]
    for name in ("figure.svg", "spec.toml", "fedrzonn/history.csv", "fedrzonn/seed-3/history.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("another's")
        stored = {path: path.read_bytes()}
        assert refused(*run) == refused(*run, "--resume") == name
        path.unlink()
    stored = {}
    for name in ("figure.png", "table.json"):
        (tmp_path / name).write_text("another's")
        stored = {**stored, tmp_path / name: b"another's"}
    assert refused("compare", "quadratic", "--quick") == "table.json, figure.png"


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
        ("run quadratic --seed -1", "--seed: found -1; pass a whole number from 0 to 2**32 - 1"),
        ("solve toy.py --rounds 10 --seed -1", "--seed: found -1; pass a whole number from 0 to 2**32 - 1"),
        ("solve toy.py --rounds ten", "--rounds: found 'ten'; pass a whole number"),
        ("solve toy.py --seconds=ten", "--seconds: found 'ten'; pass a number"),
        ("compare quadratic --seeds many", "--seeds: found 'many'; pass a whole number"),
        ("run quadratic --rounds -1", "rounds: found -1; pass a whole number of at least 0"),
        ("run quadratic --seeds 2 --set run.engine=loop",
         "--seeds: needs engine \"simulation\", 'FedRZOnn' has 'loop'; leave one of them out"),
        ("run quadratic --resume", "--resume: found no --out; pass the folder that the run was stored in"),
        ("run quadratic --round 3", "--round: fedrzo run has no such option; did you mean '--rounds'?"),
        ("run", "Missing argument 'NAME|SPEC.toml' (see fedrzo run --help)"),
        ("run own.py", "spec: own.py is a Python file; use `fedrzo solve own.py`"),
        ("run own.py:other", "spec: own.py:other is a Python file; use `fedrzo solve own.py:other`"),
        ("solve nowhere.py", "file: there is no file nowhere.py; pass FILE.py, or FILE.py:NAME"),
        ("compare nowhere.py", "file: there is no file nowhere.py; pass FILE.py, or FILE.py:NAME"),
        ("run quadratic --set method.scalars=1", "method.scalars: FedRZOnn has no such field; "
         "known: batch_size, communication, directions, local_steps, moreau, name, oracle, privacy, smoothing, stepsize"),
        ("rn quadratic", "rn: fedrzo has no such command; did you mean 'run'?"),
        ("deploy initt app", "initt: fedrzo deploy has no such command; did you mean 'init'?"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(fails, args, expected):
    assert fails(*args.split()) == expected


def test_an_interrupted_run_is_reported_and_can_be_resumed(tmp_path, capsys):
    code = (
        "import signal, sys; from fedrzo.cli.main import main; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main())"  # a background job ignores it
    )
    command = [sys.executable, "-c", code, "run", "quadratic", "--quiet", "--rounds", "1000000", "--out", str(tmp_path)]
    long = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stored = tmp_path / "fedrzonn" / "checkpoint" / "checkpoint.npz"
    deadline = time.monotonic() + 60
    while not stored.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    long.send_signal(signal.SIGINT)
    out, err = long.communicate(timeout=600)
    assert "Traceback" not in err, err
    assert (long.returncode, out) == (130, "")
    assert err.endswith(f"fedrzo: interrupted; go on with --resume --out {tmp_path}\n")
    done = Checkpoint.read(stored.parent).round
    assert done > 0
    assert main(["report", str(tmp_path), "--json"]) == 0
    page = Path(json.loads(capsys.readouterr().out)["file"]).read_text()
    assert f"interrupted by Ctrl-C after round {done} of 1000000; go on with --resume" in page
    again = ["run", "quadratic", "--quiet", "--rounds", str(done + 1), "--out", str(tmp_path), "--resume"]
    assert main(again) == 0
    rounds = list(fz.Result.load(tmp_path / "fedrzonn").history["round"])
    assert rounds == [*range(0, done + 1, rounds[1]), done + 1]  # no row where it was interrupted
