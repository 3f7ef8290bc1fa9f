"""The direction generator: its bits, its normals, its spheres. All p-values are of fixed seeds, held to 1e-3 over each family."""

import functools
import hashlib
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import battery
from fedrzo.federation import directions
from fedrzo.federation.protocol import path_key

KEY = jax.random.wrap_key_data(np.array([0x12345678, 0x9ABCDEF0], np.uint32))
WORDS = 1 << 20
CONFIDENCE = 1e-3  # the chance that a perfect generator fails one of the tests below, were its seed drawn anew


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def keys(count, seed=0):
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(count))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _over_keys(function, words, dim):
    return jax.vmap(lambda key: function(jax.random.wrap_key_data(key), dim))(words)


def over_keys(function, firsts, lasts, dim):
    """What a function of a key and a dimension gives for keys with these words: a row each."""
    words = np.stack(np.broadcast_arrays(firsts, lasts), axis=-1).astype(np.uint32)
    return np.asarray(_over_keys(function, words.reshape(-1, 2), dim)).reshape(*words.shape[:-1], dim)


def unit(key, dim):
    return directions.sphere(key, dim, 1.0, jnp.float32)


def unpacked():
    """The table's columns: the quantile at each node, and how far it falls to the next."""
    return directions.table() >> directions.DROP, directions.table() & ((1 << directions.DROP) - 1)


def test_the_wire_contract():
    """These numbers are what both ends of a wire agree on: whoever changes one must raise the version."""
    assert directions.VERSION == 3
    assert [hex(word) for word in np.asarray(directions.words(KEY)).tolist()] == ["0x175248a3", "0x4c257d5"]
    assert [hex(word) for word in np.asarray(directions.bits(KEY, 3)).tolist()] == [
        "0xe8648aec",
        "0x6f095fe8",
        "0x1362d9a4",
    ]
    assert directions.integers(KEY, 6).tolist() == [-1911, 1367, 11751, 19015, -5555, -6501]
    assert digest(np.concatenate(unpacked())) == "00ffa7353eedb529"
    assert digest(directions.sphere(KEY, 1000, 0.1, jnp.float32)) == "cc5ca0373ad60e71"
    assert digest(directions.sphere(KEY, 70_000, 0.1, jnp.float32)) == "93c532e9477a37e6"  # more than a block of squares
    with jax.enable_x64(True):
        assert digest(directions.sphere(KEY, 1000, 0.1, jnp.float64)) == "8677bb562d72f8e1"


def plain_integers(key, dim):
    """The same numbers from Python's own integers."""
    first, last = (int(word) for word in np.asarray(jax.random.key_data(key))[[0, -1]])
    value, drop = (column.tolist() for column in unpacked())

    def mixed(x, word):
        x &= 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * 0x7FEB352D + word) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ (x >> 16)

    first ^= mixed(last + 0x9E3779B9, 0)
    last ^= mixed(first + 0x9E3779B9, 0)
    found = []
    for i in range(dim):
        x = mixed(i * 0x9E3779B9 + first, last)
        mantissa, exponent = np.frexp(np.float32((x & 0x7FFFFFFF) | 1))
        place = int(np.ldexp(mantissa, 24)) - (1 << 23)
        node = (int(exponent) - 1) * 64 + (place >> 17)
        z = (value[node] - (drop[node] * (place & 0x1FFFF) >> 17)) >> 3 | 1
        found.append(-z if x >> 31 else z)
    return found


@pytest.mark.parametrize("path", [(0,), (3, 1), (7, 2, 5)])
def test_a_second_implementation_agrees(path):
    key = path_key(jax.random.key(1), path)
    integers = plain_integers(key, 500)
    assert directions.integers(key, 500).tolist() == integers
    squares = sum(z * z for z in integers)
    assert float(directions.squared_length(jnp.array(integers))) == pytest.approx(squares, rel=2**-23)
    v = directions.sphere(key, 500, 0.3, jnp.float32)
    np.testing.assert_allclose(v, 0.3 * np.array(integers) / np.sqrt(squares), rtol=4e-7)


@pytest.mark.parametrize("dim", [1, 7, 40_000])
def test_bits_do_not_depend_on_how_they_are_computed(dim):
    """Alone, compiled, or in the middle of a batch of keys."""
    many = keys(3)
    alone = [np.asarray(directions.sphere(key, dim, 0.1, jnp.float32)) for key in many]
    batched = jax.jit(jax.vmap(lambda key: directions.sphere(key, dim, 0.1, jnp.float32)))(many)
    used = jax.jit(lambda key: jnp.stack([directions.sphere(key, dim, 0.1, jnp.float32)] * 2).sum(0) / 2)(many[1])
    for one, row in zip(alone, np.asarray(batched), strict=True):
        assert one.tobytes() == row.tobytes()
        assert np.linalg.norm(one.astype(float)) == pytest.approx(0.1, rel=3e-7)
        assert np.all(one != 0)
    assert np.asarray(used).tobytes() == alone[1].tobytes()


def test_the_inverse_root_is_right_to_its_last_bit_or_the_one_before():
    t = np.concatenate([np.arange(1, 5000), np.random.default_rng(0).integers(1, 2**45, 100_000)]).astype(np.float32)
    found = np.asarray(jax.vmap(directions.inverse_root)(jnp.asarray(t)))
    exact = 1 / np.sqrt(t.astype(float))
    assert np.max(np.abs(found - exact) / np.spacing(exact.astype(np.float32))) < 1


def test_squares_are_added_up_without_overflow():
    z = jnp.full(200_001, 51_039)  # the largest there is
    assert float(directions.squared_length(z)) == pytest.approx(200_001 * 51_039**2, rel=2**-22)


def streams():
    """Words in the orders in which a run could meet them."""
    count = WORDS // 1024
    by_key = np.asarray(jax.vmap(lambda key: directions.bits(key, 1024))(keys(count)))
    root = jax.random.key(5)
    path = jax.vmap(lambda r: jax.vmap(lambda i: directions.bits(path_key(root, (r, 0, i, 3)), 64))(jnp.arange(128)))
    return {
        "one direction": np.asarray(directions.bits(jax.random.key(2), WORDS)),
        "one key after the other": by_key,
        "one place over keys": by_key.T,
        "clients and rounds": np.asarray(path(jnp.arange(WORDS // 64 // 128))),
        "one place over first words that count": over_keys(directions.bits, np.arange(count), 9, 1024).T,
        "one place over last words that count": over_keys(directions.bits, 7, np.arange(count), 1024).T,
    }


@pytest.mark.parametrize(("name", "words"), streams().items())
def test_the_bits_pass_a_standard_battery(name, words):
    found = battery.run(words)
    worst = min(found, key=found.get)
    assert len(found) > 130
    assert found[worst] > CONFIDENCE / len(found), (name, worst, found[worst])  # Bonferroni


def test_the_battery_can_fail():
    counter = np.arange(WORDS, dtype=np.uint32) * np.uint32(2654435761)
    assert min(battery.run(counter).values()) < 1e-12
    weak = np.random.default_rng(0).integers(2**32, size=WORDS, dtype=np.uint32) | (np.arange(WORDS, dtype=np.uint32) % 101 == 0)
    assert min(battery.run(weak.astype(np.uint32)).values()) < 1e-12


def test_flipping_a_bit_of_the_key_or_of_the_place_flips_half_of_the_bits():
    """Avalanche: over random keys, each output bit flips with chance one half, to five standard errors of 32 x 69 counts."""
    firsts, lasts = np.random.default_rng(0).integers(2**32, size=(2, 4096), dtype=np.uint32)
    flips, none = np.uint32(1) << np.arange(32, dtype=np.uint32)[:, None], np.zeros((32, 1), np.uint32)
    base = over_keys(directions.bits, firsts, lasts, 32)
    found = {f"place, bit {j}": base[:, 0] ^ base[:, 1 << j] for j in range(5)}
    for word, (first, last) in {"first": (flips, none), "last": (none, flips)}.items():
        other = over_keys(directions.bits, firsts ^ first, lasts ^ last, 5)
        found |= {f"{word} word, bit {j}": base[:, 4] ^ other[j, :, 4] for j in range(32)}
    for name, words in found.items():
        often = battery.bit(words[:, None], np.arange(32, dtype=np.uint32)).mean(0)
        assert np.all(np.abs(often - 0.5) < 5 * np.sqrt(0.25 / firsts.size)), name


def test_keys_whose_words_are_neighbours_give_independent_directions():
    """Such are `jax.random.key(0)`, `jax.random.key(1)`, ...; keys (7, 9) and (7, 9 + 2^31) once gave opposite directions."""
    dim, flips = 1 << 14, np.uint32(1) << np.arange(32, dtype=np.uint32)
    v = over_keys(unit, [7], [9], dim)[0]
    firsts, lasts = np.append(flips ^ np.uint32(7), [7] * 32), np.append([9] * 32, flips ^ np.uint32(9))
    cosines = over_keys(unit, firsts, lasts, dim) @ v * np.sqrt(dim)
    assert lasts[-1] == 9 + (1 << 31)
    assert np.max(np.abs(cosines)) < NormalDist().inv_cdf(1 - CONFIDENCE / 2 / 64)


@pytest.mark.parametrize("shared", ["first", "last"])
def test_keys_that_share_a_word_give_independent_directions(shared):
    """All pairs of 512 keys that share a word, for 64 words: mean, mean square and largest of their cosines.

    Cosines of independent directions have variance 1/n, their squares 2 (n - 1) / (n^2 (n + 2)), and any two are independent,
    also if they have a direction in common. `benchmarks/directions.py` asks a million keys.
    """
    dim, groups, count = 64, 64, 512
    words = np.random.default_rng(1).integers(2**32, size=(groups, 1 + count), dtype=np.uint32)
    one, others = words[:, :1], words[:, 1:]
    v = over_keys(unit, *((one, others) if shared == "first" else (others, one)), dim)
    cosines = np.einsum("gij,gkj->gik", v, v, optimize=True)[:, *np.triu_indices(count, 1)]
    assert abs(cosines.mean()) < 4 / np.sqrt(cosines.size * dim)
    spread = np.sqrt(2 * (dim - 1) / (dim**2 * (dim + 2)))
    assert abs(np.mean(cosines**2) - 1 / dim) < 4 * spread / np.sqrt(cosines.size)
    assert cosines.size * stats.beta(0.5, (dim - 1) / 2).sf(np.abs(cosines).max() ** 2) > CONFIDENCE


def test_directions_do_not_repeat():
    """A million neighbouring keys: none has the first two numbers of another, and their first numbers repeat as random ones."""
    found = over_keys(directions.bits, np.arange(1024)[:, None], np.arange(1024), 2).reshape(-1, 2)
    pairs, firsts = np.sort(found.view(np.uint64)[:, 0]), np.sort(found[:, 0])
    assert np.all(pairs[1:] != pairs[:-1])
    repeated, expected = np.sum(firsts[1:] == firsts[:-1]), len(found) ** 2 / 2**33
    assert min(stats.poisson.cdf(repeated, expected), stats.poisson.sf(repeated - 1, expected)) > CONFIDENCE / 2


def test_no_window_of_a_direction_is_that_of_another():
    """Keys whose first words lie some strides apart, by which places do too: once nearly the same numbers, in other places."""
    dim, lags = 1 << 14, np.arange(1, 33)
    v, *others = over_keys(unit, 7 + np.arange(33) * directions.STRIDE, 9 + np.arange(33), dim)
    for lag, other in zip(lags, others, strict=True):
        products = float(v[lag:] @ other[:-lag]), float(v[:-lag] @ other[lag:])
        assert np.max(np.abs(products)) * np.sqrt(dim) < NormalDist().inv_cdf(1 - CONFIDENCE / 4 / 32), lag


def test_normals_have_the_normal_distribution():
    z = np.asarray(directions.normal(jax.random.key(0), 1 << 22, jnp.float32)).astype(float)
    n = z.size
    assert stats.kstest(z, "norm").pvalue > CONFIDENCE
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)):
        assert abs(np.mean(z**power) - mean) < 4 * np.sqrt(variance / n), power
    for level in (3.0, 4.0, 5.0):
        expected = n * 2 * NormalDist().cdf(-level)
        assert stats.binomtest(int(np.sum(np.abs(z) > level)), n, expected / n).pvalue > CONFIDENCE, level


def test_quantiles_are_those_of_the_normal_distribution():
    """Against the exact quantile of each probability, in the middle and far out."""
    bits = np.concatenate([np.arange(1, 2000, 2), np.geomspace(2001, 2**31 - 1, 20_000)]).astype(np.uint32) | np.uint32(1)
    z = np.asarray(directions.quantile(lambda: jnp.asarray(bits))) / 2**directions.FRACTION
    exact = -stats.norm.ppf(bits / 2**32)
    assert np.max(np.abs(z - exact)) < 3e-5 + 2.0**-12
    np.testing.assert_array_equal(
        directions.quantile(lambda: jnp.asarray(bits | np.uint32(1 << 31))), -z * 2**directions.FRACTION
    )


@pytest.mark.parametrize("dim", [2, 3, 10, 50])
def test_directions_are_uniform_on_the_sphere(dim):
    """A projection's square is Beta(1/2, (n-1)/2); second and fourth moments are those of the sphere."""
    count = 100_000
    v = np.asarray(jax.jit(jax.vmap(lambda key: directions.sphere(key, dim, 1.0, jnp.float32)))(keys(count))).astype(float)
    onto = np.random.default_rng(0).normal(size=(5, dim))
    onto /= np.linalg.norm(onto, axis=1, keepdims=True)
    for axis in [*onto, np.eye(dim)[0], np.eye(dim)[-1]]:
        assert stats.kstest((v @ axis) ** 2, stats.beta(0.5, (dim - 1) / 2).cdf).pvalue > CONFIDENCE / 7
        assert stats.binomtest(int(np.sum(v @ axis > 0)), count).pvalue > CONFIDENCE / 7
    second = v.T @ v / count - np.eye(dim) / dim
    spread = np.sqrt(2 / (dim * (dim + 2)))  # bounds the standard deviation of any product of two entries
    assert np.max(np.abs(second)) < 5 * spread / np.sqrt(count)
    fourth = np.mean(v**4, axis=0)
    assert np.max(np.abs(fourth - 3 / (dim * (dim + 2)))) < 5 * np.sqrt(105 / (dim * (dim + 2) * (dim + 4) * (dim + 6)) / count)


def test_directions_of_steps_clients_and_rounds_are_independent():
    """Inner products of directions whose keys are neighbours have variance 1/n and no mean, and do not repeat."""
    dim, count = 64, 2048
    root = jax.random.key(9)

    def draw(*path):
        return directions.sphere(path_key(root, path), dim, 1.0, jnp.float32)

    steps, zero = jnp.arange(count), jnp.zeros(count, jnp.int32)
    families = [(steps, zero, zero), (zero, steps, zero), (zero, zero, steps)]
    for family in families:
        v = np.asarray(jax.vmap(draw)(*family)).astype(float)
        for lag in (1, 2, 7):
            products = np.sum(v[:-lag] * v[lag:], axis=1) * np.sqrt(dim)
            assert abs(products.mean()) < 4 / np.sqrt(count)
            assert abs(np.mean(products**2) - 1) < 4 * np.sqrt(2 / count)
        assert len({row.tobytes() for row in v}) == count
