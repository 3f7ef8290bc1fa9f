"""`benchmarks/growth.py`: what it measures is really run, in processes of their own. No time is tested."""

import json

import pytest

import fedrzo as fz
import growth
from fedrzo.compare.options import Options
from helpers.command import main


def test_slopes_of_known_lines():
    rows = [{"clients": m, "local_steps": 2, "seconds": 3e-5 * m * 2} for m in (10, 100, 1000)]
    found = growth.slopes("clients", rows)
    assert found["slope"] == pytest.approx(1)
    assert found["slope_per_step"] == pytest.approx(0, abs=1e-12)


def test_very_many_clients_do_little_each():
    assert growth.setting("clients", 100_000) == {**growth.BASE, "clients": 100_000, "samples": 1, "local_steps": 1}
    assert growth.setting("local_steps", 64) == {**growth.BASE, "local_steps": 64}


@pytest.mark.slow("starts a process that compiles")
def test_a_setting_in_a_process_of_its_own():
    chosen = {"clients": 60, "local_steps": 2, "neurons": 2, "samples": 3, "pixels": 10}
    found = growth.apart(chosen)
    assert found["dimension"] == 2 * 10 + 2
    assert found["data_bytes"] == 60 * 3 * 10 * 4
    assert found["peak_bytes"] > 50 * 2**20
    assert found["seconds"] > 0


@pytest.mark.slow("starts a process that compiles")
def test_a_setting_that_fails_says_which():
    with pytest.raises(fz.FedrzoError, match=r".*'clients': 0.* failed: "):
        growth.apart({"clients": 0, "local_steps": 1, "neurons": 1, "samples": 1, "pixels": 2})


@pytest.mark.slow("runs a whole benchmark")
def test_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "QUICK_AXES", {"clients": [10, 40], "samples": [5, 20]})
    assert main(growth, ["--quick", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["axes"]) == {"clients", "samples"}
    assert json.loads((tmp_path / "growth.json").read_text()) == found


def test_what_it_does_not_take_is_refused():
    with pytest.raises(fz.InputError, match="it takes no problem"):
        growth.run(Options(growth.PROBLEM, 3))
