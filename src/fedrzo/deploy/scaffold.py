"""`fedrzo deploy init`: a complete Flower app for a user's problem file."""

import re
from importlib import resources
from pathlib import Path

from fedrzo.errors import InputError
from fedrzo.running.problem_file import UserFile

PACKAGE = "federation"
ROUNDS = 10


def init(folder: Path, source: str | None = None) -> list[Path]:
    """Write an app into a folder that is empty or absent; return the files.

    The source, an example where not given, is a file that defines `problem`, `method` and `client_data`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"DIR: {folder} is not empty; pass a new folder")
    text, clients, rounds = (_template("problem.py"), 3, ROUNDS) if source is None else _deployable(source)
    filled = {"@NAME@": _name(folder), "@CLIENTS@": str(clients), "@ROUNDS@": str(rounds)}
    files = {
        folder / "pyproject.toml": _template("app.toml"),
        folder / "README.md": _template("README.md"),
        folder / ".gitignore": _template("gitignore"),
        folder / PACKAGE / "__init__.py": f'"""{_name(folder)}, as a Flower app."""\n',
        folder / PACKAGE / "client_app.py": _template("client_app.py"),
        folder / PACKAGE / "server_app.py": _template("server_app.py"),
        folder / PACKAGE / "problem.py": text,
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        for mark, value in filled.items() if path.parent == folder else ():
            content = content.replace(mark, value)
        path.write_text(content)
    return list(files)


def _deployable(source: str) -> tuple[str, int, int]:
    """Return a user's file and how many clients and rounds it speaks of, after a look at whether it can be deployed."""
    file = UserFile(source)
    for name in ("method", "client_data"):
        if not hasattr(file.module, name) and not (name == "client_data" and not hasattr(file.problem.data, "flat")):
            raise InputError(f"{file.path.name}: does not define {name}; a deployed problem needs it: see docs/deploy.md")
    return file.path.read_text(), file.problem.clients, file.rounds or ROUNDS


def _name(folder: Path) -> str:
    """Return a name for the app that Flower accepts."""
    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"


def _template(name: str) -> str:
    return resources.files("fedrzo.deploy").joinpath("templates", name).read_text()
