"""What the benchmarks of speed share: contestants take turns in one process, and medians are compared."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedrzo.compare.options import Options
from fedrzo.support.cores import cores
from helpers.command import check_fixed


def measured(
    options: Options, problem: str, rows: list[Callable[[], Any]], measure: Callable[[Any, bool], Any], size: Callable[[Any], str]
) -> dict[str, Any]:
    """Measure every row of a list of problems that users write, and say which one is at work, by its name and size."""
    check_fixed(options, problem)
    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    found: dict[str, Any] = {"problem": problem, "device": device, "rows": []}
    for make in rows:
        row = make()
        options.say(f"{row.name}, {size(row)}")
        found["rows"].append(measure(row, options.quick))
        jax.clear_caches()
    return found


def medians(contestants: Mapping[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Return the median seconds of each contestant. They take turns, so that a busy machine hits them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(repetitions + 1):
        for name, go in contestants.items():
            start = time.perf_counter()
            jax.block_until_ready(go())
            if i:  # the first time compiles
                seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def use_cores() -> list:
    """Return the devices; on a CPU one for each core that this process may use, unless JAX has started already."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", cores())
    return jax.devices()
