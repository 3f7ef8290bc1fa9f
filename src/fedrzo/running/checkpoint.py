"""Checkpoints: all that a run needs to go on after it was killed, in one npz file without pickles."""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from fedrzo.errors import CheckpointError, InputError
from fedrzo.support.files import write_file

NAME = "checkpoint.npz"
ANEW = "use another folder, or delete it to start anew"


class Checkpoint(NamedTuple):
    """A stored run: which one, how far it is and why, its histories, what its engine keeps, and how its stepsizes were found."""

    identity: dict[str, Any]
    round: int
    seconds: float
    histories: list[dict[str, list]]
    arrays: list[np.ndarray]
    tunings: list[dict[str, Any] | None]
    notes: dict[str, Any]
    stopped: str  # why the run is where it is

    def write(self, folder: Path) -> None:
        """Store the checkpoint; the former one stays until this one is whole."""
        header = {name: value for name, value in self._asdict().items() if name != "arrays"}
        entries: dict[str, Any] = {f"array_{i:04d}": array for i, array in enumerate(self.arrays)}
        buffer = io.BytesIO()
        np.savez(buffer, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **entries)
        write_file(folder / NAME, buffer.getvalue())

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return what is stored in a folder, or None if nothing is."""
        path = folder / NAME
        if not path.exists():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                header = json.loads(stored["header"].tobytes())
                arrays = [stored[name] for name in sorted(stored.files) if name.startswith("array_")]
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, json.JSONDecodeError) as error:
            raise CheckpointError(
                f"checkpoint: {path} is damaged ({type(error).__name__}); delete it to start anew, or restore a copy"
            ) from None
        older = {"tunings": [None] * len(header["histories"]), "notes": {}, "stopped": ""}  # what an older version did not store
        return cls(**{**older, **header, "arrays": arrays})

    def check(self, identity: dict[str, Any], arrays: list[np.ndarray], folder: Path) -> None:
        """Refuse to go on with another run than the one that was stored."""
        self.check_identity(identity, folder)
        if [(a.shape, a.dtype) for a in self.arrays] != [(a.shape, a.dtype) for a in arrays]:
            raise CheckpointError(f"checkpoint: the arrays in {folder} do not fit this run; use another folder")

    def check_start(self, seen: Mapping[str, np.ndarray], folder: Path) -> None:
        """Refuse to go on with another loss: no checkpoint can hold a function, but what it gives at x0 tells."""
        for name, values in ((name, values) for name, values in seen.items() if name != "epsilon"):  # nodes have spent some since
            for history, value in zip(self.histories, values, strict=True):
                if not np.isclose(history[name][0], value, rtol=1e-6, equal_nan=True):
                    raise CheckpointError(
                        f"checkpoint: {folder} holds a run that starts at {name} = {history[name][0]:.6g}, this one starts at "
                        f"{value:.6g}: the loss differs; {ANEW}"
                    )

    def check_end(self, seen: Mapping[str, np.ndarray], folder: Path) -> None:
        """Do the same where the stored part ended: two losses may agree at x0."""
        for history, value in zip(self.histories, seen.get("loss", ()), strict=False):
            if history["round"][-1] == self.round and not np.isclose(history["loss"][-1], value, rtol=1e-4, equal_nan=True):
                raise CheckpointError(
                    f"checkpoint: {folder} holds a run whose loss is {history['loss'][-1]:.6g} after {self.round} rounds; "
                    f"this one's is {value:.6g} there: they differ; {ANEW}"
                )

    def check_identity(self, identity: dict[str, Any], folder: Path) -> None:
        """Refuse to go on with other settings, data or keys."""
        counts = [len(runs["key"]) for runs in (self.identity, identity)]
        if counts[0] != counts[1]:
            raise CheckpointError(
                f"checkpoint: {folder} holds {counts[0]} runs side by side, this call has {counts[1]}; pass the seeds "
                "(--seeds on the command line) and the settings that it began with, or use another folder"
            )
        for name, value in identity.items():
            if self.identity.get(name, value) != value:  # what an older version did not store cannot differ
                stored, wanted = _first_difference(self.identity[name], value)
                raise CheckpointError(
                    f"checkpoint: {folder} holds a run with {name} = {stored!r}, this one has {wanted!r}; {ANEW}"
                )


def refuse_stored(folder: Path, argument: str, resume: str) -> None:
    """Refuse to write over a run that is stored in a folder; `resume` says what asks for going on with it."""
    stored = Checkpoint.read(folder)
    if stored is not None:
        raise InputError(
            f"{argument}: {str(folder)!r} holds a run at round {stored.round}; pass {resume}, another folder, or delete it"
        )


def interrupted(where: str, folder: Path | None, whole: bool) -> KeyboardInterrupt:
    """Return what Ctrl-C is answered with: how far the run is, and how to go on.

    It is no class of its own: Python lets a script die of SIGINT, as a shell's loop expects, for this very class alone.
    """
    if folder is not None:
        return KeyboardInterrupt(f"{where}; go on with the same call and resume=True, checkpoint={str(folder)!r}")
    kept = "the exception's `result` holds what was reached (at a prompt: sys.last_value.result)"
    kept = kept if whole else "nothing was kept"
    return KeyboardInterrupt(f"{where}; {kept}; pass checkpoint=FOLDER to go on later")


def _first_difference(stored: Any, wanted: Any) -> tuple[Any, Any]:
    """Return two values that differ; of lists with an entry for each run, the first entries that do."""
    if isinstance(stored, list) and isinstance(wanted, list):
        return next(pair for pair in zip(stored, wanted, strict=True) if pair[0] != pair[1])
    return stored, wanted
