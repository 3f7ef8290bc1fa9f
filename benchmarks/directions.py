"""How independent the directions of different keys are: collisions and cosines over a million keys, windows of long directions.

    python benchmarks/directions.py [--quick] [--json]

Keys come in families: random ones, such that share a word, and such whose words are small integers. Each line tells how a
family's number compares with that of independent directions: scores are in standard deviations, chances are p-values. The last
line is the known weakness: of the two words that places are hashed with, the first is the same, as for one pair of keys in 2^32.
About two minutes of processor time, a tenth of that with --quick.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import fft, stats

from fedrzo.federation import directions

DIM, LONG = 64, 307_300
GROUP = 1024  # keys all of whose pairs are compared
OVERLAP = 1000  # places that two windows must share
Words = tuple[np.ndarray, np.ndarray]


def families(count: int, rng: np.random.Generator) -> Iterator[tuple[str, Words]]:
    """Return names, and the first and last words of a group's keys."""
    fresh = [distinct(count, rng) for _ in range(2)]
    start, one = rng.integers(2**31, size=2, dtype=np.uint32), np.ones(count, np.uint32)
    numbers = np.arange(count, dtype=np.uint32)
    yield "random keys", (fresh[0], fresh[1])
    yield "the same first word", (one * start[0], fresh[1])
    yield "the same last word", (fresh[0], one * start[1])
    yield "first words that count", (start[0] + numbers, one * start[1])
    yield "last words that count", (one * start[0], start[1] + numbers)
    yield "first words some strides apart", (start[0] + numbers * np.uint32(directions.STRIDE), fresh[1])


def distinct(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw words none of which is another."""
    found = np.unique(rng.integers(2**32, size=count + count // 64 + 16, dtype=np.uint32))
    return rng.permutation(found)[:count]


@jax.jit
def unit(words: jax.Array) -> jax.Array:
    """Return the directions of keys with these words, at n = 64."""
    return jax.vmap(lambda pair: directions.sphere(jax.random.wrap_key_data(pair), DIM, 1.0, jnp.float32))(words)


@jax.jit
def cosines(words: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the sums of a group's cosines and of their squares over all pairs, and the largest."""
    v = unit(words)
    products = jnp.where(jnp.tri(len(v), k=-1, dtype=bool), v @ v.T, 0)
    return jnp.sum(products), jnp.sum(products**2), jnp.max(jnp.abs(products))


def over_groups(groups: int) -> list[dict[str, Any]]:
    """Return, for each family, the mean, the root mean square and the largest of the cosines within groups."""
    rng = np.random.default_rng(0)
    sums: dict[str, tuple[float, float, float]] = {}
    for _ in range(groups):
        for name, words in families(GROUP, rng):
            total, squares, largest = map(float, cosines(np.stack(words, axis=1)))
            before = sums.get(name, (0.0, 0.0, 0.0))
            sums[name] = before[0] + total, before[1] + squares, max(before[2], largest)
    pairs, spread = groups * GROUP * (GROUP - 1) / 2, math.sqrt(2 * (DIM - 1) / (DIM**2 * (DIM + 2)))
    return [
        {
            "keys": name,
            "rms": math.sqrt(squares / pairs),
            "mean_score": total / math.sqrt(pairs / DIM),
            "square_score": (squares - pairs / DIM) / (spread * math.sqrt(pairs)),
            "largest": largest,
            "largest_chance": -math.expm1(-pairs * stats.beta(0.5, (DIM - 1) / 2).sf(largest**2)),
        }
        for name, (total, squares, largest) in sums.items()
    ]


def repeated(groups: int) -> list[dict[str, Any]]:
    """Return how many of each family's keys, and of a grid of small integers, have the first number, or two, of another."""
    rng, found = np.random.default_rng(1), []
    grid = [word.ravel() for word in np.indices((groups, GROUP), np.uint32)]
    for name, words in [*families(groups * GROUP, rng), ("small integers", grid)]:
        bits = np.asarray(_two(np.stack(words, axis=1)))
        firsts, both = np.sort(bits[:, 0]), np.sort(bits.view(np.uint64)[:, 0])
        ones, expected = int(np.sum(firsts[1:] == firsts[:-1])), len(bits) ** 2 / 2**33
        chance = min(1.0, 2 * min(stats.poisson.cdf(ones, expected), stats.poisson.sf(ones - 1, expected)))
        twos = int(np.sum(both[1:] == both[:-1]))
        found.append({"keys": name, "one": ones, "expected": expected, "one_chance": chance, "two": twos})
    return found


@jax.jit
def _two(words: jax.Array) -> jax.Array:
    return jax.vmap(lambda pair: directions.bits(jax.random.wrap_key_data(pair), 2))(words)


def windows(pairs: int, dim: int) -> list[dict[str, Any]]:
    """Return the largest product of any window of a direction with any of another's, over pairs of keys of each family."""
    rng = np.random.default_rng(2)
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(pairs):
        cases = [*families(2, rng), ("mixed first words equal", _half_equal(rng))]
        for name, words in cases:
            first, second = (_integers(pair, dim) for pair in np.stack(words, axis=1))
            found.setdefault(name, []).append(_largest(first, second))
    lags = 2 * (dim - OVERLAP) + 1
    return [
        {
            "keys": name,
            "score": max(score for score, _ in scores),
            "chance": min(1.0, len(scores) * lags * 2 * stats.norm.sf(max(score for score, _ in scores))),
            "rms_score": math.sqrt(sum(aligned**2 for _, aligned in scores) / len(scores)),
        }
        for name, scores in found.items()
    ]


def _integers(words: np.ndarray, dim: int) -> np.ndarray:
    return np.asarray(directions.normal(jax.random.wrap_key_data(jnp.asarray(words)), dim, jnp.float32))


def _largest(v: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """Return the largest product of windows that share enough places, and that without a shift, in standard deviations."""
    size = fft.next_fast_len(2 * v.size, real=True)
    lagged = fft.irfft(fft.rfft(v.astype(float), size) * fft.rfft(w.astype(float), size).conj(), size)
    lags = np.arange(-(v.size - OVERLAP), v.size - OVERLAP + 1)
    scores = lagged[lags] / np.sqrt(v.size - np.abs(lags))
    return float(np.abs(scores).max()), float(lagged[0] / math.sqrt(v.size))


def _half_equal(rng: np.random.Generator) -> Words:
    """Return two keys whose first words are the same once they are mixed; the mixing can be undone."""
    mixed, lasts = (jnp.asarray(rng.integers(2**32, size=count, dtype=np.uint32)) for count in (1, 2))
    lasts = lasts ^ directions.hashed(np.uint32(1), mixed, np.uint32(0))
    return np.asarray(mixed ^ directions.hashed(np.uint32(1), lasts, np.uint32(0))), np.asarray(lasts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the keys and pairs")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    groups, pairs = (64, 2) if options.quick else (1024, 32)
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        f"cosines within {groups} groups of {GROUP} keys of each family, n = {DIM}": lambda: over_groups(groups),
        f"repeated numbers among {groups * GROUP:,} keys of each family": lambda: repeated(groups),
        f"windows of {pairs} pairs of directions, n = {LONG:,}": lambda: windows(pairs, LONG),
    }
    found = {title: part() for title, part in parts.items()}
    if options.json:
        print(json.dumps({"version": directions.VERSION, "parts": found}))
        return
    print(f"version {directions.VERSION}")
    for title, rows in found.items():
        print(f"\n{title}")
        for row in rows:
            name, *numbers = row.items()
            print(f"  {name[1]:<32}", *(f"{key} {value:.4g}" for key, value in numbers), sep="  ")


if __name__ == "__main__":
    main()
