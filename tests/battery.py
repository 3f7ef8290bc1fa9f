"""A battery of standard tests on 32-bit words: each returns p-values, uniform on [0, 1] for independent uniform words."""

import numpy as np
from scipy import stats

WORD = np.uint32


def bit(words, j):
    return (words >> WORD(j)) & WORD(1)


def two_sided(score):
    return 2 * stats.norm.sf(np.abs(score))


def frequencies(words):
    """Each bit is one half of the time set."""
    n = words.size
    return {f"bit {j}": two_sided((int(bit(words, j).sum()) - n / 2) / np.sqrt(n / 4)) for j in range(32)}


def serial(words):
    """Pairs of bytes of successive words, without overlap, fill 256 x 256 cells evenly."""
    found = {}
    for j in range(0, 32, 8):
        byte = ((words >> WORD(j)) & WORD(255)).astype(np.int64)
        for lag in (1, 2, 4, 16):
            firsts, seconds = byte.reshape(-1, 2, lag).transpose(1, 0, 2).reshape(2, -1)
            found[f"byte {j // 8}, lag {lag}"] = stats.chisquare(np.bincount(firsts * 256 + seconds, minlength=65536)).pvalue
    return found


def weights(words):
    """The number of set bits is binomial, and that of one word says nothing about that of another."""
    count = np.bitwise_count(words)
    edges = np.arange(9, 24)
    cells = np.digitize(count, edges)
    below = stats.binom.cdf(np.concatenate([edges - 1, [32]]), 32, 0.5)
    chance = np.diff(below, prepend=0.0)
    found = {"weight": stats.chisquare(np.bincount(cells, minlength=16), chance * words.size).pvalue}
    for lag in (1, 2, 8, 32):
        firsts, seconds = cells.reshape(-1, 2, lag).transpose(1, 0, 2).reshape(2, -1)
        table = np.bincount(firsts * 16 + seconds, minlength=256)
        found[f"weights, lag {lag}"] = stats.chisquare(table, np.outer(chance, chance).ravel() * firsts.size).pvalue
    return found


def correlations(words):
    """A bit and the same bit some words later agree half of the time."""
    found = {}
    for j in (0, 1, 7, 15, 16, 23, 30, 31):
        sign = 2 * bit(words, j).astype(np.int32) - 1
        for lag in (1, 2, 3, 5, 8, 16, 17, 32, 64, 1024):
            found[f"bit {j}, lag {lag}"] = two_sided(int((sign[:-lag] * sign[lag:]).sum()) / np.sqrt(sign.size - lag))
    return found


def birthdays(words, points=4096, days=30):
    """Marsaglia's birthday spacings: among the spacings of sorted points, repetitions are Poisson."""
    groups = words.size // points
    sorted_ = np.sort((words[: groups * points].reshape(groups, points) >> WORD(32 - days)).astype(np.int64), axis=1)
    spacings = np.sort(np.diff(sorted_, axis=1), axis=1)
    repeated = int((np.diff(spacings, axis=1) == 0).sum())
    expected = groups * points**3 / (4 * 2.0**days)
    low, high = stats.poisson.cdf(repeated, expected), stats.poisson.sf(repeated - 1, expected)
    return {"birthday spacings": min(1.0, 2 * min(low, high))}


def ranks(words, matrices=20_000):
    """Binary 32 x 32 matrices have full rank, one less, or two less, as often as random ones."""
    rows = words[: matrices * 32].reshape(matrices, 32).copy()
    everyone, rank = np.arange(matrices), np.zeros(matrices, int)
    used = np.zeros(rows.shape, bool)
    for j in range(32):
        set_ = bit(rows, j).astype(bool)
        free = set_ & ~used
        found, pivot = free.any(axis=1), free.argmax(axis=1)
        set_[everyone, pivot] = False
        rows ^= np.where(set_ & found[:, None], rows[everyone, pivot][:, None], WORD(0))
        used[everyone[found], pivot[found]] = True
        rank += found
    counts = [np.sum(rank == 32), np.sum(rank == 31), np.sum(rank == 30), np.sum(rank < 30)]
    chances = np.array([0.2887880951, 0.5775761902, 0.1283502644])
    return {"ranks": stats.chisquare(counts, np.append(chances, 1 - chances.sum()) * matrices).pvalue}


def run(words):
    """Return all p-values; the number of words must be a multiple of 64."""
    words = np.ascontiguousarray(words, WORD).ravel()
    parts = (frequencies, serial, weights, correlations, birthdays, ranks)
    return {name: p for part in parts for name, p in part(words).items()}
