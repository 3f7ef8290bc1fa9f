"""How runs are compiled: options that are known here are used, others and the user's own left alone."""

import jax

from fedrzo.support import compiling
from fedrzo.support.compiling import compiler_options


def test_known_options_are_used(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    compiler_options.cache_clear()
    assert compiler_options("gpu", True) == compiling.GRAPHS
    assert compiler_options("tpu", True) == {}
    assert compiler_options("cpu", False) == compiling.SUMS
    assert compiler_options("cpu", True) == compiling.SUMS | compiling.WIDE
    assert compiler_options("cpu", False, little=True) == compiling.SUMS | compiling.FAST
    assert compiler_options("cpu", True, quick=True) == compiling.CHEAP
    jax.jit(lambda x: x + 1, compiler_options=compiler_options("cpu", True))(1.0)


def test_unknown_ones_and_the_users_own_are_left_alone(monkeypatch):
    monkeypatch.setattr(compiling, "SUMS", {"xla_cpu_no_such_option": True})
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256")
    compiler_options.cache_clear()
    try:
        assert compiler_options("cpu", True) == {}
    finally:
        compiler_options.cache_clear()
