"""How runs are compiled on a CPU: options of XLA that suit many small steps; see docs/speed.md for what each gives."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax

LONG = 1024  # entries of x from which on directions take most of the time
# Sums are left to the compiler: the library that XLA else calls for them takes longer to start than they take.
SUMS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
WIDE = {"xla_cpu_prefer_vector_width": 512}  # for long rows of integers; where loops are short it is slower


@functools.cache
def compiler_options(platform: str, long: bool) -> dict[str, Any]:
    """Return the options for a platform: those that this JAX knows, and that the user has not set in XLA_FLAGS."""
    if platform != "cpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    wanted = SUMS | WIDE if long else SUMS
    return {name: value for name, value in wanted.items() if name not in flags and _known(name, value)}


def _known(name: str, value: Any) -> bool:
    """Tell whether this JAX takes an option; they come and go."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
