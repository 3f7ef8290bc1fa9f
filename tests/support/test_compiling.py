"""How runs are compiled: options that are known here are used, others and the user's own left alone; pieces change no bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo.federation import directions
from fedrzo.support import compiling
from fedrzo.support.compiling import compiler_options, pieces_work, single_function, unsplit
from fedrzo.support.pytrees import index

MARK = "xla_cpu_small_call"


def test_known_options_are_used(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    compiler_options.cache_clear()
    assert compiler_options("gpu", True) == {}
    assert compiler_options("cpu", False) == compiling.SUMS
    assert compiler_options("cpu", True) == compiling.SUMS | compiling.WIDE
    jax.jit(lambda x: x + 1, compiler_options=compiler_options("cpu", True))(1.0)


def test_unknown_ones_and_the_users_own_are_left_alone(monkeypatch):
    monkeypatch.setattr(compiling, "SUMS", {"xla_cpu_no_such_option": True})
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256")
    compiler_options.cache_clear()
    try:
        assert compiler_options("cpu", True) == {}
    finally:
        compiler_options.cache_clear()


def draw_many(wanted, shape=(2, 3), dim=5000, dtype=jnp.float32):
    """Directions of several runs' clients, as compiled code, and the code."""
    keys = jax.random.key_data(jax.random.split(jax.random.key(3), shape))

    def draw(words):
        with unsplit(wanted):
            return directions.sphere(jax.random.wrap_key_data(words), dim, 0.1, dtype)

    compiled = jax.jit(jax.vmap(jax.vmap(draw))).lower(keys).compile()
    return np.asarray(compiled(keys)), compiled.as_text()


@pytest.mark.parametrize(("dim", "dtype"), [(1, "float32"), (5000, "float32"), (40_000, "float32"), (5000, "float64")])
def test_directions_in_one_piece_have_the_same_bits(dim, dtype):
    """In vmaps of vmaps, as in a sweep; 30,000 numbers are enough for XLA to split them where they are no pieces."""
    assert pieces_work()  # with the JAX that is installed here
    with jax.enable_x64(dtype == "float64"):
        split, plain = draw_many(False, dim=dim, dtype=dtype)
        whole, marked = draw_many(True, dim=dim, dtype=dtype)
    assert MARK not in plain
    assert MARK in marked
    np.testing.assert_array_equal(whole, split)


def test_a_key_that_is_a_constant_is_drawn_from_as_well():
    """XLA ends the process if a piece is given a constant; so it is not."""

    def draw(radius):
        with unsplit(True):
            return directions.sphere(jax.random.key(0), 3000, radius, jnp.float32)

    np.testing.assert_array_equal(jax.jit(draw)(0.1), directions.sphere(jax.random.key(0), 3000, 0.1, jnp.float32))


def test_where_pieces_do_not_work_there_are_none(monkeypatch):
    monkeypatch.setattr(compiling, "pieces_work", lambda: False)
    assert MARK not in draw_many(True, (1, 2), 10)[1]


@pytest.mark.parametrize("broken", ["runtime", "wrong"])
def test_a_compiler_that_cannot_make_pieces_is_found_out(monkeypatch, broken):
    def bad(function, *arguments):
        if broken == "runtime":
            raise jax.errors.JaxRuntimeError("INTERNAL: no such thing")
        return function(*arguments) + 1

    monkeypatch.setattr(compiling, "_piece", bad)
    assert not pieces_work.__wrapped__()


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.float16, jnp.bfloat16, np.float32, np.complex64])
@pytest.mark.parametrize("alone", [True, False])
def test_samples_of_any_type_are_fetched_in_one_piece(dtype, alone):
    """A single array too: XLA cannot compile a piece that ends with an operation which it splits."""
    rows = np.random.default_rng(0).integers(0, 50, (3, 400)).astype(np.int32)
    images = jnp.asarray(np.arange(50 * 300).reshape(50, 300) % 100).astype(dtype)
    data = images if alone else {"images": images, "labels": jnp.arange(50)}

    def fetch(rows, data):
        with unsplit(True):
            return jax.vmap(lambda row: single_function(lambda row, data: index(data, row), row, data))(rows)

    compiled = jax.jit(fetch).lower(rows, data).compile()
    assert MARK in compiled.as_text()
    jax.tree.map(np.testing.assert_array_equal, compiled(rows, data), index(data, rows))
    constant = jax.jit(lambda rows: fetch(rows, data)).lower(rows).compile()  # no piece, or the process would end
    jax.tree.map(np.testing.assert_array_equal, constant(rows), index(data, rows))
