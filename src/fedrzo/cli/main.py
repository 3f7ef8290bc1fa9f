"""The command line. Results go to standard output, everything else to standard error; bad input exits with 2.

What needs JAX is imported inside the commands, so that `--help` and completion are quick.
"""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrzo.cli import deploy, known, output, solve
from fedrzo.cli.commands import (
    INTERRUPTED,
    Command,
    Data,
    Json,
    Out,
    Quiet,
    Resume,
    Rounds,
    Seed,
    Seeds,
    Settings,
    execute,
    one_of,
)
from fedrzo.cli.compare import compare
from fedrzo.cli.reproduce import reproduce
from fedrzo.errors import FedrzoError, nearest
from fedrzo.running.built_in import built_in
from fedrzo.support import programs
from fedrzo.support.interrupt import insisting

# Every usage error of typer is of this class, whichever click typer brings along.
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
NUMBERS = {"integer": "a whole number", "float": "a number"}  # what values of typer's types are

app = typer.Typer(help="Federated optimisation from loss values alone.", rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(deploy.app, name="deploy")


Source = Annotated[
    str,
    typer.Argument(metavar="NAME|SPEC.toml", help="A built-in spec, or a file.", autocompletion=one_of(built_in())),
]


def main(args: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    if args is None:  # a process of our own
        programs.keep()
        programs.use_cores()
    arguments = sys.argv[1:] if args is None else args
    alone = args is None and arguments[:1] != ["deploy"]  # which has processes to end in order
    with insisting("fedrzo") if alone else contextlib.nullcontext():
        status = invoke(app, arguments or ["--help"], "fedrzo")
    if alone and status == INTERRUPTED:  # at once: JAX may take seconds to take itself down
        sys.stderr.flush()
        os._exit(status)
    return status


def invoke(commands: typer.Typer, args: list[str], program: str) -> int:
    """Run a command line; bad input is one line on standard error and status 2."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            return int(commands(args=args, prog_name=program, standalone_mode=False) or 0)
    except USAGE_ERROR as error:
        return _fail(_usage(error, args), program)
    except FedrzoError as error:
        return _fail(str(error), program)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("fedrzo"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # its callback does the work


@app.command("list", cls=Command)
def list_(json: Json = False) -> None:
    """List what there is: built-in specs, methods and problems."""
    output.show(json, known.plain(), known.shown())


@app.command(cls=Command)
def run(
    source: Source,
    settings: Settings = None,
    seeds: Seeds = None,
    seed: Seed = None,
    rounds: Rounds = None,
    data: Data = None,
    out: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run an experiment: every variant of a spec."""
    from fedrzo.running.experiment import tasks
    from fedrzo.running.spec import Spec

    given = {"run.seed": seed, "run.rounds": rounds, "problem.data": data and jsonlib.dumps(str(data))}
    changes = [f"{key}={value}" for key, value in given.items() if value is not None]
    spec = Spec.read(source).override(*(settings or []), *changes)
    outcomes = execute(tasks(spec), seeds, out, resume, quiet, spec)
    output.report(spec.title, outcomes, seeds, json)


for command in (solve.new, solve.check, solve.solve, compare, reproduce):
    app.command(cls=Command)(command)


@app.command(cls=Command)
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `reproduce --out` or `run --out` wrote.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="The page; DIR/report.html unless given.")] = None,
    json: Json = False,
) -> None:
    """Write one page on what a folder holds: figures, tables, claims. It opens offline."""
    import dataclasses

    from fedrzo.paper.report.page import write

    written = write(folder, out)
    output.show(json, {**dataclasses.asdict(written), "file": str(written.file)}, written)


def _usage(error: Any, args: list[str]) -> str:
    """Return a usage error in the words of the other errors."""
    where = error.ctx.command_path if error.ctx else "fedrzo"
    if error.ctx and error.message.startswith("No such option"):
        known = [name for parameter in error.ctx.command.params for name in parameter.opts if name.startswith("-")]
        return f"{error.option_name}: {where} has no such option{nearest(error.option_name, known)}"
    if error.ctx and (found := re.match("No such command '(.*?)'", error.message)):
        return f"{found[1]}: {where} has no such command{nearest(found[1], error.ctx.command.commands)}"
    wanted = NUMBERS.get(getattr(getattr(getattr(error, "param", None), "type", None), "name", ""))
    if wanted and (given := _given(error.param.opts, args)):
        return f"{given[0]}: found {given[1]!r}; pass {wanted}"
    return f"{error.format_message().rstrip('.')} (see {where} --help)"


def _given(names: list[str], args: list[str]) -> tuple[str, str] | None:
    """Return an option and its value as they were typed."""
    for word, following in zip(args, [*args[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return name, value if equals else following
    return None


def _fail(message: str, program: str) -> int:
    print(f"{program}: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"fedrzo: warning: {' '.join(str(message).split())}", file=sys.stderr)
