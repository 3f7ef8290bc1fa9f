"""`fedrzo compare`, and what it shares with the benchmarks of a checkout: options, and how results are shown."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrzo.cli import output
from fedrzo.cli.commands import Json, Quiet, Seed, note

if TYPE_CHECKING:
    from fedrzo.compare.options import Options

Budget = Annotated[int | None, typer.Option(help="Loss evaluations over all clients; a gradient counts as three.")]
Tables = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write the table, the figure and the histories there.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small budget.")]


def compare(
    problem: Annotated[
        str | None,
        typer.Argument(help="A problem of `fedrzo list`, or FILE.py[:NAME]; relu-digits if not given."),
    ] = None,
    budget: Budget = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each method; 5 if not given.")] = None,
    seed: Seed = None,
    out: Tables = None,
    quick: Quick = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compare all methods that apply to a problem, at equal evaluations and at equal bytes, each with its best step size."""
    from fedrzo.compare import comparison
    from fedrzo.compare.options import Options

    runs = comparison.SEEDS if seeds is None else seeds
    options = Options(problem or comparison.PROBLEM, runs, budget, seed or 0, out, quick, progress=not quiet)
    measure("compare", comparison, options, json)


def measure(name: str, module: Any, options: Options, json: bool) -> None:
    """Call a module's `run`, and show what it found by the module's `table` and `remarks`, or as JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        found = module.run(options)
    if options.out is not None and (written := sorted(map(str, options.out.iterdir()))):
        note(f"wrote {', '.join(written)}", not options.progress)
    if json:
        output.print_json(found)
        return
    output.print_rows(f"{name}: {found['problem']}", module.table(found))
    print("\n".join(module.remarks(found)))
