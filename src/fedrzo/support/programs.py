"""The user's cache of compiled programs on disk, and one JAX device per core for the command line."""

import functools
import hashlib
import importlib
import os
import platform
import sys
from pathlib import Path

from fedrzo.support.cores import cores

KEPT = 512 << 20  # largest size of the cache, in bytes
SETTING = "FEDRZO_CACHE"  # the environment variable that turns the cache off
SHORTEST = 0.05  # seconds of compilation from which a program is cached, in a process that has imported JAX already


def use_cores() -> None:
    """Have JAX, which must not have been imported yet, make a device of each core, unless the user has said otherwise."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores()))


def keep() -> None:
    """Have JAX cache compiled programs in the user's cache folder, unless it has a folder or the cache is turned off."""
    jax = sys.modules.get("jax")
    if os.environ.get(SETTING) == "off" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    if jax is not None and jax.config.jax_compilation_cache_dir:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = home / "fedrzo" / "programs" / machine()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        drop_oldest(folder, KEPT)
    except OSError:
        return  # a home that cannot be written in: everything is compiled anew
    if jax is None:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    # JAX looks for its folder once, when it compiles for the first time.
    importlib.import_module("jax.experimental.compilation_cache.compilation_cache").reset_cache()


keep_once = functools.cache(keep)


def machine() -> str:
    """Return a name for the kind of processor: a program that was compiled for another one may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    facts = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))} or set(lines[:1]))
    return f"{platform.machine()}-{hashlib.sha256(''.join(facts).encode()).hexdigest()[:8]}"


def drop_oldest(folder: Path, limit: int) -> None:
    """Delete the files that were written first, until the others have at most so many bytes."""
    files = sorted(((file.stat(), file) for file in folder.iterdir()), key=lambda pair: -pair[0].st_mtime)
    total = 0
    for facts, file in files:
        total += facts.st_size
        if total > limit:
            file.unlink(missing_ok=True)
