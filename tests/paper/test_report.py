import importlib
import itertools
import sys

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.cli.main import main
from fedrzo.errors import InputError, MissingExtraError
from fedrzo.paper.report import content
from fedrzo.paper.report import page as report
from fedrzo.results.text import confidence_band
from records import HOSTILE, curves, history, record, surface, write_sample
from report_pages import Page, one_line


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = write_sample(tmp_path_factory.mktemp("report"))
    written = report.write(folder)
    return written, Page(written.file.read_text(encoding="utf-8"))


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
