"""What benchmarks store, in one shape: what was found, and beside it, as `made`, the command, day, machine and versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import fedrzo
from fedrzo.support.cores import cores
from fedrzo.support.files import write_file

STORED = Path(__file__).parents[1] / "results"
WITH_VALUE, ALONE = ("--out", "--data"), ("--json", "--quiet")  # options that do not change what is measured


def save(found: dict[str, Any], out: str | Path | None, name: str) -> None:
    """Add how it was made to what was found, and write it where a folder was given."""
    found["made"] = made(name)
    if out is not None:
        write_file(Path(out) / f"{name}.json", (json.dumps(found, indent=1) + "\n").encode())


def made(name: str) -> dict[str, Any]:
    """Return the command, the day, the machine with its load, and the versions."""
    packages = ("jax", "numpy")
    versions = {"fedrzo": fedrzo.__version__, **{package: importlib.metadata.version(package) for package in packages}}
    return {
        "command": command(name, sys.argv),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "cores": os.cpu_count(),  # of the machine, as its load is
        "load": round(os.getloadavg()[1], 1),
        "versions": versions | {"python": platform.python_version()},
    }


def command(name: str, argv: list[str]) -> str:
    """Return the command that was given, without what says where data and results are."""
    script = Path(argv[0])
    here = script.resolve().parent == STORED.parent
    words, kept = iter(argv[1:] if here else []), []
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word not in ALONE and not word.startswith(tuple(f"{option}=" for option in WITH_VALUE)):
            kept.append(word)
    return " ".join([f"python benchmarks/{script.stem if here else name}.py", *kept])


def machine() -> str:
    """Return what computes: the accelerator where there is one, and the cores."""
    accelerator = jax.devices()[0].device_kind if jax.default_backend() != "cpu" else ""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    used, there = cores(), os.cpu_count()
    which = f"{used} core{'s' * (used != 1)}" if used == there else f"{used} of {there} cores"
    return ", ".join(filter(None, [accelerator, f"{which} of {model}"]))


def standing(ratios: Mapping[str, float], rival: str) -> str:
    """Say who is ahead, by ratios that are above 1 where the library is; where it is not, every such row by name."""
    values = list(ratios.values())
    behind = [f"{name} ({ratio:.2f} x)" for name, ratio in ratios.items() if ratio < 1]
    said = (
        f"fedrzo is ahead of {rival} in {len(values) - len(behind)} of {len(values)} rows; ratios {min(values):.2f} to "
        f"{max(values):.3g} x, {statistics.median(values):.3g} x in the median."
    )
    return said + (f" {rival[0].upper()}{rival[1:]} wins: {'; '.join(behind)}." if behind else "")
