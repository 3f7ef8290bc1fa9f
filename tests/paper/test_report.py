import importlib
import itertools
import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.cli.main import main
from fedrzo.errors import InputError, MissingExtraError
from fedrzo.paper.report import content
from fedrzo.paper.report import page as report
from fedrzo.paper.report.find import find
from fedrzo.results.text import confidence_band
from fedrzo.running.checkpoint import Checkpoint
from records import HOSTILE, curves, history, record, surface, write_sample

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
NAMELESS = {"meta", "line", "img", "br"}


class Page(HTMLParser):
    """A page's elements: tag, attributes and text, in order; tags must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in NAMELESS:
            self.open.append(element)

    def handle_endtag(self, tag):
        if tag not in NAMELESS:
            assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, *tags):
        return [element for element in self.elements if element["tag"] in tags]

    def classed(self, name):
        return [element for element in self.elements if name in (element.get("class") or "").split()]

    def data(self):
        """What the figures are drawn from, read as strictly as a browser does."""

        def refuse(word):
            raise AssertionError(word)

        scripts = [script for script in self.all("script") if script.get("type") == "application/json"]
        return [json.loads(script["text"], parse_constant=refuse) for script in scripts]


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = write_sample(tmp_path_factory.mktemp("report"))
    written = report.write(folder)
    return written, Page(written.file.read_text(encoding="utf-8"))


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


def test_says_what_was_written(sample):
    written, _ = sample
    assert written.records == ["fig1", "fig7"]
    assert (written.figures, written.tables) == (3, 1)
    assert written.claims == {"hold": 1, "fail": 1, "open": 1}
    assert written.checks == {"hold": 1, "fail": 0, "open": 0}
    assert written.file.name == "report.html"
    assert written.bytes == written.file.stat().st_size
    assert str(written).endswith(
        "2 records, 3 figures, 1 table. Of 3 claims, 1 holds, 1 does not hold, 1 cannot be told from these runs. "
        "Of 1 further check, 1 holds, 0 do not hold."
    )


def test_shows_everything_that_a_record_says(sample):
    _, page = sample
    [main_part] = page.all("main")
    texts = [
        "Of 3 claims, 1 holds, 1 does not hold, 1 cannot be told", "Quick version", "A toy with <b>tags</b>",
        "fedrzo reproduce fig1 --quick", "0, 1, 2, 3 (4)", "1 min 15 s", "Mean of four seeds.", "0.1235", "95 %: 0.1 to 0.15",
        "Not per work.", "difference of losses", "too few rounds", "Beside the paper's.", "0.51", "0.1, 0.01", "not printed",
        "3.13.0", "1 x cpu", HOSTILE, "The paper's claims", "Our own checks", "our own check",
    ]  # fmt: skip
    for text in texts:
        assert text in main_part["text"], text
    badges = [" ".join(badge["text"].split()) for badge in page.classed("badge")]
    assert {badge[1:] for badge in badges} == {"holds", "does not hold", "cannot tell"}
    assert page.all("title")[0]["text"] == "fedrzo report: fig1, fig7"


def test_what_a_record_says_is_never_markup(sample):
    written, page = sample
    source = written.file.read_text(encoding="utf-8")
    assert "<script>alert" not in source
    assert "<b>tags" not in source
    kinds = [script.get("type", "code") for script in page.all("script")]
    assert sorted(kinds) == ["application/json"] * 3 + ["code"] * 2
    assert page.data()[0]["curves"][3]["label"] == HOSTILE
    assert [button["text"] for button in page.all("button") if "data-curve" in button][3].strip() == HOSTILE


def test_asks_for_nothing_from_outside(sample):
    _, page = sample
    addresses = [e[key] for e in page.elements for key in ("src", "href", "action", "poster", "srcset") if e.get(key)]
    assert addresses
    assert all(address.startswith(("#", "data:image/")) for address in addresses)
    [policy] = [e["content"] for e in page.all("meta") if e.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy


def test_curves_are_the_means_and_bands_of_the_runs(sample):
    _, page = sample
    data, negative, _ = page.data()
    losses = np.array([history(seed)["loss"] for seed in range(4)])
    for name, expected in zip(("mean", "low", "high"), confidence_band(losses), strict=True):
        np.testing.assert_allclose(data["curves"][0][name], expected, rtol=1e-5)
    assert data["curves"][1]["costs"] == {
        "round": list(range(11)), "bytes": [3 * n for n in range(11)], "evaluations": [2000 * n for n in range(11)]
    }  # fmt: skip
    assert data["axes"]["bytes"] == {"label": "upload + download [MB]", "unit": "MB"}
    lost = data["curves"][2]
    assert lost["mean"][6:] == lost["low"][6:] == lost["high"][6:] == [None] * 5
    assert "low" not in data["curves"][3]
    assert (data["log"], negative["log"]) == (True, False)
    assert data["limits"][1] < 2


def test_a_surface_keeps_its_grid_and_its_holes(sample):
    _, page = sample
    data = page.data()[2]
    assert data["z"][0][0] is None
    assert (len(data["z"]), len(data["z"][0])) == (7, 9)
    assert data["z"][3][4] == 0.25


def test_figures_are_said_in_words_and_in_numbers(sample):
    _, page = sample
    says = [image["alt"] for image in page.all("img")]
    assert says == [plot["aria-label"] for plot in page.classed("view")]
    assert says[0].startswith(
        "Loss of a toy: loss of 4 curves against communication rounds, upload + download [MB] and loss evaluations"
    )
    assert "Runs diverged in eta = 1" in says[0]
    assert says[2] == (
        "A valley: f over u from -1 to 1 and v from 0 to 2. Lowest is 0.25 at u = 0, v = 1. Highest is 2.25 at u = 1, v = 0."
    )
    tables = [details["text"] for details in page.all("details")]
    assert len(tables) == 3
    assert "diverged (2 of 3)" in tables[0]
    assert "20,000" in tables[0]


def test_is_built_for_all_readers(sample):
    _, page = sample
    assert page.all("html")[0]["lang"] == "en"
    levels = [int(heading["tag"][1]) for heading in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))
    links = [link["href"] for link in page.all("a")]
    assert page.all("a")[0]["class"] == "skip"
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert all(figure["aria-labelledby"] in ids for figure in page.all("figure"))
    assert all(image["alt"] for image in page.all("img"))
    assert all(button["text"].strip() or button.get("aria-label") for button in page.all("button"))
    assert all(cell.get("scope") for cell in page.all("th"))


def test_equal_records_give_equal_pages(sample, tmp_path):
    written, _ = sample
    again = report.write(write_sample(tmp_path / "again"), tmp_path / "deeper" / "page.html")
    assert again.file == tmp_path / "deeper" / "page.html"
    assert again.file.read_bytes() == written.file.read_bytes()


def test_records_are_found_here_and_one_folder_down_in_their_order(tmp_path):
    record(name="all", figures=[]).save(tmp_path)
    for name in ("fig10", "fig2", "copy-of-fig2"):
        (tmp_path / name).mkdir()
        record(name="fig2" if "fig2" in name else name, figures=[], environment={"python": name}).save(tmp_path / name)
    (tmp_path / "empty").mkdir()
    written = report.write(tmp_path)
    assert written.records == ["all", "fig2", "fig2", "fig10"]
    page = Page(written.file.read_text(encoding="utf-8"))
    assert [section["id"] for section in page.all("section")] == [
        "r-all",
        "r-fig2",
        "r-fig2-2",
        "r-fig10",
        "environment",
    ]
    assert "copy-of-fig2" in page.all("section")[-1]["text"]


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
    assert "Nothing is claimed." in page.all("main")[0]["text"]


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
    written = report.write(tmp_path)
    page = Page(written.file.read_text(encoding="utf-8"))
    [data] = page.data()
    assert [(curve["label"], len(curve["mean"])) for curve in data["curves"]] == [
        ("cut", 7), ("done", 11), ("further", 8), ("killed: A(1)", 5), ("killed: A(2)", 5)
    ]  # fmt: skip
    [main_part] = page.all("main")
    assert "cut: interrupted by Ctrl-C after round 6 of 90; go on with --resume" in main_part["text"]
    assert main_part["text"].count("all rounds are done: 10") == 1
    assert main_part["text"].count("Left out.") == 3
    interrupted, unknown, damaged = written.left_out
    assert damaged.startswith(f"checkpoint: {tmp_path / 'damaged' / 'checkpoint.npz'} is damaged")
    assert interrupted.startswith(f"{tmp_path / 'fig1'}: it was interrupted before its record was written (1 of its parts")
    assert unknown == f"{tmp_path / 'papers'}: it holds no record.json, history.csv, table.json or checkpoint.npz"
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


def test_costs_that_were_not_counted_are_left_out(tmp_path):
    columns = {name: history().to_dict()[name] for name in ("round", "loss")}
    record(figures=[curves(groups={"a": [fz.History(columns)]})]).save(tmp_path)
    page = Page(report.write(tmp_path).file.read_text(encoding="utf-8"))
    assert list(page.data()[0]["axes"]) == ["round"]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ("{", "is not JSON; make it anew with fedrzo reproduce --out"),
        ("[]", "is not of format 1; make it anew with fedrzo reproduce --out"),
        ('{"format": 1}', "is not a whole record (KeyError: 'settings'); make it anew with fedrzo reproduce --out"),
        ('{"format": 1, "settings": 3}', "is not a whole record (TypeError: 'int' object is not iterable);"),
    ],
)
def test_a_broken_record_is_named(tmp_path, broken, expected):
    write_sample(tmp_path)
    (tmp_path / "fig7" / "record.json").write_text(broken)
    with pytest.raises(InputError) as caught:
        report.write(tmp_path)
    assert one_line(caught).startswith(f"report: {tmp_path / 'fig7' / 'record.json'} {expected}")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"figures": [surface(x=[0.0, 1.0])]}, "'A valley' has 7 rows of [9] values on a grid of 7 x 2; make it anew"),
        ({"figures": [curves(groups={"a": [history(), history(rows=3)]})]},
         "groups: the histories of 'a' have [11, 3] rows; pass runs of equal length"),
        ({"figures": [curves(metric="los")]}, "history: no column 'los'; did you mean 'loss'?"),
        ({"figures": [curves(groups={"a": [fz.History({"loss": [1.0]})]})]},
         "'Loss of a toy' has histories without rounds, bytes and evaluations; make them anew"),
        ({"tables": [fz.paper.record.Table("T", [["a", "b"], ["1"]])]},
         "table 'T' has rows of [2, 1] cells; make it anew"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_shown_is_named(tmp_path, changes, expected):
    record(**changes).save(tmp_path)
    with pytest.raises(InputError) as caught:
        report.write(tmp_path)
    assert one_line(caught) == f"report: {tmp_path / 'record.json'} cannot be shown ({expected})"


def test_mistakes_are_one_line_and_leave_nothing_behind(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "history.csv").write_text("round,loss\n0\n")
    record(figures=[]).save(tmp_path)
    missing = tmp_path / "missing"
    for arguments, expected in {
        (missing,): f"report: there is no folder {missing}; make one with fedrzo reproduce --out {missing}",
        (tmp_path / "empty",): f"report: {tmp_path / 'empty'} holds neither record.json nor history.csv; make them with",
        (tmp_path / "runs",): f"report: {tmp_path / 'runs' / 'history.csv'} is not a history",
        (tmp_path, "--out", tmp_path): f"--out: {tmp_path} is a folder; name a file such as {tmp_path / 'report.html'}",
    }.items():
        assert main(["report", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"fedrzo: {expected}")
        assert captured.err.count("\n") == 1
    assert not list(tmp_path.rglob("*.html"))


def test_without_plotly_the_extra_is_named(tmp_path, monkeypatch):
    record(figures=[]).save(tmp_path)
    monkeypatch.setitem(sys.modules, "plotly", None)
    real = importlib.import_module

    def absent(name, *rest):
        if name.startswith("plotly"):
            raise ModuleNotFoundError(name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r"plotly is not installed; run: pip install 'fedrzo\[report\]'"):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("seconds", "text"), [(0.42, "0.42 s"), (13.2, "13 s"), (75, "1 min 15 s"), (7900, "2 h 11 min")])
def test_durations_are_read_at_a_glance(seconds, text):
    assert content.duration(seconds) == text
