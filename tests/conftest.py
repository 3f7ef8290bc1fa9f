"""Settings shared by all tests, set before JAX is imported."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Many tests compile the same programs: keep them, for the other workers and for the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


@pytest.fixture(autouse=True, scope="module")
def _free_compiled_programs() -> Iterator[None]:
    """Drop what a file's tests compiled: each program holds memory maps, and a process may have some 65,000 of them."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()
