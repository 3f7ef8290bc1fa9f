"""What a process of the command line's own asks of JAX: to keep compiled programs between commands, and to use all cores."""

import os
from pathlib import Path

from fedrzo.support.cores import cores

KEPT = 512 << 20  # bytes of programs, at most


def use_cores() -> None:
    """Have JAX, which must not have been imported yet, make a device of each core, unless the user has said otherwise."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores()))


def keep() -> None:
    """Have JAX, which must not have been imported yet, keep its programs in the user's cache folder, unless it has another."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedrzo" / "programs"
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        drop_oldest(folder, KEPT)
    except OSError:
        return  # a home that cannot be written in: everything is compiled anew
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def drop_oldest(folder: Path, limit: int) -> None:
    """Delete the files that were written first, until those that are left have at most so many bytes."""
    files = sorted(((file.stat(), file) for file in folder.iterdir()), key=lambda pair: -pair[0].st_mtime)
    total = 0
    for facts, file in files:
        total += facts.st_size
        if total > limit:
            file.unlink(missing_ok=True)
