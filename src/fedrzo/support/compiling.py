"""How runs are compiled: options of XLA, and what it is to compute as it stands. What each gives is in docs/speed-appendix.md."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any
LONG = 1024  # entries of x from which on directions take most of the time
# Sums are left to the compiler: the library that XLA else calls for them takes longer to start than they take.
SUMS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
GRAPHS = {"xla_gpu_graph_min_graph_size": 1}  # also a few kernels are launched together, in a graph
WIDE = {"xla_cpu_prefer_vector_width": 512}  # for long rows of integers; where loops are short it is slower


@functools.cache
def compiler_options(platform: str, long: bool) -> dict[str, Any]:
    """Return the options for a platform: those that this JAX knows, and that the user has not set in XLA_FLAGS."""
    flags = os.environ.get("XLA_FLAGS", "")
    wanted = {"cpu": SUMS | WIDE if long else SUMS, "gpu": GRAPHS}.get(platform, {})
    return {name: value for name, value in wanted.items() if name not in flags and _known(name, value)}


def _known(name: str, value: Any) -> bool:
    """Tell whether this JAX takes an option; they come and go."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def stored(value: Callable[[], PyTree]) -> PyTree:
    """Return a value that a CPU is to compute once and store: its compiler would compute it anew wherever it is used.

    A choice of which the compiler cannot know how it ends keeps it from doing so. On a GPU it would wait for the host.
    """

    def chosen() -> PyTree:
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(value))
        return jax.lax.cond(jax.lax.optimization_barrier(jnp.bool_(True)), value, lambda: nothing)

    return jax.lax.platform_dependent(cpu=chosen, default=value)
