"""The report of what has no record: runs, interrupted ones, comparisons, certificates."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.cli.main import main
from fedrzo.errors import InputError
from fedrzo.paper.report import page as report
from fedrzo.paper.report.find import find
from fedrzo.running.checkpoint import Checkpoint
from records import history, write_sample
from report_pages import Page, one_line

SPEC = """\
title = "Steps on a toy"
[problem]
name = "quadratic"
dim = 2
[method]
name = "FedRZOnn"
stepsize = 0.01
smoothing = 0.01
[run]
rounds = 3
[[variant]]
label = "H = 20"
method.local_steps = 20
[[variant]]
label = "H = 1"
method.local_steps = 1
"""


def test_runs_without_a_record_are_shown_as_curves(tmp_path, capsys):
    spec = tmp_path / "toy.toml"
    spec.write_text(SPEC)
    runs = tmp_path / "runs"
    assert main(["run", str(spec), "--seeds", "2", "--seed", "4", "--out", str(runs), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["report", str(runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["records"] == ["runs"]
    assert told["claims"] == {"hold": 0, "fail": 0, "open": 0}
    assert told["bytes"] == Path(told["file"]).stat().st_size
    page = Page(Path(told["file"]).read_text(encoding="utf-8"))
    [data] = page.data()
    assert [curve["label"] for curve in data["curves"]] == ["H = 20", "H = 1"]
    kept = [fz.Result.load(runs / "h-1" / f"seed-{seed}").history["loss"] for seed in (4, 5)]
    np.testing.assert_allclose(data["curves"][1]["mean"], np.mean(kept, axis=0), rtol=1e-5)
    for text in ("Steps on a toy", "fedrzo run runs/spec.toml --seed 4 --seeds 2", "method.local_steps = 20"):
        assert text in page.all("main")[0]["text"]
    # Beside a record, and one folder further up, they are found too; a folder with a record is shown as that.
    write_sample(tmp_path / "both")
    runs.rename(tmp_path / "both" / "toy")
    runs_of_record = tmp_path / "both" / "fig1" / "a"
    runs_of_record.mkdir()
    history().write(runs_of_record / "history.csv")
    assert report.write(tmp_path / "both").records == ["fig1", "fig7", "toy"]


def test_the_result_of_one_run_is_a_report_too(tmp_path):
    history().write(tmp_path / "history.csv")
    page = Page(report.write(tmp_path).file.read_text(encoding="utf-8"))
    assert [curve["label"] for curve in page.data()[0]["curves"]] == [tmp_path.name]
    assert "They were not recorded" in page.all("main")[0]["text"]
    assert "Loss and costs of each run" in page.all("main")[0]["text"]
    assert "claimed" not in page.all("main")[0]["text"]


def stored(folder, round, stopped, methods=("a",)):
    """Write a checkpoint of some runs, as a run does."""
    folder.mkdir(parents=True)
    histories = [history(seed, rows=round + 1).to_dict() for seed in range(len(methods))]
    Checkpoint({"method": list(methods)}, round, 1.0, histories, [], [None] * len(methods), {}, stopped).write(folder)


def test_runs_that_were_interrupted_are_shown_from_their_checkpoints(tmp_path):
    (tmp_path / "done").mkdir()
    history().write(tmp_path / "done" / "history.csv")
    (tmp_path / "done" / "spec.toml").write_text('stopped = "all rounds are done: 10"\n')
    stored(tmp_path / "done" / "checkpoint", 10, "all rounds are done: 10")
    stored(tmp_path / "cut" / "checkpoint", 6, "interrupted by Ctrl-C after round 6 of 90")
    (tmp_path / "further").mkdir()  # than the result that lies beside its checkpoint
    history(rows=3).write(tmp_path / "further" / "history.csv")
    stored(tmp_path / "further" / "checkpoint", 7, "interrupted by Ctrl-C after round 7 of 9")
    stored(tmp_path / "killed", 4, "not finished, stored after round 4 of 90", ("A(1)", "A(1)", "A(2)"))
    stored(tmp_path / "fig1" / "quick" / "part", 4, "")
    (tmp_path / "papers").mkdir()
    stored(tmp_path / "damaged", 4, "")
    (tmp_path / "damaged" / "checkpoint.npz").write_bytes(b"PK")
    write_sample(tmp_path / "paper")
    stored(tmp_path / "paper" / "fig1" / "quick" / "part", 4, "")
    kept = tmp_path / "runs" / "a" / "methods" / "fedrzonn"
    stored(kept / "checkpoint", 10, "all rounds are done: 10")
    history().write(kept / "history.csv")
    written = report.write(tmp_path)
    page = Page(written.file.read_text(encoding="utf-8"))
    [data] = page.data()
    assert [(curve["label"], len(curve["mean"])) for curve in data["curves"]] == [
        ("cut", 7), ("done", 11), ("further", 8), ("killed: A(1)", 5), ("killed: A(2)", 5)
    ]  # fmt: skip
    [main_part] = page.all("main")
    assert "cut: interrupted by Ctrl-C after round 6 of 90; go on with --resume" in main_part["text"]
    assert main_part["text"].count("all rounds are done: 10") == 1
    assert main_part["text"].count("Left out.") == 5
    interrupted, finished, unknown, deeper, damaged = written.left_out
    assert finished == f"{tmp_path / 'paper'}: its results lie further down; use fedrzo report {tmp_path / 'paper'}"
    assert deeper == f"{tmp_path / 'runs'}: its results lie further down; use fedrzo report {tmp_path / 'runs' / 'a'}"
    assert damaged.startswith(f"checkpoint: {tmp_path / 'damaged' / 'checkpoint.npz'} is damaged")
    assert interrupted.startswith(f"{tmp_path / 'fig1'}: it was interrupted before its record was written (1 of its parts")
    assert unknown == f"{tmp_path / 'papers'}: it holds no record.json, history.csv, table.json or checkpoint.npz"
    assert find(tmp_path / "paper").left_out == []
    assert [record.name for record in find(tmp_path / "runs" / "a").records.values()] == ["methods"]
    assert str(written).splitlines()[1:] == [f"left out: {line}" for line in written.left_out]


def compared(home, **changes):
    """Write what `fedrzo compare --out` writes, of two methods that nobody ran; a slow test reads what it wrote itself."""
    for name in ("fedavg", "fedrzonn-gradients"):
        (home / name).mkdir(parents=True)
        for seed in (3, 4):
            history(seed).write(home / name / f"seed-{seed}.csv")
    methods = [{"name": name, "method": f"{name}(0.1)"} for name in ("FedAvg", "FedRZOnn, gradients")]
    found = {
        "problem": "toy", "column": "loss", "seeds": [3, 4], "budget": {"evaluations": 500, "bytes": 900}, "methods": methods,
        "local_steps": 10, "batch_size": 8, "note": "Of almost every point.", "remarks": ["LFD takes the steps of FedAvg"],
    }  # fmt: skip
    (home / "table.json").write_text(json.dumps({**found, **changes}))
    (home / "table.csv").write_text(",stepsize,loss,rounds,\nFedAvg,0.1,0.5 ± 0.01,20,\nFedRZOnn,0.2,0.6 ± 0.01,30,capped\n")


def test_a_comparison_is_shown_beside_runs(tmp_path):
    compared(tmp_path / "methods")
    (tmp_path / "run").mkdir()
    history().write(tmp_path / "run" / "history.csv")
    written = report.write(tmp_path)
    assert (written.records, written.left_out) == ([tmp_path.name, "methods"], [])
    page = Page(written.file.read_text(encoding="utf-8"))
    assert [curve["label"] for curve in page.data()[1]["curves"]] == ["FedAvg", "FedRZOnn, gradients"]
    for text in ("Methods compared on toy", "fedrzo compare toy --seed 3 --seeds 2 --budget 500", "0.6 ± 0.01", "remarks",
                 "LFD takes the steps of FedAvg", "FedAvg(0.1)"):  # fmt: skip
        assert text in page.all("main")[0]["text"], text
    assert [record.name for record in find(tmp_path / "methods").records.values()] == ["methods"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seeds": [3, 4, 5]}, "fedavg has 2 runs of 3; make it anew with fedrzo compare --out"),
        (
            {"budget": {}},
            "table.json is not a whole comparison (KeyError: 'evaluations'); make it anew with fedrzo compare --out",
        ),
    ],
)
def test_a_broken_comparison_is_named(tmp_path, changes, expected):
    compared(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        report.write(tmp_path)
    assert one_line(caught).startswith(f"report: {tmp_path}/{expected}")


def test_certificates_are_a_table(tmp_path):
    columns = history().to_dict()
    columns["certificate_upper"] = [math.nan] * 5 + [0.5] * 5 + [0.25]
    fz.History(columns).write(tmp_path / "history.csv")
    rule = "epsilon = 0.3\nevery = 5\nconfidence = 0.95\nsmoothing = 0.1\n"
    (tmp_path / "spec.toml").write_text(f'stopped = "certified"\n[certified]\n{rule}')
    [ends, certificates] = find(tmp_path).records[tmp_path].tables
    assert ends.rows[1:] == [[tmp_path.name, "10", "certified"]]
    assert certificates.rows == [
        ["run", "round", "|grad| is at most", "confidence", "smoothing"],
        [tmp_path.name, "5", "0.5", "95 %", "0.1"],
        [tmp_path.name, "10", "0.25", "95 %", "0.1"],
    ]
