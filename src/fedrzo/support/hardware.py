"""A warning for those who have a GPU and compute on the CPU."""

import functools
from pathlib import Path

import jax

from fedrzo.errors import warn

DEVICES = ("/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg")  # Linux, its driver, and Windows' Linux


def idle_gpu(present: bool, backend: str, chosen: str | None) -> str | None:
    """Return what to say about an NVIDIA device that is not used, or None; the user may have `chosen` what JAX computes on."""
    if not present or backend != "cpu" or chosen:
        return None
    return (
        "GPU: found an NVIDIA device, but JAX computes on the CPU; run: pip install 'jax[cuda13]' (cuda12 for older drivers), or "
        "set JAX_PLATFORMS=cpu if the CPU is meant"
    )


@functools.cache  # once is enough
def warn_of_idle_gpu() -> None:
    """Warn, once, of a GPU that is present but not used."""
    present = any(Path(device).exists() for device in DEVICES)
    line = idle_gpu(present, jax.default_backend(), jax.config.values["jax_platforms"])
    if line is not None:
        warn(line)
