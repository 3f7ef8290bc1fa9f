"""Settings shared by all tests, set before JAX is imported."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Many tests compile the same programs: keep them, for the other workers and for the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
