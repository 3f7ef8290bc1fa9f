"""Keys whose hash is written out yield the numbers of JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo.support.keys import below, usual, written_out

words = jax.random.key_data


@pytest.mark.parametrize("seed", [0, 1, 2**31, -1])
def test_same_numbers(seed):
    key = jax.random.key(seed)
    ours = written_out(key)
    assert jax.random.key_impl(ours) != jax.random.key_impl(key)
    for draw in (
        lambda key: words(jax.random.fold_in(key, 2**32 - 1)),
        lambda key: words(jax.random.split(key, (3, 2))),
        lambda key: words(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(7))),
        lambda key: jax.random.bits(key, (4, 5)),
        lambda key: jax.random.bits(key, (9,), jnp.uint8),
        lambda key: jax.random.randint(key, (50,), 0, 977),
        lambda key: jax.random.normal(key, (6, 7)),
        lambda key: jax.random.permutation(key, 20),
    ):
        np.testing.assert_array_equal(draw(ours), draw(key))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.random.normal(ours, (9,)), jax.random.normal(key, (9,)))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("span", [1, 2, 7, 977, 65_536, 65_537, 2**31 - 1])
def test_whole_numbers_are_those_of_randint(span, x64):
    key = jax.random.key(5)
    with jax.enable_x64(x64):
        wanted = jax.random.randint(key, (3, 40), 0, span, dtype=jnp.int32)
        for ours in (key, written_out(key)):
            found = jax.jit(below, static_argnums=2)(span, ours, (3, 40))
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_no_loop_is_left():
    """What it is for: on a CPU JAX's own hash is a loop."""
    key = jax.random.key(0)
    loops = [
        jax.jit(lambda key: words(jax.random.fold_in(key, 3))).lower(k).as_text().count("while") for k in (key, written_out(key))
    ]
    assert loops[0] > 0
    assert loops[1] == 0


def test_back_again_and_other_kinds():
    key = jax.random.key(7)
    assert jax.random.key_impl(usual(written_out(key))) == jax.random.key_impl(key)
    np.testing.assert_array_equal(words(usual(written_out(key))), words(key))
    assert usual(key) is key
    other = jax.random.key(7, impl="rbg")
    assert written_out(other) is other
    with jax.threefry_partitionable(False):
        assert written_out(key) is key


def test_a_hash_outside_of_compiled_code_is_compiled_once(caplog):
    key = written_out(jax.random.key(0))
    first = jax.random.key_data(jax.random.fold_in(key, 1))
    with jax.log_compiles():
        second = jax.random.key_data(jax.random.fold_in(key, 2))
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]
    assert not np.array_equal(first, second)
