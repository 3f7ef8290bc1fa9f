"""A user's Python file that states a problem: loading it, and saying in one line where it goes wrong."""

import contextlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedrzo.errors import BlackboxError, FedrzoError, InputError, nearest
from fedrzo.problems.base import Problem


class UserFile:
    """A file such as `toy.py`, or `toy.py:other` for a problem that is not called `problem`; maybe with `method` and `rounds`."""

    def __init__(self, source: str) -> None:
        self.path, name = _split(source)
        with self.blame():
            self.module = _import(self.path)  # all that it defines
        self.problem = _problem(self.module, self.path, name)
        self.method: Any = getattr(self.module, "method", None)
        self.rounds: Any = getattr(self.module, "rounds", None)

    @contextlib.contextmanager
    def blame(self) -> Iterator[None]:
        """Turn an error that passes through the file into one line that names the file and the line."""
        try:
            yield
        except (Exception, SystemExit) as error:
            line = _line_number(error, str(self.path))
            if line is None:
                raise
            raise InputError(f"{self.path.name}, line {line}: {_message(error)}") from error


def is_python(source: str) -> bool:
    """Tell whether a text names such a file, and not something else by its name."""
    return re.search(r"\.py(:\w+)?$", source) is not None


def meant_file(source: str) -> str | None:
    """Return the source with the `.py` that was left out, if there is that file."""
    stem, colon, name = source.partition(":")
    return f"{stem}.py{colon}{name}" if Path(f"{stem}.py").is_file() else None


def _split(source: str) -> tuple[Path, str]:
    stem, colon, name = source.rpartition(":")
    if not (colon and name.isidentifier()):
        stem, name = source, "problem"
    path = Path(stem)
    if not path.is_file():
        meant = meant_file(source)
        hint = f"did you mean {meant}?" if meant else "pass FILE.py, or FILE.py:NAME"
        raise InputError(f"file: there is no file {stem}; {hint}")
    if path.suffix != ".py":
        raise InputError(f"file: {stem} does not end in .py; pass a Python file that defines `problem`")
    return path.resolve(), name


def _import(path: Path) -> ModuleType:
    # As `python FILE.py` has it: the file's folder comes first, so that it can import its neighbours.
    sys.path.insert(0, str(path.parent))
    name = f"fedrzo_solve_{path.stem}"  # not the bare stem, which may be that of another module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"file: Python cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _problem(module: ModuleType, path: Path, name: str) -> Problem:
    if hasattr(module, name):
        problem = getattr(module, name)
        if isinstance(problem, Problem):
            return problem
        raise InputError(f"{path.name}: {name} is a {type(problem).__name__}; set it to fz.Nonsmooth(...) or another problem")
    others = [key for key, value in vars(module).items() if isinstance(value, Problem)]
    hint = nearest(name, others) if others else f"; set {name} = fz.Nonsmooth(...) or another problem"
    raise InputError(f"{path.name}: does not define {name}{hint}")


def _line_number(error: BaseException, path: str) -> int | None:
    """Return the innermost line of a file that an error, or what caused it, came from."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if lines:
        return lines[-1]
    return None if error.__cause__ is None else _line_number(error.__cause__, path)


def _message(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, BlackboxError) and error.__cause__ is not None:
        return _message(error.__cause__)  # the line says that it happened in the file's own function
    if isinstance(error, FedrzoError):
        return " ".join(lines)
    text = error.msg if isinstance(error, SyntaxError) else lines[0] if lines else "no message"
    return f"{type(error).__name__}: {text}"
