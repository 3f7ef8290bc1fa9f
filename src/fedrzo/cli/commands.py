"""What commands share: their options, notes on standard error, and how tasks are run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from fedrzo.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from fedrzo.results.result import Result
    from fedrzo.running.experiment import Task
    from fedrzo.running.spec import Spec


INTERRUPTED = 128 + 2  # the exit status of a process that SIGINT ended
SEEDS = 2**32  # how many seeds there are


def _seed(value: int | None) -> int | None:
    """Refuse a number that is no seed, under the name that it was given by."""
    if value is not None and not 0 <= value < SEEDS:
        raise InputError(f"--seed: found {value}; pass a whole number from 0 to 2**32 - 1")
    return value


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value: method.stepsize=0.01. Repeatable."),
]
Seeds = Annotated[int | None, typer.Option(help="Run with so many seeds; report the mean and its 95 % interval.")]
Seed = Annotated[int | None, typer.Option(callback=_seed, help="The (first) seed.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Data = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the data sets are.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write results, checkpoints and the figure there.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoints in DIR.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Command(TyperCommand):
    """A command whose help is plain text, and whose end by Ctrl-C is one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; say where Ctrl-C stopped it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            note(f"fedrzo: interrupted; {stopped or 'nothing was kept'}", quiet=False)
            raise typer.Exit(INTERRUPTED) from None

    def get_help(self, ctx: Any) -> str:
        """Return what --help shows. Typer escapes brackets for rich, also where rich is not to show them."""
        return super().get_help(ctx).replace("\\[", "[")


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what a shell asks for names that begin as typed."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def note(text: str, quiet: bool) -> None:
    """Say something on standard error, unless nothing is to be said there."""
    if not quiet:
        print(text, file=sys.stderr)


def execute(
    tasks: list[Task], seeds: int | None, out: Path | None, resume: bool, quiet: bool, spec: Spec | None = None
) -> dict[str, list[Result]]:
    """Run tasks, draw the figure, and say how to go on where a run is interrupted."""
    from fedrzo.running import experiment as experiments

    try:
        outcomes = experiments.execute(tasks, seeds, out, resume, not quiet, spec)
    except KeyboardInterrupt:
        way = f"go on with --resume --out {out}" if out else "nothing was kept: with --out DIR it could go on"
        raise KeyboardInterrupt(way) from None
    if out is not None:
        written = experiments.written(tasks, spec)
        try:
            written = [*experiments.draw(outcomes, out), *written]
        except MissingExtraError as error:
            note(f"no figure: {error}", quiet=False)
        note(f"wrote {', '.join(f'{out}/{name}' for name in written)}", quiet)
    return outcomes
