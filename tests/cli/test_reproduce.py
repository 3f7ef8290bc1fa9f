"""`fedrzo reproduce`: the command, its JSON contract and its refusals."""

import importlib
import json

import pytest

from fedrzo.cli.main import main
from fedrzo.cli.reproduce import REPRODUCTIONS
from fedrzo.paper.reproduction import duration


def test_unknown_reproductions_are_refused(capsys):
    assert main(["reproduce", "fig99"]) == 2
    names = "fig1, fig2, fig3, fig4, fig5, table4, fig6, fig7, published, or all"
    assert capsys.readouterr().err == f"fedrzo: reproduce: found 'fig99'; pass one of {names}\n"


def test_announced_times_say_what_they_are_of():
    """Quick versions were measured in processor time, so that a busy machine has no say."""
    assert duration(1.3, quick=True) == "about 78 s of processor time"
    assert duration(15, quick=False) == "about 15 min on two cores"
    quick = {name: importlib.import_module(f"fedrzo.paper.{name}").MINUTES[0] for name in REPRODUCTIONS}
    assert quick["fig1"] > 1
    assert 12 < sum(quick.values()) < 18  # the help says a quarter of an hour


@pytest.mark.slow("a whole experiment")
def test_what_lacks_its_data_is_skipped_and_the_rest_done(capsys, monkeypatch, tmp_path):
    from fedrzo.cli import reproduce
    from fedrzo.paper import published

    few = published.entries(quick=True)[:1]
    monkeypatch.setattr(published, "entries", lambda quick=False: few)
    monkeypatch.setattr(reproduce, "REPRODUCTIONS", ("fig1", "fig2", "published"))
    where = ["--data", str(tmp_path), "--quick", "--quiet", "--json"]
    assert main(["reproduce", "all", *where]) == 0
    out, err = capsys.readouterr()
    assert set(json.loads(out)) == {"published"}
    reason, again = err.splitlines()
    assert reason.startswith("fedrzo: skipped fig1, fig2: mnist: train-images-idx3-ubyte.gz")
    assert again == "fedrzo: done, but for fig1, fig2, whose data are not there: see above"
    assert main(["reproduce", "fig1", *where]) == 2  # asked for by name: nothing else would be an answer
    assert capsys.readouterr().err.startswith("fedrzo: mnist: train-images-idx3-ubyte.gz")
    assert main(["reproduce", "all", "--data", str(tmp_path / "nowhere")]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.slow("solves a problem")
def test_published_prints_the_contract(capsys, monkeypatch):
    from fedrzo.paper import published

    few = published.entries(quick=True)[:1]
    monkeypatch.setattr(published, "entries", lambda quick=False: few)
    assert main(["reproduce", "published", "--quick", "--json"]) == 0
    out, err = capsys.readouterr()
    [problem] = json.loads(out)["problems"]
    assert set(problem) == {"name", "published", "ours", "infeasibility", "gap", "seconds"}
    assert problem["gap"] <= 1e-2
    assert problem["name"] in err
    monkeypatch.setattr(published, "solve", lambda entry, seed: problem)  # once is enough
    assert main(["reproduce", "published", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert problem["name"] in out
    assert err == ""
