"""The benchmarks are scripts of a checkout: put their folder where a script's own folder is, on the path of imports."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # last: some of their names are those of installed packages


@pytest.fixture
def fails(capsys):
    """Call a benchmark with bad input: status 2, nothing on standard output, one line on standard error, which is returned."""
    from helpers import command

    def run(benchmark, *args):
        assert command.main(benchmark, list(args)) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        return err.rstrip("\n")

    return run
