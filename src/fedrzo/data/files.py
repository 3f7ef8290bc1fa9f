"""Find the files of a data set on disk, or download them into the cache."""

import hashlib
import os
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedrzo.data.parse import UNREADABLE, count_libsvm
from fedrzo.data.sources import SOURCES, File, Source
from fedrzo.errors import InputError, MissingDataError

TIMEOUT = 30.0  # seconds without a byte from a mirror before it counts as unreachable
CHUNK = 1 << 16  # bytes per step of the progress bar


def find(name: str, root: str | os.PathLike[str] | None, download: bool) -> dict[str, Path]:
    """Return the path of each file of a data set, by its published name; the arguments are those of `load`."""
    source, roots = SOURCES[name], _roots(root)
    paths, missing = _locate(source, roots)
    failures = ""
    if missing and download and root is None:
        failures = _download(source.choices[-1], cache_folder() / source.folders[0])
        paths, missing = _locate(source, roots)
    if missing:
        site = source.choices[-1][0].urls[0].rpartition("/")[0]
        raise MissingDataError(
            f"{name}: {', '.join(missing)} not found in {' or '.join(map(str, roots))}{failures}; "
            f"get what is missing from {site} and put it there, or pass root= (--data) a folder that has it"
        )
    return paths


def cache_folder() -> Path:
    """Return the folder that downloads are kept in; it may not exist yet."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "fedrzo"


def fault(path: Path, file: File) -> str | None:
    """Say what is wrong with a copy of `file`, or return `None` where it is as published."""
    if file.digest and path.name == file.name:
        algorithm, expected = file.digest.split(":")
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False))
        if digest.hexdigest() != expected:
            return f"its {algorithm.upper()} is {digest.hexdigest()}, not {expected}"
    if file.rows is not None:
        rows, nonzeros = count_libsvm(path)
        if rows != file.rows:
            return f"it has {rows} rows, not {file.rows}"
        if file.nonzeros is not None and nonzeros != file.nonzeros:
            return f"it has {nonzeros} non-zeros, not {file.nonzeros}"
    return None


def _roots(root: str | os.PathLike[str] | None) -> list[Path]:
    """Return the folders to look in, in order."""
    setting, given = ("FEDRZO_DATA", os.environ.get("FEDRZO_DATA") or None) if root is None else ("root", root)
    if given is None:
        return [cache_folder()]
    folder = Path(given).expanduser()
    if not os.fspath(given) or not folder.is_dir():
        raise InputError(f"{setting}={os.fspath(given)!r} is not a folder; name the one that holds the data files")
    return [folder] if root is not None else [folder, cache_folder()]


def _locate(source: Source, roots: list[Path]) -> tuple[dict[str, Path], list[str]]:
    """Return the first complete set of files, or else what the most nearly complete one lacks."""
    lacks: list[tuple[int, list[str]]] = []
    for folder in (root / sub for root in roots for sub in source.folders):
        for choice in source.choices:
            paths = _present(choice, folder)
            missing = [file.name for file in choice if file.required and file.name not in paths]
            if not missing:
                return paths, []
            lacks.append((len(paths), missing))
    return {}, min(lacks, key=lambda lack: (-lack[0], len(lack[1])))[1]


def _present(files: tuple[File, ...], folder: Path) -> dict[str, Path]:
    """Return the resolved path of every file that the folder holds under one of its names."""
    found = {}
    for file in files:
        candidates = [folder / name for name in (file.name, *file.also)]
        # os.path, because Path.is_file raises where the folder may not be entered
        paths = [path.resolve() for path in candidates if os.path.isfile(path)]
        if paths:
            found[file.name] = paths[0]
    return found


def _download(files: tuple[File, ...], folder: Path) -> str:
    """Bring those of the files that the folder lacks; return `""`, or which one failed and why."""
    present = _present(files, folder)
    # Optional files first: once the required ones are there, the set counts as complete.
    for file in sorted(files, key=lambda file: file.required):
        failures = [] if file.name in present else _fetch(file, folder)
        if failures:
            return f" and {file.name} could not be downloaded ({'; '.join(failures)})"
    return ""


def _fetch(file: File, folder: Path) -> list[str]:
    """Download one file from the first mirror that serves it intact; return `[]`, or why each one failed."""
    failures = []
    for url in file.urls:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # The scratch folder vanishes with what is in it, also on Ctrl-C, and a rename within a file
            # system is atomic: the cache only ever shows whole, checked files.
            with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
                part = Path(scratch) / file.name
                _transfer(url, part)
                problem = fault(part, file)
                if problem is None:
                    part.replace(folder / file.name)
                    return []
        except (*UNREADABLE, HTTPException) as error:
            problem = str(error) or type(error).__name__
            if isinstance(error, HTTPError):
                error.close()
        failures.append(f"{url}: {problem}")
    return failures


def _transfer(url: str, target: Path) -> None:
    """Copy a URL to a file, with a progress bar on standard error."""
    request = urllib.request.Request(url, headers={"User-Agent": "fedrzo"})
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with (
        urllib.request.urlopen(request, timeout=TIMEOUT) as response,
        target.open("wb") as out,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        announced = int(response.headers.get("Content-Length", 0))
        task = progress.add_task(target.name, total=announced or None)
        while chunk := response.read(CHUNK):
            progress.advance(task, out.write(chunk))
        received = out.tell()
    # http.client does not complain of a connection that closes early.
    if announced and received != announced:
        raise ConnectionError(f"transfer stopped after {received} of {announced} bytes")
