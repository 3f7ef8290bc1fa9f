"""The commands for a problem of one's own: `new` writes a file to start from, `check` looks at it, `solve` solves it."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrzo.cli import output
from fedrzo.cli.commands import Json, Out, Quiet, Resume, Rounds, Seed, Seeds, Settings, execute, note
from fedrzo.errors import DivergedError, InputError, nearest

if TYPE_CHECKING:
    from fedrzo.checks import Report
    from fedrzo.results.result import Result
    from fedrzo.running.problem_file import UserFile

File = Annotated[str, typer.Argument(metavar="FILE.py[:NAME]", help="Defines `problem` (or NAME); maybe `method`, `rounds`.")]
KINDS = ("nonsmooth", "bilevel", "minimax", "twostage")  # of problems that there is a template for
FEW = 10  # numbers of x that are shown


def new(
    kind: Annotated[str, typer.Argument(help=f"What kind of problem: {', '.join(KINDS)}.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The file to write; it must not be there yet.")],
    json: Json = False,
) -> None:
    """Write a commented file that states a small problem and runs; to be changed into your own."""
    if kind not in KINDS:
        raise InputError(f"kind: found {kind!r}{nearest(kind, KINDS)}")
    if file.suffix != ".py":
        raise InputError(f"file: {file} does not end in .py; pass a name such as my_problem.py")
    text = resources.files("fedrzo.cli").joinpath("templates", f"{kind}.py").read_text()
    try:
        with file.open("x") as written:  # "x" refuses a file that is there, even one that appears just now
            written.write(text.replace("FILE.py", str(file)))
    except FileExistsError:
        raise InputError(f"file: {file} is there already and is left as it is; pass another name") from None
    except OSError as error:
        reason = f"cannot write {file} ({error.strerror})"
        raise InputError(f"file: {reason}; pass a name in a folder that is there") from None
    following = [f"fedrzo check {file}", f"fedrzo solve {file}"]
    output.show(json, {"file": str(file), "next": following}, f"{file}\ntry it: {' or '.join(following)}")


def check(
    file: File,
    settings: Settings = None,
    seed: Seed = None,
    rounds: Rounds = None,
    calls: Annotated[int | None, typer.Option(help="Calls of black boxes, at most; those of ten rounds by default.")] = None,
    json: Json = False,
) -> None:
    """Look at the problem that a Python file defines, and explain what is found; exits with 2 on a problem."""
    from fedrzo.checks import check
    from fedrzo.running.problem_file import UserFile

    with contextlib.redirect_stdout(sys.stderr):
        user = UserFile(file)
        report = _located(user, check(user.problem, *_stated(user, settings, rounds), seed or 0, calls=calls))
    output.show(json, report.to_dict(), report)
    if not report.ok:
        raise typer.Exit(2)


def solve(
    file: File,
    settings: Settings = None,
    seeds: Seeds = None,
    seed: Seed = None,
    rounds: Rounds = None,
    out: Out = None,
    resume: Resume = False,
    seconds: Annotated[float | None, typer.Option(help="The time limit where the file names no method: 60 by default.")] = None,
    unchecked: Annotated[bool, typer.Option("--no-check", help="Do not look at the problem first.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Solve the problem that a Python file defines; without a method, one is chosen and tuned."""
    from fedrzo.running.problem_file import UserFile

    # What the file prints must not end up between the braces of a JSON object.
    with contextlib.redirect_stdout(sys.stderr):
        user = UserFile(file)
        with user.blame():
            if user.method is None and not (settings or resume) and seeds is rounds is user.rounds is None:
                outcomes = _without_method(user, seconds, seed, out, quiet)
            elif seconds is not None:
                raise InputError(
                    "--seconds: works only if fedrzo picks the method; leave out either it, or method, rounds, seeds and settings"
                )
            else:
                outcomes = _by_method(user, file, settings, seeds, seed, rounds, out, resume, unchecked, quiet)
    output.report(user.path.name, outcomes, seeds, json)
    if not json and seeds is None:
        [[result]] = outcomes.values()
        _print_point(result)


def _by_method(
    user: UserFile, file: str, settings: list[str] | None, seeds: int | None, seed: int | None, rounds: int | None,
    out: Path | None, resume: bool, unchecked: bool, quiet: bool,
) -> dict[str, list[Result]]:  # fmt: skip
    """Solve a file's problem by its own method, or the usual one, after a look at it."""
    from fedrzo.checks import check
    from fedrzo.running.experiment import Task, check_tasks

    method, length = _stated(user, settings, rounds)
    task = Task(type(method).__name__, method, user.problem, length, seed or 0)
    check_tasks([task], seeds, out, resume)
    note(f"{method!r} on {user.problem!r}, {length} rounds", quiet)
    if not unchecked and not resume:
        _check_first(check(user.problem, method, length, seed or 0, False if quiet else None), file, seeds, quiet)
    return execute([task], seeds, out, resume, quiet)


def _without_method(
    user: UserFile, seconds: float | None, seed: int | None, out: Path | None, quiet: bool
) -> dict[str, list[Result]]:
    """Solve a file's problem by `fz.solve`, and save what was found."""
    from fedrzo.solving import solve
    from fedrzo.support.files import check_writable
    from fedrzo.support.progress import is_wanted

    folder = None if out is None else out / "solve"
    if folder is not None:
        if folder.exists():
            raise InputError(f"--out: {folder} is there already and is left as it is; choose another folder")
        check_writable(folder.parent, "--out")
    limit = 60.0 if seconds is None else seconds
    note(f"{user.problem!r}, no method named: one is searched for, {limit:g} s at most", quiet)
    try:
        result = solve(user.problem, limit, seed or 0, progress=not quiet and is_wanted(None))
    except KeyboardInterrupt as stopped:
        best: Result | None = getattr(stopped, "result", None)
        kept = "nothing was kept: with --out DIR the best point so far would be"
        if best is not None and folder is not None:
            best.save(folder)
            kept = f"the best point so far is in {folder}"
        raise KeyboardInterrupt(kept) from None
    if folder is not None:
        result.save(folder)
        note(f"wrote {folder}", quiet)
    return {result.spec["method"]: [result]}


def _check_first(report: Report, file: str, seeds: int | None, quiet: bool) -> None:
    """Show what is worth knowing, and stop at a problem."""
    for finding in report.notes:
        note(str(finding), quiet)
    for found in report.problems:
        if found.error is None:
            raise InputError(f"{found.about}: {found.text} (--no-check goes on all the same)")
        if seeds is None or not isinstance(found.error, DivergedError):  # with other seeds it may go well
            raise found.error
    costs = [finding.text for finding in report.findings if finding.about == "costs"]
    note(" ".join([*costs, f"(fedrzo check {file} tells more)"]), quiet)


def _located(user: UserFile, report: Report) -> Report:
    """Return the report with the line of the file named where an error came from it."""

    def one(finding: Any) -> Any:
        if finding.error is None:
            return finding
        try:
            with user.blame():
                raise finding.error
        except InputError as error:
            return dataclasses.replace(finding, text=str(error).removeprefix(f"{finding.about}: "))
        except Exception:
            return finding

    return dataclasses.replace(report, findings=tuple(map(one, report.findings)))


def _stated(user: UserFile, settings: list[str] | None, rounds: int | None) -> tuple[Any, int]:
    """Return the file's method, or the usual one, with `--set method.FIELD=VALUE` applied; and how many rounds."""
    from fedrzo.checks.examine import ROUNDS, usual_method
    from fedrzo.methods import Method
    from fedrzo.running.spec import changed
    from fedrzo.support.settings import fields, nest, read_setting

    method = usual_method(user.problem) if user.method is None else user.method
    if not isinstance(method, Method):
        raise InputError(f"method: found {type(method).__name__}; set it to fz.FedRZOnn(...) or another method")
    changes = nest(read_setting(text) for text in settings or [])
    for key in changes:
        if key != "method":
            field = key if key in ("name", *fields(method)) else "FIELD"
            raise InputError(f"--set {key}: a file's method is all that can be changed; write method.{field}=VALUE")
    table = changes.get("method", {})
    if not isinstance(table, dict):
        raise InputError(f"--set method: found {table!r}; write method.name={table}, or method.FIELD=VALUE")
    _check_class(user.problem, table.get("name"))
    length = next(n for n in (rounds, user.rounds, ROUNDS) if n is not None)
    return changed(method, table), length


def _check_class(problem: Any, name: Any) -> None:
    """Refuse a method that does not solve this class of problems before its fields are asked for."""
    from fedrzo.methods import METHODS

    if not isinstance(name, str) or name not in METHODS or isinstance(problem, METHODS[name].solves):
        return
    usual, kind = problem.usual, type(problem).__name__
    others = sorted(other for other, cls in METHODS.items() if isinstance(problem, cls.solves) and other != usual)
    raise InputError(f"method.name: {name} does not solve a {kind} problem; use {', '.join([usual, *others])}")


def _print_point(result: Result) -> None:
    """Print x as it was projected, and the lower level's answer to that very x, where they are short enough to be read."""
    problem = result.problem
    name = "x" if problem.sets.free else "x_feasible"
    if problem.dim <= FEW:
        print(f"{name} = {_plain(result.x_feasible)}")
    if result.y is not None and problem.lower_layout.size <= FEW:
        with problem.precision():
            [y] = problem.lower_solutions(problem.layout.ravel(result.x_feasible)[None])
        print(f"y = {_plain(y)}, which answers {name}")


def _plain(x: Any) -> str:
    """Return a point in few words."""
    import jax
    import numpy as np

    def show(leaf: Any) -> Any:
        return np.array2string(np.asarray(leaf), precision=5, separator=", ")

    return str(show(x) if jax.tree_util.all_leaves([x]) else jax.tree.map(show, x))
