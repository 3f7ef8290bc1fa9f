"""The page of benchmarks is what its command makes of the stored results, and these say how they were made."""

import json
import re
import sys
from pathlib import Path

import pytest

import page
from helpers import results

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_command_makes_of_the_stored_results():
    assert page.page() == (DOCS / "benchmarks.md").read_text(), "make it anew: python benchmarks/page.py > docs/benchmarks.md"


@pytest.mark.parametrize("name", page.stored())
def test_a_stored_result_says_how_it_was_made(name):
    text = (results.STORED / f"{name}.json").read_text()
    made = json.loads(text)["made"]
    assert made["command"].startswith(f"python benchmarks/{name}.py")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", made["date"])
    assert made["machine"]
    assert made["versions"]["fedrzo"]
    assert not re.search(r'"([^"]*[^\w"])?/\w', text)  # a path from the root of a machine


def test_what_is_stored_has_its_command_without_places(tmp_path, monkeypatch):
    script = results.STORED.parent / "zo.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--quick", "--out", str(tmp_path), "--data=folder", "--seed", "3", "--json"])
    found = {"problem": "none"}
    results.save(found, tmp_path, "zo")
    assert json.loads((tmp_path / "zo.json").read_text()) == found
    assert found["made"]["command"] == "python benchmarks/zo.py --quick --seed 3"


def test_who_wins_is_said_also_where_it_is_not_the_library():
    said = results.standing({"a": 2.0, "b": 0.5, "c": 4.0}, "plain JAX")
    assert said == (
        "fedrzo is ahead of plain JAX in 2 of 3 rows; ratios 0.50 to 4 x, 2 x in the median. Plain JAX wins: b (0.50 x)."
    )
