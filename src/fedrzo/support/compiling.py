"""How runs are compiled: options of XLA, and what it is to compute as it stands. What each gives is in docs/speed-appendix.md."""

import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any
LONG = 1024  # entries of x from which on directions take most of the time
# Sums are left to the compiler: the library that XLA else calls for them takes longer to start than they take.
SUMS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
GRAPHS = {"xla_gpu_graph_min_graph_size": 1}  # also a few kernels are launched together, in a graph
WIDE = {"xla_cpu_prefer_vector_width": 512}  # for long rows of integers; where loops are short it is slower


# Half of the time to compile. Programs are as fast, unless they have functions such as tanh of many numbers.
FAST: dict[str, Any] = {
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
CHEAP = FAST | {"xla_backend_optimization_level": 0}  # a quarter of it, for programs that run once or a few times
LITTLE = 4000  # numbers in all clients' batches: programs that work on no more are compiled by `FAST`


QUICK = contextvars.ContextVar("quick", default=False)


@contextlib.contextmanager
def quickly(wanted: bool = True) -> Iterator[None]:
    """Compile rounds quickly rather than well: for short runs, in which compilation takes most of the time."""
    token = QUICK.set(wanted)
    try:
        yield
    finally:
        QUICK.reset(token)


@functools.cache
def compiler_options(platform: str, long: bool, quick: bool = False, little: bool = False) -> dict[str, Any]:
    """Return the options for rounds on a platform, of a long x, compiled quickly, or working on few numbers."""
    if quick and platform == "cpu":
        return _usable(CHEAP)
    return _usable({"cpu": SUMS | (WIDE if long else {}) | (FAST if little else {}), "gpu": GRAPHS}.get(platform, {}))


def in_thread(compile_: Callable[[], Any]) -> threading.Thread:
    """Begin a compilation in a thread. If it fails, the run that needs the program meets the error where it can be told."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            compile_()

    thread = threading.Thread(target=quietly)
    thread.start()
    return thread


def trial(function: Callable) -> Callable:
    """Compile a user's function quickly, to try it on a few samples; equal functions share their programs."""
    return jax.jit(function, compiler_options=_usable(CHEAP if jax.default_backend() == "cpu" else {}))


def once(function: Callable, static: tuple[str, ...] = ()) -> Callable:
    """Compile a function of few numbers that runs a few times, not inside of other compiled code: quickly rather than well.

    Arguments whose names are in `static` are part of the program; they are given by name.
    """
    return _compiled(function, lambda: True, static, {})


def on_data(function: Callable, static: tuple[str, ...] = ()) -> Callable:
    """Compile a function likewise that works on samples, perhaps many: quickly within `quickly`, else by `FAST`."""
    return _compiled(function, QUICK.get, static, FAST)


def _compiled(function: Callable, is_quick: Callable[[], bool], static: tuple[str, ...], else_: dict[str, Any]) -> Callable:
    @functools.cache
    def compiled(platform: str, quick: bool) -> Callable:
        options = _usable((CHEAP if quick else else_) if platform == "cpu" else {})
        return jax.jit(function, static_argnames=static, compiler_options=options)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return compiled(jax.default_backend(), is_quick())(*arguments, **named)

    return call


def _usable(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that this JAX knows, and that the user has not set in XLA_FLAGS."""
    flags = os.environ.get("XLA_FLAGS", "")
    left = {name: value for name, value in wanted.items() if name not in flags}
    return left if _known(tuple(left.items())) else {name: value for name, value in left.items() if _known(((name, value),))}


@functools.cache
def _known(options: tuple[tuple[str, Any], ...]) -> bool:
    """Return whether this JAX takes options; they come and go."""
    try:
        if options:
            jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
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
