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

# CI has twenty minutes on two cores, and most of a test's time is compilation. Files that take longest, and whose subject is
# checked more briefly elsewhere, belong to `make test-slow` as a whole.
LONG = """
    engines/test_ray_resume.py paper/test_figures.py
    methods/test_bilevel_bias.py methods/test_decomfl.py methods/test_fedavg.py methods/test_fedbioacc.py methods/test_fedmspp.py
    methods/test_fednest.py methods/test_fedprox.py methods/test_fedrzo_bl_refusals.py methods/test_fedzo.py
    methods/test_gradient_methods.py methods/test_hypergradient.py methods/test_known_answers.py methods/test_local_sgda.py
    methods/test_memfbo.py methods/test_scaffnew.py methods/test_simfbo.py methods/test_zsol.py
    certificates/test_interval.py
    theory/test_estimates.py running/test_tuning.py
    zoo/test_bilevel.py zoo/test_cnn.py zoo/test_cournot.py zoo/test_logistic.py zoo/test_minimax.py zoo/test_mpecs.py
    zoo/test_published.py zoo/test_synthetic.py
""".split()  # noqa: SIM905


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of long files as slow."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).as_posix() in LONG:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="module")
def _free_compiled_programs() -> Iterator[None]:
    """Drop what a file's tests compiled: each program holds memory maps, and a process may have some 65,000 of them."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()


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
