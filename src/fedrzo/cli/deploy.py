"""The command line's `deploy` group. What needs JAX or Flower is imported inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrzo.cli import output
from fedrzo.cli.commands import Command, Json, Quiet, Rounds, Seed, note

app = typer.Typer(help="Solve a problem on a real Flower federation.", rich_markup_mode=None, pretty_exceptions_enable=False)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder.")]
STOPPED = 128 + 15  # the exit status of a process that SIGTERM ended


@app.command(cls=Command)
def init(
    folder: Folder,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE.py", help="Defines problem, method and client_data; else an example.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a complete Flower app for a problem file."""
    from fedrzo.deploy.scaffold import init

    written = [str(path) for path in init(folder, problem)]
    try_it = f"try it here: fedrzo deploy local {folder}; deploy it: see {folder / 'README.md'}"
    output.show(json, {"files": written}, "\n".join([*written, try_it]))


@app.command(cls=Command)
def local(
    folder: Folder,
    nodes: Annotated[int, typer.Option(help="How many nodes; the app's number of clients.")] = 3,
    rounds: Rounds = None,
    seed: Seed = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change the app's run configuration: timeout=60. Repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Result and checkpoint; DIR/results unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint there.")] = False,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep keys, logs and what nodes remember there.")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run an app on a real SuperLink and SuperNodes of this machine, with TLS and node authentication."""
    from fedrzo.deploy.local import local
    from fedrzo.deploy.processes import Stopped
    from fedrzo.support.settings import read_setting

    config: dict[str, Any] = dict(read_setting(text) for text in settings or [])
    given = {"rounds": rounds, "seed": seed, "resume": resume or None}
    config |= {name: value for name, value in given.items() if value is not None}
    config["out"] = str((out or folder / "results").resolve())

    try:
        result = local(folder.resolve(), nodes, config, lambda line: note(line, quiet), keep)
    except Stopped:
        raise typer.Exit(STOPPED) from None
    found = {"history": result.history.to_dict(), "events": [list(event) for event in result.events]}
    promise = [] if result.privacy is None else [result.privacy]
    found |= {"privacy": {**result.spec["privacy"], "statement": result.privacy}} if promise else {}
    output.show(json, found, "\n".join([str(result), *promise, f"result: {config['out']}"]))


@app.command(cls=Command)
def worker(socket: Annotated[Path, typer.Argument(metavar="SOCKET", help="Where it listens.")]) -> None:
    """Run a node's worker, which keeps data and compiled code between messages."""
    from fedrzo.deploy.node import work
    from fedrzo.deploy.processes import Stopped, ending_in_order

    try:
        with ending_in_order():
            work(socket)
    except Stopped:
        raise typer.Exit(0) from None
