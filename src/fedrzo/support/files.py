"""Files that are either whole or absent: written beside their place, flushed, then moved there."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from fedrzo.errors import InputError


def check_writable(folder: Path, argument: str) -> None:
    """Make a folder and try to write in it, before any work starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise InputError(f"{argument}: cannot write in {folder} ({error.strerror}); choose another folder") from None


def refuse_existing(folder: Path, names: Iterable[str], argument: str) -> None:
    """Refuse a folder in which a command would overwrite files of another one."""
    found = [name for name in names if (folder / name).exists()]
    if found:
        raise InputError(f"{argument}: {folder} holds {', '.join(found)} already; choose another folder, or delete them")


def write_file(path: Path, content: bytes) -> None:
    """Write a file; a crash or a full disk leaves the old one, if any, as it was."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.umask(mask := os.umask(0o077))  # what new files are denied can only be read by setting it
        os.chmod(name, 0o666 & ~mask)  # a temporary file is its owner's alone; a result is as readable as any other
        os.replace(name, path)
        folder = os.open(path.parent, os.O_RDONLY)  # so that the new name, too, outlives a power cut
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}); nothing was changed there") from None
    finally:
        Path(name).unlink(missing_ok=True)


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write files into a folder; they appear there only once all of them are written."""
    check_writable(folder, "folder")
    staging = Path(tempfile.mkdtemp(dir=folder, prefix=".writing."))
    try:
        fill(staging)
        for file in staging.iterdir():
            os.replace(file, folder / file.name)
    except OSError as error:
        raise InputError(f"folder: cannot write in {folder} ({error.strerror}); nothing was changed there") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
