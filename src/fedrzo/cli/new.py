"""`fedrzo new`: a commented file that states a small problem, to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from fedrzo.errors import InputError, nearest

KINDS = ("nonsmooth", "bilevel", "minimax", "twostage")


def new(kind: str, file: Path) -> Path:
    """Write the file of a kind, unless there is one of that name.

    Args:
        kind: one of `KINDS`.
        file: where to; it must end in .py and not be there yet.

    Returns:
        The file.
    """
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
        raise InputError(
            f"file: cannot write {file} ({error.strerror}); pass a name in a folder that is there"
        ) from None
    return file
