"""The direction generator: its bits, its normals, its spheres. All p-values are of fixed seeds, held to 1e-3 over each family."""

import hashlib
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import battery
from fedrzo import directions
from fedrzo.federation import path_key

KEY = jax.random.wrap_key_data(np.array([0x12345678, 0x9ABCDEF0], np.uint32))
WORDS = 1 << 20
CONFIDENCE = 1e-3  # the chance that a perfect generator fails one of the tests below, were its seed drawn anew


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def keys(count, seed=0):
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(count))


def unpacked():
    """The table's columns: the quantile at each node, and how far it falls to the next."""
    return directions.table() >> directions.DROP, directions.table() & ((1 << directions.DROP) - 1)


def test_the_wire_contract():
    """These numbers are what both ends of a wire agree on: whoever changes one must raise the version."""
    assert directions.VERSION == 2
    assert [hex(word) for word in np.asarray(directions.bits(KEY, 3)).tolist()] == [
        "0x4044d585",
        "0x1e80e781",
        "0xe52a06df",
    ]
    assert directions.integers(KEY, 6).tolist() == [5499, 9661, -2179, 7013, -1467, -7709]
    assert digest(np.concatenate(unpacked())) == "00ffa7353eedb529"
    assert digest(directions.sphere(KEY, 1000, 0.1, jnp.float32)) == "5924d06ba884a730"
    assert (
        digest(directions.sphere(KEY, 70_000, 0.1, jnp.float32)) == "00cda1cd0f21b599"
    )  # more than a block of squares
    with jax.enable_x64(True):
        assert digest(directions.sphere(KEY, 1000, 0.1, jnp.float64)) == "cb2cb08560093b1c"


def plain_integers(key, dim):
    """The same numbers from Python's own integers."""
    first, last = (int(word) for word in np.asarray(jax.random.key_data(key))[[0, -1]])
    value, drop = (column.tolist() for column in unpacked())
    found, mask = [], 0xFFFFFFFF
    for i in range(dim):
        x = (i * 0x9E3779B9 + first) & mask
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & mask
        x = (((x ^ (x >> 15)) + last) * 0x846CA68B) & mask
        x ^= x >> 16
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


@pytest.mark.parametrize("dim", [1, 2, 7, 3140, 40_000, 100_003])
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
    weak = np.random.default_rng(0).integers(2**32, size=WORDS, dtype=np.uint32) | (
        np.arange(WORDS, dtype=np.uint32) % 101 == 0
    )
    assert min(battery.run(weak.astype(np.uint32)).values()) < 1e-12


def test_flipping_a_bit_of_the_key_or_of_the_place_flips_half_of_the_bits():
    """Avalanche: over random keys, each output bit flips with chance one half, to five standard errors of 32 x 64 counts."""
    words = np.random.default_rng(0).integers(2**32, size=(4096, 2), dtype=np.uint32)

    def at(words):
        return np.asarray(jax.vmap(lambda w: directions.bits(jax.random.wrap_key_data(w), 5)[4])(jnp.asarray(words)))

    base, bound = at(words), 5 * np.sqrt(0.25 / len(words))
    for j in range(32):
        flipped = base ^ at(words ^ np.array([1 << j, 0], np.uint32))
        assert np.all(np.abs(battery.bit(flipped[:, None], np.arange(32, dtype=np.uint32)).mean(0) - 0.5) < bound), j


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
    bits = np.concatenate([np.arange(1, 2000, 2), np.geomspace(2001, 2**31 - 1, 20_000)]).astype(np.uint32) | np.uint32(
        1
    )
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
    v = np.asarray(jax.jit(jax.vmap(lambda key: directions.sphere(key, dim, 1.0, jnp.float32)))(keys(count))).astype(
        float
    )
    onto = np.random.default_rng(0).normal(size=(5, dim))
    onto /= np.linalg.norm(onto, axis=1, keepdims=True)
    for axis in [*onto, np.eye(dim)[0], np.eye(dim)[-1]]:
        assert stats.kstest((v @ axis) ** 2, stats.beta(0.5, (dim - 1) / 2).cdf).pvalue > CONFIDENCE / 7
        assert stats.binomtest(int(np.sum(v @ axis > 0)), count).pvalue > CONFIDENCE / 7
    second = v.T @ v / count - np.eye(dim) / dim
    spread = np.sqrt(2 / (dim * (dim + 2)))  # bounds the standard deviation of any product of two entries
    assert np.max(np.abs(second)) < 5 * spread / np.sqrt(count)
    fourth = np.mean(v**4, axis=0)
    assert np.max(np.abs(fourth - 3 / (dim * (dim + 2)))) < 5 * np.sqrt(
        105 / (dim * (dim + 2) * (dim + 4) * (dim + 6)) / count
    )


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
