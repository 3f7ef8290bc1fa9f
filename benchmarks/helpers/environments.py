"""Virtual environments for programs that a benchmark compares with, made at the user's request, and how they are run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from fedrzo.errors import FedrzoError

SECONDS, INSTALL_SECONDS = 900, 3600  # nothing takes as long, unless it hangs


class PeerError(FedrzoError):
    """A peer cannot be installed or does not run; the message says why."""


class Environment:
    """A virtual environment with pinned packages, in a folder where a later call finds it again.

    Args:
        folder: where it is, or will be.
        requirements: what pip installs in it.
    """

    def __init__(self, folder: Path, requirements: tuple[str, ...]) -> None:
        self.folder = folder
        self.requirements = requirements
        self.python = str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")
        self._done = folder / "requirements.txt"  # written last: without it, something went wrong

    @property
    def ready(self) -> bool:
        """Whether it is there, with these requirements."""
        return self._done.is_file() and self._done.read_text() == "\n".join(self.requirements)

    def install(self) -> None:
        """Make it anew; what a failure leaves is removed."""
        try:
            call([sys.executable, "-m", "venv", "--clear", str(self.folder)], INSTALL_SECONDS)
            pip = [self.python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
            call([*pip, *self.requirements], INSTALL_SECONDS)
            self._done.write_text("\n".join(self.requirements))
        except PeerError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise


def call(command: list[str], seconds: float = SECONDS, alone: bool = True) -> str:
    """Run a command and return what it printed; `alone`, it is not told of this process's packages.

    Raises:
        PeerError: with the reason that the command gave, where it failed or took too long.
    """
    environment = {name: value for name, value in os.environ.items() if not (alone and name.startswith("PYTHON"))}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise PeerError(f"no answer within {seconds:.0f} seconds") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise PeerError(next((line for line in said if line.startswith("ERROR")), " ".join(said[-1:])) or "it failed")
    return done.stdout
