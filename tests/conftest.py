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
# For processes that tests start; pyproject.toml says the same to pytest itself, and why.
os.environ.setdefault("PYTHONWARNINGS", "ignore:Error reading persistent compilation cache entry")

# JAX makes millions of small objects while it traces; by default, Python looks through them all the time.
gc.set_threshold(50_000, 20, 100)

MAPS = 15_000  # a process may have some 65,000 memory maps, and each compiled program holds some


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a slow test that does not say why it is slow."""
    for item in items:
        for mark in item.iter_markers("slow"):
            if not (mark.args and isinstance(mark.args[0], str)):
                raise pytest.UsageError(f"{item.nodeid}: found a slow mark without a reason; say why in its argument")


@pytest.fixture(autouse=True, scope="module")
def _free_compiled_programs() -> Iterator[None]:
    """Drop compiled programs when they hold many memory maps; until then, files share them."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MAPS:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True, scope="session")
def _loud_questions() -> None:
    """Let a question that looks after the user's mistakes fail where it fails by itself; for users it is dropped."""
    from fedrzo.problems import courtesy

    courtesy.LOUD[0] = True


@pytest.fixture
def call(capsys):
    """Call the command line; returns its status, standard output and standard error."""
    from fedrzo.cli.main import main

    def run(*args):
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def fails(call):
    """Call with bad input: status 2, nothing on standard output, one line on standard error, which is returned."""

    def run(*args):
        status, out, err = call(*args)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("fedrzo: ")
        return err.removeprefix("fedrzo: ").rstrip("\n")

    return run
