"""`fedrzo reproduce`: the command, its JSON contract and its refusals."""

import json

from fedrzo.cli import main


def test_unknown_reproductions_are_refused(capsys):
    assert main(["reproduce", "publishd"]) == 2
    assert capsys.readouterr().err == "fedrzo: reproduce: found 'publishd'; did you mean 'published'?\n"


def test_published_prints_the_contract(capsys, monkeypatch):
    from fedrzo.experiments import published

    few = published.entries(quick=True)[:1]
    monkeypatch.setattr(published, "entries", lambda quick=False: few)
    assert main(["reproduce", "published", "--quick", "--json"]) == 0
    out, err = capsys.readouterr()
    [problem] = json.loads(out)["problems"]
    assert set(problem) == {"name", "published", "ours", "infeasibility", "gap"}
    assert problem["gap"] <= 1e-2
    assert problem["name"] in err
    assert main(["reproduce", "published", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert problem["name"] in out
    assert err == ""
