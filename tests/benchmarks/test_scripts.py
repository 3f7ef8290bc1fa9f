"""Every script of `benchmarks/` finds what it imports, also those that no test runs."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_imports_what_there_is(path):
    runpy.run_path(str(path), run_name="script")
