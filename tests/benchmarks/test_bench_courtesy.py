"""`benchmarks/courtesy.py`: what it leaves out exists, and a run without questions is the same run. No time is tested."""

import importlib

import pytest

import courtesy
import fedrzo as fz
from fedrzo.compare.options import Options
from helpers.courtesy_setting import QUESTIONS


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_left_out_is_there(question):
    place, _, name = question.rpartition(".")
    if place.endswith("SetFamily"):
        place, _, owner = place.rpartition(".")
        assert callable(getattr(getattr(importlib.import_module(place), owner), name))
    else:
        assert callable(getattr(importlib.import_module(place), name))


@pytest.mark.slow("starts two processes that compile")
def test_a_row_compares_equal_runs():
    found = courtesy.row("box, float32", 1)
    assert found["asked"]["programs"] >= found["unasked"]["programs"] > 0
    assert "| box, float32" in "\n".join(" | ".join(["", *line]) for line in courtesy.table({"rows": [found]}))


def test_what_it_does_not_take_is_refused():
    with pytest.raises(fz.InputError, match="it takes no problem"):
        courtesy.run(Options(courtesy.PROBLEM, 3))
