"""The command line of the benchmarks, `python benchmarks/NAME.py`: the same options, output and JSON for all of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrzo.cli.commands import Command, Json, Quiet, Seed
from fedrzo.cli.compare import Budget, Quick, Tables, measure
from fedrzo.cli.main import invoke
from fedrzo.compare.options import Options
from fedrzo.errors import InputError


def main(benchmark: Any, args: list[str] | None = None) -> int:
    """Run a benchmark, a module with `PROBLEM`, `SEEDS`, `run`, `table` and `remarks`; return the exit status."""
    name = Path(benchmark.__file__).stem
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

    @app.command(cls=Command, help=(benchmark.__doc__ or "").partition("\n")[0])
    def command(
        problem: Annotated[
            str | None,
            typer.Argument(help="Where a benchmark takes one: a problem of `fedrzo list`, or FILE.py[:NAME]."),
        ] = None,
        budget: Budget = None,
        seeds: Annotated[int | None, typer.Option(help="Runs of each setting, where their number is free.")] = None,
        seed: Seed = None,
        out: Tables = None,
        quick: Quick = False,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        runs = benchmark.SEEDS if seeds is None else seeds
        options = Options(problem or benchmark.PROBLEM, runs, budget, seed or 0, out, quick, progress=not quiet)
        measure(name, benchmark, options, json)

    return invoke(app, sys.argv[1:] if args is None else args, f"benchmarks/{name}.py")


def check_fixed(options: Options, problem: str) -> None:
    """Refuse options that a benchmark of a fixed problem and size does not take."""
    if options.problem != problem or options.budget is not None or options.seeds != 1:
        raise InputError("it takes no problem, --budget or --seeds; pass --quick for fewer repetitions")
    options.check_out()
