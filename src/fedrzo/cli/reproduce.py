"""The command `reproduce`: the paper's figures and tables, and published problems."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrzo.cli import output
from fedrzo.cli.commands import Data, Json, Quiet, Seed, note, one_of
from fedrzo.errors import InputError, MissingDataError

REPRODUCTIONS = ("fig1", "fig2", "fig3", "fig4", "fig5", "table4", "fig6", "fig7", "published")


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help=f"What to reproduce: {', '.join(REPRODUCTIONS)}, or all.",
            autocompletion=one_of((*REPRODUCTIONS, "all")),
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A small part of it; all of them take a quarter of an hour of processor time.")
    ] = False,
    seed: Seed = None,
    data: Data = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep results there, continue what is there; see `fedrzo report`."),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Reproduce the paper's figures and tables and published numbers, and judge each claim."""
    if name not in (*REPRODUCTIONS, "all"):
        raise InputError(f"reproduce: found {name!r}; pass one of {', '.join(REPRODUCTIONS)}, or all")
    from fedrzo.paper.reproduction import Reproduction

    names, folder = REPRODUCTIONS if name == "all" else (name,), None if data is None else str(data)
    records = []
    with contextlib.redirect_stdout(sys.stderr):
        experiments = _experiments(names, quick, data, quiet)
        for each, module in experiments.items():
            try:
                records.append(module.run(Reproduction(each, quick, seed or 0, out, folder, not quiet)))
            except KeyboardInterrupt:
                kept = f"the same command goes on from {out}" if out else "nothing was kept: with --out DIR it could go on"
                raise KeyboardInterrupt(kept) from None
    if out is not None:
        note(f"wrote {', '.join(f'{out / each}/' for each in experiments)}; see `fedrzo report {out}`", quiet)
    if len(experiments) < len(names):  # said again where it is not overlooked
        skipped = ", ".join(each for each in names if each not in experiments)
        note(f"fedrzo: done, but for {skipped}, whose data are not there: see above", quiet=False)
    if json:
        shown = {record.name: record.data or record.to_dict() for record in records}
        output.print_json(shown if name == "all" else shown[name])
    else:
        output.print_records(records)


def _experiments(names: tuple[str, ...], quick: bool, data: Path | None, quiet: bool) -> dict[str, Any]:
    """Return the experiments of these names whose data are there, having said how long they take, and which are skipped."""
    import importlib

    from fedrzo.data.files import find
    from fedrzo.paper.reproduction import duration

    found = {name: importlib.import_module(f"fedrzo.paper.{name}") for name in names}
    needed = {name: getattr(module, "DATA", ()) for name, module in found.items()}
    for kind in dict.fromkeys(kind for kinds in needed.values() for kind in kinds):
        try:
            find(kind, data, True)
        except MissingDataError as error:
            if len(names) == 1:  # asked for by its name
                raise
            lacking = [name for name in names if kind in needed[name]]
            note(f"fedrzo: skipped {', '.join(lacking)}: {error}", quiet=False)
            found = {name: module for name, module in found.items() if name not in lacking}
    if len(found) > 1:
        minutes = sum(module.MINUTES[0 if quick else 1] for module in found.values())
        note(f"{len(found)} experiments; {duration(minutes, quick)}", quiet)
    return found
